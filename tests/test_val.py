"""val.py: evaluate() against known numbers, its prediction modes, its files."""

import json
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import yaml

import train
import val
from data import build_evaluation_loader
from data.dataset_yaml import read_data_yaml
from data.scan import scan
from models import build_model
from models.backends import Backend, Prediction
from tests.support.exporting import lively_detector, micro_table, save_checkpoint
from tests.support.launching import forked
from training.evaluation import evaluate_split
from training.result_pictures import draw_val_batch
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.metrics.records import Detections
from utils.plots import labels
from utils.plots.pictures import Pictures
from utils.terminal import exit_code_of

pytestmark = pytest.mark.trains
ROOT = Path(__file__).parents[1]
CPU = World(torch.device("cpu"))


class FakeBackend(Backend):
    """Replaces a model: the predictions are those of the test's `predict`, whatever the image."""

    num_classes, stride, device = 3, 32, torch.device("cpu")

    def __init__(self, predict):
        self.predict = predict

    def predict(self, images, confidence=0.0):
        raise NotImplementedError


without_pictures = pytest.mark.usefixtures("val_without_pictures")


@pytest.fixture(scope="module")
def loader(tiny_data):
    spec = read_data_yaml(tiny_data)
    labels, _ = scan(spec.sources("val"), spec.names, cache_dir=None, threads=1, progress=False)
    return build_evaluation_loader(
        labels, batch_size=3, image_size=96, stride=32, letterbox="center"
    )


@pytest.fixture(scope="module")
def trained(tiny_data, micro_model, tmp_path_factory):
    """The weights/best.pt of a short run."""
    folder = tmp_path_factory.mktemp("trained")
    words = "--imgsz 96 --batch-size 4 --epochs 3 --workers 0 --noplots --device cpu --amp fp32"
    paths = ["--project", str(folder), "--cache-dir", str(folder / "cache")]
    given = ["--data", str(tiny_data), "--cfg", micro_model, *words.split(), *paths]
    train.main(train.parse_args(given)[0], CPU)
    return folder / "exp" / "weights" / "best.pt"


def measure_in(parent, weights, *flags):
    """Run val.py's main on the CPU; returns (evaluation, folder)."""
    words = "--name v --exist-ok --device cpu --workers 0 --batch-size 4"
    paths = ["--project", str(parent), "--cache-dir", str(parent / "cache")]
    given = ["--weights", *map(str, weights), *words.split(), *paths]
    return val.main(val.parse_args([*given, *flags])[0], CPU), parent / "v"


@pytest.fixture
def measure(trained, tmp_path):
    """measure("--augment", ...) runs val.py's main on the trained checkpoint."""

    def run(*flags, weights=(trained,)):
        return measure_in(tmp_path, weights, *flags)

    return run


@pytest.fixture(scope="module")
def measured(trained, tmp_path_factory):
    """The (evaluation, folder) of the trained checkpoint without further flags but those that write
    files, for tests that only read it.
    """
    with mock.patch.object(val, "draw_results"):
        flags = ["--save-json", "--save-txt", "--save-conf"]
        return measure_in(tmp_path_factory.mktemp("measured"), [trained], *flags)


@pytest.mark.slow
@without_pictures
def test_fitness_is_that_of_the_checkpoint(measure, trained, tmp_path, capsys):
    saved = checkpoint_file.load(trained)
    for fitness, used in (("AR100 + 1", True), ("AP[disk]", False), ("x", False)):
        saved["config"]["fitness"] = fitness
        checkpoint_file.save(tmp_path / "own.pt", saved)
        result, folder = measure(weights=[tmp_path / "own.pt"])
        written = json.loads((folder / "metrics.json").read_text())
        default = 0.1 * result.coco.stats["AP50"] + 0.9 * result.coco.stats["AP"]
        own = result.coco.stats["AR100"] + 1
        assert written["fitness"] == pytest.approx(own if used else default)
        said = "; the fitness in metrics.json is the default one, 0.1*AP50 + 0.9*AP"
        assert (said in capsys.readouterr().out) != used


@without_pictures
def test_classes_are_matched_by_name(measure, measured, tiny_data, tmp_path):
    """A data set whose YAML lists the classes in another order gives the same numbers."""
    copy = tmp_path / "copy"
    shutil.copytree(tiny_data.parent, copy)
    for file in (copy / "labels").iterdir():
        rows = (line.split(" ", 1) for line in file.read_text().splitlines())
        file.write_text("".join(f"{(int(kind) + 1) % 3} {box}\n" for kind, box in rows))
    yaml = copy / tiny_data.name
    yaml.write_text(re.sub("names: .*", "names: [bar, disc, square]", yaml.read_text()))
    (own, _), (other, _) = measured, measure("--data", str(yaml))

    found = own.detections
    turned = replace(other.detections, class_ids=(other.detections.class_ids - 1) % 3)
    assert len(found.scores) > 50
    assert sorted_rows(turned).tobytes() == sorted_rows(found).tobytes()
    for class_id in range(3):
        of_class = own.coco.per_class[class_id]
        assert other.coco.per_class[(class_id + 1) % 3] == of_class
    # The means over the classes add the same numbers in another order.
    assert other.coco.stats == pytest.approx(own.coco.stats, abs=1e-9)


def sorted_rows(detections: Detections) -> np.ndarray:
    """Return a row of numbers for each detection, in an order that depends on nothing else."""
    ids = detections.image_ids, detections.class_ids, detections.scores
    rows = np.column_stack([*ids, detections.boxes_xywh])
    return rows[np.lexsort(rows.T[::-1])]


def truth_as_predictions(loader):
    """A perfect detector: it predicts each batch's targets, with a high score."""
    batches = iter(list(loader))

    def predict(images, confidence=0.0):
        batch = next(batches)
        most = int(batch.targets[:, 0].long().bincount(minlength=len(images)).max())
        boxes, scores = torch.zeros(len(images), most, 4), torch.zeros(len(images), most, 3)
        for i in range(len(images)):
            own = batch.targets[batch.targets[:, 0] == i]
            boxes[i, : len(own)] = own[:, 2:]
            scores[i, torch.arange(len(own)), own[:, 1].long()] = 0.9
        return Prediction(boxes, scores)

    return FakeBackend(predict)


def test_perfect_predictions_score_one(loader):
    found = evaluate_split(truth_as_predictions(loader), loader, CPU, active=False)
    assert found.coco.stats["AP"] == pytest.approx(1.0)
    assert found.precision == pytest.approx(1.0)
    assert found.recall == pytest.approx(1.0)
    assert found.as_dict(["disc", "square", "bar"])["fitness"] == pytest.approx(1.0)
    order = np.lexsort((found.truth.boxes_xywh[:, 0], found.truth.image_ids))
    again = np.lexsort((found.detections.boxes_xywh[:, 0], found.detections.image_ids))
    np.testing.assert_allclose(
        found.detections.boxes_xywh[again], found.truth.boxes_xywh[order], atol=1e-3
    )


def test_evaluation_without_detections_scores_zero(loader):
    def nothing(images, confidence=0.0):
        return Prediction(torch.zeros(len(images), 5, 4), torch.zeros(len(images), 5, 3))

    found = evaluate_split(FakeBackend(nothing), loader, CPU, active=False)
    assert found.coco.stats["AP"] == 0
    assert found.precision == found.recall == found.as_dict([])["fitness"] == 0
    assert "all" in val.class_table(found, ["disc", "square", "bar"], verbose=True)


def test_batch_size_does_not_change_detections(tiny_model, loader):
    """In float64: in float32, rounding decides which scores are above the threshold."""
    torch.manual_seed(0)
    model = build_model(tiny_model, 3).double()
    one = build_evaluation_loader(
        loader.labels, batch_size=1, image_size=96, stride=32, letterbox="center"
    )
    first = evaluate_split(model, loader, CPU, active=False).detections
    second = evaluate_split(model, one, CPU, active=False).detections
    assert len(first.scores) > 50
    assert len(first.scores) == len(second.scores)
    np.testing.assert_allclose(sorted_rows(first), sorted_rows(second), rtol=0, atol=1e-3)


def test_val_metrics_equal_pycocotools_on_saved_files(measured):
    found, folder = measured
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = COCO(str(folder / "ground_truth.json"))
    assert (truth.getImgIds(), truth.getCatIds()) == (
        [*range(1, 9)],
        [1, 2, 3],
    )  # as --help says of YOLO labels
    evaluator = COCOeval(truth, truth.loadRes(str(folder / "predictions.json")), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    np.testing.assert_allclose(list(found.coco.stats.values()), evaluator.stats, atol=1e-9)
    written = json.loads((folder / "metrics.json").read_text())
    assert written["AP"] == found.coco.stats["AP"]
    assert written["errors"] == found.error_kinds.as_dict()
    rows = [
        line.split()
        for file in (folder / "labels").glob("*.txt")
        for line in file.read_text().splitlines()
    ]
    assert len(rows) == len(found.detections.scores)
    assert all(len(row) == 6 and 0 <= float(v) <= 1 for row in rows for v in row[1:])


@without_pictures
def test_ensemble_of_same_model_twice_keeps_its_metrics(measure, measured, trained):
    alone, _ = measured
    twice, _ = measure(weights=(trained, trained))
    assert twice.coco.stats["AP"] == pytest.approx(alone.coco.stats["AP"], abs=1e-6)


@pytest.mark.parametrize(
    ("flags", "drawn"),
    [
        (["--augment"], False),
        (["--task", "speed"], False),
        pytest.param(["--single-cls"], True, marks=pytest.mark.slow),
        pytest.param(["--half", "--verbose"], True, marks=pytest.mark.slow),
    ],
)
def test_val_runs_with_flags(measure, monkeypatch, flags, drawn):
    if not drawn:  # the same pictures as without the flags
        monkeypatch.setattr(val, "draw_results", lambda *_: None)
    found, folder = measure(*flags)
    assert set(found.milliseconds) == {"load", "model", "postprocess"}
    assert min(found.milliseconds.values()) > 0
    assert (folder / "PR_curve.png").exists() == drawn


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--conf-thres", "2"], "--conf-thres 2.0: choose a threshold from 0 to 1"),
        (["--batch-size", "0"], "--batch-size 0: choose 1 or more"),
        (["--imgsz", "8"], "--imgsz 8: choose 32 to 8192 pixels"),
        (["--save-conf"], "--save-conf adds the confidences to the files of --save-txt: give both"),
        (["--name", ""], "--name: must not be empty"),
        (["--task", "test"], "test"),
        (["--classes", "Bar"], "tiny.yaml has disc, square, bar (did you mean bar?)"),
        (["--classes", "3"], "--classes: class 3: "),
        # before the data are read
        (["--project", __file__, "--data", "absent.yaml"], f"--project {__file__}: {__file__} is"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_invalid_val_settings_are_refused(measure, flags, sentence):
    with pytest.raises(ValueError) as refusal:
        measure(*flags)
    assert sentence in str(refusal.value)


def test_data_of_other_classes_are_refused(measure, tiny_data, tmp_path):
    other = tmp_path / "other.yaml"
    content = yaml.safe_load(tiny_data.read_text())
    changed = {**content, "path": str(tiny_data.parent), "names": ["cat", "dog", "bird"]}
    other.write_text(yaml.safe_dump(changed))
    with pytest.raises(ValueError, match="the model's classes are disc, square, bar, but cat, dog"):
        measure("--data", str(other))


@without_pictures
def test_names_that_were_a_flag_of_the_training_are_asked_for(measure, tiny_data, tmp_path):
    for part in ("images", "labels"):  # without the YAML, classes have numbers only
        shutil.copytree(tiny_data.parent / part, tmp_path / "data" / part)
    folder = str(tmp_path / "data")
    with pytest.raises(ValueError, match=r"; give the names: --names disc square bar$"):
        measure("--data", folder)
    measure("--data", folder, "--names", "disc", "square", "bar")


@pytest.mark.slow
def test_val_without_checkpoint_exits_2_with_one_line(tmp_path):
    with forked([{}], ["--device", "cpu"], tmp_path, script="val") as [job]:
        assert job.end(300) == 2
    assert "best.pt under runs: train first, or name a checkpoint" in job.err
    assert job.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--task", "study"], "--task study is not supported: no plot"),
        (["--task", "all"], "--task: invalid choice: 'all'"),
        (["--save-hybrid"], "--save-hybrid is not supported: "),
        (["--verbos"], "unknown flag --verbos (did you mean --verbose?)"),
        (["--weights", "nowhere.pt"], "nowhere.pt: cannot be read as a checkpoint: No such file"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_invalid_val_command_line_gives_one_line_error(flags, sentence, capsys):
    assert exit_code_of(lambda: val.run_script(["--device", "cpu", *flags])) == 2
    errors = capsys.readouterr().err
    assert sentence in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (0.001, 0.6)),
        ("--task speed", (0.25, 0.45)),
        ("--task speed --conf 0.001", (0.001, 0.45)),
        ("--task speed --iou 0.7", (0.25, 0.7)),
    ],
)
def test_thresholds_of_speed_are_those_of_detection_unless_given(words, expected):
    args, _ = val.parse_args(words.split())
    assert (args.conf_thres, args.iou_thres) == expected


def test_val_accepts_short_flag_names():
    args, _ = val.parse_args(["--conf", "0.1", "--iou", "0.7", "--img", "96", "--batch", "2"])
    assert (args.conf_thres, args.iou_thres, args.imgsz, args.batch_size) == (0.1, 0.7, [96], 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--img 64 96 64", "--imgsz 64 96 64: give one side, or height and width"),
        ("--img 64 1", "--imgsz 64 1: choose 32 to 8192 pixels"),
        ("--img 64 96 --square", "--square: --imgsz 64 96 names the canvas already; leave out"),
    ],
)
def test_image_size_that_is_no_canvas_is_rejected(words, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        val.check_flags(val.parse_args(words.split())[0])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (96, None)),
        ("--img 64", (64, None)),
        ("--square", (96, (96, 96))),
        ("--img 64 --square", (64, (64, 64))),
        ("--img 50 96", (96, (64, 96))),
    ],
)
def test_canvas_is_a_rectangle_that_fits_unless_flags_name_one(words, expected):
    args, _ = val.parse_args(words.split())
    assert val.choose_canvas(FakeBackend(None), 96, args) == expected


def test_class_table_counts_images_without_labels(tiny_data, tiny_model, tmp_path):
    shutil.copytree(tiny_data.parent, tmp_path / "data")
    (tmp_path / "data" / "labels" / "0.txt").unlink()
    spec = read_data_yaml(tmp_path / "data" / tiny_data.name)
    labels, _ = scan(spec.sources("val"), spec.names, cache_dir=None, threads=1, progress=False)
    small = build_evaluation_loader(
        labels, batch_size=4, image_size=64, stride=32, letterbox="center"
    )
    found = evaluate_split(build_model(tiny_model, 3), small, CPU, active=False)
    table = val.class_table(found, ["a", "b\tb", "c"], verbose=True)
    assert table.splitlines()[1].split()[:3] == [
        "all",
        "8",
        "18",
    ]  # 1 background; 20 boxes less the 2 of image 0
    assert "b\\tb" in table
    confidence = found.as_dict(["a", "b", "c"])["confidence"]
    assert table.splitlines()[-1].strip() == f"P and R at confidence {confidence:.3f}"


def test_class_without_objects_has_no_metrics(tiny_data, tiny_model):
    """Not a precision of 0: nothing decides it."""
    spec = read_data_yaml(tiny_data)
    names = [*spec.names, "absent"]
    labels, _ = scan(spec.sources("val"), names, cache_dir=None, threads=1, progress=False)
    loader = build_evaluation_loader(
        labels, batch_size=4, image_size=64, stride=32, letterbox="center"
    )
    found = evaluate_split(build_model(tiny_model, 4), loader, CPU, active=False)
    *_, absent, _ = val.class_table(found, names, verbose=True).splitlines()
    assert absent.split() == ["absent", "0", "0", "-", "-", "-", "-"]


@without_pictures
def test_single_cls_evaluates_multi_class_model_as_one_class(measure):
    found, folder = measure("--single-cls", "--save-json")
    assert set(found.detections.class_ids.tolist()) <= {0}
    truth = json.loads((folder / "ground_truth.json").read_text())
    assert [category["name"] for category in truth["categories"]] == ["object"]


@without_pictures
def test_metrics_of_chosen_classes_are_those_of_all_classes(measure, measured):
    """The order is that of the data, whatever that of the flag."""
    everything, _ = measured
    found, folder = measure("--classes", "bar", "0", "--save-json")
    of_class = everything.as_dict(["disc", "square", "bar"])["per_class"]
    chosen = found.as_dict(["disc", "bar"])
    assert chosen["per_class"] == {name: of_class[name] for name in ("disc", "bar")}
    rows = everything.detections
    kept = np.isin(rows.class_ids, [0, 2])
    assert 0 < kept.sum() < len(kept)
    assert (found.detections.boxes_xywh == rows.boxes_xywh[kept]).all()
    assert (found.detections.class_ids == rows.class_ids[kept] // 2).all()
    mean = (of_class["disc"]["AP"] + of_class["bar"]["AP"]) / 2
    assert chosen["AP"] == pytest.approx(mean)
    assert found.images == 8

    truth = json.loads((folder / "ground_truth.json").read_text())
    categories = {each["id"]: each["name"] for each in truth["categories"]}
    assert categories == {1: "disc", 3: "bar"}
    predicted = json.loads((folder / "predictions.json").read_text())
    assert {each["category_id"] for each in predicted} <= {1, 3}


@without_pictures
def test_chosen_classes_can_be_evaluated_as_one(measure, trained, tmp_path):
    flags = ("--classes", "disc", "bar", "--single-cls")
    found, _ = measure(*flags)
    assert set(found.detections.class_ids.tolist()) <= {0}
    assert len(found.truth.class_ids) == 12

    # The scores are those of these classes, however sure the model is of the third one.
    saved = checkpoint_file.load(trained)
    for key, bias in saved["model"].items():
        if re.fullmatch(r"layers\.\d+\.m\.\d+\.bias", key):
            bias.view(3, 5 + 3)[:, 5 + 1] += 10
    checkpoint_file.save(tmp_path / "sure.pt", saved)
    again, _ = measure(*flags, weights=[tmp_path / "sure.pt"])
    assert sorted_rows(again.detections).tobytes() == sorted_rows(found.detections).tobytes()
    everything, _ = measure("--single-cls", weights=[tmp_path / "sure.pt"])
    assert everything.detections.scores.max() > 2 * found.detections.scores.max()


# ---------------------------------------------------------------------- tiles


@pytest.mark.slow
def test_tiles_are_evaluated_over_whole_images(measure, capsys):
    found, folder = measure("--tile", "64", "--tile-overlap", "0.25", "--img", "64", "--save-json")
    said = capsys.readouterr().out
    assert "val: 8 images in 32 tiles of 64 px with an overlap of 25%" in said
    assert "per tile, in batches of 4" in said
    assert found.images == 8
    assert found.detections.image_ids.max() <= 8
    assert (found.detections.boxes_xywh[:, :2] + found.detections.boxes_xywh[:, 2:]).max() > 64
    assert json.loads((folder / "metrics.json").read_text())["AP"] == found.coco.stats["AP"]
    assert {file.name for file in folder.glob("val_batch*")} >= {
        "val_batch0_labels.jpg",
        "val_batch0_pred.jpg",
    }


@without_pictures
def test_tiles_larger_than_the_images_change_nothing(measure, measured):
    (plain, _), (tiled, _) = measured, measure("--tile", "96", "--tile-whole")
    assert plain.coco.stats == tiled.coco.stats
    assert plain.detections.boxes_xywh.tobytes() == tiled.detections.boxes_xywh.tobytes()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--tile-overlap", "0.5"], "need tiles: give --tile, their side in pixels, too"),
        (["--tile", "-1"], "tile -1: choose a side of 32 pixels or more, or 0 to use whole images"),
        (
            ["--tile", "64", "--tile-overlap", "1"],
            "tile overlap 1.0: choose a fraction of the side from 0 to 0.9",
        ),
    ],
)
def test_wrong_tile_flags_are_rejected(measure, flags, text):
    with pytest.raises(ValueError, match=text):
        measure(*flags)


@pytest.mark.slow
@without_pictures
@pytest.mark.parametrize("flags", [(), ("--tile", "64")])
def test_images_with_more_objects_than_detections_are_said(measure, flags, capsys):
    """The eight images have 2 or 3 objects each, in turn."""
    measure("--max-det", "2", *flags)
    said = capsys.readouterr().out
    assert (
        "--max-det 2: 4 images with more objects than that, up to 3, so that some are missed in "
        "any case; " in said
    )
    measure("--max-det", "3", *flags)
    assert "--max-det" not in capsys.readouterr().out


# ---------------------------------------------------------------------- pictures


@pytest.mark.slow
def test_training_plots_are_drawn_in_the_background(loader, tmp_path, monkeypatch):
    wait = threading.Event()
    real = labels.plot_labels
    monkeypatch.setattr(labels, "plot_labels", lambda *given: wait.wait(30) and real(*given))
    pictures = Pictures(tmp_path, ["a", "b", "c"])
    pictures.labels(loader.labels.classes, loader.labels.boxes_cxcywh_norm())
    batch = next(iter(loader))
    pictures.train_batch(0, batch.images, batch.targets)
    assert not list(tmp_path.iterdir())
    wait.set()
    for drawing in pictures._drawn:
        drawing.result(30)
    assert {file.name for file in tmp_path.iterdir()} == {"labels.png", "train_batch0.jpg"}


@pytest.mark.slow
def test_failed_labels_plot_is_reported_by_next_batch_plot(loader, tmp_path):
    pictures = Pictures(tmp_path / "nowhere", ["a", "b", "c"])
    pictures.labels(loader.labels.classes, loader.labels.boxes_cxcywh_norm())
    assert pictures._drawn[0].exception(30)
    batch = next(iter(loader))
    with pytest.raises(FileNotFoundError, match=r"labels\.png cannot be written there"):
        pictures.train_batch(5, batch.images, batch.targets)


class FakeGpuTensor:
    """A tensor that, like those of a GPU, is an array only after a copy to the host."""

    def __init__(self, tensor):
        self.tensor = tensor

    def cpu(self):
        return self.tensor


def test_batch_plots_accept_gpu_tensors(loader, tmp_path):
    pictures, batch = Pictures(tmp_path, ["a", "b", "c"]), next(iter(loader))
    batch = batch._replace(images=FakeGpuTensor(batch.images), targets=FakeGpuTensor(batch.targets))
    nothing = Detections(
        np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0)
    )
    pictures.train_batch(0, batch.images, batch.targets)
    draw_val_batch(pictures, 0, batch, nothing, loader.labels)
    pictures._drawn[0].result(30)
    names = {"train_batch0.jpg", "val_batch0_labels.jpg", "val_batch0_pred.jpg"}
    assert {file.name for file in tmp_path.iterdir()} == names


@pytest.fixture(scope="module")
def two_heads(tiny_data, tmp_path_factory):
    """The checkpoint of a model with two heads of random weights."""
    detector = lively_detector(micro_table("DualDistanceDetect", "nc", 1, True))
    with torch.no_grad():  # o2o begins as a copy of o2m
        for values in detector.head.one_to_one.parameters():
            values.mul_(1.1)
    return save_checkpoint(
        tmp_path_factory.mktemp("two_heads") / "m.pt", detector, data=str(tiny_data)
    )


def found_by(program, weights, tmp_path, *flags):
    """The detections of val.py or detect.py, as COCO's entries."""
    words = [
        "--weights",
        str(weights),
        "--device",
        "cpu",
        "--project",
        str(tmp_path),
        "--name",
        "run",
        "--exist-ok",
    ]
    program.run_script([*words, "--conf-thres", "0.001", "--max-det", "1000", *flags])
    return json.loads((tmp_path / "run" / "predictions.json").read_text())


@pytest.mark.slow
@without_pictures
def test_head_flag_chooses_the_output(two_heads, tmp_path):
    """o2o, the default, is not suppressed: the IoU threshold changes nothing. That of o2m does."""
    validation = [
        "--save-json",
        "--workers",
        "0",
        "--cache-dir",
        str(tmp_path / "cache"),
        "--batch",
        "4",
    ]
    found = {}
    for head, iou in (("", "0.1"), ("o2o", "0.9"), ("o2m", "0.1"), ("o2m", "0.9")):
        flags = ["--head", head] if head else []
        found[head, iou] = found_by(val, two_heads, tmp_path, *validation, *flags, "--iou", iou)
    assert found["", "0.1"] == found["o2o", "0.9"] != found["o2m", "0.9"]
    assert len(found["o2m", "0.1"]) < len(found["o2m", "0.9"])


def test_unknown_head_is_refused(two_heads, trained, tmp_path):
    for weights, sentence in (
        (two_heads, "choose o2o or o2m"),
        (trained, "this model's head has only one output"),
    ):
        with pytest.raises(ValueError, match=rf"\.pt: --head third: {sentence}$"):
            found_by(val, weights, tmp_path, "--head", "third")
