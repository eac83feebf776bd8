"""Detections as label files, one for each image and each frame of a video."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from utils.files.writers import write_text
from utils.images.detections import Frame, ImageDetections
from utils.metrics.label_files import label_rows, yolo_columns
from utils.outputs.names import OutputNames, prepare_file, with_number
from utils.outputs.sources_file import SourcesFile

YOLO, VOC = 0, 1


class LabelFiles:
    """Writes `labels/<name>.txt` for an image, `labels/<name>_<number>.txt` for a video's frame.

    Without detections the file is empty, so that an image without objects differs from an image
    that was not processed.

    Args:
        folder: of the run.
        text_format: YOLO, rows `class cx cy w h` as fractions of the image size, or VOC, rows
            `class x1 y1 x2 y2` in pixels.
        scores: whether each row ends with the score.
        known: as for OutputNames.
        sources: gets a row for each file.

    Raises: ValueError for another format.
    """

    def __init__(
        self,
        folder: Path,
        *,
        text_format: int = YOLO,
        scores: bool = False,
        known: Sequence[tuple[str, bool]] | None = None,
        sources: SourcesFile | None = None,
    ) -> None:
        if text_format not in (YOLO, VOC):
            raise ValueError(f"--save-format {text_format}: choose {YOLO} (YOLO) or {VOC} (VOC)")
        self.folder = folder
        self.text_format = text_format
        self.scores = scores
        self._names = OutputNames(known)
        self._sources = sources

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        columns = detections.boxes_xyxy
        if self.text_format == YOLO:
            height, width = frame.image.shape[:2]
            low, high = np.split(detections.boxes_xyxy, 2, axis=1)
            boxes_xywh = np.concatenate([low, high - low], 1)
            columns = yolo_columns(boxes_xywh, np.array([width, height], np.float64))
        scores = detections.scores if self.scores else None
        text = label_rows(detections.class_ids, columns, scores)

        stem = with_number(self._names.stem(frame, ".txt"), frame)
        output = f"labels/{stem}.txt"
        write_text(prepare_file(self.folder, output), text)
        if self._sources:
            self._sources.add(output, frame.path, frame.number)

    def close(self) -> None:
        """Nothing is open between two frames."""
