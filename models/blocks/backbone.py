"""Networks of other libraries that classify images, as the backbone of a detector.

Their libraries are imported only where a table has such a row.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from models.blocks.base import Layer

TRIAL_SIDE = 64  # pixels of the image that shows a network's maps, on the meta device
IMAGE_CHANNELS = 3


class FeatureMap(NamedTuple):
    """A map that a network can emit. stride: pixels per cell. place: where it is computed."""

    stride: int
    channels: int
    place: str


class Backbone(Layer):
    """Base class of networks of other libraries: images -> the maps of some strides, finest first.

    Nothing random happens in training: layers that drop values or branches are switched off, so
    that a training with N processes, or a resumed one, is the same training.

    `body` has only the layers that the maps need, and the network's own names of tensors, as far as
    `own_names` does not change them.
    """

    scales_width = False
    multi_output = True
    out_channels: tuple[int, ...]  # type: ignore[assignment]
    reduction: tuple[Fraction, ...]  # type: ignore[assignment]
    body: nn.Module
    library: ClassVar[str]

    def __init__(self, in_channels: int, name: str) -> None:
        super().__init__()
        if in_channels != IMAGE_CHANNELS:
            raise ValueError(f"{name} reads maps of {IMAGE_CHANNELS} channels, got {in_channels}")
        self.name = name

    def choose_maps(self, available: Sequence[FeatureMap], levels: Sequence[int]) -> list[str]:
        """Return the places of the maps of these strides, and state their channels and strides.

        available: all maps of the network.

        Raises ValueError for a stride that it does not have, or strides that are not ascending.
        """
        by_stride = {each.stride: each for each in available}
        are_whole = isinstance(levels, list | tuple) and all(type(level) is int for level in levels)
        if not are_whole or not levels or not by_stride.keys() >= set(levels):
            strides = ", ".join(map(str, by_stride))
            raise ValueError(f"levels must be a list of the strides of {self.name}: {strides}")
        if list(levels) != sorted(set(levels)):
            raise ValueError(f"levels {list(levels)}: name each stride once, the smallest first")

        chosen = [by_stride[level] for level in levels]
        self.out_channels = tuple(each.channels for each in chosen)
        self.reduction = tuple(Fraction(each.stride) for each in chosen)
        return [each.place for each in chosen]

    def published_shapes(self) -> dict[str, torch.Size]:
        """Return the shapes in the state dict of the whole network, with its classifier.

        That is what files of its published weights have.
        """
        raise NotImplementedError

    def own_names(self, published: Iterable[str]) -> dict[str, str]:
        """Return the name in `body` of each tensor that it has of the network's own state dict.

        published: the names there, of the whole network.
        """
        own = self.body.state_dict().keys()
        return {key: key for key in published if key in own}

    def fuse(self) -> None:
        """Fold batch normalizations into convolutions, for inference, where that is known."""


def fold_batch_norm(body: nn.Module) -> None:
    """Fold each BatchNorm that stands right after a convolution into it, in place.

    Only for networks whose modules list their layers in the order in which they run.
    """
    for parent in list(body.modules()):
        for (conv_name, conv), (norm_name, norm) in pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, _BatchNorm):
                setattr(parent, conv_name, fuse_conv_bn_eval(conv.eval(), norm.eval()))
                setattr(parent, norm_name, nn.Identity())
