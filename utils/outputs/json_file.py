"""Detections as COCO's list of results."""

import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from utils.files.atomic import name_os_errors
from utils.images.detections import Frame, ImageDetections
from utils.metrics.coco_results import coco_row, file_name_text


class JsonFile:
    """Writes a JSON list with a COCO result for each detection.

    Image_id, category_id, bbox, score, file_name, source. Images and frames count from 1, in order;
    a detection in a video also has `frame`. The category is the class counted from 1. The source is
    the path of the image or video, or the address of the stream. Rows are streamed to a temporary
    file, which gets its name when it is closed. Raises OSError if the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images = 0
        self.rows = 0
        self._temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
        with name_os_errors(path):
            self._stream = self._temporary.open("w", encoding="utf-8", newline="\n")

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        self.images += 1

        low, high = np.split(detections.boxes_xyxy, 2, axis=1)
        boxes_xywh = np.concatenate([low, high - low], 1)

        further: dict[str, str | int] = {"source": file_name_text(frame.path)}
        if frame.number is not None:
            further["frame"] = frame.number

        columns = zip(
            (detections.class_ids + 1).tolist(),
            boxes_xywh.tolist(),
            detections.scores.tolist(),
            strict=True,
        )

        for category_id, box, score in columns:
            row = coco_row(self.images, category_id, box, score, frame.name) | further
            separator = ",\n" if self.rows else "[\n"
            text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            self._append(separator + text)
            self.rows += 1

    def close(self) -> None:
        if self._stream.closed:
            return
        try:
            self._append("\n]\n" if self.rows else "[]\n")
            with name_os_errors(self.path):
                self._stream.close()
                os.replace(self._temporary, self.path)
        finally:
            with suppress(OSError):
                self._stream.close()
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)

    def _append(self, text: str) -> None:
        with name_os_errors(self.path):
            self._stream.write(text)
