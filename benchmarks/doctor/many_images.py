"""A data set of many photographs, to measure the time of the data doctor.

    python benchmarks/doctor/many_images.py --data coco128/dataset.yaml --images 20000 --out many

Each image is a random part of a photograph of the data set, at 640 x 480 px with other colors and
some noise, as a JPEG of quality 92: like a camera's, some 130 kB. The boxes of the part are its
labels. One image of a hundred is a copy of an earlier one, mirrored and compressed again.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.doctor.plant import read_rows
from data.formats.yolo_txt import label_path
from data.images import find_images
from data.layouts import open_data
from utils.images.opencv import cv2

SIZE = (640, 480)
QUALITY = 92
COPY_EVERY = 100
VAL_EVERY = 5


def noise_pool(random: np.random.Generator) -> list[np.ndarray]:
    """Return some pictures of noise, int16 [H, W, 3]."""
    width, height = SIZE
    return [random.normal(0, 4, (height, width, 3)).astype(np.int16) for _ in range(8)]


def draw(
    image: np.ndarray, rows: np.ndarray, noise: list[np.ndarray], random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return a random part of an image, changed, and its rows."""
    height, width, _ = image.shape
    share = random.uniform(0.5, 0.95)
    left = random.uniform(0, 1 - share)
    top = random.uniform(0, 1 - share)
    part = image[
        int(top * height) : int((top + share) * height),
        int(left * width) : int((left + share) * width),
    ]
    gains = np.arange(256)[:, None] * random.uniform(0.7, 1.3, 3)
    table = gains.clip(0, 255).astype(np.uint8)[None]
    changed = cv2.LUT(cv2.resize(part, SIZE, interpolation=cv2.INTER_LINEAR), table)
    drawn = cv2.add(changed, noise[random.integers(len(noise))], dtype=cv2.CV_8U)

    corners = np.concatenate([rows[:, 1:3] - rows[:, 3:] / 2, rows[:, 1:3] + rows[:, 3:] / 2], 1)
    moved = ((corners - np.array([left, top, left, top])) / share).clip(0, 1)
    sizes = moved[:, 2:] - moved[:, :2]
    kept = sizes.min(1, initial=1) > 0.01
    centers = (moved[:, :2] + moved[:, 2:]) / 2
    return drawn, np.concatenate([rows[kept, :1], centers[kept], sizes[kept]], 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", required=True, help="data YAML with labels in YOLO's format")
    add("--images", type=int, default=20_000)
    add("--out", type=Path, required=True, help="the new folder")
    options = parser.parse_args()

    spec = open_data(options.data)
    sources = []
    for paths in spec.splits.values():
        for source in paths:
            for path in find_images(source).images:
                rows = np.array(read_rows(Path(label_path(path)))).reshape(-1, 5)
                sources.append((cv2.imread(path), rows))

    random = np.random.default_rng(0)
    size = 0
    noise = noise_pool(random)
    drawn, rows = draw(*sources[0], noise, random)
    for number in range(options.images):
        quality = QUALITY
        if number % COPY_EVERY == COPY_EVERY - 1:
            drawn, quality = np.ascontiguousarray(drawn[:, ::-1]), 70
            rows[:, 1] = 1 - rows[:, 1]
        else:
            drawn, rows = draw(*sources[random.integers(len(sources))], noise, random)
        split = "val" if number % VAL_EVERY == 0 else "train"
        image = options.out / "images" / split / f"{number:06}.jpg"
        label = options.out / "labels" / split / f"{number:06}.txt"
        for file in (image, label):
            file.parent.mkdir(parents=True, exist_ok=True)
        _, encoded = cv2.imencode(".jpg", drawn, [cv2.IMWRITE_JPEG_QUALITY, quality])
        image.write_bytes(encoded.tobytes())
        size += len(encoded)
        lines = [f"{int(row[0])} {' '.join(f'{value:.6f}' for value in row[1:])}" for row in rows]
        label.write_text("".join(f"{line}\n" for line in lines))

    values = {"train": "images/train", "val": "images/val", "names": dict(enumerate(spec.names))}
    (options.out / "data.yaml").write_text(yaml.safe_dump(values))
    print(f"{options.images} images of {size / options.images / 1000:.0f} kB: {options.out}")


if __name__ == "__main__":
    main()
