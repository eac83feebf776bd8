"""models/loading.py: checkpoints as backends, with the classes in the order that is asked
for.
"""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import export
from models import build_model
from models.backends import in_torch
from models.backends.in_torch import TorchBackend
from models.loading import canvas_for, fixed_settings_notes, join_names, load_backend
from models.predict import Predictor
from models.weights.kestrel import require_checkpoint
from models.weights.trained_settings import TrainedSettings, trained_settings
from tests.models.backends.test_combined import Fake
from tests.support.exporting import micro_table
from utils.files import checkpoint_file
from utils.nested import concatenate

CPU = torch.device("cpu")
ABC = ["a", "b", "c"]


@pytest.fixture
def detector(micro_model):
    torch.manual_seed(0)
    return build_model(micro_model, 3)


@pytest.fixture
def checkpoint(detector, tmp_path):
    """A checkpoint of three classes, trained at 96 px."""
    entries = {"config": {"imgsz": 96, "single_cls": False}, "data": "shapes.yaml"}
    state = {"model": detector.state_dict(), "table": detector.table, "names": ABC, **entries}
    checkpoint_file.save(tmp_path / "best.pt", state)
    return tmp_path / "best.pt"


def test_checkpoint_is_loaded_with_what_it_says(checkpoint):
    loaded = load_backend(checkpoint, CPU)
    assert (loaded.names, loaded.image_size, loaded.data) == (("a", "b", "c"), 96, "shapes.yaml")
    assert (loaded.single_class, loaded.backend.num_classes, loaded.backend.stride) == (
        False,
        3,
        32,
    )
    assert load_backend(checkpoint, CPU).digest == loaded.digest


WRONG_SETTINGS = [
    *({"classes": value} for value in ("cat", [["cat"]], -1, 10**30, True, {"cat": 1}, [""], [0])),
    *({"imgsz": value} for value in ("640", [640], -1, 10**30, True, 640.0, None)),
    *({"single_cls": value} for value in ("yes", [True], -1, 10**30)),
    *({"tile": value} for value in ("640", [640], -1, 10**30, True, 5)),
    *({"fitness": value} for value in (0.5, ["AP"], True, None)),
    *({"tile_overlap": value} for value in ("0.2", [0.2], -1, 10**30, True, math.nan)),
]


@pytest.mark.parametrize("config", WRONG_SETTINGS, ids=str)
def test_wrong_settings_of_a_checkpoint_are_one_sentence(config):
    name = next(iter(config))
    sentence = rf"^a\\x1bb.pt: its settings cannot be used: {name} must be [^\n]*$"
    with pytest.raises(ValueError, match=sentence):
        trained_settings(Path("a\x1bb.pt"), {"config": config})


def test_settings_of_a_checkpoint_are_checked_when_it_is_loaded(checkpoint):
    state = checkpoint_file.load(checkpoint)
    for entries in ({"config": ["imgsz"]}, {"config": {"classes": 3}}, {"data": 3}):
        checkpoint_file.save(checkpoint, state | entries)
        with pytest.raises(ValueError, match=r"best\.pt: its settings cannot be used: "):
            load_backend(checkpoint, CPU)
    assert trained_settings(checkpoint, {}) == TrainedSettings()
    config = {"imgsz": 96, "tile": 64, "tile_overlap": 0, "classes": ["cat"], "epochs": -1}
    expected = TrainedSettings("a", 96, tile=64, tile_overlap=0.0, classes=("cat",))
    assert trained_settings(checkpoint, {"config": config, "data": "a"}) == expected


@torch.no_grad()
def test_loaded_backend_predicts_like_the_unfused_detector(checkpoint, detector):
    image = torch.rand(1, 3, 64, 96)
    boxes, scores, _ = load_backend(checkpoint, CPU).backend.predict(image)
    expected = TorchBackend(detector).predict(image)
    torch.testing.assert_close(boxes, expected.boxes_xyxy, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(scores, expected.scores, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_images_in_several_forward_passes_give_what_one_gives(checkpoint, monkeypatch):
    backend, images = load_backend(checkpoint, CPU, threads=2).backend, torch.rand(5, 3, 64, 96)
    assert backend.threads == 2
    expected = backend.predict(images)
    for passes, pixels in ((1, 5 * 64 * 96), (3, 2 * 64 * 96), (5, 64 * 96), (5, 1)):
        shapes = []
        with monkeypatch.context() as patch:
            patch.setattr(in_torch, "PASS_PIXELS", pixels)
            handle = backend.detector.register_forward_pre_hook(
                lambda _, given: shapes.append(given[0].shape)  # noqa: B023
            )
            found = backend.predict(images)
            handle.remove()
        assert len(shapes) == passes
        for name in ("boxes_xyxy", "scores", "raw"):
            torch.testing.assert_close(
                getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-3
            )


def test_nested_raw_predictions_are_concatenated_in_place():
    one, two = ({"a": [torch.full((n, 2), n)], "b": (torch.zeros(n),)} for n in (1, 2))
    joined = concatenate([one, two])
    assert joined["a"][0].tolist() == [[1, 1], [2, 2], [2, 2]]
    assert isinstance(joined["b"], tuple)
    assert joined["b"][0].shape == (3,)


@torch.no_grad()
def test_with_classes_reorders_scores_by_name(checkpoint):
    loaded, image = load_backend(checkpoint, CPU), torch.rand(1, 3, 64, 64)
    assert loaded.with_classes(ABC) is loaded
    turned = loaded.with_classes(["c", "a", "b"])
    assert turned.names == ("c", "a", "b")
    first, second = loaded.backend.predict(image), turned.backend.predict(image)
    assert second.boxes_xyxy.equal(first.boxes_xyxy)
    assert second.scores.equal(first.scores[..., [2, 0, 1]])
    assert turned.with_classes(ABC).backend.predict(image).scores.equal(first.scores)


@pytest.mark.parametrize("wanted", [["a", "b", "d"], ["a", "b"], [], ["a", "b", "b"]])
def test_with_classes_rejects_other_classes(checkpoint, wanted):
    message = f"the model's classes are a, b, c, but {', '.join(wanted)} are wanted"
    with pytest.raises(ValueError, match=message):
        load_backend(checkpoint, CPU).with_classes(wanted)


def test_canvas_is_as_wanted_rounded_up_or_that_of_the_export():
    assert canvas_for(Fake(), [], 96) == (96, None)
    assert canvas_for(Fake(), [100], 96) == (128, None)
    assert canvas_for(Fake(), [100, 60], 96) == (128, (128, 64))
    fixed = Fake(canvas=(64, 96))
    for wanted in ([], [96], [64, 96]):
        assert canvas_for(fixed, wanted, 640) == (96, (64, 96))


@pytest.mark.parametrize(("wanted", "shown"), [([128], "128"), ([96, 64], "64 x 96"), ([64], "64")])
def test_other_size_than_that_of_the_export_is_rejected(wanted, shown):
    with pytest.raises(
        ValueError, match=f"image size {shown}: the model was exported for images of 96 x 64 pixels"
    ):
        canvas_for(Fake(canvas=(64, 96)), wanted, 640)


def test_three_sides_are_rejected():
    with pytest.raises(
        ValueError, match="image size 1 2 3: give a long side, or a height and a width"
    ):
        canvas_for(Fake(), [1, 2, 3], 640)


def test_canvas_of_the_export_is_stated_with_the_flag_that_gives_it_to_a_checkpoint():
    assert fixed_settings_notes(Fake(canvas=(64, 96)), 0.25, multi_label=True) == [
        "the exported model puts all images on a canvas of 96 x 64, a checkpoint on rectangles "
        "that fit them: to compare the two, give the checkpoint --img 64 96"
    ]
    assert fixed_settings_notes(Fake(), 0.25, multi_label=True) == []


# ---------------------------------------------------------------------- two heads


@pytest.fixture(scope="module")
def two_heads(tmp_path_factory):
    """The checkpoint of a model with two heads whose boxes differ, and the model."""
    torch.manual_seed(0)
    model = build_model(micro_table("DualDistanceDetect", "nc"), 3).eval()
    for parameter in model.head.one_to_one.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    path = tmp_path_factory.mktemp("two_heads") / "m.pt"
    checkpoint_file.save(path, {"model": model.state_dict(), "table": model.table, "names": ABC})
    return path, model


@pytest.mark.parametrize(
    ("head", "chosen", "needs_nms"),
    [("", "o2o", False), ("o2o", "o2o", False), ("o2m", "o2m", True)],
)
@torch.inference_mode()
def test_head_chooses_the_predictions(two_heads, head, chosen, needs_nms):
    path, model = two_heads
    image = torch.rand(1, 3, 64, 96)
    backend = load_backend(path, CPU, head=head).backend
    assert backend.needs_nms == needs_nms
    assert [backend.nms_iou(0.6), Predictor(backend, iou=0.6)._in_images.keywords["iou"]] == [
        0.6 if needs_nms else 1
    ] * 2
    model.head.choose_output(chosen)
    expected = TorchBackend(model).predict(image)
    found = backend.predict(image)
    torch.testing.assert_close(found.boxes_xyxy, expected.boxes_xyxy, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-5)
    assert load_backend(path, CPU, head=head).digest == load_backend(path, CPU).digest


@torch.inference_mode()
def test_detections_without_suppression_are_those_of_the_highest_scores(two_heads):
    """At most 300 of all predictions of all classes, best first, however much they overlap."""
    backend = load_backend(two_heads[0], CPU).backend
    pixels = torch.randint(256, (64, 64, 3), dtype=torch.uint8)
    limits = {"confidence": 0.0, "iou": 0.1, "max_detections": 40, "multi_label": True}
    found = Predictor(backend, image_size=64, canvas=(64, 64), **limits)(
        pixels.numpy(), channel_order="rgb"
    )
    boxes, scores, _ = backend.predict(pixels.permute(2, 0, 1)[None] / 255)
    best = scores[0].flatten().sort(descending=True, stable=True)
    np.testing.assert_allclose(found.scores, best.values[:40].numpy(), rtol=1e-6)
    np.testing.assert_allclose(
        found.boxes_xyxy, boxes[0, best.indices[:40] // 3].clamp(0, 64).numpy(), atol=1e-3
    )


def test_unknown_heads_are_refused(two_heads, checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r"\.pt: --head both: choose o2o or o2m$"):
        load_backend(two_heads[0], CPU, head="both")
    with pytest.raises(
        ValueError, match=r"\.pt: --head o2o: this model's head has only one output$"
    ):
        load_backend(checkpoint, CPU, head="o2o")


@pytest.mark.parametrize("flag", [{"head": "o2o"}, {"half": True}], ids=str)
def test_missing_exported_file_is_called_missing(tmp_path, flag):
    with pytest.raises(ValueError, match=r"m\.onnx: no such file$"):
        load_backend(tmp_path / "m.onnx", CPU, **flag)
    with pytest.raises(
        ValueError, match=r"is a folder that has 0 \.xml files; an OpenVINO export has one$"
    ):
        load_backend(tmp_path, CPU, **flag)


@pytest.mark.parametrize("inner", ["weights", ""])
def test_run_folder_in_place_of_its_checkpoint_is_recognized(tmp_path, inner):
    best = tmp_path / inner / "best.pt"
    best.parent.mkdir(exist_ok=True)
    best.touch()
    with pytest.raises(ValueError, match=rf": is a folder; did you mean {best}\?$"):
        load_backend(tmp_path, CPU)
    with pytest.raises(ValueError, match=rf": Is a folder\. Did you mean {best}\?$"):
        require_checkpoint(tmp_path)


def test_long_class_names_are_cut_in_messages():
    assert join_names(["a" * 3000, "b"]) == "a" * 40 + "..., b"


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize(
    "flags", [[], ["--nms", "--conf-thres", "0.0001"], ["--head", "o2m"]], ids=" ".join
)
def test_exported_file_has_the_chosen_head(two_heads, tmp_path, flags):
    """export.py compares the file's predictions with those of torch."""
    path = tmp_path / "m.pt"
    path.write_bytes(two_heads[0].read_bytes())
    export.run_script(["--weights", str(path), "--img", "64", *flags])
    file = tmp_path / ("m_o2m.torchscript" if "o2m" in flags else "m.torchscript")
    backend = load_backend(file, CPU).backend
    for name, given in (("head", {"head": "o2o"}), ("precision", {"half": True})):
        sentence = f"{file.name}: its {name} was chosen at export; leave out --{next(iter(given))}"
        with pytest.raises(ValueError, match=rf"{re.escape(sentence)}$"):
            load_backend(file, CPU, **given)
    assert backend.needs_nms == ("o2m" in flags)
    nms = backend.model.nms
    assert (nms.iou if nms else None) == (1.0 if "--nms" in flags else None)
    expected = load_backend(path, CPU, head="o2m" if "o2m" in flags else "").backend.predict(
        torch.ones(1, 3, 64, 64)
    )
    found = backend.predict(torch.ones(1, 3, 64, 64))
    torch.testing.assert_close(found.scores.amax(), expected.scores.amax(), rtol=1e-4, atol=1e-6)
