"""Convolutions with the same results in any batch, for tests that compare two routes to boxes."""

from typing import Any
from unittest import mock

import torch
from torch import nn


def images_convolved_alone() -> Any:
    """In this context, or a test with this decorator, each image of a batch is convolved by itself.

    A convolution may add in another order where the batch has another size, so that two routes that
    make other batches of the same images differ by rounding. Of boxes with nearly equal scores
    another one then wins, or is the last that is kept.
    """
    convolve = nn.Conv2d._conv_forward

    def convolve_each(
        layer: nn.Conv2d,
        images: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        results = [convolve(layer, image, weight, bias) for image in images.split(1)]
        return torch.cat(results)

    return mock.patch.object(nn.Conv2d, "_conv_forward", convolve_each)
