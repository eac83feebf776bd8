"""The base class of all heads: feature maps -> raw predictions -> boxes and scores.

`models.head_registry.HEADS` lists the heads.

L levels of the head, B images, N predictions per image over all levels, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.blocks import Layer

Raw = Any  # what a head passes to its loss: a list or tuple of tensors, possibly nested


class WithAuxiliary(NamedTuple):
    """The raw predictions of both heads of a model with an auxiliary branch, in training."""

    main: Raw
    auxiliary: Raw


class WithProjections(NamedTuple):
    """What a model that learns from a teacher returns in training.

    raw: what it returns without one. projections: its maps, projected to the teacher's channels,
    [B, channels of the teacher, H, W] of each level that both have.
    """

    raw: Raw
    projections: list[Tensor]


class CellPredictions(NamedTuple):
    """What each cell of a level predicts, as numbers that mean the same for every head.

    boxes_xyxy: in pixels, [B, H, W, A, 4]; A is 1 but for heads with anchors. logits: of the
    scores, [B, H, W, A, C]: a score is sigma(logit). Both have a gradient, and the dtype of `raw`.
    """

    boxes_xyxy: Tensor
    logits: Tensor


class Head(Layer, ABC):
    """Base class of heads. A head is the last row of a table's `head`, and of its `auxiliary`.

    The constructor takes the input channels of each level, the row's args, and `strides=`.

    num_classes: C. strides: pixels per cell of each level [L]; image sides must be multiples of the
    largest.

    Raises ValueError for fewer than 1 class, or if a stride is not a whole number.
    """

    multi_input = True
    scales_width = False
    # state_dict keys that depend on the data: `transfer` does not copy them
    fitted: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()  # the names of alternative predictions, if any
    needs_nms: bool = True  # whether several predictions find the same box
    is_one_layer: bool = False  # whether a single convolution reads each map
    constants: int = 0  # fixed numbers that published totals count as parameters

    def __init__(self, num_classes: int, strides: Sequence[Fraction]) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"a head needs 1 or more classes, got {num_classes}")
        if any(stride.denominator != 1 for stride in strides):
            given = ", ".join(str(stride) for stride in strides)
            raise ValueError(f"strides must be whole numbers, got {given}")

        self.num_classes = num_classes
        self.strides = tuple(int(stride) for stride in strides)

    @abstractmethod
    def forward(self, maps: list[Tensor]) -> Raw:
        """Return raw predictions, for `decode` and for the loss.

        maps: one [B, channels, H, W] per level.
        """

    @abstractmethod
    def decode(self, raw: Raw) -> tuple[Tensor, Tensor]:
        """Return boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] in [0, 1], both float32."""

    def decode_candidates(self, raw: Raw, confidence: float) -> tuple[Tensor, Tensor]:
        """Return what `decode` does, without predictions that have no score above `confidence`.

        Boxes are [B, M, 4] and scores [B, M, C], M <= N. Images with fewer predictions than others
        are padded with zeros.

        On a CPU this saves computing boxes and scores that would be discarded. On a GPU the host
        would have to wait for M.
        """
        return self.decode(raw)

    def predict_cells(self, raw: Raw) -> list[CellPredictions]:
        """Return the predictions of each cell of each level, for distillation.

        Raises: ValueError if the head has none.
        """
        raise ValueError(f"a head of class {type(self).__name__} does not predict in cells")

    @abstractmethod
    def split_classes(self, key: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the part of a tensor that all classes share, and the part with a row per class.

        The second is [C, ...], or None if the tensor has no such part. Both are views of `values`,
        so that rows can be copied in place.

        key: the tensor's name in the head's state_dict. values: the tensor.
        """

    def box_rows(self, key: str, values: Tensor) -> Tensor:
        """Return the part of a tensor that tells where boxes are, as a view of `values`.

        A head of other classes can start from it. Without the rows that tell whether there is an
        object: of each class, and of objectness. key, values: as for `split_classes`.
        """
        return self.split_classes(key, values)[0]

    def choose_output(self, name: str) -> None:
        """Have `decode` return the predictions of this name.

        Raises: ValueError if the head has none of this name.
        """
        if not self.outputs:
            raise ValueError(f"--head {name}: this model's head has only one output")
        raise ValueError(f"--head {name}: choose {' or '.join(self.outputs)}")

    def fuse(self) -> None:
        """Remove what only training needs; a second call changes nothing."""

    def fit_to_boxes(
        self,
        sizes: NDArray[np.float64],
        *,
        anchor_t: float,
        seed: int,
        placeholders: bool,
        broadcast: Callable[[Any], Any],
    ) -> str | None:
        """Fit the head to the box sizes and return a sentence on it; None if it has no anchors.

        Args:
            sizes: width and height in pixels at the training size, [N, 2].
            anchor_t: a box and an anchor match if their sides differ by less than this factor.
            seed: of the random numbers that fitting uses.
            placeholders: whether the present anchors are only a start, and always replaced.
            broadcast: returns rank 0's value (JSON types), so that all processes end with the same
                bits.
        """
        return None

    def table_entries(self) -> dict[str, Any]:
        """Return the table entries, as plain values, that rebuild the head as it is fitted now."""
        return {}
