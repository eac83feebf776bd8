"""A copy of a data set with planted faults, and the list of them, to measure the data doctor.

    python benchmarks/doctor/plant.py --data bccd/dataset.yaml --out planted/bccd

In all splits together 5 % of the boxes are dropped, 5 % get another class, 5 % are shifted: their
center moves by 25 % of width and height in a random direction. Ten images of the train split are
copied into the val split: as they are, mirrored, resized and compressed again, in turns. With
--files the faults are those of files instead: see FILE_FAULTS. `faults.json` in the new folder
lists what was planted; a data set of YOLO's folders is needed. The same seed plants the same.
"""

import argparse
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data.formats.yolo_txt import label_path
from data.images import find_images
from data.layouts import open_data
from utils.images.opencv import cv2

SHARE = 0.05  # of the boxes, for each kind of fault
SHIFT = 0.25  # of the box's sides
COPIES = 10
COPY_KINDS = ("plain", "mirrored", "resized", "compressed")
FILE_FAULTS = {
    "damaged image": 5,
    "missing label file": 5,
    "emptied label file": 5,
    "duplicate box": 10,  # the same class, moved by 2 % of its sides
    "box outside": 10,  # a coordinate of 1.2
    "tiny box": 10,  # 1 x 1 pixel
    "extreme shape": 5,  # 1 to 30
}

Row = list[float]  # class, center x, center y, width, height in fractions


# ------------------------------------------------------------------------------- the copied files


class PlantedData:
    """The images of a copy, by split, with their rows, and the faults."""

    def __init__(self, data: str, out: Path, seed: int) -> None:
        self.spec = open_data(data)
        self.out = out
        self.random = random.Random(seed)
        self.faults: list[dict[str, Any]] = []
        self.images: dict[str, list[Path]] = {}
        self.rows: dict[Path, list[Row]] = {}
        for split, sources in self.spec.splits.items():
            self.images[split] = []
            for source in sources:
                for path in find_images(source).images:
                    self._copy(split, Path(path))

    def _copy(self, split: str, path: Path) -> None:
        image = self.out / "images" / split / path.name
        image.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, image)
        self.images[split].append(image)
        self.rows[image] = read_rows(Path(label_path(path)))

    def add(self, kind: str, image: Path, **values: Any) -> None:
        """Record a fault."""
        self.faults.append({"kind": kind, "image": str(image.relative_to(self.out)), **values})

    def all_images(self) -> list[Path]:
        """Return the images of all splits, in their order."""
        return [image for images in self.images.values() for image in images]

    def save(self, without_label_file: set[Path]) -> None:
        """Write the label files, the data YAML and the list of faults."""
        for image, rows in self.rows.items():
            if image in without_label_file:
                continue
            file = Path(label_path(image))
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = [
                f"{int(row[0])} {' '.join(f'{value:.6f}' for value in row[1:])}" for row in rows
            ]
            file.write_text("".join(f"{line}\n" for line in lines))

        values = {split: f"images/{split}" for split in self.images}
        names = dict(enumerate(self.spec.names))
        (self.out / "data.yaml").write_text(yaml.safe_dump({**values, "names": names}))
        (self.out / "faults.json").write_text(json.dumps(self.faults, indent=1))


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a label file; none if it does not exist."""
    if not file.exists():
        return []
    return [[float(value) for value in line.split()] for line in file.read_text().splitlines()]


def corners(row: Row) -> list[float]:
    """Return left, top, right, bottom of a row, in fractions of the image."""
    _, x, y, width, height = row
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


# ------------------------------------------------------------------------------ faults of boxes


def plant_in_boxes(planted: PlantedData, originals: list[Path]) -> None:
    """Drop, swap and shift SHARE of the boxes each; no box has two faults."""
    places = [(image, index) for image in originals for index in range(len(planted.rows[image]))]
    planted.random.shuffle(places)
    count = round(len(places) * SHARE)
    dropped = places[:count]
    swapped = places[count : 2 * count]
    shifted = places[2 * count : 3 * count]

    classes = range(len(planted.spec.names))
    for image, index in swapped:
        row = planted.rows[image][index]
        others = [number for number in classes if number != row[0]]
        row_class, row[0] = row[0], planted.random.choice(others)
        planted.add("swapped", image, box=corners(row), label=row[0], true=row_class)

    for image, index in shifted:
        row = planted.rows[image][index]
        before = corners(row)
        shift(row, planted.random)
        planted.add("shifted", image, box=corners(row), label=row[0], true=before)

    for image, index in dropped:
        row = planted.rows[image][index]
        planted.add("dropped", image, box=corners(row), label=row[0])
    for image, index in sorted(dropped, reverse=True):
        del planted.rows[image][index]


def shift(row: Row, numbers: random.Random) -> None:
    """Move a box by SHIFT of its sides in a random direction, and cut it at the image's border."""
    angle = numbers.uniform(0, 2 * np.pi)
    _, x, y, width, height = row
    x += SHIFT * width * np.cos(angle)
    y += SHIFT * height * np.sin(angle)
    left, top, right, bottom = np.clip(corners([0, x, y, width, height]), 0, 1).tolist()
    row[1:] = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


# ----------------------------------------------------------------------------------- copied images


def plant_copies(planted: PlantedData, copies: int) -> None:
    """Copy images of the train split into the val split, each changed in one way."""
    chosen = planted.random.sample(planted.images["train"], copies)
    for number, image in enumerate(chosen):
        kind = COPY_KINDS[number % len(COPY_KINDS)]
        copy = planted.out / "images" / "val" / f"p{number:03}{image.suffix}"
        changed_copy(image, copy, kind)
        rows = [list(row) for row in planted.rows[image]]
        if kind == "mirrored":
            for row in rows:
                row[1] = 1 - row[1]
        planted.images["val"].append(copy)
        planted.rows[copy] = rows
        planted.add("copied", copy, of=str(image.relative_to(planted.out)), how=kind)


def changed_copy(image: Path, copy: Path, kind: str) -> None:
    """Write a copy of an image that was changed in one of the ways of COPY_KINDS."""
    if kind == "plain":
        shutil.copyfile(image, copy)
        return
    pixels = cv2.imread(str(image))
    quality = 90
    if kind == "mirrored":
        pixels = pixels[:, ::-1].copy()
    elif kind == "resized":
        pixels = cv2.resize(pixels, None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA)
    else:
        quality = 40
    cv2.imwrite(str(copy), pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])


# ------------------------------------------------------------------------------ faults of files


def plant_in_files(planted: PlantedData) -> set[Path]:
    """Plant FILE_FAULTS, each in another image; return the images without a label file."""
    images = [image for image in planted.all_images() if planted.rows[image]]
    planted.random.shuffle(images)
    without_label_file = set()
    for kind, count in FILE_FAULTS.items():
        for _ in range(count):
            image = images.pop()
            rows = planted.rows[image]
            if kind == "damaged image":
                data = image.read_bytes()
                image.write_bytes(data[: len(data) // 2])
                planted.add(kind, image)
            elif kind == "missing label file":
                without_label_file.add(image)
                planted.add(kind, image)
            elif kind == "emptied label file":
                rows.clear()
                planted.add(kind, image)
            else:
                row = faulty_row(kind, planted, image)
                rows.append(row)
                planted.add(kind, image, box=corners(row), line=len(rows))
    return without_label_file


def faulty_row(kind: str, planted: PlantedData, image: Path) -> Row:
    """Return one more row for an image, with a fault of this kind."""
    number, x, y, width, height = planted.random.choice(planted.rows[image])
    if kind == "duplicate box":
        moved = x + 0.02 * width * (-1 if x > 0.5 else 1)
        return [number, moved, y, width, height]
    if kind == "box outside":
        return [number, 1.1, y, 0.2, height]
    rows, columns, _ = cv2.imread(str(image)).shape
    if kind == "tiny box":
        return [number, x, y, 1 / columns, 1 / rows]
    return [number, 0.5, y, 0.9, 0.9 * columns / rows / 30]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", required=True, help="data YAML")
    add("--out", type=Path, required=True, help="the new folder")
    add("--seed", type=int, default=0, help="(default: 0)")
    add("--copies", type=int, default=COPIES, help="number of copied images")
    add("--files", action="store_true", help="plant faults of files, not of boxes")
    options = parser.parse_args()

    planted = PlantedData(options.data, options.out.resolve(), options.seed)
    without_label_file: set[Path] = set()
    if options.files:
        without_label_file = plant_in_files(planted)
    else:
        originals = planted.all_images()
        plant_copies(planted, options.copies)
        plant_in_boxes(planted, originals)
    planted.save(without_label_file)
    print(f"{len(planted.faults)} faults in {len(planted.all_images())} images: {options.out}")


if __name__ == "__main__":
    main()
