"""Target rows: padding rows, which keep shapes static, ignore regions, made-up boxes.

Targets are [T, 6]: image, class, x1, y1, x2, y2 in pixels.
"""

import math

import torch
from torch import Tensor

IGNORE_CLASS = -1  # marks a region whose unmatched cells are left out of the objectness loss
PADDING_CLASS = -2  # marks a padding row
MIN_ROWS = 16  # rows after padding


def pad_targets(targets: Tensor) -> Tensor:
    """Return targets [T, 6] padded with rows of class -2, so that few lengths occur.

    They are four per power of two, at least 16.

    >>> [len(pad_targets(torch.zeros(n, 6))) for n in (0, 16, 17, 20, 21, 100, 500, 513)]
    [16, 16, 20, 20, 24, 112, 512, 640]
    """
    rows = max(len(targets), MIN_ROWS)

    # A quarter of the largest power of two below it, rounded up to whole steps.
    step = 2 ** ((rows - 1).bit_length() - 3)
    padded_rows = math.ceil(rows / step) * step

    padded = torch.nn.functional.pad(targets, (0, 0, 0, padded_rows - len(targets)))
    padded[len(targets) :, 1] = PADDING_CLASS
    return padded


def made_up_targets(images: int, boxes_per_image: int, side: int, device: torch.device) -> Tensor:
    """Return padded targets of class 0, always the same ones, for a trial step.

    side: of the images, in pixels; a box has an eighth of it.
    """
    owner = torch.arange(images).repeat_interleave(boxes_per_image)[:, None]
    class_id = torch.zeros_like(owner)

    generator = torch.Generator().manual_seed(0)
    low = torch.rand(len(owner), 2, generator=generator) * side * 0.8
    high = low + side / 8

    targets = torch.cat([owner, class_id, low, high], 1)
    return pad_targets(targets.to(device))
