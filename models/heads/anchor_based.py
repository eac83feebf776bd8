"""The anchor-based head: feature maps -> raw maps -> boxes_xyxy in pixels, scores.

B images, L levels, A anchors per level, C classes, H W cells of a level, N predictions of an image over all levels.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from fractions import Fraction
from math import log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.anchors import check_anchors
from models.heads import Head
from models.table import Anchors


class AnchorBasedHead(Head):
    """YOLOv5's head, `Detect` in tables: per cell and anchor 4 numbers of a box, an objectness and C class logits.

    `anchors_px` [L, A, 2] (width, height in pixels) is a buffer and part of the state. Where the anchors given grow
    while the strides shrink, or the reverse, their levels are put in the order of the strides.
    """

    fitted = ("anchors_px",)

    anchors_px: Tensor

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        anchors: Anchors,
        *,
        strides: Sequence[Fraction],
    ) -> None:
        super().__init__(num_classes, strides)
        sizes = square_anchors(anchors, self.strides) if isinstance(anchors, int) else anchors
        ordered = torch.tensor(order_anchors(sizes, self.strides), dtype=torch.float32)
        self.register_buffer("anchors_px", ordered.view(len(strides), -1, 2))
        width = self.anchors_px.shape[1] * (5 + num_classes)
        self.m = nn.ModuleList(nn.Conv2d(channels, width, 1) for channels in in_channels)
        self.init_biases()

    @torch.no_grad()
    def init_biases(self) -> None:
        """Start objectness at about 8 objects in an image of 640 px, and classes at about 0.6 in all.

        Added to torch's own random start. Source: focal loss, arXiv 1708.02002, section 3.3.
        """
        for conv, stride in zip(self.m, self.strides, strict=True):
            bias = self._by_output(conv.get_parameter("bias"))
            bias[:, 4] += log(8 / (640 / stride) ** 2)
            bias[:, 5:] += log(0.6 / (self.num_classes - 0.99999))

    def _by_output(self, values: Tensor) -> Tensor:
        """A weight or bias of a last convolution as a view [A, 5 + C, ...]: box, objectness, classes."""
        return values.view(self.anchors_px.shape[1], 5 + self.num_classes, *values.shape[1:])

    def split_classes(self, key: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Box and objectness [A, 5, ...] of a last convolution, and its classes [C, A, ...]."""
        if key in self.fitted:
            return values, None
        outputs = self._by_output(values)
        return outputs[:, :5], outputs[:, 5:].movedim(1, 0)

    def set_anchors(self, anchors_px: Tensor) -> None:
        """Put other sizes in pixels, [L, A, 2], into the buffer, in the order of the strides.

        Raises: ValueError if their number differs from the head's.
        """
        if anchors_px.shape != self.anchors_px.shape:
            levels, per_level, _ = self.anchors_px.shape
            raise ValueError(f"the head has {levels} levels of {per_level} anchors, got {list(anchors_px.shape)}")
        ordered = order_anchors(anchors_px.flatten(1).tolist(), self.strides)
        self.anchors_px.copy_(torch.tensor(ordered).view_as(self.anchors_px))

    def table_entries(self) -> dict[str, Any]:
        """The anchors in pixels, one list w, h, w, h, ... per level."""
        return {"anchors": self.anchors_px.flatten(1).tolist()}

    def fit_to_boxes(
        self,
        sizes: NDArray[np.float64],
        *,
        ratio_limit: float,
        seed: int,
        placeholders: bool,
        broadcast: Callable[[Any], Any],
    ) -> str | None:
        """Fit the anchors where they do not reach the boxes: see models/anchors.py."""
        own = self.anchors_px.double().numpy()
        anchors, sentence = check_anchors(sizes, own, ratio_limit, seed=seed, placeholders=placeholders)
        self.set_anchors(torch.tensor(broadcast(anchors.tolist())))  # to the last bit
        return sentence

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Raw maps [B, A, H, W, 5 + C], one per level: x, y, w, h, objectness, class logits.

        In the weights' own precision, under autocast too: 16 bits in this last layer cost accuracy (LOG.md), 32 bits
        next to no time.
        """
        parts = (self.anchors_px.shape[1], 5 + self.num_classes)
        # Not next(parameters()): the replicas of torch's DataParallel have none.
        dtype: torch.dtype = self.m[0].weight.dtype  # type: ignore[assignment]
        with nullcontext() if maps[0].dtype == dtype else torch.autocast(maps[0].device.type, enabled=False):
            raw = [conv(x.to(dtype)) for conv, x in zip(self.m, maps, strict=True)]
        return [x.unflatten(1, parts).permute(0, 1, 3, 4, 2) for x in raw]

    def decode(self, maps: list[Tensor]) -> tuple[Tensor, Tensor]:
        """boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] in [0, 1], float32.

        N runs over levels, anchors, rows, columns. A score is sigma(objectness) * sigma(class), or sigma(objectness)
        alone if there is one class, which the loss does not train.
        """
        boxes, scores = [], []
        for raw, anchors, stride in zip(maps, self.anchors_px, self.strides, strict=True):
            raw = raw.float()
            boxes.append(decode_boxes(raw[..., :4], anchors, stride).flatten(1, 3))
            score = raw[..., 4:5].sigmoid()
            scores.append((score if self.num_classes == 1 else score * raw[..., 5:].sigmoid()).flatten(1, 3))
        return torch.cat(boxes, dim=1), torch.cat(scores, dim=1)


def decode_boxes(raw: Tensor, anchors_px: Tensor, stride: int) -> Tensor:
    """boxes_xyxy [B, A, H, W, 4] in pixels of one level's raw x, y, w, h.

    Centre = (2 sigma - 0.5 + cell) * stride, size = (2 sigma)^2 * anchor: at most 4 times the anchor.
    raw: [B, A, H, W, 4] float32; anchors_px: [A, 2].
    Source: YOLOv5's documented box equations; sigma offsets after YOLOv4, arXiv 2004.10934, section 3.4.

    >>> decode_boxes(torch.zeros(1, 1, 1, 1, 4), torch.tensor([[10.0, 20.0]]), 8).flatten().tolist()
    [-1.0, -6.0, 9.0, 14.0]
    """
    _, num_anchors, height, width, _ = raw.shape
    columns = torch.arange(width, device=raw.device, dtype=raw.dtype)
    rows = torch.arange(height, device=raw.device, dtype=raw.dtype)
    cells = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)  # [H, W, 2]: x, y
    doubled = 2 * raw.sigmoid()
    centres = (doubled[..., :2] - 0.5 + cells) * stride
    halves = doubled[..., 2:] ** 2 * anchors_px.to(raw.dtype).view(num_anchors, 1, 1, 2) / 2
    return torch.cat((centres - halves, centres + halves), dim=-1)


def order_anchors(anchors: Sequence[Sequence[float]], strides: Sequence[int]) -> list[Sequence[float]]:
    """The anchors' levels with small ones at small strides: reversed if they run the other way.

    anchors: pixels w, h, w, h, ... per level.

    Raises: ValueError if there is not one level per stride.

    >>> order_anchors([[8, 8], [4, 4]], (8, 16))
    [[4, 4], [8, 8]]
    """
    if len(anchors) != len(strides):
        raise ValueError(f"anchors are given for {len(anchors)} levels, but the head has {len(strides)}")
    first, last = (
        sum(w * h for w, h in zip(level[::2], level[1::2], strict=True)) for level in (anchors[0], anchors[-1])
    )
    runs_wrong = (last - first) * (strides[-1] - strides[0]) < 0
    return list(reversed(anchors)) if runs_wrong else list(anchors)


def square_anchors(number: int, strides: Sequence[int]) -> list[list[float]]:
    """`number` squares per level, 2 to 8 strides wide, as pixels w, h, w, h, ...: a start for fitting to data.

    >>> square_anchors(1, (8, 16))
    [[32.0, 32.0], [64.0, 64.0]]
    """
    factors = [2 * 4 ** ((place + 0.5) / number) for place in range(number)]
    return [[stride * factor for factor in factors for _ in range(2)] for stride in strides]
