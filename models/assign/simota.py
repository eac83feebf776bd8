"""SimOTA: assignment by a cost of the predictions, as many predictions per box as its best IoUs
suggest.

B images, L levels, T targets, N predictions per image over all levels, C classes, S = 9 L slots per
target: the cells around its centre. Shapes depend only on T, N and L, and no value is read on the
host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.assign.invalid import distribute_invalid
from models.assign.levels import per_level
from models.assign.row_blocks import in_row_blocks
from utils.boxes import iou_of_pairs

RADIUS = 1.5  # strides
MAX_PER_BOX = 10  # predictions of a box; also how many IoUs are summed to choose their number
IOU_WEIGHT = 3.0
PAIRS_AT_A_TIME = 1 << 20  # of a target and a prediction, in float32 4 MiB
MAX_LOG = 100.0  # of a probability, as torch's binary cross entropy


@dataclass(frozen=True)
class Assigned:
    """Assigned predictions, each array [M]; entries where `valid` is False must not count. No
    prediction occurs twice.

    prediction: its number among B * N; arbitrary where not valid. target: its row among the
    targets.
    """

    prediction: Tensor
    target: Tensor
    valid: Tensor


@torch.no_grad()
def simota(
    boxes_xyxy: Tensor,
    objectness: Tensor,
    classes: Tensor,
    grids: Sequence[tuple[int, int]],
    strides: Sequence[int],
    targets: Tensor,
) -> Assigned:
    """Return the predictions that are assigned to targets.

    boxes_xyxy: [B, N, 4] in pixels. objectness: logits [B, N]. classes: logits [B, N, C]. grids:
    rows and columns of each level. targets: [T, 6] image, class, x1, y1, x2, y2 in pixels; those of
    a negative class, and empty ones, are not assigned.

    Candidates of an image are the predictions of cells whose middle is within 1.5 strides of the
    centre of one of its boxes, in x and in y. Each box gets the k cheapest ones around its own
    centre; k is the sum of its 10 largest IoUs with candidates of its image, rounded down, at least
    1. A prediction that several boxes get is given to the cheapest box near it, even if that box
    did not get it. Cost: cross entropy of the classes, of sqrt(objectness * class), minus 3 log
    IoU.

    Its authors let a box that has fewer than k cells around its centre take other candidates. With
    three levels it has at least 12, or 9 if the coarsest level is a single cell.

    Source: YOLOX, arXiv 2107.08430, section 2.1; OTA, arXiv 2103.14259.
    """
    images, predictions, _ = classes.shape
    owner = targets[:, 0].long()
    real = (targets[:, 1] >= 0) & (targets[:, 4:] > targets[:, 2:4]).all(1)
    cell, near = _cells_around(targets, grids, strides)  # [T, S]
    near &= real[:, None]
    prediction = owner[:, None] * predictions + cell

    candidates = torch.zeros(images * predictions, dtype=torch.int32, device=targets.device)
    candidates.scatter_reduce_(0, prediction.flatten(), near.flatten().int(), "amax")
    number = _number_of_each(boxes_xyxy, candidates.view(images, predictions), owner, targets)

    cost = _costs(
        boxes_xyxy.flatten(0, 1), objectness.flatten(), classes.flatten(0, 1), prediction, targets
    )
    cost.masked_fill_(~near, torch.inf)
    lowest, slot = cost.topk(min(MAX_PER_BOX, cost.shape[1]), 1, largest=False)  # [T, 10]
    taken = (
        torch.arange(lowest.shape[1], device=lowest.device) < number[:, None]
    ) & lowest.isfinite()
    return _each_once(prediction, cost, slot, taken, images * predictions)


def _cells_around(
    targets: Tensor, grids: Sequence[tuple[int, int]], strides: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the 3 x 3 cells around the centre of each target on each level, [T, S], and whether
    each is near it.
    """
    levels = len(strides)
    stride = per_level(strides, targets)[:, None, None]  # [L, 1, 1]
    sides = [side for height, width in grids for side in (width, height)]
    count = per_level(sides, targets, torch.int64).view(levels, 2, 1)  # columns, rows

    # Columns and rows of the cells, [T, L, 2, 3].
    centres = ((targets[:, 2:4] + targets[:, 4:]) / 2)[:, None, :, None]  # [T, 1, 2, 1]
    offsets = torch.arange(3, device=targets.device)
    cell = (centres / stride - 0.5 - RADIUS).floor().long() + 1 + offsets
    close = ((cell + 0.5) * stride - centres).abs() < RADIUS * stride
    inside = close & (cell >= 0) & (cell < count)
    column, row = cell.clamp(min=0).minimum(count - 1).unbind(2)  # [T, L, 3] each
    inside_column, inside_row = inside.unbind(2)

    # Their numbers among the predictions of an image, [T, L, 3, 3].
    sizes = [height * width for height, width in grids]
    first = per_level([sum(sizes[:level]) for level in range(levels)], targets, torch.int64)[
        :, None, None
    ]
    number = first + row[..., None] * count[:, :1] + column[:, :, None]
    near = inside_row[..., None] & inside_column[:, :, None]
    return number.flatten(1), near.flatten(1)


def _number_of_each(
    boxes_xyxy: Tensor, candidates: Tensor, owner: Tensor, targets: Tensor
) -> Tensor:
    """Return how many predictions each target gets: the sum of its 10 largest IoUs, rounded down,
    at least 1; [T].

    A few targets at a time are compared with all predictions of their images, so that images with
    hundreds of boxes need no more memory than others. candidates: [B, N], 1 for a candidate, else
    0.
    """
    sides = [side.contiguous() for side in boxes_xyxy.unbind(-1)]  # [B, N] each
    left, top, right, bottom = sides
    area = (right - left) * (bottom - top)
    allowed = candidates.to(area.dtype)

    def of_rows(image: Tensor, boxes: Tensor) -> tuple[Tensor]:
        x1, y1, x2, y2 = boxes[:, :, None].unbind(1)  # [rows, 1] each

        # [rows, N] each. index_select copies whole rows, and is faster than indexing.
        x_low, x_high, y_low, y_high, theirs, counts = (
            part.index_select(0, image) for part in (left, right, top, bottom, area, allowed)
        )
        wide = x_high.clamp_(max=x2).sub_(x_low.clamp_(min=x1)).clamp_(min=0)
        high = y_high.clamp_(max=y2).sub_(y_low.clamp_(min=y1)).clamp_(min=0)
        shared = wide.mul_(high)
        union = theirs.add_((x2 - x1) * (y2 - y1)).sub_(shared)
        iou = shared.div_(union.clamp_(min=torch.finfo(area.dtype).tiny)).mul_(counts)
        largest = iou.topk(min(MAX_PER_BOX, iou.shape[1]), 1).values
        return (largest.sum(1),)

    rows = PAIRS_AT_A_TIME // max(candidates.shape[1], 1)
    (total,) = in_row_blocks(of_rows, rows, owner, targets[:, 2:].to(area.dtype))
    return total.long().clamp(min=1)


def _costs(
    boxes_xyxy: Tensor, objectness: Tensor, classes: Tensor, prediction: Tensor, targets: Tensor
) -> Tensor:
    """Return the cost of each slot, [T, S]. prediction: [T, S], numbers among B * N."""
    at = prediction
    if at.numel() < len(classes):  # only the rows that are needed
        objectness, classes = objectness[at.flatten()], classes[at.flatten()]
        at = torch.arange(at.numel(), device=at.device).view_as(at)
    # the logarithm of sqrt(p_objectness * p_class)
    log_p = (F.logsigmoid(classes) + F.logsigmoid(objectness)[:, None]) / 2
    log_not = torch.log1p(-log_p.exp()).clamp(min=-MAX_LOG)
    class_id = targets[:, 1].long().clamp(min=0)[:, None]
    right, wrong = log_p[at, class_id].clamp(min=-MAX_LOG), log_not[at, class_id]
    entropy = wrong - right - log_not.sum(1)[at]
    iou = iou_of_pairs(boxes_xyxy[prediction], targets[:, None, 2:].to(boxes_xyxy.dtype))
    return entropy - IOU_WEIGHT * (iou + 1e-8).log()


def _each_once(
    prediction: Tensor, cost: Tensor, slot: Tensor, taken: Tensor, predictions: int
) -> Assigned:
    """Return the taken slots, each prediction once: if several took it, it is given to the cheapest
    target near it.

    prediction, cost: [T, S]. slot: [T, 10], numbers of slots; taken: [T, 10], whether the target
    takes them.
    """
    rows = torch.arange(len(cost), device=cost.device)[:, None]
    cheapest = cost.new_full((predictions,), torch.inf).scatter_reduce_(
        0, prediction.flatten(), cost.flatten(), "amin"
    )
    # the first target, if costs are equal
    winner = torch.where(cost == cheapest[prediction], rows, len(cost))
    winner = rows.new_full((predictions,), len(cost)).scatter_reduce_(
        0, prediction.flatten(), winner.flatten(), "amin"
    )

    chosen, taken = prediction.gather(1, slot).flatten(), taken.flatten()  # [M]
    order = torch.arange(len(chosen), device=chosen.device)
    takers = order.new_zeros(predictions).scatter_add_(0, chosen, taken.long())
    first = order.new_full((predictions,), len(order))
    first.scatter_reduce_(0, chosen, torch.where(taken, order, len(order)), "amin")
    valid = taken & (first[chosen] == order)
    return Assigned(
        prediction=distribute_invalid(chosen, valid, predictions),
        target=torch.where(
            takers[chosen] > 1, winner[chosen], rows.expand_as(slot).flatten()
        ).clamp(max=len(cost) - 1),
        valid=valid,
    )
