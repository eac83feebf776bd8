"""Adapters: they turn the maps of a frozen model into those that a new head of one layer needs."""

from collections.abc import Sequence

from torch import Tensor, nn

from models.blocks.cross_stage import Bottleneck


class MapAdapters(nn.Module):
    """A residual block for each map, which at first adds nothing to it.

    The scale of each block's last normalization is 0 at first, so that a head whose weights were
    trained on the maps themselves starts with what it has learned.

    Source: residual adapters, arXiv 1705.08045, section 3, here with the block of ResNet.

    channels: of each map. Raises ValueError for a map of one channel.
    """

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Bottleneck(count, count) for count in channels)
        for block in self.blocks:
            nn.init.zeros_(block.get_parameter("cv2.bn.weight"))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return the adapted maps, of the same shapes."""
        return [block(each) for block, each in zip(self.blocks, maps, strict=True)]
