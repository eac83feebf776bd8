"""Task-aligned assignment: the predictions of a box are those that best agree on its class and its
place.

B images, T targets, N predictions per image over all levels, C classes, K predictions per target, M
= T * K slots. Shapes depend only on T, N and K, and no value is read on the host.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.assign.invalid import distribute_invalid
from models.assign.row_blocks import in_row_blocks
from utils.boxes import complete_iou_of_terms, complete_iou_terms, to_cxcywh

# of a target and a prediction: 512 KiB in float32, which fit in the cache of a CPU
PAIRS_AT_A_TIME = 1 << 17
ACCELERATOR_FACTOR = 8  # times as many on other devices, to start fewer kernels
MIN_DEPTH = 1e-9  # a prediction's point must be farther than this from all sides of the box
EPS = 1e-9


@dataclass(frozen=True)
class Aligned:
    """Assigned predictions, each array [M]; entries where `valid` is False must not count. No
    prediction occurs twice.

    prediction: its number among B * N; arbitrary where not valid. target: its row among the
    targets. target_score: what the prediction should give the target's class, in [0, 1]; 0 where
    not valid.
    """

    prediction: Tensor
    target: Tensor
    target_score: Tensor
    valid: Tensor


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
) -> Aligned:
    """Return the predictions that are assigned to targets.

    boxes_xyxy: [B, N, 4] in pixels, float32 or float64. classes: logits [B, N, C]. points: the
    middles of their cells, x, y in pixels, [N, 2]. targets: [T, 6] image, class, x1, y1, x2, y2 in
    pixels; those of a negative class are not assigned. candidates: K, per target. kept: how many of
    them are assigned; None: all. smallest: a side of a box that is shorter, in pixels, is
    lengthened to this when candidates are chosen.

    Candidates of a target are the K predictions, of points inside its box, with the largest
    alignment t = score^0.5 * CIoU^6. A prediction that several targets have is given to the one
    with which its CIoU is largest. The target score is t, scaled so that the target's largest one
    is its largest CIoU.

    Source: TOOD, arXiv 2108.07755, sections 3.2 and 3.3, equation 4, with CIoU instead of IoU;
    `kept` of 1 is the one-to-one matching of YOLOv10, arXiv 2405.14458, section 3.1.
    """
    images, predictions, _ = classes.shape
    owner = targets[:, 0].long()
    class_id = targets[:, 1].long()
    boxes = to_cxcywh(targets[:, 2:].to(boxes_xyxy.dtype))
    predicted = to_cxcywh(boxes_xyxy)
    predicted[..., 2:].clamp_(min=0)
    predicted_terms = complete_iou_terms(predicted)  # [B, 8, N]
    slots = min(candidates, predictions)

    # How near a point must be to the middle of a box: no point is inside one of a negative class.
    half = boxes[:, 2:].clamp(min=smallest) / 2 - MIN_DEPTH
    half = half.masked_fill((class_id < 0)[:, None], 0)

    def claims(
        owner: Tensor, class_id: Tensor, boxes: Tensor, half: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the alignment, the number and the CIoU of the best predictions, [rows, K] each."""
        terms = predicted_terms.index_select(0, owner)
        iou = complete_iou_of_terms(terms, complete_iou_terms(boxes[:, None])).clamp_(min=0)
        score = classes[owner, :, class_id.clamp(min=0)].sigmoid_()  # [rows, N]
        alignment = score.sqrt_() * (iou**3).square_()  # iou**6 takes four times as long

        x, y = points.unbind(1)
        outside_x = (x - boxes[:, :1]).abs() >= half[:, :1]
        outside_y = (y - boxes[:, 1:2]).abs() >= half[:, 1:]
        alignment = alignment.masked_fill_(outside_x | outside_y, 0)

        best, at = alignment.topk(slots, 1)
        return best, at, iou.gather(1, at)

    pairs = PAIRS_AT_A_TIME * (1 if targets.device.type == "cpu" else ACCELERATOR_FACTOR)
    rows = pairs // max(predictions, 1)
    alignment, at, iou = in_row_blocks(claims, rows, owner, class_id, boxes, half)  # [T, K]

    prediction = owner[:, None] * predictions + at
    valid = _of_one_target(prediction, iou, alignment > 0, images * predictions)
    if kept is not None:
        order = alignment.where(valid, 0).argsort(dim=1, descending=True, stable=True)
        valid &= order.argsort(1) < kept
    alignment, iou = alignment.where(valid, 0), iou.where(valid, 0)  # also where they are NaN
    target_score = alignment * iou.amax(1, keepdim=True) / (alignment.amax(1, keepdim=True) + EPS)
    return Aligned(
        prediction=distribute_invalid(prediction.flatten(), valid.flatten(), images * predictions),
        target=torch.arange(len(targets), device=targets.device)[:, None].expand_as(at).flatten(),
        target_score=target_score.flatten(),
        valid=valid.flatten(),
    )


def _of_one_target(prediction: Tensor, iou: Tensor, claimed: Tensor, predictions: int) -> Tensor:
    """Return which claims [T, K] win: those with the largest IoU for their prediction, the first
    target's if equal.
    """
    rows = torch.arange(len(prediction), device=prediction.device)[:, None].expand_as(prediction)
    at = prediction.flatten()
    largest = iou.new_zeros(predictions).scatter_reduce_(0, at, (iou * claimed).flatten(), "amax")
    claimed = claimed & (iou == largest[prediction])
    claimant = torch.where(claimed, rows, len(rows))
    first = rows.new_full((predictions,), len(rows)).scatter_reduce_(
        0, at, claimant.flatten(), "amin"
    )
    return claimed & (rows == first[prediction])
