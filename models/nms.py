"""Confidence filter, top-k and non-maximum suppression. Deterministic: no clock, ties go to the lower index."""

import torch
from torch import Tensor
from torchvision.ops import nms

from utils.distributed.precision import widest_float


def non_max_suppression(
    boxes_xyxy: Tensor,
    scores: Tensor,
    *,
    confidence: float = 0.001,
    iou: float = 0.6,
    max_detections: int = 300,
    max_candidates: int = 3000,
    multi_label: bool = True,
    agnostic: bool = False,
) -> list[Tensor]:
    """Per image the kept detections, [D, 6]: x1, y1, x2, y2, score, class, best score first.

    boxes_xyxy: [B, N, 4] pixels. scores: [B, N, C] in [0, 1]. Scores at or below `confidence` do not count.
    multi_label: a box may answer for several classes, else for its best one. agnostic: boxes of different classes
    suppress each other too. At most `max_candidates` of the highest scores enter the suppression, `max_detections`
    leave it.

    Raises ValueError if `confidence` or `iou` is outside [0, 1], or a maximum is below 1.
    """
    check_limits(confidence, iou, max_detections, max_candidates)
    found = []
    for boxes, image_scores in zip(boxes_xyxy, scores, strict=True):
        box, class_id, score = _candidates(image_scores, confidence, multi_label)
        top = _highest(score, max_candidates)
        rows = torch.cat([boxes[box[top]], score[top, None], class_id[top, None].to(boxes.dtype)], 1)
        kept = nms(_apart(rows, agnostic), rows[:, 4].to(widest_float(rows.device)), iou)
        found.append(rows[kept[:max_detections]])
    return found


def check_limits(confidence: float, iou: float, max_detections: int, max_candidates: int = 1) -> None:
    """Raises ValueError if `confidence` or `iou` is outside [0, 1], or a maximum is below 1."""
    for name, share in (("confidence", confidence), ("iou", iou)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} {share}: a threshold lies between 0 and 1")
    for name, number in (("max_detections", max_detections), ("max_candidates", max_candidates)):
        if number < 1:
            raise ValueError(f"{name} {number}: choose 1 or more")


def _candidates(scores: Tensor, confidence: float, multi_label: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(box index, class, score) of every score above `confidence`, each [N], in the order of the boxes."""
    if multi_label:
        box, class_id = (scores > confidence).nonzero(as_tuple=True)
        return box, class_id, scores[box, class_id]
    best, class_id = scores.max(-1)
    box = (best > confidence).nonzero(as_tuple=True)[0]
    return box, class_id[box], best[box]


def _highest(score: Tensor, limit: int) -> Tensor:
    """Indices of the `limit` highest scores, highest first, the lower index first among equal ones.

    Only the scores from the lowest of the highest on are sorted: of two million candidates that is 20 times faster.
    """
    near = torch.arange(len(score), device=score.device)
    if len(score) > limit:
        near = (score >= score.topk(limit, sorted=False).values.min()).nonzero(as_tuple=True)[0]
    return near[score[near].argsort(descending=True, stable=True)[:limit]]


def _apart(rows: Tensor, agnostic: bool) -> Tensor:
    """Boxes of rows [D, 6] moved so that those of different classes cannot meet; where they are if agnostic.

    In float64: the moved boxes of class 79 have lost a thousandth of a pixel in float32, enough to turn a decision.
    """
    boxes = rows[:, :4].to(widest_float(rows.device))
    if agnostic or len(rows) == 0:
        return boxes
    return boxes + rows[:, 5:].to(boxes.dtype) * (boxes.max() - boxes.min() + 1)
