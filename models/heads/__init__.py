"""What every head has in common: feature maps -> raw -> boxes and scores. registry.py lists the kinds of heads.

L levels of the head, B images, N predictions of an image over all levels, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.blocks import Layer

Raw = Any  # what a head gives its loss: a list or tuple of tensors, nested as the head likes


class Head(Layer, ABC):
    """The last row of a table. Its constructor takes the channels of its levels, the row's args, and `strides=`.

    num_classes: C. strides: pixels per cell of each level [L]; image sides must be multiples of the largest.

    Raises ValueError if a stride is not a whole number.
    """

    multi_input = True
    scales_width = False
    fitted: ClassVar[tuple[str, ...]] = ()  # its state_dict's keys that depend on the data: `transfer` leaves them out

    def __init__(self, num_classes: int, strides: Sequence[Fraction]) -> None:
        super().__init__()
        if any(stride.denominator != 1 for stride in strides):
            raise ValueError(f"strides must be whole numbers, got {', '.join(map(str, strides))}")
        self.num_classes = num_classes
        self.strides = tuple(int(stride) for stride in strides)

    @abstractmethod
    def forward(self, maps: list[Tensor]) -> Raw:
        """Raw predictions, for `decode` and for the loss, of one map [B, channels, H, W] per level."""

    @abstractmethod
    def decode(self, raw: Raw) -> tuple[Tensor, Tensor]:
        """boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] in [0, 1], both float32."""

    @abstractmethod
    def split_classes(self, key: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """What all classes share of one tensor of the head's state, and what belongs to each class [C, ...].

        Both are views of `values`, so that rows can be copied in place; None where there is nothing for each class.
        key: the tensor's name in the head's state_dict.
        """

    def fit_to_boxes(
        self,
        sizes: NDArray[np.float64],
        *,
        ratio_limit: float,
        seed: int,
        placeholders: bool,
        broadcast: Callable[[Any], Any],
    ) -> str | None:
        """Fit what depends on the boxes' sizes, and say what was found; None for a head with nothing to fit.

        sizes: width and height in pixels at the training size, [N, 2]. placeholders: what the head has is only a start.
        broadcast: rank 0's value of what JSON can hold, so that all processes end with the same bits.
        """
        return None

    def table_entries(self) -> dict[str, Any]:
        """The keys of a table, with plain values, that build the head as it is fitted now."""
        return {}
