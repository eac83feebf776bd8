"""Confidence filter, top-k and non-maximum suppression. Deterministic: no clock, ties go to the lower index."""

import torch
from torch import Tensor
from torchvision.ops import batched_nms


def suppress(
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

    boxes_xyxy: [B, N, 4] pixels. scores: [B, N, C] in [0, 1]. Scores at or below `confidence` do not count. multi_label:
    a box may answer for several classes, else for its best one. agnostic: boxes of different classes suppress each other
    too. At most `max_candidates` of the highest scores enter the suppression, `max_detections` leave it.

    Raises ValueError if `confidence` or `iou` is outside [0, 1].
    """
    for name, value in (("confidence", confidence), ("iou", iou)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} {value}: a threshold lies between 0 and 1")
    limits = (confidence, iou, max_detections, max_candidates)
    return [_suppress_image(b, s, *limits, multi_label, agnostic) for b, s in zip(boxes_xyxy, scores, strict=True)]


def _suppress_image(
    boxes: Tensor,
    scores: Tensor,
    confidence: float,
    iou: float,
    max_detections: int,
    max_candidates: int,
    multi_label: bool,
    agnostic: bool,
) -> Tensor:
    box, class_id, score = _candidates(scores, confidence, multi_label)
    if len(score) > 0:
        order = score.argsort(descending=True, stable=True)[:max_candidates]
        box, class_id, score = box[order], class_id[order], score[order]
    chosen = boxes[box]
    kept = batched_nms(chosen, score, torch.zeros_like(class_id) if agnostic else class_id, iou)[:max_detections]
    return torch.cat([chosen[kept], score[kept, None], class_id[kept, None].to(boxes.dtype)], 1)


def _candidates(scores: Tensor, confidence: float, multi_label: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(box index, class, score) of every score above `confidence`, each [N], in the order of the boxes."""
    if multi_label:
        box, class_id = (scores > confidence).nonzero(as_tuple=True)
        return box, class_id, scores[box, class_id]
    best, class_id = scores.max(-1)
    box = (best > confidence).nonzero(as_tuple=True)[0]
    return box, class_id[box], best[box]
