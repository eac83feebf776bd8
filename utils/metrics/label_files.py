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

    They are in the same subfolders as the images. Images without detections get an empty file.

    Args:
        folder: of the files.
        detections: of all images.
        paths: of the M images.
        image_ids: [M].
        sizes: [M, 2] width, height of the images.
        scores: whether the rows end with the score.
    """
    files = [Path(path) for path in paths]
    root = os.path.commonpath([file.parent for file in files])
    stem_count = Counter(file.with_suffix("") for file in files)

    for file, image_id, size in zip(files, image_ids, sizes.astype(np.float64), strict=True):
        rows = np.flatnonzero(detections.image_ids == image_id)
        columns = yolo_columns(detections.boxes_xywh[rows], size)
        own_scores = detections.scores[rows] if scores else None
        text = label_rows(detections.class_ids[rows], columns, own_scores)

        # a.jpg and a.png in one folder get a.jpg.txt and a.png.txt
        stem = file.with_suffix("")
        if stem_count[stem] > 1:
            stem = file
        target = folder / f"{stem.relative_to(root)}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)


def yolo_columns(boxes_xywh: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return boxes [D, 4] in pixels as cx, cy, w, h in fractions of the image size.

    size: [2] width, height.

    >>> yolo_columns(np.array([[10.0, 20.0, 20.0, 40.0]]), np.array([100.0, 200.0])).tolist()
    [[0.2, 0.2, 0.2, 0.2]]
    """
    low = boxes_xywh[:, :2]
    extent = boxes_xywh[:, 2:]
    center = low + extent / 2
    return np.concatenate([center / size, extent / size], 1)


def label_rows(
    class_ids: NDArray[np.int64], columns: NDArray[np.float64], scores: NDArray[np.float64] | None
) -> str:
    r"""Return the text of a label file: a line per detection.

    It has the class, the columns [D, 4], and the score if there are scores.

    >>> label_rows(np.array([3]), np.array([[0.5, 0.25, 1 / 3, 1.0]]), np.array([0.9]))
    '3 0.5 0.25 0.333333 1 0.9\n'
    """
    numbers = columns
    if scores is not None:
        numbers = np.concatenate([columns, scores[:, None]], 1)  # [D, 5]

    lines = []
    for class_id, values in zip(class_ids.tolist(), numbers.tolist(), strict=True):
        cells = [f"{value:.6g}" for value in values]
        lines.append(f"{class_id} {' '.join(cells)}\n")
    return "".join(lines)
