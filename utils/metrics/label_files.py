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
    """Write a file per image with rows `class cx cy w h [score]`, in [0, 1], in the same subfolders as the images.

    paths, image_ids [M], sizes [M, 2] width and height: of all images, also those without detections.
    """
    files = [Path(path) for path in paths]
    root = os.path.commonpath([file.parent for file in files])
    stems = Counter(file.with_suffix("") for file in files)  # a.jpg and a.png are two files, a.jpg.txt and a.png.txt
    for file, image_id, size in zip(files, image_ids, sizes.astype(np.float64), strict=True):
        rows = np.flatnonzero(detections.image_ids == image_id)
        corners, extents = detections.boxes_xywh[rows, :2], detections.boxes_xywh[rows, 2:]
        columns = np.concatenate([(corners + extents / 2) / size, extents / size, detections.scores[rows, None]], 1)
        columns = columns if scores else columns[:, :4]
        classes = detections.class_ids[rows].tolist()
        lines = [f"{k} {' '.join(f'{v:.6g}' for v in values)}\n" for k, values in zip(classes, columns, strict=True)]
        stem = file if stems[file.with_suffix("")] > 1 else file.with_suffix("")
        target = folder / f"{stem.relative_to(root)}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, "".join(lines))
