"""RTMDet's head: convolutions that all levels share, with statistics of their own on each level.

B images, L levels, C classes, H W cells of a level.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import exp, log
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.blocks.convolutions import Conv
from models.heads.cells import OutputConv
from models.heads.point_distance import Levels, PointDistanceHead

CONVOLUTIONS = 2  # of each branch
PRIOR = 0.01  # initial probability of each class
INITIAL_DEVIATION = 0.01  # of the weights
# Of linear distances, in strides; exponential ones start at 1. At 0, as its authors start, a box is
# empty, and its IoU, the weight of the box loss, is 0: short trainings learn no boxes (LOG.md).
INITIAL_DISTANCE = 2.0
# The largest exponent of a distance. With exp(11), 60,000 strides, areas and gradients are finite.
MAX_LOG_SIDE = 11


class SharedBranch(nn.Module):
    """Convolutions with BatchNorm and SiLU, and an output convolution, for all levels.

    The levels share the first convolutions. BatchNorm and the output are each level's own.

    width: channels of all maps. outputs: channels of the output. output_bias: its initial value.
    """

    def __init__(self, width: int, outputs: int, levels: int, output_bias: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(CONVOLUTIONS)
        )
        self.norms = nn.ModuleList(
            nn.ModuleList(nn.BatchNorm2d(width, eps=1e-3, momentum=0.03) for _ in self.convs)
            for _ in range(levels)
        )
        self.outputs = nn.ModuleList(OutputConv(width, outputs, 1) for _ in range(levels))
        # each level's fused layers, after `fuse`
        self.fused = nn.ModuleList()

        for conv in (*self.convs, *self.outputs):
            nn.init.normal_(conv.get_parameter("weight"), std=INITIAL_DEVIATION)
        for output in self.outputs:
            nn.init.constant_(output.get_parameter("bias"), output_bias)

    def forward(self, level: int, x: Tensor) -> Tensor:
        """Return the output [B, outputs, H, W] for the map of a level, [B, width, H, W]."""
        if self.fused:
            x = self.fused[level](x)
        else:
            norms = cast(nn.ModuleList, self.norms[level])
            for conv, norm in zip(self.convs, norms, strict=True):
                x = F.silu(norm(conv(x)))
        output: Tensor = self.outputs[level](x)
        return output

    def fuse(self) -> None:
        """Fold the statistics of each level into convolutions of its own, for inference.

        A second call changes nothing.
        """
        for norms in self.norms:
            pairs = zip(self.convs, cast(nn.ModuleList, norms), strict=True)
            layers = [fused_conv(cast(nn.Conv2d, conv), norm) for conv, norm in pairs]
            self.fused.append(nn.Sequential(*layers))
        self.convs = nn.ModuleList()
        self.norms = nn.ModuleList()


class SharedDistanceHead(PointDistanceHead):
    """Four distances and C class logits for each cell, by convolutions that all levels share.

    `SharedDistanceDetect` in tables. The distances are measured from a cell's corner.

    exponential: a distance is exp(r) strides for a raw value r; else it is r strides, which may be
    negative. Distances are at most exp(11) strides, so that boxes and gradients stay finite.

    Raises ValueError for levels that differ in their number of channels.

    Source: RTMDet, arXiv 2212.07784; facts of its authors' code (points, distances, initial values
    but for that of linear distances).
    """

    offset = 0.0

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        exponential: bool = False,
        *,
        strides: Sequence[Fraction],
    ) -> None:
        super().__init__(num_classes, strides)
        if len(set(in_channels)) != 1:
            given = ", ".join(str(channels) for channels in in_channels)
            raise ValueError(f"levels that share convolutions need equal channels, got {given}")
        self.exponential = exponential

        width = in_channels[0]
        levels = len(in_channels)
        self.classes = SharedBranch(width, num_classes, levels, -log((1 - PRIOR) / PRIOR))
        initial = 0.0 if exponential else INITIAL_DISTANCE
        self.sides = SharedBranch(width, 4, levels, initial)

    def split_classes(self, key: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the class outputs as rows per class [C, ...]; everything else is shared."""
        if key.startswith("classes.outputs."):
            return values[:0], values
        return values, None

    def fuse(self) -> None:
        """Give each level convolutions of its own, with BatchNorm folded into them."""
        self.classes.fuse()
        self.sides.fuse()

    def distances(self, raw: Tensor) -> Tensor:
        """Return the distances [..., 4] in strides: see `bounded_distances`."""
        return bounded_distances(raw, self.exponential)

    def forward(self, maps: list[Tensor]) -> Levels:
        """Return raw maps [B, H, W, 4 + C], one per level."""
        raw = []
        for level, x in enumerate(maps):
            values = torch.cat([self.sides(level, x), self.classes(level, x)], 1)
            raw.append(values.permute(0, 2, 3, 1))
        return raw


def fused_conv(conv: nn.Conv2d, norm: nn.Module) -> Conv:
    """Return a layer of its own of a shared convolution, a BatchNorm folded into it, and SiLU."""
    # without parameters: those of `conv` and `norm` replace them
    with torch.device("meta"):
        layer = Conv(conv.in_channels, conv.out_channels)
    layer.conv = conv
    layer.bn = norm
    layer.fuse()
    return layer


def bounded_distances(raw: Tensor, exponential: bool) -> Tensor:
    """Return the distances left, top, right, bottom [..., 4] in strides.

    exp(r) or r for the raw values r, at most exp(11), and at least the negative of it. raw:
    predictions [..., 4 or more].

    >>> raw = torch.tensor([0.0, -1.0, 1.0, 1e9, 5.0])
    >>> [round(distance, 2) for distance in bounded_distances(raw, True).tolist()]
    [1.0, 0.37, 2.72, 59874.14]
    >>> [round(distance, 2) for distance in bounded_distances(raw, False).tolist()]
    [0.0, -1.0, 1.0, 59874.14]
    """
    values = raw[..., :4]
    if exponential:
        return values.clamp(max=MAX_LOG_SIDE).exp()
    largest = exp(MAX_LOG_SIDE)
    return values.clamp(-largest, largest)
