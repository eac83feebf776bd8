"""Real ground truths and detections, for errors by kind. Another program reads them too: nothing is
imported here but the standard library and NumPy.
"""

import json
from pathlib import Path

import numpy as np

from tests.support.error_cases import ErrorCase

FIXTURES = Path(__file__).parents[1] / "fixtures"

# Ground truth and detections: relative to ../shared, those with "./" to tests/fixtures
REAL_SETS = {
    "bccd": (
        "datasets/bccd/instances_val.json",
        "fixtures/yolov5n_bccd/detections_coco.json",
    ),
    "chess_pieces": (
        "datasets/chess_pieces/instances_val.json",
        "./tidecv/chess_pieces.npz",
    ),
    "coco128": (
        "datasets/coco128/instances_train.json",
        "./tidecv/coco128.npz",
    ),
    "coco2014_fakebbox100": (
        "coco_eval_fixtures/coco2014_fakebbox100/gt.json",
        "coco_eval_fixtures/coco2014_fakebbox100/dt.json",
    ),
    "voc100": (
        "./coco_eval/voc100_real_detections/gt.json",
        "./coco_eval/voc100_real_detections/dt.json",
    ),
}


def files_of(name: str, shared: Path) -> list[Path]:
    """Return the file of ground truths and the file of detections of a set."""
    files = []
    for file in REAL_SETS[name]:
        files.append(FIXTURES / file if file.startswith("./") else shared / file)
    return files


def read_set(name: str, shared: Path) -> ErrorCase:
    """Return a set of REAL_SETS."""
    truth_file, detections_file = files_of(name, shared)
    truth = json.loads(truth_file.read_text(encoding="utf-8"))
    images = sorted(row["id"] for row in truth["images"])
    classes = sorted(row["id"] for row in truth["categories"])

    truths = []
    for row in truth["annotations"]:
        crowd = bool(row.get("iscrowd", 0))
        truths.append((row["image_id"], row["category_id"], *row["bbox"], crowd))
    return ErrorCase(images, classes, truths, _read_detections(detections_file))


def write_detections(file: Path, rows: list[dict]) -> None:
    """Write COCO results as a small file, in tenths of a pixel and 16-bit scores."""
    np.savez_compressed(
        file,
        image_ids=np.array([row["image_id"] for row in rows], np.int32),
        class_ids=np.array([row["category_id"] for row in rows], np.uint8),
        boxes=np.array([row["bbox"] for row in rows]).__mul__(10).round().astype(np.int16),
        scores=np.array([row["score"] for row in rows]).__mul__(65535).round().astype(np.uint16),
    )


def _read_detections(file: Path) -> list[tuple]:
    """Return rows of image, class, x, y, w, h, score."""
    if file.suffix == ".json":
        detections = []
        for row in json.loads(file.read_text(encoding="utf-8")):
            detections.append((row["image_id"], row["category_id"], *row["bbox"], row["score"]))
        return detections

    with np.load(file) as columns:
        return list(
            zip(
                columns["image_ids"].tolist(),
                columns["class_ids"].tolist(),
                *(columns["boxes"].T / 10).tolist(),
                (columns["scores"] / 65535).tolist(),
                strict=True,
            )
        )
