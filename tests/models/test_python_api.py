"""models.load: a detector for programs; its results equal those of the predictor and of val.py."""

import copy
import os
import pickle
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hubconf
from models import build_model, load
from models.backends.in_torch import TorchBackend
from models.predict import Predictor
from models.python_api import LoadedDetector
from models.result import Result
from tests.support.own_process import run_program
from utils.files import checkpoint_file

ROOT = Path(__file__).parents[2]
NAMES = ["disc", "square", "bar"]
LOW = {"confidence": 0.0, "max_detections": 20, "device": "cpu"}


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [
        generator.integers(0, 256, (*size, 3), dtype=np.uint8)
        for size in ((64, 96), (96, 64), (64, 96), (33, 80))
    ]


@pytest.fixture(scope="module")
def detector(tiny_model):
    torch.manual_seed(0)
    return build_model(tiny_model, 3)


@pytest.fixture(scope="module")
def weights(detector, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "best.pt"
    state = {
        "model": detector.state_dict(),
        "table": detector.table,
        "names": NAMES,
        "config": {"imgsz": 96},
    }
    checkpoint_file.save(path, state)
    return path


def same(one: Result, other: Result, atol: float = 1e-4) -> bool:
    return (
        np.allclose(one.boxes_xyxy, other.boxes_xyxy, rtol=0, atol=atol)
        and np.allclose(one.scores, other.scores, rtol=0, atol=atol)
        and one.class_ids.tolist() == other.class_ids.tolist()
    )


def test_results_equal_those_of_the_predictor(weights, detector, images):
    loaded = load(weights, **LOW)
    expected = Predictor(TorchBackend(detector), image_size=96, confidence=0.0, max_detections=20)
    results = loaded(images, channel_order="rgb")
    assert [len(result) for result in results] == [20] * 4
    for image, result in zip(images, results, strict=True):
        assert same(result, expected(image, channel_order="rgb"), 1e-3)
        assert np.array_equal(result.image, image)
        assert result.names == tuple(NAMES)


def test_one_image_gives_one_result_and_a_list_gives_a_list(weights, images, tmp_path):
    Image.fromarray(images[0]).save(tmp_path / "a.png")
    loaded = load(weights, **LOW)
    one = loaded(tmp_path / "a.png")
    assert isinstance(one, Result)
    assert one.path == str(tmp_path / "a.png")
    several = loaded(
        [
            tmp_path / "a.png",
            Image.fromarray(images[0]),
            torch.from_numpy(images[0]).permute(2, 0, 1),
        ]
    )
    assert all(same(one, other) for other in several)
    assert same(one, loaded(images[0][..., ::-1], channel_order="bgr"))
    assert loaded([]) == []


@pytest.mark.slow
def test_settings_reach_the_predictor(weights, images):
    everything = load(weights, **LOW, multi_label=True)(images[0], channel_order="rgb")
    assert (
        load(weights, device="cpu", confidence=1.0)(images[0], channel_order="rgb").scores.tolist()
        == []
    )
    by_name = load(weights, **LOW, classes=["bar"])(images[0], channel_order="rgb")
    assert set(by_name.class_ids) == {2}
    assert same(by_name, load(weights, **LOW, classes=[2])(images[0], channel_order="rgb"))
    assert same(by_name, load(weights, **LOW, classes=["2"])(images[0], channel_order="rgb"))
    assert len(set(everything.class_ids)) > 1
    assert not same(
        everything,
        load(weights, **LOW, multi_label=True, augment=True)(images[0], channel_order="rgb"),
    )
    twice = load([weights, weights], **LOW, multi_label=True)(images[0], channel_order="rgb")
    assert same(twice, everything)


def test_names_reorder_or_rename_the_classes(weights, images):
    own = load(weights, **LOW)(images[0], channel_order="rgb")
    turned = load(weights, **LOW, names=["bar", "disc", "square"])(images[0], channel_order="rgb")
    assert [turned.names[k] for k in turned.class_ids] == [own.names[k] for k in own.class_ids]
    assert turned.class_ids.tolist() == [[1, 2, 0][k] for k in own.class_ids]
    renamed = load(weights, **LOW, names=["a", "b", "c"], classes=["b"])(
        images[0], channel_order="rgb"
    )
    assert (set(renamed.class_ids), renamed.names) == ({1}, ("a", "b", "c"))
    with pytest.raises(ValueError, match="2 class names are given, but the model has 3 classes"):
        load(weights, **LOW, names=["a", "b"])


@pytest.mark.parametrize(("word", "number"), [("1", 0), (1, 1), ("2", 2)])
def test_digits_are_a_name_before_they_are_a_number(detector, tmp_path, images, word, number):
    state = {"model": detector.state_dict(), "table": detector.table, "names": ["1", "x", "x"]}
    checkpoint_file.save(tmp_path / "odd.pt", state)
    settings = {**LOW, "image_size": 96, "max_detections": 300}
    chosen = load(tmp_path / "odd.pt", **settings, classes=[word])
    assert set(chosen(images[0], channel_order="rgb").class_ids) == {number}


def test_a_name_of_several_classes_chooses_them_all(detector, tmp_path, images):
    state = {"model": detector.state_dict(), "table": detector.table, "names": ["1", "x", "x"]}
    checkpoint_file.save(tmp_path / "odd.pt", state)
    settings = {**LOW, "image_size": 96, "max_detections": 300}
    found = load(tmp_path / "odd.pt", **settings, classes=["x"], multi_label=True)(
        images[0], channel_order="rgb"
    )
    assert set(found.class_ids) == {1, 2}


def test_settings_may_have_the_types_that_programs_use(weights):
    given = {
        "device": torch.device("cpu"),
        "image_size": np.int64(64),
        "names": {1: "b", 0: "a", 2: "c"},
    }
    detector = load(weights, **given)
    assert (detector.image_size, detector.names, str(detector.device)) == (
        64,
        ("a", "b", "c"),
        "cpu",
    )


def test_image_size_is_that_of_the_training_or_as_given(weights):
    assert load(weights, device="cpu").image_size == 96
    assert load(weights, device="cpu", image_size=100).image_size == 128
    assert load(weights, device="cpu", image_size=(64, 100)).image_size == 128
    assert (
        repr(load(weights, device="cpu"))
        == "<detector of 3 classes (disc, square, bar), 96 px, cpu>"
    )


def test_fixed_canvas_is_used_for_all_images(weights, images):
    loaded, shapes = load(weights, **LOW, image_size=(64, 128)), set()
    predict = loaded.predictor.backend.predict
    loaded.predictor.backend.predict = lambda batch, *rest: (
        shapes.add(tuple(batch.shape[2:])) or predict(batch, *rest)
    )
    assert len(loaded(images, channel_order="rgb")) == 4
    assert shapes == {(64, 128)}


def test_threads_may_share_a_detector(weights, images):
    loaded = load(weights, **LOW)
    expected, results = loaded(images, channel_order="rgb"), {}

    def detect(number: int) -> None:
        for index in range(8):
            results[number, index] = loaded(images[(number + index) % 4], channel_order="rgb")

    threads = [threading.Thread(target=detect, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 32
    assert all(same(result, expected[sum(key) % 4]) for key, result in results.items())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"confidence": 2}, "confidence 2: choose a threshold from 0 to 1"),
        ({"classes": [3]}, r"class 3: the model has 3 classes \(0-2\)"),
        ({"classes": ["cat"]}, "class 'cat': the model has disc, square, bar"),
        (
            {"image_size": (64, 64, 64)},
            "image size 64 64 64: give a long side, or a height and a width",
        ),
        ({"image_size": 0}, "image size 0: choose 32 to 8192 pixels"),
        ({"image_size": 10**7}, "image size 10000000: choose 32 to 8192 pixels"),
        ({"image_size": "64"}, "image size 6: choose 32 to 8192 pixels"),
        ({"classes": "disc"}, "classes is 'disc': give a list of names or numbers"),
        ({"classes": [1.5]}, r"class 1.5: give a name or a whole number"),
        (
            {"names": ["disc", "square", "Bar"]},
            "the model has no class Bar, but has bar: give its names in any order",
        ),
        ({"device": "tpu"}, "--device tpu: choose"),
        ({"batch_size": 0}, "batch_size 0: choose 1 or more"),
    ],
)
def test_settings_out_of_range_are_rejected(weights, settings, text):
    with pytest.raises(ValueError, match=text):
        load(weights, **settings)


def test_bad_weights_are_rejected(weights, detector, tmp_path):
    with pytest.raises(ValueError, match="weights is an empty list: give a checkpoint"):
        load([])
    with pytest.raises(
        ValueError, match=r"missing.pt: cannot be read as a checkpoint: No such file"
    ):
        load(tmp_path / "missing.pt")
    other = {"model": detector.state_dict(), "table": detector.table, "names": ["a", "b", "c"]}
    checkpoint_file.save(tmp_path / "other.pt", other)
    with pytest.raises(
        ValueError,
        match=r"other.pt does not fit .*best.pt: the model's classes are a, b, c, but disc",
    ):
        load([weights, tmp_path / "other.pt"], device="cpu")


def test_wrong_channel_order_is_rejected(weights, images):
    with pytest.raises(ValueError, match="channel_order is 'RGB': choose 'rgb' or 'bgr'"):
        load(weights, device="cpu")(images[0], channel_order="RGB")


@pytest.mark.slow
def test_torch_hub_loads_a_detector_from_another_folder(weights, images, tmp_path):
    Image.fromarray(images[0]).save(tmp_path / "a.png")
    code = f"""
import multiprocessing
import torch

def found(model):
    return len(model("a.png"))

if __name__ == "__main__":
    settings = dict(path={str(weights)!r}, device="cpu", confidence=0.0)
    model = torch.hub.load({str(ROOT)!r}, "custom", source="local", **settings)
    print(found(model) > 10)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply_async(found, (model,)).get(60) == found(model))
"""
    (tmp_path / "program.py").write_text(code)
    # in a process that knows nothing of the checkout
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\nTrue\n", done.stderr


def test_module_of_the_program_by_the_name_of_a_package_is_said(monkeypatch):
    other = types.ModuleType("utils")
    other.__file__ = "/my/program/utils.py"
    monkeypatch.setitem(sys.modules, "utils", other)
    with pytest.raises(
        ImportError, match=r"package utils has the name of .* \(/my/program/utils.py\)"
    ):
        hubconf.custom("best.pt")


# ---------------------------------------------------------------------- other processes


def unpickled(content: bytes) -> LoadedDetector:
    return pickle.loads(content)  # noqa: S301  # written by these tests


@pytest.mark.slow
def test_pickled_detector_loads_the_same_files_again(weights, images, monkeypatch, tmp_path):
    settings = {
        **LOW,
        "classes": ["bar", 0],
        "tile": 64,
        "names": {1: "disc", 0: "square", 2: "bar"},
    }
    monkeypatch.chdir(weights.parent)
    detector = load([weights.name, weights], **settings)
    content = pickle.dumps(detector)
    monkeypatch.chdir(tmp_path)  # the path of the file was relative
    again = unpickled(content)
    expected, found = (each(images, channel_order="rgb") for each in (detector, again))
    assert sum(map(len, expected)) > 10
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    assert (again.names, again.size_text) == (detector.names, detector.size_text)
    assert unpickled(pickle.dumps(again)).names == detector.names
    assert copy.deepcopy(detector) is copy.copy(detector) is detector


def test_pickled_detector_refuses_other_weights(weights, tmp_path):
    file = tmp_path / "own.pt"
    state = checkpoint_file.load(weights)
    checkpoint_file.save(file, state)
    content = pickle.dumps(load(file, **LOW))
    state["model"] = {
        key: value * 2 if value.is_floating_point() else value
        for key, value in state["model"].items()
    }
    checkpoint_file.save(file, state)
    with pytest.raises(
        ValueError, match=r"own\.pt: its weights have changed since the detector was pickled"
    ):
        unpickled(content)
    file.unlink()
    with pytest.raises(ValueError, match=r"own\.pt"):
        unpickled(content)


def test_detector_that_was_not_loaded_from_files_is_not_pickled(detector):
    made = LoadedDetector(Predictor(TorchBackend(detector)), NAMES)
    with pytest.raises(
        TypeError, match=r"only a detector that models\.load has returned can be pickled"
    ):
        pickle.dumps(made)


FORKED = """
import os, signal, sys
import numpy as np, torch
from models import load

torch.set_num_threads(4)
image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
settings = {"device": "cpu", "confidence": 0.0, "max_detections": 20, "image_size": 640}
detector = load(sys.argv[1], **settings)
expected = len(detector(image, channel_order="rgb"))  # starts OpenMP's threads

for use in (lambda: detector, lambda: load(sys.argv[1], **settings)):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits for ever
        found = len(use()(image, channel_order="rgb"))
        os._exit(0 if (found, torch.get_num_threads()) == (expected, 1) else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(torch.get_num_threads(), expected)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_can_detect_and_load(weights, tmp_path):
    done = run_program(FORKED, weights, folder=tmp_path, seconds=200)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "0", "4", "20"]), done.stderr


def test_forked_child_that_cannot_use_the_model_says_what_to_do(weights, images, monkeypatch):
    detector = load(weights, **LOW)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as if in another process
    assert len(detector(images[0], channel_order="rgb")) == 20
    backend = detector.predictor.backend
    for attribute, value, runtime in (
        ("breaks_after_fork", "OpenVINO", "OpenVINO"),
        ("device", torch.device("cuda:0"), "cuda:0"),
    ):
        monkeypatch.setattr(backend, attribute, value)
        with pytest.raises(
            ValueError, match=rf"{runtime} does not work in the child: start it with .*spawn"
        ):
            detector(images[0], channel_order="rgb")
