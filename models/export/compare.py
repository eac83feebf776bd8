"""Compare the outputs of an exported file, in its own runtime, with torch's.

B images, N predictions per image, C classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from models.export import Export
from models.export.exported import ExportedBackend
from models.export.graph import export_graph
from models.export.metadata import ExportedModel
from utils.distributed.precision import exact_float32
from utils.printable import counted


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
        """The allowed differences of boxes [..., 4], without `pixels`."""
        sides = (boxes[..., 2:] - boxes[..., :2]).amax(-1, keepdim=True)
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
        super().__init__(export.model, next(export.detector.parameters()).device)
        self._graph = export_graph(export.detector, export.model.nms)

    @torch.no_grad()
    def run(self, images: Tensor) -> Sequence[Tensor]:
        with exact_float32():
            found = self._graph(images)
        return found if isinstance(found, tuple) else (found,)


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
        close = self.box_excess <= self.tolerance.pixels and self.scores <= self.tolerance.scores
        return close and self.unmatched <= 1 + int(self.tolerance.unmatched * self.detections)

    def add(self, boxes: tuple[Tensor, Tensor], scores: tuple[Tensor, Tensor]) -> None:
        """Take in boxes [N, 4] and scores [N] or [N, C] of both, row by row."""
        if not boxes[0].numel():
            return
        self.scores = max(self.scores, _largest((scores[0] - scores[1]).abs()))
        best = scores[1].reshape(*boxes[1].shape[:-1], -1).amax(-1)
        compared = ~(best <= self.tolerance.above) | (self.tolerance.above == 0)
        difference = (boxes[0] - boxes[1]).abs()[compared]
        if difference.numel():
            self.boxes_px = max(self.boxes_px, _largest(difference))
            allowed = self.tolerance.of_boxes(boxes[1])[compared]
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
    patches = torch.rand(
        count, 3, height // 16, width // 16, generator=torch.Generator().manual_seed(0)
    )
    return list(interpolate(patches, (height, width)).split(1))


def _largest(values: Tensor) -> float:
    """The maximum; infinity if there is a nan, which a comparison would hide."""
    return float(values.nan_to_num(torch.inf, torch.inf, torch.inf).max())


def compare(
    exported: ExportedBackend, reference: ExportedBackend, batches: Iterable[Tensor]
) -> Differences:
    """Return the largest differences on batches of images [B, 3, H, W]. Each backend runs on its
    own device.
    """
    found = Differences(exported.model.precision)
    for images in batches:
        ours = _predict(exported, images)
        theirs = _predict(reference, images)
        found.images += len(images)
        if exported.model.nms is None:
            found.add((ours[0], theirs[0]), (ours[1], theirs[1]))
            continue
        for own, other in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
            _add_matched(found, own, other)
    return found


def _predict(backend: ExportedBackend, images: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes [B, N, 4] and scores [B, N, C] of images on any device, on the CPU."""
    found = backend.predict(images.to(backend.device))
    return found.boxes_xyxy.cpu(), found.scores.cpu()


def _add_matched(
    found: Differences, own: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]
) -> None:
    """Take in the detections of one image: boxes [D, 4] and scores [D, C], matched by class and
    nearest box.
    """
    (boxes, score, kind), (wanted, wanted_score, wanted_kind) = (
        _used(*values) for values in (own, other)
    )
    distance = (boxes[:, None] - wanted).abs().amax(-1)
    distance = torch.where(kind[:, None] == wanted_kind, distance, torch.inf)
    left, allowed = set(range(len(boxes))), found.tolerance.of_boxes(wanted).amax(-1)
    for column in range(len(wanted)):
        row = min(left, key=lambda index: float(distance[index, column]), default=None)
        if row is None or distance[row, column] > 1 + found.tolerance.pixels + allowed[column]:
            found.unmatched += 1
            continue
        left.remove(row)
        found.add((boxes[row], wanted[column]), (score[row], wanted_score[column]))
    found.unmatched += len(left)
    found.detections += len(wanted)


def _used(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, scores and classes of the rows that are used."""
    best, kind = scores.max(-1)
    used = best > 0
    return boxes[used], best[used], kind[used]
