"""The model at the start of a run: its table, the copied weights, the fitted anchors, and the log
lines.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from models import build_model
from models.detector import Detector, count_parameters
from models.weights.transfer import Copied
from training import start
from training.settings.recipe import TrainedWeights
from training.start import check_model, extended_model, start_model, weight_rms
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.metrics.anchors import check_anchors

NAMES = ["disc", "square", "bar"]
SIZES = np.random.default_rng(0).uniform(
    3, 60, (200, 2)
)  # the tiny model's anchors go from 10 to 373 px


class OtherRankWorld(World):
    """A world whose broadcast returns another value than this process's own, as on ranks other than
    0.
    """

    def broadcast_object(self, value: Any) -> Any:
        return (np.array(value) + 1).tolist()


def start_with_log(cfg: str, weights: str = "", **changed: Any) -> tuple[Detector, list[str]]:
    """The model, and what was logged."""
    log_lines: list[str] = []
    return start_trained(cfg, weights, say=log_lines.append, **changed)[0], log_lines


def start_trained(
    cfg: str, weights: str = "", names: Sequence[str] = NAMES, **changed: Any
) -> tuple[Detector, TrainedWeights | None]:
    settings: dict[str, Any] = {
        "anchors_per_level": 0,
        "fit": True,
        "box_sizes": lambda size: SIZES,
        "image_size": 640,
        "anchor_t": 4.0,
        "seed": 5,
        "download": False,
        "world": World(torch.device("cpu")),
    }
    torch.manual_seed(0)
    return start_model(cfg, weights, names, **(settings | {"say": lambda _: None} | changed))


@pytest.mark.slow
def test_model_from_scratch_gets_fitted_anchors(tiny_model):
    sizes: list[int] = []
    model, log_lines = start_with_log(
        tiny_model, anchor_t=2.0, image_size=100, box_sizes=lambda size: sizes.append(size) or SIZES
    )
    unfitted = build_model(tiny_model, 3)
    anchors, sentence = check_anchors(SIZES, unfitted.head.anchors_px.double().numpy(), 2.0, seed=5)
    assert log_lines == [
        f"{tiny_model}: {count_parameters(unfitted):,} parameters, 3 classes, from scratch",
        sentence,
    ]
    assert sizes == [128]  # a multiple of the largest stride, 32
    fitted = torch.tensor(anchors, dtype=torch.float32)
    assert model.head.anchors_px.equal(fitted)
    assert not model.head.anchors_px.equal(unfitted.head.anchors_px)
    assert model.table["anchors"] == fitted.flatten(1).tolist()
    assert Detector(model.table).head.anchors_px.equal(fitted)


def test_boxes_are_not_read_without_anchor_fitting(tiny_model):
    model, log_lines = start_with_log(
        tiny_model, fit=False, box_sizes=lambda stride: pytest.fail("box_sizes was called")
    )
    assert model.head.anchors_px.equal(build_model(tiny_model, 3).head.anchors_px)
    assert len(log_lines) == 1


def test_anchors_given_as_count_are_always_fitted(tiny_model):
    model, log_lines = start_with_log(tiny_model, fit=False, anchors_per_level=2)
    assert model.head.anchors_px.shape == (3, 2, 2)
    assert "they were chosen by the boxes" in log_lines[1]
    assert model.head.anchors_px.max() < 61  # the square placeholders go up to 181 px


@pytest.mark.parametrize("table", ["decoupled.yaml", "distance.yaml"])
def test_number_of_anchors_is_said_to_have_no_effect_on_heads_without(table):
    path = str(Path(__file__).parents[1] / "tables" / table)
    _, log_lines = start_with_log(path, anchors_per_level=2)
    assert log_lines[1:] == ["anchors 2: the head of this model has no anchors: no effect"]
    assert len(start_with_log(path)[1]) == 1


def test_anchors_are_fitted_at_the_size_that_a_teacher_needs_too(tiny_model):
    sizes: list[int] = []
    start_with_log(
        tiny_model, image_size=300, stride=128, box_sizes=lambda size: sizes.append(size) or SIZES
    )
    assert sizes == [384]


@pytest.mark.slow
@pytest.mark.parametrize("added", [False, True], ids=["fine-tuned", "--add-classes"])
def test_another_size_than_the_checkpoint_was_trained_at_is_said(tiny_model, tmp_path, added):
    path = tmp_path / "old.pt"
    model = build_model(tiny_model, 2)
    saved = {"model": model.state_dict(), "table": model.table, "names": NAMES[:2]}
    sentence = f"--weights {path}: trained at 320 px, this run is at 640 px: see --img"
    for config, size, said in (
        ({"imgsz": 320}, 640, True),
        ({"imgsz": 320}, 320, False),
        ({"imgsz": 320}, 300, False),  # rounded up to a multiple of the largest stride, 32
        ({}, 640, False),  # nothing is known
    ):
        checkpoint_file.save(path, saved | {"config": config})
        log_lines: list[str] = []
        if added:
            extended_model(
                str(path), NAMES, anchors_per_level=0, image_size=size, say=log_lines.append
            )
        else:
            _, log_lines = start_with_log("", str(path), image_size=size)
        assert (sentence in log_lines) == said, log_lines


def test_number_of_anchors_is_said_to_have_no_effect_on_added_classes(tiny_model, tmp_path):
    path = tmp_path / "old.pt"
    old = build_model(tiny_model, 2)
    checkpoint_file.save(path, {"model": old.state_dict(), "table": old.table, "names": NAMES[:2]})
    said: list[str] = []
    extended_model(str(path), NAMES, anchors_per_level=2, image_size=640, say=said.append)
    assert said[0] == f"anchors 2: no effect: --add-classes keeps those of {path}"


def test_anchors_are_broadcast_from_rank_0(tiny_model):
    alone, _ = start_with_log(tiny_model, anchor_t=2.0)
    received, _ = start_with_log(
        tiny_model, anchor_t=2.0, world=OtherRankWorld(torch.device("cpu"), size=2)
    )
    torch.testing.assert_close(received.head.anchors_px, alone.head.anchors_px + 1)


@pytest.fixture
def weights(tiny_model: str, tmp_path: Path) -> str:
    """A checkpoint of the tiny model with four classes, of which NAMES has two."""
    torch.manual_seed(1)
    model = build_model(tiny_model, 4)
    state = {
        "model": model.state_dict(),
        "table": model.table,
        "names": ["bar", "cross", "star", "disc"],
    }
    checkpoint_file.save(tmp_path / "a.pt", state)
    return str(tmp_path / "a.pt")


def test_model_starts_from_weights_and_their_table(weights):
    model, log_lines = start_with_log("", weights, fit=False)
    tensors = len(model.state_dict()) - 1  # without the anchors
    size = count_parameters(model)
    origin = f"{tensors} of {tensors} tensors and 2 of 3 classes copied from {weights}"
    assert log_lines == [f"{weights}: {size:,} parameters, 3 classes, {origin}"]
    state = checkpoint_file.load(Path(weights))["model"]
    assert model.state_dict()["layers.0.conv.weight"].equal(state["layers.0.conv.weight"])


@pytest.mark.slow
def test_training_centers_its_images_wherever_those_of_the_weights_were(weights):
    """Unless the user's own table says otherwise."""
    state = checkpoint_file.load(Path(weights))
    centered, _ = start_with_log("", weights, fit=False)
    state["table"] = state["table"] | {"letterbox": "top_left"}
    checkpoint_file.save(Path(weights), state)
    model, _ = start_with_log("", weights, fit=False)
    assert model.letterbox == "center"
    assert model.table == centered.table

    own = Path(weights).with_suffix(".yaml")
    values = {key: value for key, value in state["table"].items() if key not in ("source", "nc")}
    own.write_text(yaml.safe_dump(values))
    assert start_with_log(str(own), weights, fit=False)[0].letterbox == "top_left"


@pytest.mark.slow
def test_weights_can_be_used_with_another_table(tmp_path):
    """The body of yolov5n fits that of yolov5nu; the head is of another kind."""
    source = build_model("yolov5n.yaml", 4)
    state = {
        "model": source.state_dict(),
        "table": source.table,
        "names": ["bar", "cross", "star", "disc"],
    }
    checkpoint_file.save(tmp_path / "b.pt", state)
    model, log_lines = start_with_log("yolov5nu.yaml", str(tmp_path / "b.pt"))
    assert log_lines[0].startswith(
        f"yolov5nu.yaml: {count_parameters(model):,} parameters, 3 classes, "
    )
    for key, value in model.state_dict().items():
        of_body = not key.startswith("layers.24.")
        assert (key in state["model"] and value.equal(state["model"][key])) == of_body, key


def test_missing_weights_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="cannot be read as a checkpoint: No such file"):
        start_with_log("", str(tmp_path / "none.pt"))


@pytest.mark.parametrize(
    ("cfg", "weights", "sentence"),
    [
        (
            "yolov5s.yaml",
            "absent.pt",
            "absent.pt: cannot be read as a checkpoint: No such file. Give a checkpoint",
        ),
        (
            "",
            "yolox_s.pth",
            "yolox_s.pth: cannot be read as a checkpoint: No such file. Its authors publish it at",
        ),
        ("", "", None),
        ("", "folder", "folder: cannot be read as a checkpoint: Is a folder. Give a checkpoint"),
        (
            "",
            "best.onnx",
            "best.onnx: cannot be read as a checkpoint: Is an exported model; give the checkpoint "
            "that",
        ),
        (
            "best.pt",
            "",
            "--cfg best.pt: give a checkpoint with --weights, and a model table with --cfg",
        ),
        ("YOLOv5z", "", "no model 'YOLOv5z': give a YAML file or one of convnext_tiny"),
        ("absent.yaml", "", "no model 'absent.yaml': give a YAML file or one of convnext_tiny"),
        ("yolov8n.yaml", "", None),
        (
            "yolov5.yaml",
            "",
            "models/yolov5.yaml: the table has the scales n, s, m, l, x; choose one of yolov5n",
        ),
        (
            "yolo11",
            "",
            "models/yolo11.yaml: the table has the scales n, s; choose one of yolo11m, yolo11l, "
            "yolo11x, ",
        ),
        (
            "own.yaml",
            "",
            "own.yaml: the table has the scales a; give depth_multiple and width_multiple instead, "
            "as",
        ),
        ("data.yaml", "", "data.yaml: unknown keys train, names; allowed are nc, "),
        (
            "pretrained.yaml",
            "",
            "no model 'pretrained.yaml': give a YAML file or one of convnext_tiny",
        ),
        (
            "unfit.yaml",
            "",
            "unfit.yaml row 2 [[0, 1], 1, Concat, [1]]: maps of strides 8, 16 differ in size",
        ),
        (
            "nobin.yaml",
            "",
            "nobin.yaml row 2 [[0, 1], 1, DistanceDetect, ['nc', 0]]: a distance needs 1 or more "
            "bins, got 0",
        ),
        (
            "noclass.yaml",
            "",
            "noclass.yaml row 2 [[0, 1], 1, DistanceDetect, [0]]: a head needs 1 or more classes, "
            "got 0",
        ),
        ("", "cut.pt", "cut.pt: is not a checkpoint "),
        (
            "",
            "a" * 300,
            f"{'a' * 300}: cannot be read as a checkpoint: No such file. Give a checkpoint",
        ),
    ],
)
def test_missing_model_or_checkpoint_is_found_before_the_data_is_read(
    tmp_path, monkeypatch, cfg, weights, sentence
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "best.onnx").touch()
    (tmp_path / "cut.pt").write_bytes(b"PK")
    (tmp_path / "own.yaml").write_text("scales: {a: [1, 1]}\nbackbone: []\nhead: []")
    body = (
        "depth_multiple: 1\nwidth_multiple: 1\nbackbone: [[-1, 1, Conv, [8, 3, 8]], [-1, 1, "
        "Conv, [8, 3, 2]]]\nhead: "
    )
    for name, head in (
        ("unfit", "[[[0, 1], 1, Concat, [1]], [[0, 2], 1, DistanceDetect, [nc]]]"),
        ("nobin", "[[[0, 1], 1, DistanceDetect, [nc, 0]]]"),
        ("noclass", "[[[0, 1], 1, DistanceDetect, [0]]]"),
    ):
        (tmp_path / f"{name}.yaml").write_text(body + head)
    (tmp_path / "data.yaml").write_text("train: images\nnames: [a]")
    if sentence is None:
        check_model(cfg, weights, download=False)
        return
    with pytest.raises(ValueError) as caught:
        check_model(cfg, weights, download=False)
    assert str(caught.value).startswith(sentence)


def test_weights_that_are_fetched_need_not_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"absent\.pt: cannot be read"):
        check_model("", "absent.pt", download=True)
    with pytest.raises(ValueError, match=r"^yolox_s\.pth: --download needs a sha256"):
        check_model("", "yolox_s.pth", download=True)
    monkeypatch.setattr(start, "source_of_missing", lambda weights: weights == "yolox_s.pth")
    check_model("", "yolox_s.pth", download=True)


@pytest.mark.parametrize(
    ("name", "near"),
    [("yolov5z", "yolov5l or yolov5m or yolov5n"), ("YOLOV5S", "yolov5s"), ("yolo11-n", "yolo11n")],
)
def test_name_near_to_that_of_a_model_is_suggested(name, near):
    with pytest.raises(ValueError, match=rf"\(did you mean {near}\?\)$"):
        check_model(name, "", download=False)


@pytest.mark.slow
def test_too_few_copied_tensors_are_said_to_count_as_random_weights(tmp_path):
    source = build_model("yolov5n.yaml", 3)
    path = tmp_path / "other.pt"
    checkpoint_file.save(
        path, {"table": source.table, "names": NAMES, "model": source.state_dict()}
    )
    _, lines = start_with_log("yolov8n.yaml", str(path))
    assert start_trained("yolov8n.yaml", str(path))[1] is None
    assert lines[0].endswith("; 27% of the weights are too few to count as trained")


@pytest.mark.slow
def test_what_the_weights_know_is_returned(weights, tiny_model):
    for names in (NAMES, ["disc", "bar"]):
        model, trained = start_trained("", weights, names)
        assert trained == TrainedWeights(weight_rms(model), all_classes=names != NAMES)
    assert start_trained(tiny_model)[1] is None


@pytest.mark.parametrize(("share", "counts"), [(0.49, False), (0.51, True)])
def test_more_than_half_of_the_weights_make_trained_ones(weights, monkeypatch, share, counts):
    monkeypatch.setattr(start, "transfer", lambda *_: Copied(9, 10, 1, share))
    assert (start_trained("", weights)[1] is not None) == counts


@pytest.mark.slow
def test_weights_of_zeros_do_not_count_as_trained(weights, tmp_path):
    saved = checkpoint_file.load(Path(weights))
    saved["model"] = {key: torch.zeros_like(value) for key, value in saved["model"].items()}
    checkpoint_file.save(tmp_path / "b.pt", saved)
    _, lines = start_with_log("", str(tmp_path / "b.pt"))
    assert lines[0].endswith("; they do not count as trained, because most convolutions are 0")
    assert start_trained("", str(tmp_path / "b.pt"))[1] is None


def test_weight_rms_is_the_median_over_convolutions():
    """Weights of 3, 0.1 and root((1 + 49) / 2) = 5; a bias and BatchNorm do not count."""
    layers = [nn.Conv2d(1, 1, 1), nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 1)]
    for layer, values in zip(layers, ([3.0], [0.1, 0.1], [100.0, 100.0], [1.0, -7.0]), strict=True):
        layer.weight.data.copy_(torch.tensor(values).view_as(layer.weight))
    assert weight_rms(nn.Sequential(*layers)) == pytest.approx(3)
    assert weight_rms(nn.Sequential(*layers[2:])) == pytest.approx(5)
    assert weight_rms(nn.Sequential()) == 0
