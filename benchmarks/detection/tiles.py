r"""Small objects in large images: AP, time and memory with and without tiles.

Claim: they are found tile by tile almost as well as in small images, in bounded memory. YOLOv5n
trained on BCCD, at 320 px: AP 0.514 in 87 images of 640 x 480 px; pasted onto canvases of 3,000 px,
0.064 without tiles, and 0.480 (0.486) in tiles of 640 px with an overlap of 0.2 (0.4).

    python benchmarks/detection/tiles.py --weights best.pt --data mydata.yaml --imgsz 320 --tile 640
    python benchmarks/detection/tiles.py --weights best.pt --data mydata.yaml \
        --canvas 3000 --limit 48

The images of the data set's validation split are pasted, unscaled, in a grid onto gray canvases of
3,000 x 3,000 pixels, with their boxes as YOLO labels, in a temporary folder. One checkpoint then
detects

- in the original images, one by one (the reference);
- in the canvases, resized to `--imgsz` as a whole;
- in the canvases, in tiles of `--tile` pixels that are resized to `--imgsz`: the scale of the
  originals, if `--tile` is their long side;
- in the canvases at that scale, without tiles.

AP is COCO's without its limit of 100 detections per image and class, because a canvas shows more
objects than that. The peak memory is that of a process that detects in one image with the default
thresholds, in batches of 4, less the peak of one that detects in an image resized to 64 pixels.
Linux only.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # must be set before numpy is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from data.labels import Labels  # noqa: E402
from data.layouts import open_data  # noqa: E402
from data.scan import scan  # noqa: E402
from models import load  # noqa: E402
from utils.images.decode import read_image  # noqa: E402
from utils.images.letterbox import GRAY  # noqa: E402
from utils.images.opencv import cv2  # noqa: E402
from utils.metrics.coco import precision_and_recall, summarize  # noqa: E402
from utils.metrics.matching import match_detections  # noqa: E402
from utils.metrics.records import Detections  # noqa: E402

GAP = 24  # gray pixels between pasted images
SETTINGS = {"confidence": 0.001, "iou": 0.6, "max_detections": 3000, "multi_label": True}
ALL = 10**6  # detections per image and class


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    about_size = "long side that originals and tiles are resized to"
    add("--weights", required=True, help="checkpoint")
    add("--data", required=True, help="data YAML")
    add("--split", default="val")
    add("--imgsz", type=int, default=640, help=about_size)
    add("--tile", type=int, default=640, help="side of a tile in pixels")
    add("--tile-overlap", type=float, default=0.2)
    add("--canvas", type=int, default=3000, help="side of the canvases in pixels")
    add("--limit", type=int, default=0, help="use only so many images of the split")
    add("--device", default="cpu")
    options = parser.parse_args()

    spec = open_data(options.data, splits=(options.split,))
    names = spec.names
    labels = scanned(spec.sources(options.split), names)
    limit = min(options.limit or len(labels), len(labels))
    labels = labels.subset(range(limit))
    threads = f"{torch.get_num_threads()} thread(s)"
    print(f"{platform.machine()}, torch {torch.__version__}, {threads}, {options.device}")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = write_canvases(labels, folder, options.canvas)
        canvases = scanned((str(folder / "images"),), names)
        boxes = len(labels.classes)
        boxes_on_canvases = len(canvases.classes)
        print(
            f"{len(labels)} images with {boxes} boxes on {count} canvases with "
            f"{boxes_on_canvases} boxes"
        )

        full_size = round(options.canvas * options.imgsz / options.tile)
        whole = {"image_size": options.imgsz, "tile": 0}
        tiles = whole | {"tile": options.tile, "tile_overlap": options.tile_overlap}
        rows: list[tuple[str, Labels, dict[str, Any]]] = [
            ("originals", labels, whole),
            ("canvases", canvases, whole),
            ("canvases in tiles", canvases, tiles),
            ("canvases in tiles and whole", canvases, tiles | {"tile_whole": True}),
            (f"canvases at {full_size} px", canvases, {"image_size": full_size, "tile": 0}),
        ]

        print("| images | AP | AP50 | APs | APm | APl | seconds per image | peak memory |")
        print("|---|---|---|---|---|---|---|---|")
        load_it = {"weights": options.weights, "device": options.device, "names": names}
        base = peak_memory(load_it | {"image_size": 64, "tile": 0}, labels.path(0))
        for name, shown, settings in rows:
            started = time.perf_counter()
            stats = average_precision(shown, load_it | settings)
            seconds = (time.perf_counter() - started) / len(shown)
            peak = peak_memory(load_it | settings, shown.path(0)) - base

            values = " | ".join(f"{stats[key]:.4f}" for key in ("AP", "AP50", "APs", "APm", "APl"))
            print(f"| {name} | {values} | {seconds:.2f} | {peak / 2**20:.0f} MiB |", flush=True)


def scanned(sources: Sequence[str], names: list[str]) -> Labels:
    """The images and labels of these folders or lists."""
    labels, _ = scan(sources, names, cache_dir=None, threads=1, progress=False)
    return labels


def write_canvases(labels: Labels, folder: Path, side: int) -> int:
    """Write canvases to images/ and their YOLO labels to labels/; return their number."""
    for name in ("images", "labels"):
        (folder / name).mkdir()

    pages = list(pages_of(labels.sizes, side))
    for number, page in enumerate(pages):
        canvas = np.full((side, side, 3), GRAY, np.uint8)
        lines = []
        for index, x, y in page:
            width, height = labels.sizes[index].tolist()
            canvas[y : y + height, x : x + width] = read_image(labels.path(index))
            lines += label_lines(labels, index, x, y, side)

        image = str(folder / "images" / f"{number:04d}.png")
        cv2.imwrite(image, canvas, [cv2.IMWRITE_PNG_COMPRESSION, 1])
        (folder / "labels" / f"{number:04d}.txt").write_text("\n".join(lines) + "\n")
    return len(pages)


def label_lines(labels: Labels, index: int, x: int, y: int, side: int) -> list[str]:
    """The lines of a canvas's label file for an image whose corner is at (x, y)."""
    lines = []
    rows = labels.rows(index)
    for row in range(rows.start, rows.stop):
        left, top, width, height = labels.boxes_xywh[row].tolist()
        center_x = (x + left + width / 2) / side
        center_y = (y + top + height / 2) / side
        values = (center_x, center_y, width / side, height / side)
        words = [str(labels.classes[row]), *(f"{value:.9f}" for value in values)]
        lines.append(" ".join(words))
    return lines


def pages_of(sizes: np.ndarray, side: int) -> Iterator[list[tuple[int, int, int]]]:
    """Iterate over canvases: the (index, x, y) of the images on each.

    Raises ValueError for an image that is larger than a canvas.
    """
    page: list[tuple[int, int, int]] = []
    x = y = row_height = 0
    for index, (width, height) in enumerate(sizes.tolist()):
        if max(width, height) > side:
            shape = f"{width} x {height} pixels"
            raise ValueError(f"image {index} has {shape}: choose a larger --canvas")

        if x + width > side:  # a new row
            x = 0
            y += row_height + GAP
            row_height = 0
        if y + height > side:  # a new canvas
            yield page
            page = []
            x = y = row_height = 0

        page.append((index, x, y))
        x += width + GAP
        row_height = max(row_height, height)
    yield page


def average_precision(labels: Labels, settings: dict[str, Any]) -> dict[str, float]:
    """COCO's numbers of a checkpoint on these images, without a limit on detections."""
    detector = load(**settings, **SETTINGS)
    ids = []  # an array for each image, as the following
    classes = []
    boxes = []
    scores = []
    for index in range(len(labels)):
        found = detector.predictor(read_image(labels.path(index)), channel_order="bgr")
        low, high = np.split(found.boxes_xyxy, 2, axis=1)  # corners
        ids.append(np.full(len(found), labels.image_ids[index]))
        classes.append(found.class_ids)
        boxes.append(np.concatenate([low, high - low], 1))
        scores.append(found.scores)

    found_all = Detections(
        np.concatenate(ids), np.concatenate(classes), np.concatenate(boxes), np.concatenate(scores)
    )
    matches = match_detections(
        labels.ground_truth(),
        found_all,
        image_ids=labels.image_ids,
        class_ids=np.arange(len(labels.category_ids)),
        max_detections=ALL,
    )
    return summarize(*precision_and_recall(matches, (1, 10, ALL)))


def peak_memory(settings: dict[str, Any], path: str) -> int:
    """The peak memory in bytes of a process that detects in one image."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory_here, (settings, path))


def _peak_memory_here(settings: dict[str, Any], path: str) -> int:
    detector = load(**settings, batch_size=4)
    detector.predictor(read_image(path), channel_order="bgr")
    if detector.device.type == "cuda":
        return torch.cuda.max_memory_allocated()

    # ru_maxrss would include the memory of the parent process.
    status = Path("/proc/self/status").read_text()
    kilobytes = re.search(r"VmHWM:\s*(\d+) kB", status)[1]
    return int(kilobytes) * 1024


if __name__ == "__main__":
    main()
