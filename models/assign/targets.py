"""Rows of targets that are no objects: padding, which keeps shapes static, and ignore regions.

Targets are [T, 6]: image, class, x1, y1, x2, y2 in pixels.
"""

import torch
from torch import Tensor

IGNORE_CLASS = -1  # marks a region whose cells say nothing about objectness
NO_TARGET = -2  # marks a row that stands for nothing
FEWEST = 16  # rows


def pad_targets(targets: Tensor) -> Tensor:
    """[T, 6] targets with rows that stand for nothing, so that few T occur, four to each doubling: static shapes.

    >>> [len(pad_targets(torch.zeros(n, 6))) for n in (0, 16, 17, 20, 21, 100, 500, 513)]
    [16, 16, 20, 20, 24, 112, 512, 640]
    """
    number = max(len(targets), FEWEST)
    step = 2 ** ((number - 1).bit_length() - 3)
    filled = torch.nn.functional.pad(targets, (0, 0, 0, -(-number // step) * step - len(targets)))
    filled[len(targets) :, 1] = NO_TARGET
    return filled
