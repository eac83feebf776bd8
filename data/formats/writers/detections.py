"""Write detections as the labels of a data set, for a person to correct in an annotation tool."""

import os
from collections.abc import Sequence

from data.formats.writers.base import LabelWriter, WrittenBox, WrittenImage
from data.images import IMAGE_FOLDERS
from data.labels import MIN_BOX_SIDE
from utils.files.atomic import copy_file, name_os_errors
from utils.files.writers import write_bytes
from utils.images.detections import Frame, ImageDetections
from utils.images.encode import encode_bgr
from utils.outputs.names import OutputNames, prepare_file, with_number


class DetectionLabels:
    """An output of detect.py: the boxes of each frame in a label format, with its image.

    Images are copied. Frames of videos and streams, and images without a file, become JPEG files.
    An image that is given again is written once.
    """

    def __init__(self, writer: LabelWriter, known: Sequence[tuple[str, bool]] | None) -> None:
        """known: as for OutputNames."""
        self.writer = writer
        self._names = OutputNames(known, reserved=IMAGE_FOLDERS)
        self._written: set[str] = set()
        self._is_open = True

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        stem = with_number(self._names.stem(frame, ".txt"), frame)
        is_file = frame.number is None and os.path.isfile(frame.path)
        suffix = os.path.splitext(frame.name)[1] if is_file else ".jpg"
        name = f"{stem}{suffix}"

        if name in self._written:
            return
        self._written.add(name)

        target = prepare_file(self.writer.folder, self.writer.image_place(name, ""))
        if is_file:
            copy_file(frame.path, target)
        else:
            write_bytes(target, encode_bgr(frame.image, suffix))

        height, width = frame.image.shape[:2]
        boxes = _boxes(detections)
        image = WrittenImage(frame.path, name, (width, height), boxes, is_detected=True)
        with name_os_errors(self.writer.folder):
            self.writer.add(image)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            with name_os_errors(self.writer.folder):
                self.writer.close()


def _boxes(detections: ImageDetections) -> list[WrittenBox]:
    """Return the boxes of detections, highest score first.

    Those without area, and those equal to one of a higher score, are left out, as readers of labels
    would: clipped to the image, different boxes may become equal.
    """
    boxes: dict[tuple[object, ...], WrittenBox] = {}
    columns = (detections.class_ids, detections.boxes_xyxy, detections.scores)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for class_index, (left, top, right, bottom), score in rows:
        width = right - left
        height = bottom - top
        if min(width, height) < MIN_BOX_SIDE:
            continue
        box = WrittenBox(class_index, (left, top, width, height), area=width * height, score=score)
        boxes.setdefault((class_index, box.box_xywh), box)
    return list(boxes.values())
