"""Classification networks of torchvision (BSD-3-Clause) as backbones, by their names there."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.blocks.backbone import (
    IMAGE_CHANNELS,
    TRIAL_SIDE,
    Backbone,
    FeatureMap,
    fold_batch_norm,
)
from models.tables.shape_rules import ShapeRules
from utils.printable import did_you_mean, excerpt

# Residual networks, arXiv 1512.03385; with groups, arXiv 1611.05431; wide, arXiv 1605.07146.
RESNETS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "wide_resnet50_2",
    "wide_resnet101_2",
)
# arXiv 1905.02244
MOBILENETS = ("mobilenet_v3_small", "mobilenet_v3_large")
# arXiv 1905.11946 and 2104.00298
EFFICIENTNETS = (
    "efficientnet_b0",
    "efficientnet_b1",
    "efficientnet_b2",
    "efficientnet_b3",
    "efficientnet_b4",
    "efficientnet_b5",
    "efficientnet_b6",
    "efficientnet_b7",
    "efficientnet_v2_s",
    "efficientnet_v2_m",
    "efficientnet_v2_l",
)
# arXiv 2003.13678
REGNETS = (
    "regnet_x_400mf",
    "regnet_x_800mf",
    "regnet_x_1_6gf",
    "regnet_x_3_2gf",
    "regnet_x_8gf",
    "regnet_x_16gf",
    "regnet_x_32gf",
    "regnet_y_400mf",
    "regnet_y_800mf",
    "regnet_y_1_6gf",
    "regnet_y_3_2gf",
    "regnet_y_8gf",
    "regnet_y_16gf",
    "regnet_y_32gf",
    "regnet_y_128gf",
)
# arXiv 2201.03545
CONVNEXTS = ("convnext_tiny", "convnext_small", "convnext_base", "convnext_large")

NAMES = (*RESNETS, *MOBILENETS, *EFFICIENTNETS, *REGNETS, *CONVNEXTS)
RESNET_STEPS = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")


class TorchvisionBackbone(Backbone):
    """A network of torchvision without its classifier, with random weights.

    name: one of NAMES. levels: the strides of the maps that it emits, such as [8, 16, 32].
    """

    library = "torchvision"

    def __init__(self, in_channels: int, name: str, levels: Sequence[int]) -> None:
        super().__init__(in_channels, name)
        if name not in NAMES:
            near = did_you_mean(name, NAMES)
            families = "ResNet, MobileNetV3, EfficientNet, RegNet and ConvNeXt (docs/backbones.md)"
            raise ValueError(
                f"no network '{excerpt(name)}' of torchvision{near}: choose a size of {families}"
            )

        places = self.choose_maps(available_maps(name), levels)
        network = build_network(name, num_classes=1)
        switch_off_randomness(network)

        # The layers up to the last map: others would be parameters without gradients.
        self.steps: list[str] = []
        for step in _steps(name, network):
            self.steps.append(step)
            if step == places[-1]:
                break
        self.emitting = frozenset(places)
        self.body = _only(network, self.steps)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for step in self.steps:
            x = self.body.get_submodule(step)(x)
            if step in self.emitting:
                maps.append(x)
        return maps

    def published_shapes(self) -> dict[str, torch.Size]:
        with torch.device("meta"):
            network = build_network(self.name)
        return {key: value.shape for key, value in network.state_dict().items()}

    def fuse(self) -> None:
        fold_batch_norm(self.body)


def build_network(name: str, **settings: Any) -> nn.Module:
    """Return a network of NAMES with random weights, on the present default device."""
    from torchvision.models import get_model  # takes a second, which other tables need not wait

    with _Plans():
        network: nn.Module = get_model(name, weights=None, **settings)
    return network


@lru_cache
def available_maps(name: str) -> tuple[FeatureMap, ...]:
    """Return the last map of each stride of a network, as a trial on the meta device shows them."""
    maps: dict[int, FeatureMap] = {}
    with torch.device("meta"):
        network = build_network(name, num_classes=1).eval()
        x = torch.empty(1, IMAGE_CHANNELS, TRIAL_SIDE, TRIAL_SIDE)
    with torch.device("meta"), torch.no_grad(), ShapeRules():
        for step in _steps(name, network):
            x = network.get_submodule(step)(x)
            stride = TRIAL_SIDE // x.shape[2]
            maps[stride] = FeatureMap(stride, x.shape[1], step)
    return tuple(maps.values())


def _steps(name: str, network: nn.Module) -> list[str]:
    """Return the paths of the modules that run one after the other, without the classifier."""
    if name in RESNETS:
        return list(RESNET_STEPS)
    if name in REGNETS:
        blocks = network.get_submodule("trunk_output").named_children()
        return ["stem", *(f"trunk_output.{block}" for block, _ in blocks)]

    steps = [f"features.{index}" for index, _ in network.get_submodule("features").named_children()]
    if name in CONVNEXTS:
        return steps
    # The last convolution widens the map for the classifier.
    return steps[:-1]


def _only(network: nn.Module, steps: Sequence[str]) -> nn.Module:
    """Return a module that holds these submodules of a network under the same paths."""
    body = nn.Module()
    for step in steps:
        *parents, last = step.split(".")
        holder = body
        for parent in parents:
            if parent not in dict(holder.named_children()):
                holder.add_module(parent, nn.Module())
            holder = holder.get_submodule(parent)
        holder.add_module(last, network.get_submodule(step))
    return body


def switch_off_randomness(network: nn.Module) -> None:
    """Let no layer of a network of torchvision drop values or branches in training."""
    from torchvision.ops import StochasticDepth

    for module in network.modules():
        if isinstance(module, nn.Dropout | StochasticDepth):
            module.p = 0.0


class _Plans(TorchFunctionMode):
    """Lets torchvision build a network on the meta device, which has no values.

    Small tensors are created on the CPU: RegNet computes its widths by them and reads the values.
    And nothing is drawn from a normal distribution there: torch would import its compiler for it,
    which takes a second.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.arange, torch.tensor):
            kwargs = {"device": "cpu", **kwargs}
        if func is Tensor.normal_ and args[0].is_meta:
            return args[0]
        return func(*args, **kwargs)
