"""Confidence filter, top-k, non-maximum suppression (NMS).

Deterministic: no time limit, ties go to the lower index. B images, N predictions per image, C
classes, D candidates or detections of an image.
"""

import importlib
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from utils.distributed.precision import widest_float

MAX_CANDIDATES = 3000  # per image, that enter NMS


def register_nms() -> None:
    """Register torchvision's operators, among them torch.ops.torchvision.nms.

    Their shared library alone is loaded where that is possible: to import the Python package takes
    2 s of processor time, nearly all of it for modules that have nothing to do with NMS. The
    package is imported, and says what is wrong, if the library does not fit this torch.
    """
    if not _load_operators():
        importlib.import_module("torchvision")


def _load_operators() -> bool:
    """Load torchvision's library of operators; return whether it fits this torch."""
    package = find_spec("torchvision")
    if package is None or package.origin is None:
        return False
    try:
        for library in Path(package.origin).parent.glob("_C*.so"):
            torch.ops.load_library(library)
        cuda = torch.ops.torchvision._cuda_version()  # 13000 is version 13.0, -1 none
    except (AttributeError, OSError):
        return False
    return cuda == -1 or str(cuda)[:2] == str(torch.version.cuda)[:2]


register_nms()  # when imported: one that does not fit is reported at the start


def non_max_suppression(
    boxes_xyxy: Tensor,
    scores: Tensor,
    *,
    confidence: float = 0.001,
    iou: float = 0.6,
    max_detections: int = 300,
    max_candidates: int = MAX_CANDIDATES,
    multi_label: bool = True,
    agnostic: bool = False,
) -> list[Tensor]:
    """Return each image's detections, [D, 6]: x1, y1, x2, y2, score, class, best score first.

    Args:
        boxes_xyxy: [B, N, 4] pixels.
        scores: [B, N, C] in [0, 1].
        confidence: scores at or below it are dropped.
        iou: boxes that overlap a better one by more than this IoU are suppressed.
        max_detections: the most that are returned per image.
        max_candidates: the most that enter NMS per image, those of the highest scores.
        multi_label: a box may be detected as several classes, otherwise only as its best one.
        agnostic: boxes of different classes suppress each other too.

    Raises: ValueError if `confidence` or `iou` is outside [0, 1], or a maximum is below 1.
    """
    check_limits(confidence, iou, max_detections, max_candidates)

    detections = []
    for boxes, image_scores in zip(boxes_xyxy, scores, strict=True):
        box, class_id, score = _candidates(image_scores, confidence, multi_label)
        top = _highest(score, max_candidates)

        top_boxes = boxes[box[top]]  # [D, 4]
        top_scores = score[top, None]
        top_classes = class_id[top, None].to(boxes.dtype)
        candidates = torch.cat([top_boxes, top_scores, top_classes], 1)  # [D, 6]

        separated = _separate_classes(candidates, agnostic)
        nms_scores = candidates[:, 4].to(widest_float(candidates.device))
        kept = torch.ops.torchvision.nms(separated, nms_scores, iou)
        detections.append(candidates[kept[:max_detections]])
    return detections


def check_limits(
    confidence: float, iou: float, max_detections: int, max_candidates: int = 1
) -> None:
    """Raise ValueError if `confidence` or `iou` is outside [0, 1], or a maximum is below 1."""
    for name, share in (("confidence", confidence), ("iou", iou)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} {share}: choose a threshold from 0 to 1")
    for name, number in (("max_detections", max_detections), ("max_candidates", max_candidates)):
        if number < 1:
            raise ValueError(f"{name} {number}: choose 1 or more")


def _candidates(
    scores: Tensor, confidence: float, multi_label: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return box index, class and score of every candidate, each [D], in the order of the boxes.

    scores: [N, C]. A candidate has a score above `confidence`.
    """
    if multi_label:
        box, class_id = (scores > confidence).nonzero(as_tuple=True)
        return box, class_id, scores[box, class_id]

    best, class_id = scores.max(-1)  # [N]
    box = (best > confidence).nonzero(as_tuple=True)[0]
    return box, class_id[box], best[box]


def _highest(score: Tensor, limit: int) -> Tensor:
    """Return the indices of the `limit` highest scores, highest first.

    Among equal scores the lower index comes first. Only the scores that reach the top `limit` are
    sorted: 20 times faster for two million candidates.
    """
    top = torch.arange(len(score), device=score.device)
    if len(score) > limit:
        lowest = score.topk(limit, sorted=False).values.min()
        top = (score >= lowest).nonzero(as_tuple=True)[0]  # more than `limit` if some equal it

    order = score[top].argsort(descending=True, stable=True)
    return top[order[:limit]]


def _separate_classes(rows: Tensor, agnostic: bool) -> Tensor:
    """Return the boxes of rows [D, 6], shifted so that different classes do not overlap.

    Not shifted if `agnostic`. In float64: in float32 the shifted boxes of class 79 lose a
    thousandth of a pixel, enough to change a decision.
    """
    boxes = rows[:, :4].to(widest_float(rows.device))
    if agnostic or len(rows) == 0:
        return boxes

    class_ids = rows[:, 5:].to(boxes.dtype)
    shift = boxes.max() - boxes.min() + 1  # wider than all boxes together
    return boxes + class_ids * shift
