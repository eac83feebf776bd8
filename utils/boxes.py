"""Box functions on tensors [..., 4], in any unit.

boxes_xyxy: x1, y1, x2, y2. boxes_cxcywh: center x, y, width, height.
"""

import math

import torch
from torch import Tensor

IGNORE_CLASS = -1  # the class of boxes that are ignore regions


def to_cxcywh(boxes_xyxy: Tensor) -> Tensor:
    """Convert corners to center, width and height, [..., 4].

    >>> to_cxcywh(torch.tensor([[0., 0., 4., 2.]])).tolist()
    [[2.0, 1.0, 4.0, 2.0]]
    """
    low = boxes_xyxy[..., :2]
    high = boxes_xyxy[..., 2:]
    center = (low + high) / 2
    return torch.cat([center, high - low], -1)


def iou_of_pairs(boxes_xyxy: Tensor, targets_xyxy: Tensor) -> Tensor:
    """Return the IoU of box i with target i: [N], in [0, 1]; 0 if both are empty.

    Both inputs are [N, 4] in the same unit.

    >>> boxes, targets = torch.tensor([[0., 0., 2., 2.]]), torch.tensor([[0., 0., 1., 4.]])
    >>> iou_of_pairs(boxes, targets).item()  # 2 / (4 + 4 - 2)
    0.3333333432674408
    """
    overlap, union = _overlap_and_union(boxes_xyxy, targets_xyxy)
    return overlap / union.clamp(min=torch.finfo(overlap.dtype).tiny)


def generalized_iou(boxes_xyxy: Tensor, targets_xyxy: Tensor, eps: float = 1e-6) -> Tensor:
    """Return the generalized IoU (GIoU) of box i with target i: [N], in [-1, 1].

    It is the IoU minus the share of the smallest box around both that neither covers. Both inputs
    are [N, 4] in the same unit; the areas of the union and of the box around both are at least eps,
    which prevents a division by zero. The area of an inverted box, whose right side is to the left
    of its left side or whose bottom is above its top, counts as 0.

    Source: Rezatofighi et al., Generalized IoU (arXiv 1902.09630), algorithm 1.

    >>> boxes, targets = torch.tensor([[0., 0., 2., 2.]]), torch.tensor([[2., 0., 4., 4.]])
    >>> generalized_iou(boxes, targets).item()  # 0 - (4 * 4 - 12) / (4 * 4)
    -0.25
    """
    overlap, union = _overlap_and_union(boxes_xyxy, targets_xyxy)
    union = union.clamp(min=eps)

    hull_low = torch.minimum(boxes_xyxy[..., :2], targets_xyxy[..., :2])
    hull_high = torch.maximum(boxes_xyxy[..., 2:], targets_xyxy[..., 2:])
    hull = _area((hull_high - hull_low).clamp(min=0)).clamp(min=eps)
    return overlap / union - (hull - union) / hull


def _overlap_and_union(boxes_xyxy: Tensor, targets_xyxy: Tensor) -> tuple[Tensor, Tensor]:
    """Return the areas that box i and target i have in common, and that they cover, [N] each."""
    low = boxes_xyxy[..., :2]
    high = boxes_xyxy[..., 2:]
    target_low = targets_xyxy[..., :2]
    target_high = targets_xyxy[..., 2:]

    overlap_low = torch.maximum(low, target_low)
    overlap_high = torch.minimum(high, target_high)
    overlap = _area((overlap_high - overlap_low).clamp(min=0))

    # Else a box that is inverted in both directions has a union larger than the hull: the GIoU has
    # no upper bound, and training inverts the box more and more.
    area = _area((high - low).clamp(min=0))
    target_area = _area((target_high - target_low).clamp(min=0))
    return overlap, area + target_area - overlap


def _area(size: Tensor) -> Tensor:
    """Return width times height [...] of sizes [..., 2].

    Not by `prod`, whose gradient reads the number of zeros on the host.
    """
    width, height = size.unbind(-1)
    return width * height


def complete_iou(boxes_cxcywh: Tensor, targets_cxcywh: Tensor, eps: float = 1e-7) -> Tensor:
    """Return the complete IoU (CIoU) of box i with target i: [N], in (-1.5, 1].

    It is never above the IoU. Both inputs are [N, 4] in the same unit, pixels or cells, or of
    shapes that broadcast. Widths and heights must not be negative, and should be much larger than
    eps, which prevents a division by zero for empty boxes. No gradient flows through the weight of
    the aspect-ratio term.

    Source: Zheng et al., Distance-IoU Loss (arXiv 1911.08287), equations 7 and 9 to 11.

    >>> boxes, targets = torch.tensor([[1., 1., 2., 2.]]), torch.tensor([[1., 1., 2., 2.]])
    >>> complete_iou(boxes, targets).item() > 1 - 1e-5
    True
    """
    terms = complete_iou_terms(boxes_cxcywh, eps)
    target_terms = complete_iou_terms(targets_cxcywh, eps)
    return complete_iou_of_terms(terms, target_terms, eps)


def complete_iou_terms(boxes_cxcywh: Tensor, eps: float = 1e-7) -> Tensor:
    """Return the terms of boxes [..., N, 4] that `complete_iou_of_terms` takes, [..., 8, N].

    What a pair needs of each of its boxes, computed once for many pairs: the center x, y, the sides
    left, top, right, bottom, the area, and the angle atan(width / height).
    """
    center, size = boxes_cxcywh.split(2, -1)
    low = center - size / 2
    high = center + size / 2
    points = torch.cat([center, low, high], -1)  # [..., N, 6]

    width, height = size.unbind(-1)
    area = width * height
    angle = torch.atan(width / (height + eps))
    shape = torch.stack([area, angle], -2)  # [..., 2, N]
    return torch.cat([points.mT, shape], -2)


def complete_iou_of_terms(boxes: Tensor, targets: Tensor, eps: float = 1e-7) -> Tensor:
    """Return `complete_iou` [..., N] of boxes and targets by their terms [..., 8, N].

    The terms may be of shapes that broadcast.

    Source: Zheng et al., Distance-IoU Loss (arXiv 1911.08287), equations 7 and 9 to 11.
    """
    # Pairs of x and y, [..., 2, N], are computed together: half as many kernels on a GPU. Not every
    # result has a name, so that its memory, still in the cache of a CPU, is reused by the next one.
    center, low, high, area, angle = _split_terms(boxes)
    target_center, target_low, target_high, target_area, target_angle = _split_terms(targets)

    # IoU.
    overlap_sides = (torch.minimum(high, target_high) - torch.maximum(low, target_low)).clamp(min=0)
    overlap_width, overlap_height = overlap_sides.unbind(-2)
    overlap = overlap_width * overlap_height
    iou = overlap / (area + target_area - overlap + eps)

    # c^2 of equation 7: the squared diagonal of the smallest box around both.
    hull_squared = (torch.maximum(high, target_high) - torch.minimum(low, target_low)).square()
    hull_width_squared, hull_height_squared = hull_squared.unbind(-2)
    c_squared = hull_width_squared + hull_height_squared + eps

    # rho^2 of equation 7: the squared distance of the centers.
    apart_x_squared, apart_y_squared = (center - target_center).square().unbind(-2)
    distance = (apart_x_squared + apart_y_squared) / c_squared

    # Equations 9 and 11: v, the difference of the aspect ratios, and alpha, its weight.
    v = 4 / math.pi**2 * (target_angle - angle).square()
    with torch.no_grad():
        alpha = v / (1 - iou + v + eps)

    # Equation 10, as 1 - L_CIoU.
    return iou - distance - alpha * v


def _split_terms(terms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return center, low and high, [..., 2, N] each, and area and angle, [..., N], of the terms."""
    center, low, high, area, angle = terms.split([2, 2, 2, 1, 1], -2)
    return center, low, high, area.squeeze(-2), angle.squeeze(-2)
