"""Networks of timm (Apache-2.0), an optional package, as backbones, by their names there."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from models.blocks.backbone import IMAGE_CHANNELS, TRIAL_SIDE, Backbone, FeatureMap
from models.blocks.depthwise import DepthwiseConv2d, speed_up_gradients
from utils.optional_packages import import_optional
from utils.printable import did_you_mean, excerpt, one_line

NORM = "batch_norm"  # the name of a separated BatchNorm
WRAPPERS = (["model"], ["body"])  # the only child of an extractor that holds the whole network


class TimmBackbone(Backbone):
    """A network of timm as its extractor of features, with random weights.

    name: one of timm.list_models(), without a tag. levels: the strides of the maps that it emits.
    Its batch normalizations are not folded into convolutions: some networks run their layers in
    another order than their modules list them.
    """

    library = "timm"

    def __init__(self, in_channels: int, name: str, levels: Sequence[int]) -> None:
        super().__init__(in_channels, name)
        places = self.choose_maps(available_maps(name), levels)
        indices = tuple(int(place) for place in places)
        unused = unused_parameters(name, indices)
        if unused:
            raise ValueError(
                f"{name} has {len(unused)} parameters that the maps of strides {list(levels)} do "
                f"not need, such as {unused[0]}: name its last stride, too"
            )
        self.body = _extractor(name, indices)

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.body(x))

    def published_shapes(self) -> dict[str, torch.Size]:
        with torch.device("meta"):
            network = _timm().create_model(self.name, pretrained=False)
        return {key: value.shape for key, value in network.state_dict().items()}

    def own_names(self, published: Iterable[str]) -> dict[str, str]:
        """Return the name in `body` of each tensor that it has of the network's own state dict.

        The extractor names stages.0 stages_0, or holds the whole network under a name; separated
        normalizations have a name of their own.
        """
        children = [name for name, _ in self.body.named_children()]
        wrapper = f"{children[0]}." if children in WRAPPERS else ""
        own = {}
        for key in self.body.state_dict():
            in_network = key.removeprefix(wrapper).replace(f".{NORM}.", ".")
            own[in_network.replace(".", "_")] = key

        names = {}
        for key in published:
            flat = key.replace(".", "_")
            if flat in own:
                names[key] = own[flat]
        return names


def _timm() -> Any:
    """Return the package. Raises ValueError with the pip command if it is not installed."""
    return import_optional("timm", "a TimmBackbone")


@lru_cache
def available_maps(name: str) -> tuple[FeatureMap, ...]:
    """Return the last map of each stride of a network, as a trial on the meta device shows them.

    Raises ValueError if timm has no such network, or it emits no maps [B, C, H, W].
    """
    timm = _timm()
    # names only: a name with hf-hub: or local-dir: in front would load something from there
    known = timm.list_models()
    if name not in known:
        without_tag, _, _ = name.partition(".")
        hint = did_you_mean(without_tag, known) or ": see timm.list_models()"
        raise ValueError(f"no network '{excerpt(name)}' of timm{hint}")

    maps: dict[int, FeatureMap] = {}
    try:
        with torch.device("meta"), torch.no_grad():
            network = timm.create_model(name, pretrained=False, features_only=True).eval()
            outputs = network(torch.empty(1, IMAGE_CHANNELS, TRIAL_SIDE, TRIAL_SIDE))
        channels = network.feature_info.channels()
        places = network.feature_info.out_indices
    except Exception as error:  # of any type: not all networks have maps, or run on small images
        raise ValueError(f"timm gives no maps of {name}: {one_line(error)}") from error

    for x, count, place in zip(outputs, channels, places, strict=True):
        if x.ndim != 4 or x.shape[1] != count:
            raise ValueError(f"{name} of timm emits {list(x.shape)}, but maps are [B, C, H, W]")
        stride = TRIAL_SIDE // x.shape[2]
        maps[stride] = FeatureMap(stride, count, str(place))
    return tuple(maps.values())


@lru_cache
def unused_parameters(name: str, indices: tuple[int, ...]) -> tuple[str, ...]:
    """Return the parameters that get no gradient from these maps; several processes would wait."""
    with torch.device("meta"), torch.inference_mode(False), torch.enable_grad():
        network = _extractor(name, indices)
        outputs = network(torch.empty(2, IMAGE_CHANNELS, TRIAL_SIDE, TRIAL_SIDE))
        torch.stack([x.sum() for x in outputs]).sum().backward()
    return tuple(key for key, value in network.named_parameters() if value.grad is None)


def _extractor(name: str, indices: Sequence[int]) -> nn.Module:
    """Return a network that emits these maps, without anything random, with plain BatchNorm."""
    settings = {"pretrained": False, "features_only": True, "out_indices": tuple(indices)}
    network: nn.Module = _timm().create_model(name, **settings)
    _switch_off_randomness(network)
    _separate_activations(network)
    speed_up_same_padding(network)

    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and type(module) is not nn.BatchNorm2d:
            kind = type(module).__name__
            raise ValueError(f"{name} has {kind} layers, which processes cannot synchronize")
    return network


def _switch_off_randomness(network: nn.Module) -> None:
    """Let no layer drop values or branches in training."""
    for module in network.modules():
        layer: Any = module  # of a class that types do not know
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            layer.p = 0.0
        elif hasattr(module, "drop_prob"):
            layer.drop_prob = 0.0


def _separate_activations(network: nn.Module) -> None:
    """Replace each BatchNorm that applies its activation by the two of them.

    --sync-bn replaces the computation of a BatchNorm, and would lose the activation.
    """
    from timm.layers import BatchNormAct2d

    for parent in list(network.modules()):
        children: list[tuple[str, Any]] = list(parent.named_children())
        for name, module in children:
            if type(module) is not BatchNormAct2d:
                continue
            parts: OrderedDict[str, nn.Module] = OrderedDict({NORM: plain_batch_norm(module)})
            if not isinstance(module.drop, nn.Identity):
                parts["drop"] = module.drop
            parts["act"] = module.act
            setattr(parent, name, nn.Sequential(parts))


class SamePaddedDepthwise(DepthwiseConv2d):
    """timm's Conv2dSame of each channel by itself: maps are padded by what their size needs."""

    def forward(self, input: Tensor) -> Tensor:
        from timm.layers import pad_same

        padded = pad_same(input, list(self.kernel_size), list(self.stride), list(self.dilation))
        return super().forward(padded)  # whose own padding is 0


def speed_up_same_padding(network: nn.Module) -> None:
    """As speed_up_gradients, for the convolutions of networks named tf_."""
    from timm.layers import Conv2dSame

    speed_up_gradients(network, Conv2dSame, SamePaddedDepthwise)


def plain_batch_norm(module: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """Return torch's BatchNorm2d with the settings, parameters and statistics of `module`."""
    norm = nn.BatchNorm2d(
        module.num_features,
        eps=module.eps,
        momentum=module.momentum,
        affine=module.affine,
        track_running_stats=module.track_running_stats,
    )
    norm.load_state_dict(module.state_dict(), strict=False, assign=True)
    return norm
