"""Published files of torchvision's networks, written here with random weights: their names and
digits, into which tables they go, and the errors.
"""

import hashlib
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models import build_model
from models.blocks.torchvision_backbone import NAMES, TorchvisionBackbone, build_network
from models.detector import Detector
from models.tables.find import model_names
from models.tables.read import read_table
from models.weights.kestrel import fetch_detector, is_network, load_detector
from models.weights.network import copy_network
from models.weights.pretrained import _is_date, source_of_missing, where_published
from models.weights.torchvision_files import torchvision_file, torchvision_files
from training.start import check_model

TABLE = Path(__file__).parents[2] / "tables" / "backbone.yaml"
NAME = "mobilenet_v3_small"


def save_published(folder: Path, state: Mapping[str, Any], network: str = NAME) -> Path:
    """Write a state dict under a name that ends with the digits of its SHA-256."""
    unnamed = folder / "unnamed.pth"
    torch.save(dict(state), unnamed)
    digits = hashlib.sha256(unnamed.read_bytes()).hexdigest()[:8]
    return unnamed.rename(folder / f"{network}-{digits}.pth")


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    torch.manual_seed(7)
    return build_network(NAME, num_classes=5).state_dict()


def assert_copied(model: Detector, state: Mapping[str, Tensor]) -> None:
    body = model.layers[1].body.state_dict()
    assert len(body) > 40
    assert all(value.equal(state[key]) for key, value in body.items())


@pytest.mark.slow
def test_published_file_goes_into_the_backbone(state, tmp_path):
    model = build_model(TABLE, 3)
    rest = {key: value.clone() for key, value in model.head.state_dict().items()}
    copied = copy_network(model, save_published(tmp_path, state))
    assert copied.tensors == len(model.layers[1].body.state_dict())
    assert_copied(model, state)
    assert all(value.equal(rest[key]) for key, value in model.head.state_dict().items())


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model_state_dict": state, "optimizer_state_dict": {}},
        lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
        lambda state: {k: v for k, v in state.items() if not k.startswith("classifier")},
        lambda state: {k: v.half() if v.is_floating_point() else v for k, v in state.items()},
    ],
    ids=["training checkpoint", "of torch's tutorials", "of DDP", "without classifier", "half"],
)
def test_other_forms_of_a_state_are_read(change, state, tmp_path):
    path = tmp_path / "mine.pth"
    torch.save(change(state), path)
    assert is_network(path)
    model = build_model(TABLE, 3)
    copy_network(model, path)
    weight = model.layers[1].body.state_dict()["features.1.block.0.0.weight"]
    torch.testing.assert_close(weight, state["features.1.block.0.0.weight"], rtol=1e-3, atol=1e-4)


def test_file_of_the_older_layout_without_counts_is_read(state, tmp_path):
    """As torchvision wrote its first files."""
    old = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    model = build_model(TABLE, 3)
    copy_network(model, tmp_path / "old.pth")
    assert_copied(model, state)


def test_wrong_digits_are_refused(state, tmp_path):
    good = save_published(tmp_path, state)
    wrong = good.rename(tmp_path / f"{NAME}-f37072fd.pth")
    with pytest.raises(ValueError, match="its SHA-256 begins with f37072fd, but it begins with"):
        copy_network(build_model(TABLE, 3), wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state | {"layer1.0.weight": torch.ones(1)},
            "is no file of mobilenet_v3_small of torchvision: that has no tensor layer1.0.weight",
        ),
        (
            lambda state: {k: v for k, v in state.items() if not k.startswith("features.2.")},
            r"the tensor features.2.block.0.0.weight is missing",
        ),
        (
            lambda state: state | {"features.0.1.bias": torch.ones(2)},
            r"features.0.1.bias is \[2\], not \[16\]",
        ),
        (
            lambda state: state | {"features.0.1.bias": torch.full((16,), torch.nan)},
            "features.0.1.bias has values that are not finite",
        ),
    ],
)
def test_files_of_other_networks_are_refused(change, message, state, tmp_path):
    path = tmp_path / "mine.pth"
    torch.save(change(state), path)
    with pytest.raises(ValueError, match=message):
        check_model(str(TABLE), str(path), download=False)


def test_file_of_a_deeper_network_is_refused_with_its_table(tmp_path):
    """It has all tensors of the shallower one, and more."""
    with torch.device("meta"):
        deep = build_network("resnet34").state_dict()
    small = {key: torch.zeros([]).expand(value.shape) for key, value in deep.items()}
    name = next(name for name, file in torchvision_files().items() if file.network == "resnet34")
    table = read_table(TABLE)
    table["backbone"][1] = [-1, 1, "TorchvisionBackbone", ["resnet18", [8, 16]]]

    from models.weights import network

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "require_named_digest", lambda path: None)
        torch.save(small, tmp_path / name)
        with pytest.raises(
            ValueError,
            match=r"is no file of resnet18 of torchvision: that has no tensor "
            r"layer1.2.conv1.weight; train.py takes it with --cfg resnet34.yaml",
        ):
            copy_network(build_model(table, 3), tmp_path / name)


def test_file_of_a_network_is_no_detector(state, tmp_path):
    """val.py, detect.py and train.py without --cfg say which table takes it."""
    path = save_published(tmp_path, state)
    with pytest.raises(ValueError, match=r"and is no detector: train.py takes it with --cfg and a"):
        load_detector(path)
    with pytest.raises(ValueError, match="holds tensors by their names"):
        check_model("", str(path), download=False)
    with pytest.raises(ValueError, match=r"models/yolov8.yaml has no row for it: train.py takes"):
        check_model("yolov8n.yaml", str(path), download=False)


def test_whole_module_is_refused_with_advice(tmp_path):
    path = tmp_path / "whole.pt"
    sentence = (
        r"it holds a whole module, of class .*Conv2d, without a table .*: save its state_dict"
    )
    for content in (torch.nn.Conv2d(3, 3, 1), {"model": torch.nn.Conv2d(3, 3, 1)}):
        torch.save(content, path)
        with pytest.raises(ValueError, match=sentence):
            check_model(str(TABLE), str(path), download=False)


class Harmful:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("executed",)


def test_nothing_in_a_file_is_executed(state, tmp_path, capsys):
    path = tmp_path / "mine.pth"
    torch.save(dict(state) | {"features.0.1.bias": Harmful()}, path, pickle_module=pickle)
    assert not is_network(path)
    with pytest.raises(ValueError, match=r"mine\.pth"):
        check_model(str(TABLE), str(path), download=False)
    assert "executed" not in capsys.readouterr().out


def execute() -> None:
    print("executed")


class Foreign:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return execute, ()


def test_what_is_beside_the_weights_is_not_executed(state, tmp_path, capsys):
    """Unlike functions of the system, those of a foreign program do not make a file unreadable."""
    path = tmp_path / "mine.pth"
    torch.save({"state_dict": dict(state), "args": Foreign()}, path, pickle_module=pickle)
    torch.load(path, weights_only=False)
    assert "executed" in capsys.readouterr().out
    assert copy_network(build_model(TABLE, 3), path).tensors > 0
    assert "executed" not in capsys.readouterr().out


# --------------------------------------------------------------------------------- where they are


def test_every_network_has_published_files_with_digits():
    files = torchvision_files()
    assert {file.network for file in files.values()} == {*NAMES}
    for name, file in files.items():
        assert file.source.url.startswith("https://download.pytorch.org/models/")
        assert name.endswith(f"-{file.source.sha256_prefix}.pth")
        assert not _is_date(file.source.sha256_prefix)  # those would not be compared


def test_missing_file_answers_where_it_is_published(tmp_path):
    name = next(name for name, file in torchvision_files().items() if file.network == "resnet18")
    url = f"https://download.pytorch.org/models/{name}"
    assert where_published(tmp_path / name) == (
        f"Its authors publish it at {url}: train.py fetches it with --download, for a table given "
        "with --cfg"
    )
    source = source_of_missing(str(tmp_path / name))
    assert source is not None
    assert (source.url, source.sha256) == (url, "")
    assert name.endswith(f"-{source.digits}.pth")
    assert torchvision_file("resnet18-00000000.pth") is None
    assert where_published(tmp_path / "resnet18-00000000.pth") == ""


def test_network_is_not_downloaded_as_a_detector(tmp_path, monkeypatch):
    def fetch(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("models.weights.pretrained.fetch", fetch)
    name = next(name for name, file in torchvision_files().items() if file.network == "resnet18")
    sentence = "is a file of resnet18, which classifies images and is no detector: train.py takes"
    with pytest.raises(ValueError, match=sentence):
        fetch_detector(str(tmp_path / name))
    with pytest.raises(ValueError, match=sentence):
        check_model("", str(tmp_path / name), download=True)
    with pytest.raises(ValueError, match=r"but models/yolov5\.yaml has no row for it"):
        check_model("yolov5s.yaml", str(tmp_path / name), download=True)
    check_model("resnet18.yaml", str(tmp_path / name), download=True)


def test_network_whose_tensors_have_other_names_is_refused(state, tmp_path, monkeypatch):
    """Nothing would be copied, and the run would count as one that starts from trained weights."""
    monkeypatch.setattr(TorchvisionBackbone, "own_names", lambda *_: {})
    with pytest.raises(ValueError, match=r"\d+ tensors of its backbone have other names in a file"):
        copy_network(build_model(TABLE, 3), save_published(tmp_path, state))


def test_ready_tables_are_named_as_their_networks():
    named = [name for name in model_names() if name in NAMES]
    assert {"resnet18", "resnet50", NAME, "efficientnet_b0", "regnet_y_400mf"} <= {*named}
