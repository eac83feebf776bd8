"""One of the maps of a row that has several outputs."""

from collections.abc import Sequence

from torch import Tensor

from models.blocks.base import Layer


class Level(Layer):
    """One of the maps of a layer with several outputs, so that other layers can read it.

    index: of the output, from 0. Raises ValueError if there is none.
    """

    scales_width = False
    chooses_output = True

    def __init__(self, in_channels: Sequence[int], index: int) -> None:
        super().__init__()
        if not 0 <= index < len(in_channels):
            last = len(in_channels) - 1
            raise ValueError(f"output {index}: the row has the outputs 0 to {last}")
        self.index = index
        self.out_channels = in_channels[index]

    def forward(self, maps: list[Tensor]) -> Tensor:
        return maps[self.index]
