"""Box functions on tensors [..., 4], in any unit. boxes_xyxy: x1, y1, x2, y2; boxes_cxcywh: centre,
width, height.
"""

import math

import torch
from torch import Tensor


def to_cxcywh(boxes_xyxy: Tensor) -> Tensor:
    """Convert corners to centre, width and height, [..., 4].

    >>> to_cxcywh(torch.tensor([[0., 0., 4., 2.]])).tolist()
    [[2.0, 1.0, 4.0, 2.0]]
    """
    low, high = boxes_xyxy[..., :2], boxes_xyxy[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def to_xyxy(boxes_cxcywh: Tensor) -> Tensor:
    """Convert centre, width and height to corners x1, y1, x2, y2, [..., 4].

    >>> to_xyxy(torch.tensor([[2., 1., 4., 2.]])).tolist()
    [[0.0, 0.0, 4.0, 2.0]]
    """
    center, half = boxes_cxcywh[..., :2], boxes_cxcywh[..., 2:] / 2
    return torch.cat([center - half, center + half], -1)


def iou_of_pairs(boxes_xyxy: Tensor, targets_xyxy: Tensor) -> Tensor:
    """IoU of box i with target i: [N], in [0, 1]; 0 if both are empty. Both inputs are [N, 4] in
    the same unit.

    >>> boxes, targets = torch.tensor([[0., 0., 2., 2.]]), torch.tensor([[0., 0., 1., 4.]])
    >>> iou_of_pairs(boxes, targets).item()  # 2 / (4 + 4 - 2)
    0.3333333432674408
    """
    low = torch.maximum(boxes_xyxy[..., :2], targets_xyxy[..., :2])
    high = torch.minimum(boxes_xyxy[..., 2:], targets_xyxy[..., 2:])

    shared = _area((high - low).clamp(min=0))
    area = _area(boxes_xyxy[..., 2:] - boxes_xyxy[..., :2])
    target_area = _area(targets_xyxy[..., 2:] - targets_xyxy[..., :2])
    return shared / (area + target_area - shared).clamp(min=torch.finfo(shared.dtype).tiny)


def _area(size: Tensor) -> Tensor:
    """Width times height [...] of sizes [..., 2]; not `prod`, whose gradient reads the number of
    zeros on the host.
    """
    width, height = size.unbind(-1)
    return width * height


def complete_iou(boxes_cxcywh: Tensor, targets_cxcywh: Tensor, eps: float = 1e-7) -> Tensor:
    """Complete IoU (CIoU) of box i with target i: [N], in (-1.5, 1], never above the IoU.

    Both inputs are [N, 4] in the same unit, pixels or cells, or of shapes that broadcast. Widths
    and heights must not be negative, and should be much larger than eps, which prevents a division
    by zero for empty boxes. No gradient flows through the weight of the aspect-ratio term.

    Source: Zheng et al., Distance-IoU Loss (arXiv 1911.08287), equations 7 and 9 to 11.

    >>> boxes, targets = torch.tensor([[1., 1., 2., 2.]]), torch.tensor([[1., 1., 2., 2.]])
    >>> complete_iou(boxes, targets).item() > 1 - 1e-5
    True
    """
    return complete_iou_of_terms(
        complete_iou_terms(boxes_cxcywh, eps), complete_iou_terms(targets_cxcywh, eps), eps
    )


def complete_iou_terms(boxes_cxcywh: Tensor, eps: float = 1e-7) -> Tensor:
    """Return what `complete_iou_of_terms` takes of boxes [..., N, 4]: [..., 8, N], to compute it
    once for many pairs.

    The terms are the centre x, y, the sides left, top, right, bottom, the area, and the angle
    atan(width / height).
    """
    center, size = boxes_cxcywh.split(2, -1)
    low, high = center - size / 2, center + size / 2
    width, height = size.unbind(-1)
    corners = torch.cat([center, low, high], -1)  # [..., N, 6]
    area_and_angle = torch.stack([width * height, torch.atan(width / (height + eps))], -2)
    return torch.cat([corners.mT, area_and_angle], -2)


def complete_iou_of_terms(boxes: Tensor, targets: Tensor, eps: float = 1e-7) -> Tensor:
    """Return `complete_iou` [..., N] of boxes and targets by their terms [..., 8, N], or of shapes
    that broadcast.
    """
    # Pairs of x and y, [..., 2, N], are computed together: half as many kernels on a GPU.
    center, low, high, area, angle = boxes.split([2, 2, 2, 1, 1], -2)
    target_center, target_low, target_high, target_area, target_angle = targets.split(
        [2, 2, 2, 1, 1], -2
    )
    area, angle, target_area, target_angle = (
        x.squeeze(-2) for x in (area, angle, target_area, target_angle)
    )

    width, height = (
        (torch.minimum(high, target_high) - torch.maximum(low, target_low)).clamp(min=0).unbind(-2)
    )
    overlap = width * height
    iou = overlap / (area + target_area - overlap + eps)

    hull_width, hull_height = (
        (torch.maximum(high, target_high) - torch.minimum(low, target_low)).square().unbind(-2)
    )
    diagonal = hull_width + hull_height + eps  # c^2
    apart_x, apart_y = (center - target_center).square().unbind(-2)
    distance = (apart_x + apart_y) / diagonal  # rho^2 / c^2

    aspect = 4 / math.pi**2 * (target_angle - angle).square()
    with torch.no_grad():
        weight = aspect / (1 - iou + aspect + eps)
    return iou - distance - weight * aspect
