"""Compare the outputs of an exported file, in its own runtime, with torch's.

B images, N predictions per image, C classes, D detections of an image.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from models.export.exported import ExportedBackend
from models.export.graph import Export, export_graph
from models.export.metadata import ExportedModel
from utils.distributed.precision import exact_float32
from utils.printable import counted

PATCH = 16  # pixels, the side of a colored patch of `drawn_images`


@dataclass(frozen=True)
class Tolerance:
    """How much an exported file may differ from torch.

    A coordinate may differ by pixels + of_coordinate * coordinate + of_side * side, the larger one
    of its box: YOLOX's sides are exponentials, so that rounding grows with them. Scores may differ
    by `scores`. unmatched: the share of detections that only one of both may have, beside one.
    above: only boxes of higher scores are compared; 0: all.
    """

    pixels: float
    of_coordinate: float
    of_side: float
    scores: float
    unmatched: float
    above: float

    def of_boxes(self, boxes: Tensor) -> Tensor:
        """Return the allowed differences of boxes [..., 4], without `pixels`."""
        # Linear distances may be negative: such a box is inverted.
        sides = (boxes[..., 2:] - boxes[..., :2]).abs().amax(-1, keepdim=True)
        return self.of_coordinate * boxes.abs() + self.of_side * sides


# fp32: float32 has 7 digits, sums in another order change the last two; OpenVINO on a CPU with
# AVX2: 0.00104 px for yolov3-tiny. fp16, yolox_nano: up to 2.4 % of the side above a score of 0.01,
# 13 % where the score is 1e-5.
TOLERANCES = {
    "fp32": Tolerance(5e-3, 1e-5, 1e-4, 1e-3, 0.01, 0.0),
    "fp16": Tolerance(1.0, 1e-5, 0.04, 0.05, 0.05, 0.01),
}


class ReferenceBackend(ExportedBackend):
    """Runs the graph that is exported, in torch, where the detector is."""

    def __init__(self, export: Export) -> None:
        device = next(export.detector.parameters()).device
        super().__init__(export.model, device)
        self._graph = export_graph(export.detector, export.model.nms)

    @torch.no_grad()
    def run(self, images: Tensor) -> Sequence[Tensor]:
        with exact_float32():
            outputs = self._graph(images)
        return outputs if isinstance(outputs, tuple) else (outputs,)


@dataclass
class Differences:
    """The largest differences over some images.

    boxes_px, scores: absolute differences. box_excess: the largest difference of a coordinate less
    what is allowed for its size, in pixels. unmatched: detections that only one of both has.
    detections: of torch.
    """

    precision: str
    images: int = 0
    boxes_px: float = 0.0
    box_excess: float = 0.0
    scores: float = 0.0
    unmatched: int = 0
    detections: int = 0

    @property
    def tolerance(self) -> Tolerance:
        """What is allowed for the file's precision."""
        return TOLERANCES[self.precision]

    @property
    def acceptable(self) -> bool:
        """Whether the file computes what torch does, up to the precision of its numbers."""
        boxes_are_close = self.box_excess <= self.tolerance.pixels
        scores_are_close = self.scores <= self.tolerance.scores
        most_unmatched = 1 + int(self.tolerance.unmatched * self.detections)
        return boxes_are_close and scores_are_close and self.unmatched <= most_unmatched

    def add(self, boxes: tuple[Tensor, Tensor], scores: tuple[Tensor, Tensor]) -> None:
        """Take in the file's and torch's boxes [N, 4] and scores [N] or [N, C], row by row."""
        file_boxes, torch_boxes = boxes
        file_scores, torch_scores = scores
        if not file_boxes.numel():
            return
        self.scores = max(self.scores, _largest((file_scores - torch_scores).abs()))

        # Boxes are compared where the score is above the limit, or is nan.
        best = torch_scores.reshape(*torch_boxes.shape[:-1], -1).amax(-1)
        compared = ~(best <= self.tolerance.above) | (self.tolerance.above == 0)
        difference = (file_boxes - torch_boxes).abs()[compared]
        if difference.numel():
            allowed = self.tolerance.of_boxes(torch_boxes)[compared]
            self.boxes_px = max(self.boxes_px, _largest(difference))
            self.box_excess = max(self.box_excess, _largest(difference - allowed))

    def __str__(self) -> str:
        text = (
            f"boxes differ from torch by at most {self.boxes_px:.2g} px, scores by "
            f"{self.scores:.2g}"
        )
        if self.unmatched:
            text += f"; {self.unmatched} of {self.detections} detections differ"
        return f"{text}, in {counted(self.images, 'image')}"


def drawn_images(model: ExportedModel, count: int) -> list[Tensor]:
    """Return `count` images [1, 3, H, W] of colored patches, to compare without a data set."""
    height, width = model.canvas or (model.image_size, model.image_size)
    random = torch.Generator().manual_seed(0)
    patches = torch.rand(count, 3, height // PATCH, width // PATCH, generator=random)
    return list(interpolate(patches, (height, width)).split(1))


def _largest(values: Tensor) -> float:
    """Return the maximum; infinity if there is a nan, which a comparison would hide."""
    return float(values.nan_to_num(torch.inf, torch.inf, torch.inf).max())


def compare(
    exported: ExportedBackend, reference: ExportedBackend, batches: Iterable[Tensor]
) -> Differences:
    """Return the largest differences on batches of images [B, 3, H, W].

    Each backend runs on its own device.
    """
    differences = Differences(exported.model.precision)
    for images in batches:
        differences.images += len(images)
        file_boxes, file_scores = _predict(exported, images)
        torch_boxes, torch_scores = _predict(reference, images)

        if exported.model.nms is None:
            differences.add((file_boxes, torch_boxes), (file_scores, torch_scores))
            continue
        of_file = zip(file_boxes, file_scores, strict=True)
        of_torch = zip(torch_boxes, torch_scores, strict=True)
        for own, other in zip(of_file, of_torch, strict=True):
            _add_matched(differences, own, other)
    return differences


def _predict(backend: ExportedBackend, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return boxes [B, N, 4] and scores [B, N, C] of images on any device, on the CPU."""
    prediction = backend.predict(images.to(backend.device))
    return prediction.boxes_xyxy.cpu(), prediction.scores.cpu()


def _add_matched(
    differences: Differences, own: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]
) -> None:
    """Take in the detections of one image, matched by class and nearest box.

    own, other: boxes [D, 4] and scores [D, C] of the file and of torch.
    """
    boxes, scores, classes = _used(*own)
    wanted_boxes, wanted_scores, wanted_classes = _used(*other)

    # The largest difference of a coordinate, of each pair.  [own, wanted]
    distance = (boxes[:, None] - wanted_boxes).abs().amax(-1)
    same_class = classes[:, None] == wanted_classes
    distance = torch.where(same_class, distance, torch.inf)
    allowed = differences.tolerance.of_boxes(wanted_boxes).amax(-1)

    # Each wanted detection takes the nearest that is left.
    left = set(range(len(boxes)))
    for column in range(len(wanted_boxes)):
        row = min(left, key=lambda index: float(distance[index, column]), default=None)
        limit = 1 + differences.tolerance.pixels + allowed[column]
        if row is None or distance[row, column] > limit:
            differences.unmatched += 1
            continue
        left.remove(row)
        differences.add((boxes[row], wanted_boxes[column]), (scores[row], wanted_scores[column]))

    differences.unmatched += len(left)
    differences.detections += len(wanted_boxes)


def _used(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes, scores and classes of the rows that are used."""
    best, class_id = scores.max(-1)
    used = best > 0
    return boxes[used], best[used], class_id[used]
