"""Detections as YOLO label files, one for each image."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from utils.files.writers import write_text
from utils.metrics.records import Detections


def write_label_files(
    folder: Path,
    detections: Detections,
    paths: Sequence[str],
    image_ids: NDArray[np.int64],
    sizes: NDArray[np.int32],
    *,
    scores: bool,
) -> None:
    """Write a file per image with rows `class cx cy w h [score]`, in [0, 1].

    They are in the same subfolders as the images. paths, image_ids [M], sizes [M, 2] width and
    height: of all images, also those without detections.
    """
    files = [Path(path) for path in paths]
    root = os.path.commonpath([file.parent for file in files])
    # a.jpg and a.png are two files, a.jpg.txt and a.png.txt
    stems = Counter(file.with_suffix("") for file in files)
    for file, image_id, size in zip(files, image_ids, sizes.astype(np.float64), strict=True):
        rows = np.flatnonzero(detections.image_ids == image_id)
        columns = yolo_columns(detections.boxes_xywh[rows], size)
        text = label_rows(
            detections.class_ids[rows], columns, detections.scores[rows] if scores else None
        )
        stem = file if stems[file.with_suffix("")] > 1 else file.with_suffix("")
        target = folder / f"{stem.relative_to(root)}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)


def yolo_columns(boxes_xywh: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return boxes [D, 4] in pixels as cx, cy, w, h in fractions of the image size.

    size: [2] width, height.

    >>> yolo_columns(np.array([[10.0, 20.0, 20.0, 40.0]]), np.array([100.0, 200.0])).tolist()
    [[0.2, 0.2, 0.2, 0.2]]
    """
    corners, extents = boxes_xywh[:, :2], boxes_xywh[:, 2:]
    return np.concatenate([(corners + extents / 2) / size, extents / size], 1)


def label_rows(
    class_ids: NDArray[np.int64], columns: NDArray[np.float64], scores: NDArray[np.float64] | None
) -> str:
    r"""The text of a label file: a line per detection with its class, its columns [D, 4] and its
    score, if given.

    >>> label_rows(np.array([3]), np.array([[0.5, 0.25, 1 / 3, 1.0]]), np.array([0.9]))
    '3 0.5 0.25 0.333333 1 0.9\n'
    """
    numbers = columns if scores is None else np.concatenate([columns, scores[:, None]], 1)
    rows = zip(class_ids.tolist(), numbers.tolist(), strict=True)
    return "".join(
        f"{class_id} {' '.join(f'{v:.6g}' for v in values)}\n" for class_id, values in rows
    )
