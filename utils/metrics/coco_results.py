"""Detections and ground truth as COCO JSON, and pycocotools' numbers for them.

Image and category ids are those of the labels: a COCO JSON's own if it is the split's only source,
else numbers from 1 (YOLO's text labels have none): images in the order in which they are read,
categories in the order of `names`. So predictions.json is only valid with the ground_truth.json
next to it; other ground truth may have other image ids.
"""

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from utils.files.writers import write_json
from utils.metrics.records import Detections, GroundTruth


def coco_ground_truth(
    truth: GroundTruth,
    image_ids: NDArray[np.int64],
    sizes: NDArray[np.int32],
    paths: Sequence[str],
    names: Sequence[str],
    category_ids: NDArray[np.int64],
) -> dict[str, Any]:
    """Return the content of COCO's instances file.

    Args:
        truth: the boxes.
        image_ids: [M].
        sizes: [M, 2] width, height of the images.
        paths: of the M images.
        names: of the K classes.
        category_ids: [K], the id of each class.
    """
    images = []
    for image_id, (width, height), path in zip(image_ids, sizes, paths, strict=True):
        image: dict[str, Any] = {"id": int(image_id), "width": int(width), "height": int(height)}
        image["file_name"] = file_name_text(Path(path).name)
        images.append(image)

    annotations = []
    for n in range(len(truth.image_ids)):
        annotation = {
            "id": n + 1,
            "image_id": int(truth.image_ids[n]),
            "category_id": int(category_ids[truth.class_ids[n]]),
            "bbox": truth.boxes_xywh[n].tolist(),
            "area": float(truth.areas[n]),
            "iscrowd": int(truth.crowd[n]),
        }
        annotations.append(annotation)

    categories = []
    for category_id, name in zip(category_ids, names, strict=True):
        categories.append({"id": int(category_id), "name": name})

    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


def file_name_text(name: str) -> str:
    """Return a file name that can be written as JSON: bytes that are not UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def coco_results(
    detections: Detections,
    category_ids: NDArray[np.int64],
    image_ids: NDArray[np.int64],
    paths: Sequence[str],
) -> list[dict[str, Any]]:
    """Return COCO's list of results, with unrounded numbers and the file name of each image.

    category_ids: [K], the id of each class. image_ids [M], paths: of all images.
    """
    file_names = {}
    for image_id, path in zip(image_ids.tolist(), paths, strict=True):
        file_names[image_id] = Path(path).name

    # Lists, of Python's own numbers, are much faster to go through than arrays.
    images = detections.image_ids.tolist()
    categories = category_ids[detections.class_ids].tolist()
    boxes = detections.boxes_xywh.tolist()
    scores = detections.scores.tolist()

    results = []
    for image_id, category_id, box, score in zip(images, categories, boxes, scores, strict=True):
        results.append(coco_row(image_id, category_id, box, score, file_names[image_id]))
    return results


def coco_row(
    image_id: int, category_id: int, box_xywh: list[float], score: float, file_name: str
) -> dict[str, Any]:
    """Return one result of COCO's list.

    Args:
        image_id, category_id: as in the ground truth.
        box_xywh: pixels.
        score: in [0, 1].
        file_name: not part of COCO's format; its tools ignore it.
    """
    row = {"image_id": image_id, "category_id": category_id, "bbox": box_xywh, "score": score}
    return row | {"file_name": file_name_text(file_name)}


def check_with_pycocotools(truth: Path, results: Path, ours: Mapping[str, float]) -> str:
    """Return a line with pycocotools' AP and AP50 of two files, and how much ours differ at most.

    ours: the 12 numbers, in pycocotools' order.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if results.read_text().strip() == "[]":
        return "pycocotools: no detections to score"

    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        coco = COCO(str(truth))
        evaluator = COCOeval(coco, coco.loadRes(str(results)), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()

    stats = evaluator.stats
    difference = max(abs(a - b) for a, b in zip(stats, ours.values(), strict=True))
    values = f"AP {stats[0]:.6f}, AP50 {stats[1]:.6f}"
    return f"pycocotools: {values}; largest difference from ours {difference:.1e}"


def write_coco(
    folder: Path,
    truth: GroundTruth,
    detections: Detections,
    stats: Mapping[str, float],
    *,
    image_ids: NDArray[np.int64],
    sizes: NDArray[np.int32],
    paths: Sequence[str],
    names: Sequence[str],
    category_ids: NDArray[np.int64],
) -> str:
    """Write predictions.json and ground_truth.json, and return a line with pycocotools' numbers.

    Args:
        folder: of both files.
        truth, detections: what they contain.
        stats: our 12 numbers, in pycocotools' order, to be compared with its own.
        image_ids: [M].
        sizes: [M, 2] width, height of the images.
        paths: of the M images.
        names: of the K classes.
        category_ids: [K], the id of each class.
    """
    truth_file = folder / "ground_truth.json"
    truth_content = coco_ground_truth(truth, image_ids, sizes, paths, names, category_ids)
    write_json(truth_file, truth_content)

    results_file = folder / "predictions.json"
    write_json(results_file, coco_results(detections, category_ids, image_ids, paths))
    return check_with_pycocotools(truth_file, results_file, stats)
