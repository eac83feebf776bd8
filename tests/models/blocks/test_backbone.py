"""Backbones of torchvision and timm: maps equal to those of the libraries' own extractors, training
without chance, folding, and the errors.
"""

import copy
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models import build_model
from models.blocks.backbone import Backbone
from models.blocks.torchvision_backbone import NAMES, TorchvisionBackbone, build_network
from models.detector import Detector
from models.tables.read import read_table
from training.freezing import freeze, set_training
from utils.distributed.sync_bn import synchronize_batch_norm

TABLE = Path(__file__).parents[2] / "tables" / "backbone.yaml"
# The smallest of each family, and where it computes the maps of strides 8, 16 and 32.
SMALLEST = {
    "resnet18": ["layer2", "layer3", "layer4"],
    "mobilenet_v3_small": ["features.3", "features.8", "features.11"],
    "efficientnet_b0": ["features.3", "features.5", "features.7"],
    "regnet_y_400mf": ["trunk_output.block2", "trunk_output.block3", "trunk_output.block4"],
    "convnext_tiny": ["features.3", "features.5", "features.7"],
}
SLOW = ("efficientnet_b0", "regnet_y_400mf", "convnext_tiny")  # to build
LEVELS = [8, 16, 32]


def table(kind: str, name: str, levels: Any = (8, 16)) -> dict[str, Any]:
    changed = read_table(TABLE)
    changed["backbone"][1] = [-1, 1, kind, [name, list(levels)]]
    return changed


def randomize(model: nn.Module) -> None:
    """Give BatchNorm statistics and weights as after training."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)


def images(count: int = 2) -> Tensor:
    return torch.rand(count, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def test_every_published_size_of_the_families_can_be_named():
    from torchvision import models

    prefixes = ("resn", "wide_resnet", "mobilenet_v3", "efficientnet", "regnet", "convnext")
    published = models.list_models(module=models)
    assert sorted(NAMES) == [name for name in published if name.startswith(prefixes)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow][: name in SLOW]) for name in SMALLEST]
)
def test_maps_equal_those_of_torchvisions_own_extractor(name):
    """With the same weights, also after folding, in either mode of the input's size."""
    from torchvision.models.feature_extraction import create_feature_extractor

    network = build_network(name, num_classes=1)
    randomize(network)
    layer = TorchvisionBackbone(3, name, LEVELS).eval()
    state = {key: value for key, value in network.state_dict().items() if key in layer_keys(layer)}
    layer.body.load_state_dict(state)

    oracle = create_feature_extractor(network.eval(), SMALLEST[name])
    with torch.no_grad():
        maps = layer(images())
        for own, theirs in zip(maps, oracle(images()).values(), strict=True):
            assert own.equal(theirs)
        assert tuple(x.shape[1] for x in maps) == layer.out_channels
        assert [64 // x.shape[2] for x in maps] == [*layer.reduction] == LEVELS
        assert [x.shape[0] for x in layer(images(0))] == [0, 0, 0]

        layer.fuse()
        assert not any(isinstance(module, _BatchNorm) for module in layer.modules())
        for own, folded in zip(maps, layer(images()), strict=True):
            torch.testing.assert_close(folded, own, rtol=1e-4, atol=1e-4 * own.abs().max().item())


def layer_keys(layer: Backbone) -> set[str]:
    return set(layer.body.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_layers_after_the_last_level_are_left_out(name):
    """Every parameter gets a gradient: processes would wait for one that gets none."""
    model = build_model(table("TorchvisionBackbone", name), 3).train()
    sum(raw.square().mean() for raw in model(images())).backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    whole = TorchvisionBackbone(3, name, [32])
    assert layer_keys(model.layers[1]) < layer_keys(whole)
    assert whole.out_channels == (whole(images())[0].shape[1],)


def test_same_seed_gives_the_same_weights():
    """Also for the first model of a process, whose maps are looked for."""
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(build_model(TABLE, 3))
    first, second = (model.state_dict() for model in models)
    assert all(value.equal(second[key]) for key, value in first.items())


def test_nothing_random_happens_in_training():
    layer = TorchvisionBackbone(3, "efficientnet_b0", [8, 16]).train()
    state = torch.random.get_rng_state()
    assert layer(images())[1].equal(layer(images())[1])
    assert torch.random.get_rng_state().equal(state)


def test_batch_norm_of_the_table_is_not_that_of_the_backbone():
    model = build_model(read_table(TABLE) | {"batch_norm": {"eps": 0.1, "momentum": 0.2}}, 3)
    eps = [
        {module.eps for module in layer.modules() if isinstance(module, _BatchNorm)}
        for layer in (model.layers[1], model.head)
    ]
    assert eps == [{0.001}, {0.1}]


def test_frozen_backbone_keeps_weights_and_statistics():
    model = build_model(TABLE, 3)
    set_training(model, freeze(model, [2]))
    before = copy.deepcopy(model.layers[1].state_dict())
    sum(raw.square().mean() for raw in model(images())).backward()
    assert all(parameter.grad is None for parameter in model.layers[1].parameters())
    assert all(value.equal(before[key]) for key, value in model.layers[1].state_dict().items())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["resnet19", [8, 16]], r"no network 'resnet19' of torchvision \(did you mean resnet18"),
        (["get_weight", [8, 16]], "no network 'get_weight' of torchvision"),
        (["resnet18", [8, 64]], "levels must be a list of the strides of resnet18: 2, 4, 8, 16, 3"),
        (["resnet18", []], "levels must be a list of the strides of resnet18"),
        (["resnet18", 8], "levels must be a list of the strides of resnet18"),
        (["resnet18", [16, 8]], r"levels \[16, 8\]: name each stride once, the smallest first"),
        (["resnet18", [8, 8]], "name each stride once"),
        (["convnext_tiny", [2, 4]], "levels must be a list of the strides of convnext_tiny: 4, 8"),
        ([18, [8, 16]], "name is 18, but must be str"),
        (["resnet18"], r"TorchvisionBackbone takes 2 arguments \(name, levels\), got 1"),
    ],
)
def test_wrong_rows_are_rejected(args, message):
    wrong = read_table(TABLE)
    wrong["backbone"][1] = [-1, 1, "TorchvisionBackbone", args]
    with pytest.raises(ValueError, match=message):
        build_model(wrong, 3)


def test_images_must_have_three_channels():
    gray = read_table(TABLE)
    gray["backbone"][0] = [-1, 1, "Normalize", [[0.5], [0.2]]]
    with pytest.raises(ValueError, match="mobilenet_v3_small reads maps of 3 channels, got 1"):
        build_model(gray, 3, channels=1)


# ------------------------------------------------------------------------------------------ timm


def timm_model(name: str = "test_efficientnet", levels: Any = (8, 16, 32)) -> Detector:
    """A model whose head reads the first two levels and the last."""
    pytest.importorskip("timm", reason="an optional package")
    given = table("TimmBackbone", name, levels)
    given["backbone"].append([1, 1, "Level", [len(levels) - 1]])
    given["head"] = [[[2, 3, 4], 1, "DecoupledDetect", ["nc"]]]
    torch.manual_seed(0)
    return build_model(given, 3)


def test_missing_timm_is_named_in_one_sentence(monkeypatch):
    from models.blocks import timm_backbone

    timm_backbone.available_maps.cache_clear()
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match="a TimmBackbone needs the package timm: pip install timm"):
        build_model(table("TimmBackbone", "resnet18"), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["test_efficientnet", "test_convnext", "resnet18", "cspnext_s", "tf_efficientnet_lite0"]
)
def test_maps_equal_those_of_timms_own_extractor(name):
    """With weights under the names of the whole network, as its published files have them."""
    timm = pytest.importorskip("timm", reason="an optional package")
    if name not in timm.list_models():
        pytest.skip(f"this timm has no {name}")
    layer = timm_model(name, LEVELS).layers[1].eval()
    network = timm.create_model(name, pretrained=False).eval()
    randomize(network)
    state = network.state_dict()
    named = {own: state[key] for key, own in layer.own_names(state).items()}
    assert layer_keys(layer) <= named.keys()
    layer.body.load_state_dict({key: named[key] for key in layer_keys(layer)})

    with torch.no_grad():
        theirs = network.forward_intermediates(images(), intermediates_only=True)
        for own, other in zip(layer(images()), theirs[-3:], strict=True):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (9, 7)], ids=str)
def test_same_padded_convolutions_have_the_gradients_of_timms(size):
    layers = pytest.importorskip("timm.layers", reason="an optional package")
    from models.blocks.timm_backbone import SamePaddedDepthwise, speed_up_same_padding

    network = nn.Sequential(layers.Conv2dSame(3, 3, 5, 2, groups=3), layers.Conv2dSame(3, 4, 5, 2))
    faster = copy.deepcopy(network)
    speed_up_same_padding(faster)
    assert [type(layer) for layer in faster] == [SamePaddedDepthwise, layers.Conv2dSame]

    found = []
    maps = torch.rand(2, 3, *size, requires_grad=True)
    for conv, dtype in ((network[0], torch.float32), (faster[0], torch.bfloat16)):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = conv(maps)
        assert out.dtype == dtype
        total = out.float().square().sum()
        found.append([out.float(), *torch.autograd.grad(total, [maps, *conv.parameters()])])
    for expected, value in zip(*found, strict=True):
        tolerance = 0.03 * expected.abs().max().item()  # bfloat16 has 8 digits
        torch.testing.assert_close(value, expected, rtol=0.03, atol=tolerance)


def test_nothing_random_happens_in_training_of_timm(monkeypatch):
    """Most networks of timm drop nothing unless they are told to, but some do."""
    timm = pytest.importorskip("timm", reason="an optional package")
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", partial(create, drop_path_rate=0.5, drop_rate=0.5))
    layer = timm_model("test_convnext").layers[1].train()
    state = torch.random.get_rng_state()
    assert all(map(torch.equal, layer(images()), layer(images())))
    assert torch.random.get_rng_state().equal(state)


@pytest.mark.parametrize(
    "build",
    [lambda: build_model(table("TorchvisionBackbone", "resnet18"), 3), timm_model],
    ids=["torchvision", "timm"],
)
def test_nothing_is_downloaded(build, monkeypatch):
    """Weights come from files, or with --download."""
    asked: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: asked.append(address) or [])
    build()
    assert asked == []


def test_batch_norm_of_timm_can_be_synchronized():
    """A BatchNorm with an activation inside would lose it."""
    model = timm_model().train()
    synchronized = synchronize_batch_norm(copy.deepcopy(model))
    for own, other in zip(model(images()), synchronized(images()), strict=True):
        torch.testing.assert_close(other, own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "levels", "message"),
    [
        ("hf-hub:timm/resnet18", LEVELS, "no network 'hf-hub:timm/resnet18' of timm"),
        ("resnet18.a1_in1k", LEVELS, r"'resnet18.a1_in1k' of timm \(did you mean resnet18\?"),
        ("vit_tiny_patch16_224", LEVELS, "timm gives no maps of vit_tiny_patch16_224: "),
        ("test_efficientnet", [8, 16], "parameters that the maps of strides .* do not need, such"),
        ("resnet18", [3], "levels must be a list of the strides of resnet18: 2, 4, 8, 16, 32"),
    ],
)
def test_wrong_rows_of_timm_are_rejected(name, levels, message):
    pytest.importorskip("timm", reason="an optional package")
    with pytest.raises(ValueError, match=message):
        timm_model(name, levels)
