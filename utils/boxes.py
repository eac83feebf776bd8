"""Box functions on tensors [..., 4], in any unit. boxes_xyxy: x1, y1, x2, y2; boxes_cxcywh: centre, width, height."""

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
    """IoU of box i with target i: [N], in [0, 1]; 0 if both are empty. Both inputs are [N, 4] in the same unit.

    >>> iou_of_pairs(torch.tensor([[0., 0., 2., 2.]]), torch.tensor([[0., 0., 1., 4.]])).item()  # 2 / (4 + 4 - 2)
    0.3333333432674408
    """
    low = torch.maximum(boxes_xyxy[..., :2], targets_xyxy[..., :2])
    high = torch.minimum(boxes_xyxy[..., 2:], targets_xyxy[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (boxes_xyxy, targets_xyxy)]
    return shared / (areas[0] + areas[1] - shared).clamp(min=torch.finfo(shared.dtype).tiny)


def complete_iou(boxes_cxcywh: Tensor, targets_cxcywh: Tensor, eps: float = 1e-7) -> Tensor:
    """Complete IoU (CIoU) of box i with target i: [N], in (-1.5, 1], never above the IoU.

    Both inputs are [N, 4] in the same unit, pixels or cells. Widths and heights must not be negative, and should be
    much larger than eps, which prevents a division by zero for empty boxes. No gradient flows through the weight of the
    aspect-ratio term.

    Source: Zheng et al., Distance-IoU Loss (arXiv 1911.08287), equations 7 and 9 to 11.

    >>> complete_iou(torch.tensor([[1., 1., 2., 2.]]), torch.tensor([[1., 1., 2., 2.]])).item() > 1 - 1e-5
    True
    """
    center, size = boxes_cxcywh.split(2, -1)
    target_center, target_size = targets_cxcywh.split(2, -1)
    low, high = center - size / 2, center + size / 2
    target_low, target_high = target_center - target_size / 2, target_center + target_size / 2

    overlap = (torch.minimum(high, target_high) - torch.maximum(low, target_low)).clamp(min=0).prod(-1)
    iou = overlap / (size.prod(-1) + target_size.prod(-1) - overlap + eps)

    hull = torch.maximum(high, target_high) - torch.minimum(low, target_low)
    distance = (center - target_center).square().sum(-1) / (hull.square().sum(-1) + eps)  # rho^2 / c^2

    angle = torch.atan(size[..., 0] / (size[..., 1] + eps))
    target_angle = torch.atan(target_size[..., 0] / (target_size[..., 1] + eps))
    aspect = 4 / math.pi**2 * (target_angle - angle).square()
    with torch.no_grad():
        weight = aspect / (1 - iou + aspect + eps)
    return iou - distance - weight * aspect
