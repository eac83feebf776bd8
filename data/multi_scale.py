"""Multi-scale training: batches at changing image sizes."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class MultiScale:
    """Resizes a batch to 0.5 to 1.5 times its size, in multiples of the stride.

    The size depends on (seed, batch) only, so that every rank uses the same. It is at least two
    strides: with one, the feature map would be a single cell, from which BatchNorm cannot compute
    statistics if the batch holds one image.
    """

    MIN_SCALE = 0.5
    MAX_SCALE = 1.5

    def __init__(self, seed: int, stride: int) -> None:
        self.seed = seed
        self.stride = stride

    @classmethod
    def largest_side(cls, side: int, stride: int) -> int:
        """Return an upper bound of the side that batches of `side` pixels are resized to.

        It is a multiple of the stride.

        >>> MultiScale.largest_side(640, 32), MultiScale.largest_side(32, 32)
        (960, 64)
        """
        largest = round(side * cls.MAX_SCALE)
        strides = -(-largest // stride)  # rounded up
        return max(strides, 2) * stride

    def size(self, batch: int, side: int) -> int:
        """Return the side of the images of a batch, a multiple of the stride.

        batch: its number in the run. side: its side before.
        """
        low = max(2, round(side * self.MIN_SCALE / self.stride))
        high = max(2, round(side * self.MAX_SCALE / self.stride))
        random = np.random.Generator(np.random.Philox(key=[self.seed, batch]))
        return int(random.integers(low, high + 1)) * self.stride

    def __call__(self, batch: int, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and targets, resized to the batch's size.

        images: [B, 3, S, S]. targets: [T, 6], image, class, x1, y1, x2, y2 in pixels.
        """
        side = images.shape[2]
        new = self.size(batch, side)
        boxes = targets[:, 2:] * (new / side)
        resized_targets = torch.cat([targets[:, :2], boxes], 1)
        resized = F.interpolate(images, (new, new), mode="bilinear", align_corners=False)
        return resized, resized_targets
