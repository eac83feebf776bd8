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

    Source: TOOD, arXiv 2108.07755, sections 3.2 and 3.3, equation 4, with CIoU instead of IoU;
    `kept` of 1 is the one-to-one matching of YOLOv10, arXiv 2405.14458, section 3.1.
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

    # The candidates: the points inside the box with the largest alignment.  [T, K]
    slots = min(candidates, predictions_per_image)

    def best_aligned(
        image: Tensor, class_id: Tensor, boxes: Tensor, half: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the alignment, the number and the CIoU of the best predictions, [rows, K] each."""
        # s and u of each target and each prediction of its image.  [rows, N]
        image_terms = predicted_terms.index_select(0, image)
        iou = complete_iou_of_terms(image_terms, complete_iou_terms(boxes[:, None])).clamp_(min=0)
        score = classes[image, :, class_id.clamp(min=0)].sigmoid_()

        # Equation 4: t = s^alpha * u^beta, alpha = 0.5, beta = 6. iou**6 takes four times as long.
        alignment = score.sqrt_() * (iou**3).square_()

        # 0 for the points that are not inside the box.
        x, y = points.unbind(1)
        outside_x = (x - boxes[:, :1]).abs() >= half[:, :1]
        outside_y = (y - boxes[:, 1:2]).abs() >= half[:, 1:]
        alignment.masked_fill_(outside_x | outside_y, 0)

        largest, number = alignment.topk(slots, 1)
        return largest, number, iou.gather(1, number)

    rows = pairs_at_a_time(targets.device) // max(predictions_per_image, 1)
    alignment, number, iou = in_row_blocks(best_aligned, rows, image, class_id, boxes, half)

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
