"""Exported files as backends: fixed batches, and files that suppress overlapping boxes themselves.

B images of H x W pixels, N predictions per image, C classes, D detections per image at most.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from models.backends import Backend, Prediction
from models.export.metadata import ExportedModel
from utils.printable import one_line
from utils.terminal import FaultError


class ExportedBackend(Backend):
    """The base class: a subclass runs the file's graph on a batch of a size that it takes."""

    def __init__(self, model: ExportedModel, device: torch.device, *, threads: int = 1) -> None:
        self.model = model
        self.device = device
        self.threads = threads
        self.num_classes = len(model.names)
        self.stride = model.stride
        self.canvas = model.canvas
        self.letterbox = model.letterbox
        self.needs_nms = model.needs_nms
        if model.nms:
            self.min_confidence = model.nms.confidence
            self.max_detections = model.nms.max_detections

    @abstractmethod
    def run(self, images: Tensor) -> Sequence[Tensor]:
        """Return the file's outputs for images [B, 3, H, W], float32.

        Several threads may call this.
        """

    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        self._check(images)

        # In batches of the size that the file takes, the last one padded.
        size = self.model.batch_size or len(images)
        parts = [self._run_padded(part, size) for part in images.split(size)]
        outputs = parts[0]
        if len(parts) > 1:
            outputs = [torch.cat(values) for values in zip(*parts, strict=True)]

        if self.model.nms:
            return self._from_detections(outputs[0])
        boxes, scores = outputs
        boxes_fit = boxes.shape == (*scores.shape[:2], 4)
        scores_fit = scores.shape[::2] == (len(images), self.num_classes)
        if not boxes_fit or not scores_fit:
            raise self._unexpected(outputs)
        return Prediction(boxes, scores)

    def _check(self, images: Tensor) -> None:
        height, width = images.shape[2:]
        if self.canvas not in (None, (height, width)):
            raise ValueError(
                f"images are {width} x {height}, the file is for {self.canvas[1]} x "
                f"{self.canvas[0]} only"
            )
        if height % self.stride or width % self.stride:
            raise ValueError(
                f"images are {width} x {height}, both sides must be multiples of {self.stride}"
            )

    def _run_padded(self, images: Tensor, size: int) -> list[Tensor]:
        missing = size - len(images)
        padded = pad(images, (0, 0) * 3 + (0, missing)) if missing else images
        try:
            outputs = self.run(padded)
        except Exception as error:  # each runtime has its own types of error
            raise FaultError(
                f"the exported file fails on images {list(padded.shape)}: {one_line(error)}"
            ) from error
        return [values[: len(images)] for values in outputs]

    def _from_detections(self, rows: Tensor) -> Prediction:
        """Return detections [B, D, 6] as boxes and scores, which are 0 for all classes but one."""
        if rows.dim() != 3 or rows.shape[2] != 6:
            raise self._unexpected([rows])
        boxes = rows[..., :4]
        score = rows[..., 4:5]
        class_id = rows[..., 5:].nan_to_num().long().clamp(0, self.num_classes - 1)

        scores = rows.new_zeros(*rows.shape[:2], self.num_classes)  # [B, D, C]
        return Prediction(boxes, scores.scatter(2, class_id, score))

    def _unexpected(self, outputs: Sequence[Tensor]) -> ValueError:
        shapes = ", ".join(str(list(values.shape)) for values in outputs)
        return ValueError(
            f"the outputs of the file do not fit its metadata: their shapes are {shapes}"
        )
