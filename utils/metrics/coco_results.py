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
    """The content of COCO's instances file. sizes: [M, 2] width, height. category_ids: [K], the id
    of each class.
    """
    images = [
        {"id": int(i), "width": int(w), "height": int(h), "file_name": file_name_text(Path(p).name)}
        for i, (w, h), p in zip(image_ids, sizes, paths, strict=True)
    ]
    annotations = [
        {
            "id": n + 1,
            "image_id": int(truth.image_ids[n]),
            "category_id": int(category_ids[truth.class_ids[n]]),
            "bbox": truth.boxes_xywh[n].tolist(),
            "area": float(truth.areas[n]),
            "iscrowd": int(truth.crowd[n]),
        }
        for n in range(len(truth.image_ids))
    ]
    categories = [{"id": int(i), "name": name} for i, name in zip(category_ids, names, strict=True)]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


def file_name_text(name: str) -> str:
    """A file name that can be written as JSON: bytes that are not UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def coco_results(
    detections: Detections,
    category_ids: NDArray[np.int64],
    image_ids: NDArray[np.int64],
    paths: Sequence[str],
) -> list[dict[str, Any]]:
    """COCO's list of results, with unrounded numbers and the file name of each image.

    category_ids: [K], the id of each class. image_ids [M], paths: of all images.
    """
    file_names = {i: Path(path).name for i, path in zip(image_ids.tolist(), paths, strict=True)}
    columns = zip(
        detections.image_ids.tolist(),
        category_ids[detections.class_ids].tolist(),
        detections.boxes_xywh.tolist(),
        detections.scores.tolist(),
        strict=True,
    )
    return [coco_row(i, c, b, s, file_names[i]) for i, c, b, s in columns]


def coco_row(
    image_id: int, category_id: int, box_xywh: list[float], score: float, file_name: str
) -> dict[str, Any]:
    """One result of COCO's list. file_name is not part of COCO's format; its tools ignore it."""
    row = {"image_id": image_id, "category_id": category_id, "bbox": box_xywh, "score": score}
    return row | {"file_name": file_name_text(file_name)}


def check_with_pycocotools(truth: Path, results: Path, ours: Mapping[str, float]) -> str:
    """A line with pycocotools' AP and AP50 of the two files, and the largest difference from our 12
    numbers.
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
    return (
        f"pycocotools: AP {stats[0]:.6f}, AP50 {stats[1]:.6f}; largest difference from ours "
        f"{difference:.1e}"
    )


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
    """Write predictions.json and ground_truth.json in COCO's formats; return a line with
    pycocotools' numbers of both.

    stats: our 12 numbers, for the comparison.
    """
    expected, found = folder / "ground_truth.json", folder / "predictions.json"
    write_json(expected, coco_ground_truth(truth, image_ids, sizes, paths, names, category_ids))
    write_json(found, coco_results(detections, category_ids, image_ids, paths))
    return check_with_pycocotools(expected, found, stats)
