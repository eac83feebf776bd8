"""Dynamic soft label assignment: each box gets the predictions of least cost in its whole image.

B images, L levels, T targets, N predictions per image over all levels, C classes, K predictions per
target at most, M = T * K slots. Shapes depend only on T and N, and no value is read on the host.
"""

from collections.abc import Callable, Sequence
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from models.assign.base import cheapest_takers, distribute_invalid
from models.assign.overlaps import PredictedBoxes
from models.assign.row_blocks import in_row_blocks, pairs_at_a_time
from models.assign.targets import cells_inside
from models.assign.task_aligned import ScoredAssignment
from models.heads.cells import cells_and_strides
from utils.boxes import iou_of_pairs, to_cxcywh

MAX_PER_BOX = 13  # K, the largest k; also how many IoUs are summed to estimate k
IOU_WEIGHT = 3.0  # of -log IoU in the cost
NEAR = 3.0  # strides from a box's center at which the cost of the distance is 1
IOU_EPS = 1e-7


@torch.no_grad()
def dynamic_soft_label(
    boxes_xyxy: Tensor,
    classes: Tensor,
    grids: Sequence[tuple[int, int]],
    strides: Sequence[int],
    targets: Tensor,
) -> ScoredAssignment:
    """Return the predictions that are assigned to targets.

    Candidates of an image are the predictions whose points, the first corners of their cells, are
    strictly inside any of its boxes. Each box gets the k candidates of least cost, also those whose
    points are outside it; k is the sum of its 13 largest IoUs with candidates, rounded down, at
    least 1. A candidate that several boxes get is given to the one of least cost in the image, even
    if that box did not get it; to the first one if costs are equal. The target score is the IoU,
    and may be 0.

    The cost of a box and a candidate is the sum of the quality focal loss of all classes, whose
    target is the IoU for the box's class, - 3 log IoU, and 10^(d - 3) for points d strides from
    the box's center. Candidates so far away that this is infinite, 41 strides in float32, are not
    given to the box: their target score would be 0.

    Args:
        boxes_xyxy: [B, N, 4] in pixels, float32 or float64; some may be inverted.
        classes: logits [B, N, C].
        grids: rows and columns of each level.
        strides: pixels per cell of each level.
        targets: [T, 6] image, class, x1, y1, x2, y2 in pixels; those of a negative class, and empty
            ones, are not assigned.

    Source: RTMDet, arXiv 2212.07784, and facts of its authors' code; OTA, arXiv 2103.14259, for the
    estimate of k.
    """
    images, predictions_per_image, _ = classes.shape
    predictions = images * predictions_per_image
    dtype = boxes_xyxy.dtype
    image = targets[:, 0].long()  # [T]
    class_id = targets[:, 1].long()
    boxes = targets[:, 2:].to(dtype)
    has_area = (targets[:, 4:] > targets[:, 2:4]).all(1)
    is_object = (class_id >= 0) & has_area

    # The predictions that cannot be assigned: without a point in a box, or not finite, so that the
    # sum of target scores, which all processes share, stays finite.  [B, N]
    inside_levels = cells_inside(targets, is_object, images, strides, grids, offset=0.0)
    inside = torch.cat([level.flatten(1) for level in inside_levels], 1)
    background = _background(classes, dtype)
    is_finite = boxes_xyxy.isfinite().all(2) & background.isfinite()
    excluded = ~(inside & is_finite)

    # Points and distances in pixels, each prediction's own.
    cells, cell_strides = cells_and_strides(grids, strides, boxes_xyxy)
    x, y = (cells * cell_strides).unbind(1)  # [N]
    stride = cell_strides[:, 0]
    predicted = PredictedBoxes(boxes_xyxy)

    minima = CheapestTargets(len(targets), background)
    slots = min(MAX_PER_BOX, predictions_per_image)

    def cheapest(
        row: Tensor, image: Tensor, class_id: Tensor, boxes: Tensor, is_object: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return cost and number of the cheapest predictions, [rows, K] each, and k, [rows, 1]."""
        is_excluded = excluded.index_select(0, image) | ~is_object[:, None]  # [rows, N]
        iou = predicted.ious(image, boxes).masked_fill_(is_excluded, 0)
        k = iou.topk(slots, 1).values.sum(1, keepdim=True).long().clamp_(min=1)

        # The class term: all classes as wrong, and what the target's own class changes.
        logit = classes[image, :, class_id.clamp(min=0)].to(dtype)
        cost = quality_focal(logit, iou, fast_softplus)
        cost.sub_(background_focal(logit, fast_softplus))
        cost.add_(background.index_select(0, image))

        # The IoU term, and the distance of the points from the box's center.
        cost.sub_(iou.add_(IOU_EPS).log_(), alpha=IOU_WEIGHT)
        center_x, center_y, _, _ = to_cxcywh(boxes)[:, :, None].unbind(1)
        distance = (x - center_x).square_().add_((y - center_y).square_()).sqrt_().div_(stride)
        cost.add_(distance.sub_(NEAR).mul_(log(10)).exp_())
        cost.masked_fill_(is_excluded, torch.inf)
        minima.update(row, image, cost)
        least, number = cost.topk(slots, 1, largest=False)
        return least, number, k

    rows = pairs_at_a_time(targets.device) // max(predictions_per_image, 1)
    row = torch.arange(len(targets), device=targets.device, dtype=torch.int32)
    cost, number, k = in_row_blocks(cheapest, rows, row, image, class_id, boxes, is_object)

    # Each target takes its k predictions of least cost, and each prediction goes to one target.
    rank = torch.arange(slots, device=targets.device)
    taken = (rank < k) & cost.isfinite()
    prediction = image[:, None] * predictions_per_image + number  # [T, K]
    target, valid = cheapest_takers(prediction, taken, minima.target.flatten().long())

    # The target scores; those of entries that are not valid may be NaN before.
    prediction = distribute_invalid(prediction.flatten(), valid, predictions)
    assigned_boxes = boxes_xyxy.flatten(0, 1).index_select(0, prediction)
    iou = iou_of_pairs(assigned_boxes, boxes.index_select(0, target))
    return ScoredAssignment(
        prediction=prediction, target=target, target_score=iou.where(valid, 0), valid=valid
    )


class CheapestTargets:
    """The least cost of each prediction so far, and the first target that has it.

    Targets come in blocks, so that no table of all targets and predictions is needed.

    targets: T. reference: [B, N], for shape, dtype and device.
    """

    def __init__(self, targets: int, reference: Tensor) -> None:
        self.nobody = targets
        self.cost = torch.full_like(reference, torch.inf)
        self.target = torch.full_like(reference, targets, dtype=torch.int32)  # T: none

    def update(self, row: Tensor, image: Tensor, cost: Tensor) -> None:
        """Take in the next targets, `row` of `image`, [rows] each, with `cost` [rows, N]."""
        cost_before = self.cost.clone()
        places = image[:, None].expand_as(cost)
        self.cost.scatter_reduce_(0, places, cost, "amin")

        # Targets of earlier blocks are kept unless a cost is lower.
        is_least = cost == self.cost.index_select(0, image)
        claimant = torch.where(is_least, row[:, None], self.nobody)
        first = torch.full_like(self.target, self.nobody)
        first.scatter_reduce_(0, places, claimant, "amin")
        self.target = torch.where(self.cost < cost_before, first, self.target)


def _background(classes: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the quality focal loss of each prediction, all classes as wrong, [B, N].

    Some predictions at a time: classes are [B, N, C], and the results of the steps as large.
    """
    images, predictions_per_image, num_classes = classes.shape

    def sums(logits: Tensor) -> tuple[Tensor]:
        return (background_focal(logits.to(dtype), fast_softplus).sum(1),)

    rows = pairs_at_a_time(classes.device) // num_classes
    (summed,) = in_row_blocks(sums, rows, classes.reshape(-1, num_classes))
    return summed.view(images, predictions_per_image)


Softplus = Callable[[Tensor], Tensor]


def quality_focal(logits: Tensor, quality: Tensor, softplus: Softplus = F.softplus) -> Tensor:
    """Return the quality focal loss of a class whose target is `quality`; all of one shape.

    |y - sigma|^2 times the binary cross entropy of logits and a target y in [0, 1].

    Source: Generalized Focal Loss, arXiv 2006.04388, equation 2, beta = 2.

    >>> quality_focal(torch.zeros(1), torch.tensor([1.0])) / torch.tensor(2.0).log()
    tensor([0.2500])
    """
    entropy = softplus(logits) - quality * logits
    return entropy * (quality - logits.sigmoid()).square()


def background_focal(logits: Tensor, softplus: Softplus = F.softplus) -> Tensor:
    """Return `quality_focal` for a target of 0: of wrong classes, and of the background."""
    return softplus(logits) * logits.sigmoid().square()


def fast_softplus(logits: Tensor) -> Tensor:
    """Return log(1 + exp(x)), to 1e-7 or float32's precision, whichever is larger.

    On a CPU this takes a quarter of the time of torch's, whose log1p is precise near 0 too.
    """
    return logits.abs().neg_().exp_().add_(1).log_().add_(logits.clamp(min=0))
