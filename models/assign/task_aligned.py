"""Task-aligned assignment: each box gets the predictions that agree best on its class and place.

B images, T targets, N predictions per image over all levels, C classes, K candidates per target, M
= T * K slots. Shapes depend only on T, N and K, and no value is read on the host.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.assign.base import Assignment, distribute_invalid
from models.assign.row_blocks import in_row_blocks, pairs_at_a_time
from utils.boxes import complete_iou_of_terms, complete_iou_terms, to_cxcywh

MIN_DEPTH = 1e-9  # a prediction's point must be farther than this from all sides of the box
EPS = 1e-9


@dataclass(frozen=True)
class ScoredAssignment(Assignment):
    """An assignment with the score that each prediction should give the target's class, [M].

    target_score: in [0, 1]; 0 where not valid.
    """

    target_score: Tensor


@torch.no_grad()
def task_aligned(
    boxes_xyxy: Tensor,
    classes: Tensor,
    points: Tensor,
    targets: Tensor,
    *,
    candidates: int = 10,
    kept: int | None = None,
    smallest: float = 0.0,
    reach: Tensor | None = None,
) -> ScoredAssignment:
    """Return the predictions that are assigned to targets.

    Candidates of a target are the K predictions, of points inside its box, with the largest
    alignment t = score^0.5 * CIoU^6. A prediction that several targets have is given to the one
    with which its CIoU is largest. The target score is t, scaled so that the target's largest one
    is its largest CIoU.

    Args:
        boxes_xyxy: [B, N, 4] in pixels, float32 or float64.
        classes: logits [B, N, C].
        points: the middles of their cells, x, y in pixels, [N, 2].
        targets: [T, 6] image, class, x1, y1, x2, y2 in pixels; those of a negative class are not
            assigned.
        candidates: K, per target.
        kept: how many of them are assigned; None: all.
        smallest: a side of a box that is shorter, in pixels, is lengthened to this when candidates
            are chosen.
        reach: the longest distance of each prediction, in pixels, [N]. The candidates are then of
            the points inside the box or on its sides, from which no side is farther. A target of
            which no such point has an alignment above 0 gets the one prediction, of all, that is
            aligned best, if its alignment is above 0. None: no limit, and no such prediction.

    Source: TOOD, arXiv 2108.07755, sections 3.2 and 3.3, equation 4, with CIoU instead of IoU;
    `kept` of 1 is the one-to-one matching of YOLOv10, arXiv 2405.14458, section 3.1; `reach` is a
    fact of YOLOv9's assignment.
    """
    images, predictions_per_image, _ = classes.shape
    image = targets[:, 0].long()
    class_id = targets[:, 1].long()
    boxes = to_cxcywh(targets[:, 2:].to(boxes_xyxy.dtype))

    predicted = to_cxcywh(boxes_xyxy)
    predicted[..., 2:].clamp_(min=0)
    predicted_terms = complete_iou_terms(predicted)  # [B, 8, N]

    # Half the sides of a box, within which points must be from its middle; 0 for a negative class,
    # so that no point is inside.
    half = boxes[:, 2:].clamp(min=smallest) / 2 - MIN_DEPTH
    half = half.masked_fill((class_id < 0)[:, None], 0)
    corners = targets[:, 2:].to(boxes_xyxy.dtype)

    # The candidates: the points inside the box with the largest alignment.  [T, K]
    slots = min(candidates, predictions_per_image)

    def best_aligned(
        image: Tensor, class_id: Tensor, boxes: Tensor, half: Tensor, corners: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the alignment, the number and the CIoU of the best predictions, [rows, K] each."""
        # s and u of each target and each prediction of its image.  [rows, N]
        image_terms = predicted_terms.index_select(0, image)
        iou = complete_iou_of_terms(image_terms, complete_iou_terms(boxes[:, None])).clamp_(min=0)
        score = classes[image, :, class_id.clamp(min=0)].sigmoid_()

        # Equation 4: t = s^alpha * u^beta, alpha = 0.5, beta = 6. iou**6 takes four times as long.
        alignment = score.sqrt_() * (iou**3).square_()

        # 0 for the points that are not inside the box.
        if reach is None:
            x, y = points.unbind(1)
            outside_x = (x - boxes[:, :1]).abs() >= half[:, :1]
            outside_y = (y - boxes[:, 1:2]).abs() >= half[:, 1:]
            alignment.masked_fill_(outside_x | outside_y, 0)
            largest, number = alignment.topk(slots, 1)
        else:
            alignment.masked_fill_((class_id < 0)[:, None], 0)
            best_of_all = alignment.max(1, keepdim=True)
            alignment.masked_fill_(~_within_reach(points, corners, reach), 0)
            largest, number = alignment.topk(slots, 1)
            largest, number = _or_best_of_all(largest, number, *best_of_all)
        return largest, number, iou.gather(1, number)

    rows = pairs_at_a_time(targets.device) // max(predictions_per_image, 1)
    tables = (image, class_id, boxes, half, corners)
    alignment, number, iou = in_row_blocks(best_aligned, rows, *tables)

    # Each prediction goes to one target.
    prediction = image[:, None] * predictions_per_image + number  # [T, K]
    predictions = images * predictions_per_image
    valid = _resolve_conflicts(prediction, iou, alignment > 0, predictions)

    # Of those that are left, each target keeps the best.
    if kept is not None:
        order = alignment.where(valid, 0).argsort(dim=1, descending=True, stable=True)
        rank = order.argsort(1)
        valid &= rank < kept

    # Section 3.3: t is scaled so that its maximum for a target is that of u. Entries that are not
    # valid become 0, because they may be NaN.
    alignment = alignment.where(valid, 0)
    iou = iou.where(valid, 0)
    largest_alignment = alignment.amax(1, keepdim=True)
    target_score = alignment * iou.amax(1, keepdim=True) / (largest_alignment + EPS)

    target = torch.arange(len(targets), device=targets.device)[:, None].expand_as(number)
    return ScoredAssignment(
        prediction=distribute_invalid(prediction.flatten(), valid.flatten(), predictions),
        target=target.flatten(),
        target_score=target_score.flatten(),
        valid=valid.flatten(),
    )


def _within_reach(points: Tensor, corners: Tensor, reach: Tensor) -> Tensor:
    """Return whether each point is in a box, or on its side, with no side out of reach, [rows, N].

    points: x, y, [N, 2]. corners: boxes x1, y1, x2, y2, [rows, 4]. reach: of each point, [N].
    """
    x, y = points.unbind(1)
    x1, y1, x2, y2 = corners.split(1, 1)
    left, top, right, bottom = x - x1, y - y1, x2 - x, y2 - y  # [rows, N]
    nearest = torch.minimum(torch.minimum(left, top), torch.minimum(right, bottom))
    farthest = torch.maximum(torch.maximum(left, top), torch.maximum(right, bottom))
    return (nearest >= 0) & (farthest <= reach)


def _or_best_of_all(
    largest: Tensor, number: Tensor, best: Tensor, best_number: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the candidates; instead of a target's first, if it has none, the best of all.

    largest, number: alignments and numbers of the candidates, best first, [rows, K]. best,
    best_number: of all predictions, [rows, 1].
    """
    if not largest.shape[1]:
        return largest, number
    has_none = largest[:, :1] <= 0
    first = torch.where(has_none, best, largest[:, :1])
    first_number = torch.where(has_none, best_number, number[:, :1])
    return (
        torch.cat([first, largest[:, 1:]], 1),
        torch.cat([first_number, number[:, 1:]], 1),
    )


def _resolve_conflicts(
    prediction: Tensor, iou: Tensor, claimed: Tensor, predictions: int
) -> Tensor:
    """Return which claims win, bool [T, K]: those with the largest IoU for their prediction.

    The first target wins if IoUs are equal. prediction: numbers among B * N. iou: with the target.
    claimed: whether the target claims the prediction. All are [T, K]. predictions: B * N.
    """
    targets = len(prediction)
    target = torch.arange(targets, device=prediction.device)[:, None].expand_as(prediction)
    place = prediction.flatten()

    # The largest IoU of each prediction.  [B * N]
    claimed_iou = (iou * claimed).flatten()
    largest_iou = iou.new_zeros(predictions).scatter_reduce_(0, place, claimed_iou, "amax")
    claimed = claimed & (iou == largest_iou[prediction])

    # The first target that has it.  [B * N]
    claimant = torch.where(claimed, target, targets).flatten()
    first = target.new_full((predictions,), targets).scatter_reduce_(0, place, claimant, "amin")
    return claimed & (target == first[prediction])
