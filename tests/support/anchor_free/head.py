"""The head: four box distances and C class logits for each cell."""

from collections.abc import Sequence
from fractions import Fraction
from math import log

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from models.heads import Head

PRIOR = 0.01  # initial score of each class


class AnchorFreeHead(Head):
    """Predicts per cell the distances left, top, right, bottom from its center, in strides, and
    class logits.
    """

    def __init__(
        self, in_channels: Sequence[int], num_classes: int, *, strides: Sequence[Fraction]
    ) -> None:
        super().__init__(num_classes, strides)
        self.boxes = nn.ModuleList(nn.Conv2d(channels, 4, 1) for channels in in_channels)
        self.classes = nn.ModuleList(
            nn.Conv2d(channels, num_classes, 1) for channels in in_channels
        )
        for conv in self.classes:
            nn.init.constant_(conv.get_parameter("bias"), log(PRIOR / (1 - PRIOR)))

    def forward(self, maps: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Raw distances [B, 4, H, W] and class logits [B, C, H, W] of each level."""
        return [
            (box(x), cls(x)) for box, cls, x in zip(self.boxes, self.classes, maps, strict=True)
        ]

    def decode(self, raw: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """boxes_xyxy [B, N, 4] in pixels, scores [B, N, C]; N counts levels, rows, columns in this
        order.
        """
        boxes = [
            corners(level.float()) * stride
            for (level, _), stride in zip(raw, self.strides, strict=True)
        ]
        return torch.cat(boxes, 1), torch.cat(
            [logits.float().sigmoid().flatten(2).mT for _, logits in raw], 1
        )

    def split_classes(self, key: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Split a parameter into its part without classes and its rows per class [C, ...] (None for
        boxes).
        """
        return (values[:0], values) if key.startswith("classes.") else (values, None)


def corners(raw: Tensor) -> Tensor:
    """boxes_xyxy [B, H * W, 4] in cells, from raw distances [B, 4, H, W]."""
    distances = softplus(raw).flatten(2).mT  # [B, H * W, 4]
    center = centers(raw.shape[2], raw.shape[3], raw)
    return torch.cat([center - distances[..., :2], center + distances[..., 2:]], -1)


def centers(height: int, width: int, reference: Tensor) -> Tensor:
    """The centers x, y of the cells, in cells, [H * W, 2], row by row. reference: for dtype and
    device.
    """
    rows, columns = (
        torch.arange(side, device=reference.device, dtype=reference.dtype) + 0.5
        for side in (height, width)
    )
    return torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).flatten(0, 1)
