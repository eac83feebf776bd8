"""Training at changing image sizes."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class MultiScale:
    """Resizes a batch to 0.5 to 1.5 times its size, in multiples of the stride, two strides at least.

    The size is keyed by (seed, step), so that every rank draws the same. A map of a single cell would leave BatchNorm
    nothing to normalise where a batch holds one image.
    """

    SMALLEST, LARGEST = 0.5, 1.5

    def __init__(self, seed: int, stride: int) -> None:
        self.seed, self.stride = seed, stride

    @classmethod
    def largest_side(cls, side: int, stride: int) -> int:
        """The largest side that batches of `side` pixels may get, a multiple of the stride, or a bit more.

        >>> MultiScale.largest_side(640, 32), MultiScale.largest_side(32, 32)
        (960, 64)
        """
        return max(-(-round(side * cls.LARGEST) // stride), 2) * stride

    def size(self, step: int, side: int) -> int:
        """The side of a square batch at a step, a multiple of the stride."""
        low, high = (max(2, round(side * share / self.stride)) for share in (self.SMALLEST, self.LARGEST))
        random = np.random.Generator(np.random.Philox(key=[self.seed, step]))
        return int(random.integers(low, high + 1)) * self.stride

    def __call__(self, step: int, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """images [B, 3, S, S] and targets [T, 6] (image, class, x1, y1, x2, y2 in pixels) at the step's size."""
        side = images.shape[2]
        new = self.size(step, side)
        moved = torch.cat([targets[:, :2], targets[:, 2:] * (new / side)], 1)
        return F.interpolate(images, (new, new), mode="bilinear", align_corners=False), moved
