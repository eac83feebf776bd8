"""The model that a run starts from: what is built, what is taken over, what is fitted, and what is said of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import build_model
from models.anchors import check_anchors
from models.detector import Detector, count_parameters
from models.start import start_model
from utils.distributed.world import World
from utils.files import checkpoint_file

NAMES = ["disc", "square", "bar"]
SIZES = np.random.default_rng(0).uniform(3, 60, (200, 2))  # the tiny model's anchors go from 10 to 373 px


class Shared(World):
    """A process that is told by another one."""

    def broadcast_object(self, value: Any) -> Any:
        return (np.array(value) + 1).tolist()


def started(cfg: str, weights: str = "", **changed: Any) -> tuple[Detector, list[str]]:
    said: list[str] = []
    settings: dict[str, Any] = {
        "anchors_per_level": 0,
        "fit": True,
        "box_sizes": lambda stride: SIZES,
        "ratio_limit": 4.0,
        "seed": 5,
        "world": World(torch.device("cpu")),
    }
    torch.manual_seed(0)
    return start_model(cfg, weights, NAMES, **(settings | changed), say=said.append), said


def test_from_scratch_with_fitted_anchors(tiny_model):
    asked: list[int] = []
    model, said = started(tiny_model, ratio_limit=2.0, box_sizes=lambda stride: asked.append(stride) or SIZES)
    own = build_model(tiny_model, 3)
    anchors, sentence = check_anchors(SIZES, own.head.anchors_px.double().numpy(), 2.0, seed=5)
    assert said == [f"{tiny_model}: {count_parameters(own):,} parameters, 3 classes, from scratch", sentence]
    assert asked == [32]
    fitted = torch.tensor(anchors, dtype=torch.float32)
    assert model.head.anchors_px.equal(fitted)
    assert not model.head.anchors_px.equal(own.head.anchors_px)
    assert model.table["anchors"] == fitted.flatten(1).tolist()
    assert Detector(model.table).head.anchors_px.equal(fitted)


def test_without_fitting_no_box_is_looked_at(tiny_model):
    model, said = started(tiny_model, fit=False, box_sizes=lambda stride: pytest.fail("asked"))
    assert model.head.anchors_px.equal(build_model(tiny_model, 3).head.anchors_px)
    assert len(said) == 1


def test_a_number_of_anchors_is_always_fitted(tiny_model):
    model, said = started(tiny_model, fit=False, anchors_per_level=2)
    assert model.head.anchors_px.shape == (3, 2, 2)
    assert said[1].startswith("anchors reached ")
    assert model.head.anchors_px.max() < 61  # the squares that stood for them go up to 181 px


def test_anchors_are_those_of_rank_0(tiny_model):
    alone, _ = started(tiny_model, ratio_limit=2.0)
    told, _ = started(tiny_model, ratio_limit=2.0, world=Shared(torch.device("cpu"), size=2))
    torch.testing.assert_close(told.head.anchors_px, alone.head.anchors_px + 1)


@pytest.fixture
def weights(tiny_model: str, tmp_path: Path) -> str:
    """A checkpoint of the tiny model that knows four classes, two of ours among them."""
    torch.manual_seed(1)
    model = build_model(tiny_model, 4)
    state = {"model": model.state_dict(), "table": model.table, "names": ["bar", "cross", "star", "disc"]}
    checkpoint_file.save(tmp_path / "a.pt", state)
    return str(tmp_path / "a.pt")


def test_weights_are_taken_over_with_their_table(weights):
    model, said = started("", weights, fit=False)
    entries = len(model.state_dict()) - 1  # the anchors
    size = count_parameters(model)
    known = f"{entries} of {entries} entries from {weights}, which knows 2 of the classes"
    assert said == [f"{weights}: {size:,} parameters, 3 classes, {known}"]
    state = checkpoint_file.load(Path(weights))["model"]
    assert model.state_dict()["layers.0.conv.weight"].equal(state["layers.0.conv.weight"])


def test_weights_for_another_table(weights, tiny_model):
    model, said = started("yolov5n.yaml", weights, fit=False)
    assert said[0].startswith(f"yolov5n.yaml: {count_parameters(model):,} parameters, 3 classes, ")
    assert model.table["width_multiple"] == 0.25


def test_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="cannot be read as a checkpoint: No such file"):
        started("", str(tmp_path / "none.pt"))
