"""SimOTA: each box gets the predictions of least cost near its center, as many as its IoUs suggest.

B images, L levels, T targets, N predictions per image over all levels, C classes, S = 9 L slots per
target: the cells around its center. Shapes depend only on T, N and L, and no value is read on the
host.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.assign.base import Assignment, cheapest_takers, distribute_invalid
from models.assign.levels import columns_and_rows
from models.assign.overlaps import PredictedBoxes
from models.assign.row_blocks import in_row_blocks
from models.device_constants import device_constant
from utils.boxes import iou_of_pairs

RADIUS = 1.5  # of the center region, in strides
MAX_PER_BOX = 10  # largest k; also how many IoUs are summed to estimate k
IOU_WEIGHT = 3.0  # lambda of equation 1
PAIRS_AT_A_TIME = 1 << 20  # of a target and a prediction, in float32 4 MiB
MAX_LOG = 100.0  # of a probability, as torch's binary cross entropy


@torch.no_grad()
def simota(
    boxes_xyxy: Tensor,
    objectness: Tensor,
    classes: Tensor,
    grids: Sequence[tuple[int, int]],
    strides: Sequence[int],
    targets: Tensor,
) -> Assignment:
    """Return the predictions that are assigned to targets.

    The center region of a box is the cells whose middle is within 1.5 strides of its center, in x
    and in y; candidates of an image are the predictions in any of its boxes' center regions. Each
    box gets the k predictions of least cost in its own center region; k is the sum of its 10
    largest IoUs with candidates of its image, rounded down, at least 1. A prediction that several
    boxes get is given to the cheapest box near it, even if that box did not get it.

    Its authors let a box whose center region has fewer than k cells take other candidates, too.
    That is left out: with three levels the region has at least 12 cells, or 9 if the coarsest level
    is a single cell, and k is at most 10.

    Args:
        boxes_xyxy: [B, N, 4] in pixels.
        objectness: logits [B, N].
        classes: logits [B, N, C].
        grids: rows and columns of each level.
        strides: pixels per cell of each level.
        targets: [T, 6] image, class, x1, y1, x2, y2 in pixels; those of a negative class, and empty
            ones, are not assigned.

    Source: YOLOX, arXiv 2107.08430, section 2.1, equation 1; OTA, arXiv 2103.14259, for the
    estimate of k.
    """
    images, predictions_per_image, _ = classes.shape
    image = targets[:, 0].long()  # [T]

    # The center region of each target that is an object.  [T, S]
    cell, in_center = _center_region(targets, grids, strides)
    has_class = targets[:, 1] >= 0
    has_area = (targets[:, 4:] > targets[:, 2:4]).all(1)
    in_center &= (has_class & has_area)[:, None]
    prediction = image[:, None] * predictions_per_image + cell

    # The cost of each of its predictions.  [T, S]
    cost = _costs(
        boxes_xyxy.flatten(0, 1), objectness.flatten(), classes.flatten(0, 1), prediction, targets
    )
    cost.masked_fill_(~in_center, torch.inf)

    # Dynamic k, from the IoUs with all candidates of the image.
    candidates = torch.zeros(
        images * predictions_per_image, dtype=torch.int32, device=targets.device
    )
    candidates.scatter_reduce_(0, prediction.flatten(), in_center.flatten().int(), "amax")
    candidates = candidates.view(images, predictions_per_image)
    k = _dynamic_k(boxes_xyxy, candidates, image, targets)

    # Each target takes its k predictions of least cost.  [T, 10]
    least, slot = cost.topk(min(MAX_PER_BOX, cost.shape[1]), 1, largest=False)
    rank = torch.arange(least.shape[1], device=least.device)
    taken = (rank < k[:, None]) & least.isfinite()

    return _resolve_conflicts(prediction, cost, slot, taken, images * predictions_per_image)


def _center_region(
    targets: Tensor, grids: Sequence[tuple[int, int]], strides: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the 3 x 3 cells around each target's center on each level, and whether each is near.

    Both are [T, S]. The cells are numbered as the predictions of an image; one outside its grid is
    replaced by a cell at the border, and is not near.
    """
    levels = len(grids)
    stride = device_constant(strides, targets)[:, None, None]  # [L, 1, 1]
    grid_size = columns_and_rows(grids, targets, torch.int64)[..., None]  # [L, 2, 1]

    # Three columns and three rows around the center: the first whose middle is within the radius,
    # and the next two.  [T, L, 2, 3]
    center = ((targets[:, 2:4] + targets[:, 4:]) / 2)[:, None, :, None]  # [T, 1, 2, 1]
    first_cell = (center / stride - 0.5 - RADIUS).floor().long() + 1
    cell = first_cell + torch.arange(3, device=targets.device)

    # The region is open: a cell at exactly 1.5 strides is outside.
    distance = ((cell + 0.5) * stride - center).abs()
    near = (distance < RADIUS * stride) & (cell >= 0) & (cell < grid_size)
    near_column, near_row = near.unbind(2)  # [T, L, 3] each
    column, row = cell.clamp(min=0).minimum(grid_size - 1).unbind(2)

    # Their numbers among the predictions of an image.  [T, L, 3, 3]: row, column
    cells_per_level = [rows * columns for rows, columns in grids]
    cells_before = [sum(cells_per_level[:level]) for level in range(levels)]
    first_number = device_constant(cells_before, targets, torch.int64)[:, None, None]
    columns = grid_size[:, :1]
    number = first_number + row[..., None] * columns + column[:, :, None]
    both_near = near_row[..., None] & near_column[:, :, None]
    return number.flatten(1), both_near.flatten(1)


def _costs(
    boxes_xyxy: Tensor, objectness: Tensor, classes: Tensor, prediction: Tensor, targets: Tensor
) -> Tensor:
    """Return the cost of each target and prediction, [T, S]: c = L_cls + lambda * L_reg.

    L_cls is the cross entropy of the probabilities sqrt(p_objectness * p_class), L_reg is -log IoU.

    Args:
        boxes_xyxy: [B * N, 4] in pixels.
        objectness: logits [B * N].
        classes: logits [B * N, C].
        prediction: [T, S], numbers among B * N.
        targets: [T, 6].

    Source: YOLOX, arXiv 2107.08430, equation 1.
    """
    # With few targets, only the rows of their own predictions are computed.
    row = prediction
    if prediction.numel() < len(classes):
        objectness = objectness[prediction.flatten()]
        classes = classes[prediction.flatten()]
        row = torch.arange(prediction.numel(), device=prediction.device).view_as(prediction)

    # log p and log(1 - p) of every class, p = sqrt(p_objectness * p_class).
    log_p = (F.logsigmoid(classes) + F.logsigmoid(objectness)[:, None]) / 2
    log_not_p = torch.log1p(-log_p.exp()).clamp(min=-MAX_LOG)

    # L_cls = -log p of the target's class - the sum of log(1 - p) of all other classes.  [T, S]
    class_id = targets[:, 1].long().clamp(min=0)[:, None]
    log_p_right = log_p[row, class_id].clamp(min=-MAX_LOG)
    log_not_p_right = log_not_p[row, class_id]
    class_cost = log_not_p_right - log_p_right - log_not_p.sum(1)[row]

    # L_reg = -log IoU.  [T, S]
    target_boxes = targets[:, None, 2:].to(boxes_xyxy.dtype)
    iou = iou_of_pairs(boxes_xyxy[prediction], target_boxes)
    return class_cost - IOU_WEIGHT * (iou + 1e-8).log()


def _dynamic_k(boxes_xyxy: Tensor, candidates: Tensor, image: Tensor, targets: Tensor) -> Tensor:
    """Return how many predictions each target gets, [T]: the sum of its largest IoUs, at least 1.

    The 10 largest are summed, and the sum is rounded down. A few targets at a time are compared
    with all predictions of their images, so that images with hundreds of boxes need no more memory
    than others. candidates: [B, N], 1 for a candidate, else 0. image: [T].

    Source: OTA, arXiv 2103.14259, "Dynamic k Estimation".
    """
    predicted = PredictedBoxes(boxes_xyxy)
    is_candidate = candidates.to(boxes_xyxy.dtype)

    def sums_of_largest(image: Tensor, target_boxes: Tensor) -> tuple[Tensor]:
        # 0 for predictions that are not candidates
        iou = predicted.ious(image, target_boxes).mul_(is_candidate.index_select(0, image))
        largest = iou.topk(min(MAX_PER_BOX, iou.shape[1]), 1).values
        return (largest.sum(1),)

    rows = PAIRS_AT_A_TIME // max(candidates.shape[1], 1)
    target_boxes = targets[:, 2:].to(boxes_xyxy.dtype)
    (sums,) = in_row_blocks(sums_of_largest, rows, image, target_boxes)
    return sums.long().clamp(min=1)


def _resolve_conflicts(
    prediction: Tensor, cost: Tensor, slot: Tensor, taken: Tensor, predictions: int
) -> Assignment:
    """Return the taken predictions, each once: one that several targets took goes to the cheapest.

    That is the cheapest target near it, the first one if costs are equal, whether it took the
    prediction or not.

    Args:
        prediction: [T, S], numbers among B * N.
        cost: [T, S], infinite for targets that are not near.
        slot: [T, 10], numbers of slots.
        taken: [T, 10], whether the target takes the prediction of this slot.
        predictions: B * N.
    """
    targets = len(cost)
    target = torch.arange(targets, device=cost.device)[:, None]

    # The least cost of each prediction, and the first target that has it.  [B * N]
    least_cost = cost.new_full((predictions,), torch.inf)
    least_cost.scatter_reduce_(0, prediction.flatten(), cost.flatten(), "amin")
    claimant = torch.where(cost == least_cost[prediction], target, targets)
    cheapest_target = target.new_full((predictions,), targets)
    cheapest_target.scatter_reduce_(0, prediction.flatten(), claimant.flatten(), "amin")

    chosen = prediction.gather(1, slot)  # [T, 10]
    winner, valid = cheapest_takers(chosen, taken, cheapest_target)
    return Assignment(
        prediction=distribute_invalid(chosen.flatten(), valid, predictions),
        target=winner,
        valid=valid,
    )
