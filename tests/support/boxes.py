"""Boxes as tests write them down."""

from torch import Tensor


def to_xyxy(boxes_cxcywh: Tensor) -> Tensor:
    """Convert center, width and height to corners x1, y1, x2, y2, [..., 4]."""
    from torchvision.ops import box_convert  # takes a second, which the collection need not wait

    return box_convert(boxes_cxcywh, "cxcywh", "xyxy")
