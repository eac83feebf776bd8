"""Augmentation: planned as numbers and boxes first, then drawn by OpenCV or on the device."""

from data.augment.draw import Drawer
from data.augment.draw_device import Packed, draw_packed, pack, with_fixed_shapes
from data.augment.plan import Planner
from data.augment.records import Augmentation, Plan, Reader

__all__ = [
    "Augmentation",
    "Drawer",
    "Packed",
    "Plan",
    "Planner",
    "Reader",
    "draw_packed",
    "pack",
    "with_fixed_shapes",
]
