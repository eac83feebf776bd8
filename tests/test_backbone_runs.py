"""Trainings with a backbone of torchvision by train.py: from its published weights, frozen, and
resumed to the bit. Several processes: test_processes.py.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import train
from models.blocks.torchvision_backbone import build_network
from tests.models.weights.test_network import save_published
from tests.support.processes import SINGLE_PROCESS
from tests.support.run_differences import last_checkpoint
from utils.files import checkpoint_file

TABLE = Path(__file__).parent / "tables" / "backbone.yaml"

pytestmark = [pytest.mark.slow, pytest.mark.trains]


@pytest.fixture(scope="module")
def run(
    tiny_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, dict]]:
    """run("--epochs 1"): the run folder, and the state of its last.pt."""
    root = tmp_path_factory.mktemp("runs")

    def start(own: str) -> tuple[Path, dict]:
        flags = f"{own} --workers 0 --device cpu --cache-dir {root}/cache --project {root}"
        if "--resume" not in own:
            flags += f" --data {tiny_data} --img 64 --batch 4 --noplots --amp fp32"
        train.main(train.parse_args(flags.split())[0], SINGLE_PROCESS)
        folder = max(root.glob("exp*"), key=lambda path: path.stat().st_mtime)
        return folder, last_checkpoint(folder)

    return start


def test_resumed_run_ends_with_the_same_bits(run, tmp_path):
    folder, whole = run(f"--cfg {TABLE} --epochs 3 --save-period 1")
    shutil.copy(folder / "weights" / "epoch1.pt", tmp_path / "epoch1.pt")
    again, resumed = run(f"--resume {folder}/weights/epoch1.pt")
    assert again == folder
    for part in ("model", "ema"):
        assert whole[part].keys() == resumed[part].keys()
        assert all(value.equal(resumed[part][key]) for key, value in whole[part].items())
    first = checkpoint_file.load(tmp_path / "epoch1.pt")["model"]
    assert not all(value.equal(first[key]) for key, value in whole["model"].items())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    state = build_network("mobilenet_v3_small").state_dict()
    return save_published(tmp_path_factory.mktemp("weights"), state)


def test_frozen_backbone_ends_with_the_published_weights(run, published):
    _, saved = run(f"--cfg {TABLE} --weights {published} --freeze 2 --epochs 1")
    state = torch.load(published, weights_only=True)
    for part in ("model", "ema"):
        body = {key: value for key, value in saved[part].items() if key.startswith("layers.1.")}
        assert len(body) > 40
        for key, value in body.items():
            assert value.equal(state[key.removeprefix("layers.1.body.")]), key


def test_backbone_is_trained_from_the_published_weights(run, published, capsys):
    folder, saved = run(f"--cfg {TABLE} --weights {published} --epochs 1")
    out = capsys.readouterr().out
    assert "tensors of the backbone mobilenet_v3_small copied from" in out
    assert "a trained backbone, all else random: --optimizer AdamW" in out
    start = torch.load(published, weights_only=True)["features.0.0.weight"]
    end = saved["model"]["layers.1.body.features.0.0.weight"]
    assert not end.equal(start)
    assert (end - start).abs().max() < 0.1 * start.abs().max()
    assert (folder / "weights" / "best.pt").exists()
