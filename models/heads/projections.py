"""Projections of a model's maps to the channels of a teacher's, which only training computes.

B images, H W cells of a level.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from models.tables.entries import without_distillation

PREFIX = "projections."  # of their weights in a detector's state


class Projections(nn.Module):
    """A 1x1 convolution for each level that the teacher has, too.

    They have no bias: a number that is added to a whole channel changes nothing in the softmax over
    its cells, of which the loss consists.

    in_channels: of each level. channels: of the teacher's; 0 for a level that it does not have.
    """

    def __init__(self, in_channels: Sequence[int], channels: Sequence[int]) -> None:
        super().__init__()
        self.levels = [level for level, number in enumerate(channels) if number]
        self.convs = nn.ModuleList(
            nn.Conv2d(in_channels[level], channels[level], 1, bias=False) for level in self.levels
        )

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return the projected maps [B, channels, H, W] of the levels that the teacher has.

        maps: of all levels.
        """
        return [conv(maps[level]) for level, conv in zip(self.levels, self.convs, strict=True)]


def without_projections(
    table: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the table and the state of a detector without projections, as it is used."""
    kept = {name: value for name, value in state.items() if not is_projection(name)}
    return without_distillation(table), kept


def is_projection(name: str) -> bool:
    """Return whether a name in a detector's state is that of a projection."""
    return name.startswith(PREFIX)
