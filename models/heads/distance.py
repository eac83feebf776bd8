"""Heads that predict the distances from a cell's middle to the sides of its box.

B images, L levels, C classes, H W cells of a level, N predictions per image over all levels, D bins
of a distance.
"""

import copy
import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

from models.blocks.convolutions import Conv, SeparableConv
from models.heads.base import CellPredictions
from models.heads.cells import OutputConv
from models.heads.point_distance import Levels, PointDistanceHead

START_BOXES = 5  # in an image of 640 px: how many the initial class probabilities stand for
START_DISTANCE = 2.0  # initial distance of a head without bins, in strides
MAX_CLASSES = 100  # the class branch has as many channels as classes, up to this
SIDES = 4
START_LOGIT = -10.0  # initial class bias of a grouped head
MAX_CLASS_CHANNELS = 128  # of a grouped head: two for each class, up to this


class Branches(nn.Module):
    """The convolutions of a head: a branch for the sides, and one for the classes, on each level.

    class_channels: of the class branch; 0 for as many as YOLOv8's. class_bias: the initial one;
    None for that of START_BOXES boxes in all cells of a level. groups: of the last two convolutions
    of the side branch.

    Source: decoupled branches, YOLOX (arXiv 2107.08430); widths and initial biases are facts of
    YOLOv8 and YOLO11.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        bins: int,
        separable: bool,
        strides: Sequence[int],
        *,
        class_channels: int = 0,
        class_bias: float | None = None,
        groups: int = 1,
    ) -> None:
        super().__init__()
        side_channels = max(16, in_channels[0] // 4, 4 * bins)
        side_channels = math.ceil(side_channels / groups) * groups
        if not class_channels:
            class_channels = max(in_channels[0], min(num_classes, MAX_CLASSES))

        def side_branch(channels: int) -> nn.Sequential:
            return nn.Sequential(
                Conv(channels, side_channels, 3),
                Conv(side_channels, side_channels, 3, groups=groups),
                OutputConv(side_channels, 4 * bins, 1, groups=groups),
            )

        conv: type[Conv | SeparableConv] = SeparableConv if separable else Conv

        def class_branch(channels: int) -> nn.Sequential:
            return nn.Sequential(
                conv(channels, class_channels, 3),
                conv(class_channels, class_channels, 3),
                OutputConv(class_channels, num_classes, 1),
            )

        self.sides = nn.ModuleList(side_branch(channels) for channels in in_channels)
        self.classes = nn.ModuleList(class_branch(channels) for channels in in_channels)

        side_bias = START_DISTANCE if bins == 1 else 1.0
        for sides, classes, stride in zip(self.sides, self.classes, strides, strict=True):
            bias = class_bias
            if bias is None:
                bias = math.log(START_BOXES / num_classes / (640 / stride) ** 2)
            nn.init.constant_(sides.get_parameter("2.bias"), side_bias)
            nn.init.constant_(classes.get_parameter("2.bias"), bias)

    def forward(self, maps: list[Tensor]) -> Levels:
        """Return raw maps [B, H, W, 4 D + C], one per level."""
        raw = []
        for sides, classes, x in zip(self.sides, self.classes, maps, strict=True):
            values = torch.cat([sides(x), classes(x)], 1)
            raw.append(values.permute(0, 2, 3, 1))
        return raw


class DistanceHead(PointDistanceHead):
    """Four distances, each as a distribution over D bins, and C class logits for each cell.

    `DistanceDetect` in tables.

    bins: D; bin k stands for k strides. 1: no distribution, the distance itself in strides.
    separable: depthwise separable 3x3 convolutions in the class branch.

    Raises ValueError for fewer than 1 bin.

    Source: FCOS (arXiv 1904.01355, equation 1) for the distances, GFL (arXiv 2006.04388, section
    3.2) for the bins.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        bins: int = 16,
        separable: bool = False,
        *,
        strides: Sequence[Fraction],
    ) -> None:
        super().__init__(num_classes, strides)
        if bins < 1:
            raise ValueError(f"a distance needs 1 or more bins, got {bins}")
        self.bins = bins
        self.side_values = 4 * bins
        self.constants = bins if bins > 1 else 0  # what the bins stand for: 0 to D - 1
        self.branches = self._branches(in_channels, separable)

    def _branches(self, in_channels: Sequence[int], separable: bool) -> Branches:
        """Return the convolutions; subclasses have others."""
        return Branches(in_channels, self.num_classes, self.bins, separable, self.strides)

    def split_classes(self, key: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the class outputs as rows per class [C, ...]; everything else is shared."""
        # Such a key is branches.classes.LEVEL.2.weight: the output is the third layer of a branch.
        names = key.split(".")[1:]
        if names[:1] == ["classes"] and names[2] == "2":
            return values[:0], values
        return values, None

    def forward(self, maps: list[Tensor]) -> Levels:
        """Return raw maps [B, H, W, 4 D + C], one per level."""
        return self.branches(maps)

    def distances(self, raw: Tensor) -> Tensor:
        """Return the distances left, top, right, bottom [..., 4] in strides: see `sides_of`."""
        return sides_of(raw, self.bins)


class GroupedDistanceHead(DistanceHead):
    """A distance head in which each side is predicted from a quarter of its branch's channels.

    `GroupedDistanceDetect` in tables.

    class_channels: of the class branch; 0 for two per class, at most 128, and at least as many as
    the first level has.

    Source: facts of YOLOv9's head and its initial biases.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        bins: int = 16,
        class_channels: int = 0,
        *,
        strides: Sequence[Fraction],
    ) -> None:
        if bins < 2:
            raise ValueError(f"this head needs 2 or more bins, got {bins}")
        self.class_channels = class_channels
        super().__init__(in_channels, num_classes, bins, strides=strides)
        self.constants = bins * len(in_channels)  # published totals count them on each level

    def _branches(self, in_channels: Sequence[int], separable: bool) -> Branches:
        by_rule = max(in_channels[0], min(2 * self.num_classes, MAX_CLASS_CHANNELS))
        return Branches(
            in_channels,
            self.num_classes,
            self.bins,
            separable,
            self.strides,
            class_channels=self.class_channels or by_rule,
            class_bias=START_LOGIT,
            groups=SIDES,
        )


class DualDistanceHead(DistanceHead):
    """A head trained with many predictions per box, and a copy of it trained with one per box.

    `DualDistanceDetect` in tables. The first is named o2m (one-to-many). The copy, o2o
    (one-to-one), needs no NMS; it learns from detached maps, so that only o2m trains the layers
    below. `decode` returns the boxes of o2o, unless `choose_output` chose o2m.

    Source: YOLOv10, arXiv 2405.14458, section 3.1.
    """

    outputs: tuple[str, ...] = ("o2o", "o2m")

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        bins: int = 1,
        separable: bool = True,
        *,
        strides: Sequence[Fraction],
    ) -> None:
        super().__init__(in_channels, num_classes, bins, separable, strides=strides)
        self.one_to_one = copy.deepcopy(self.branches)
        self.needs_nms = False
        self.fused = False

    def choose_output(self, name: str) -> None:
        """Have `decode` return the boxes of o2o, which need no NMS, or of o2m.

        Raises: ValueError for another name.
        """
        if name not in self.outputs:
            super().choose_output(name)
        self.needs_nms = name == "o2m"

    def fuse(self) -> None:
        """Remove the branches that were not chosen."""
        if self.fused:
            return

        self.fused = True
        if self.needs_nms:
            self.outputs = ("o2m",)
            del self.one_to_one
        else:
            self.outputs = ("o2o",)
            del self.branches

    def forward(self, maps: list[Tensor]) -> list[Levels]:  # type: ignore[override]
        """Return the raw maps of both: [o2m, o2o]; after `fuse` only those of the chosen one."""
        if self.fused:
            chosen = self.branches if self.needs_nms else self.one_to_one
            return [chosen(maps)]

        detached_maps = [x.detach() for x in maps]
        return [self.branches(maps), self.one_to_one(detached_maps)]

    def decode(self, raw: list[Levels]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] of the chosen output."""
        return super().decode(self._chosen(raw))

    def decode_candidates(self, raw: list[Levels], confidence: float) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the predictions of `decode` whose best class scores above `confidence`."""
        return super().decode_candidates(self._chosen(raw), confidence)

    def predict_cells(self, raw: list[Levels]) -> list[CellPredictions]:  # type: ignore[override]
        """Return the predictions of o2m, which many cells make of each object.

        Those of o2o depend on the neighboring cells: only one of them finds the object.
        """
        return super().predict_cells(raw[0])

    def _chosen(self, raw: list[Levels]) -> Levels:
        """Return the maps of o2m, the first, or of o2o, the last; the only ones after `fuse`."""
        return raw[0] if self.needs_nms else raw[-1]


def sides_of(raw: Tensor, bins: int) -> Tensor:
    """Return the distances left, top, right, bottom [..., 4] in strides.

    With bins they are the mean of the distribution, in [0, D - 1]; without, the raw value, which
    may be negative. raw: predictions [..., 4 D or more]. bins: D.

    >>> sides_of(torch.tensor([0.0, 0, 0, 0, 0, 200, 200, 0]), 2).tolist()
    [0.5, 0.5, 1.0, 0.0]
    """
    if bins == 1:
        return raw[..., :4]
    probabilities = raw[..., : 4 * bins].unflatten(-1, (4, bins)).softmax(-1)
    distances = torch.arange(bins, device=raw.device, dtype=raw.dtype)
    return probabilities @ distances
