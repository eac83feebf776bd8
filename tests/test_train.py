"""train.py from end to end, on eight drawn images and a tiny model."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import train
import val
from data import Loader
from data.sampler import TrainSampler
from models import build_model
from tests.support.launching import Job, forked, forked_script, small_run_flags, wait_until
from tests.support.processes import write_hyp
from tests.support.unfolded import batch_norm_not_folded
from training import evaluation
from training.checkpoints.manager import CheckpointManager
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.metrics.evaluation import Evaluation
from utils.terminal import exit_code_of
from utils.threads import BackgroundTask

pytestmark = pytest.mark.usefixtures("val_without_pictures")
ROOT = Path(__file__).parents[1]
CPU = World(torch.device("cpu"))
ALL_EQUAL = "1 + 0 * AP"  # --fitness with which all epochs are equally good


@pytest.fixture(scope="module")
def hyp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """No augmentation and no warm-up, to overfit eight images."""
    file = tmp_path_factory.mktemp("hyp") / "plain.yaml"
    text = (ROOT / "data" / "hyps" / "hyp.no-augmentation.yaml").read_text()
    file.write_text(re.sub(r"warmup_epochs: \S+", "warmup_epochs: 0", text))
    return str(file)


def train_small(
    data: Path, cfg: str, folder: Path, *flags: str, name: str = "exp", pictures: bool = False
) -> tuple[Evaluation, Path]:
    """Train with small settings; returns (evaluation, run folder)."""
    small = f"--cfg {cfg} --imgsz 96 --batch-size 4 --workers 0 --device cpu --amp fp32"
    words = ["--data", str(data), *small.split(), *([] if pictures else ["--noplots"])]
    words += ["--project", str(folder / "runs"), "--name", name]
    words += ["--cache-dir", str(folder / "cache")]
    return train.main(train.parse_args([*words, *flags])[0], CPU), folder / "runs" / name


@pytest.fixture
def start(tiny_data: Path, micro_model: str, tmp_path: Path):
    """start("--epochs", "2", ...) trains as train_small does."""
    return partial(train_small, tiny_data, micro_model, tmp_path)


@dataclass
class Finished:
    """A run without further flags, for tests that only read it."""

    folder: Path
    said: str


@pytest.fixture(scope="module")
def two_epochs(
    tiny_data: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    """A finished run of two epochs."""
    parent = tmp_path_factory.mktemp("two_epochs")
    with redirect_stdout(StringIO()) as said:
        _, folder = train_small(tiny_data, micro_model, parent, "--epochs", "2")
    return Finished(folder, said.getvalue())


def rows_of(folder: Path) -> list[dict[str, str]]:
    with open(folder / "results.csv") as file:
        return list(csv.DictReader(file))


def without_time(folder: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k != "time"} for row in rows_of(folder)]


def same(first: object, second: object) -> bool:
    """Whether two nested records hold the same bits."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


@pytest.mark.trains
@pytest.mark.slow
def test_training_overfits_eight_images(start, hyp):
    flags = "--epochs 90 --batch-size 8 --imgsz 64 --optimizer AdamW --noval --nosave"
    result, folder = start(*flags.split(), "--hyp", hyp)
    # Where a training ends depends on rounding: AP50 is 1 or a little less, the losses are a tenth.
    rows = rows_of(folder)
    assert len(rows) == 90
    for term in ("box", "cls"):
        first, last = (float(row[f"train/{term}_loss"]) for row in (rows[0], rows[-1]))
        assert last < 0.5 * first
    assert result.coco.stats["AP50"] > 0.5


def test_run_folder_contains_documented_files(two_epochs):
    folder = two_epochs.folder
    assert {p.name for p in folder.iterdir()} >= {
        "args.yaml",
        "hyp.yaml",
        "results.csv",
        "metrics.json",
        "weights",
    }
    header = (folder / "results.csv").read_text().splitlines()[0]
    assert header == (
        "epoch,time,train/box_loss,train/obj_loss,train/cls_loss,metrics/precision,metrics/recall,metrics/mAP_0.5,"
        "metrics/mAP_0.5:0.95,val/box_loss,val/obj_loss,val/cls_loss,lr"
    )
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics.keys() == {"status", "last", "best"}
    assert metrics["status"] == "finished"
    assert {"AP", "AP50", "APs", "AR100", "per_class"} <= metrics["best"].keys()
    report = json.loads((folder / "data_report.json").read_text())
    assert report["train"]["images"] == 8
    # --noplots
    assert not [file for file in folder.iterdir() if file.suffix in (".png", ".jpg", ".html")]


@pytest.mark.slow
def test_plots_are_drawn(start):
    _, folder = start("--epochs", "1", pictures=True)
    curves = [f"{name}_curve.png" for name in ("P", "R", "F1", "PR")]
    batches = [
        "train_batch0.jpg",
        "val_batch0_labels.jpg",
        "val_batch0_pred.jpg",
        "val_batch1_pred.jpg",
    ]
    for name in ["labels.png", "results.png", "confusion_matrix.png", *curves, *batches]:
        picture = cv2.imread(str(folder / name))
        assert picture is not None, name
        assert picture.std() > 5, name  # something is drawn
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert '"text":"finished: 1 epoch"' in report
    assert '"kinds":{"classification"' in report  # the errors of best.pt


@pytest.mark.slow
@pytest.mark.trains
def test_same_seed_gives_same_bits(start, two_epochs):
    first = two_epochs.folder
    _, second = start("--epochs", "2", name="b")
    _, other = start("--epochs", "2", "--seed", "1", name="c")
    states = [checkpoint_file.load(f / "weights" / "last.pt") for f in (first, second, other)]
    assert without_time(first) == without_time(second) != without_time(other)
    for part in ("model", "ema", "optimizer"):
        assert same(states[0][part], states[1][part])
        assert not same(states[0][part], states[2][part])


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--image-weights"]], ids=" ".join)
def test_number_of_workers_does_not_change_results(start, two_epochs, monkeypatch, flags):
    """Workers begin the next epoch during the validation, unless its images depend on that."""
    begun = []
    real = Loader.begin

    def begin(loader: Loader) -> None:
        if isinstance(loader.sampler, TrainSampler):
            begun.append(loader.sampler.epoch)
        real(loader)

    monkeypatch.setattr(Loader, "begin", begin)
    without_workers = two_epochs.folder
    if flags:
        _, without_workers = start("--epochs", "2", *flags, name="a")
    begun.clear()
    _, with_workers = start("--epochs", "2", "--workers", "2", *flags, name="b")
    assert begun == ([] if flags else [1])
    rows = without_time(with_workers)
    assert rows == without_time(without_workers)
    assert [row["epoch"] for row in rows] == ["1", "2"]


@pytest.mark.slow
@pytest.mark.trains
@pytest.mark.parametrize(
    "flags", [[], ["--tile", "64", "--tile-overlap", "0.3", "--imgsz", "64"]], ids=" ".join
)
def test_val_of_best_checkpoint_reproduces_training_metrics(start, tmp_path, flags):
    """With the image size and the tiles of the training."""
    result, folder = start("--epochs", "2", "--optimizer", "SGD", *flags)
    saved = checkpoint_file.load(folder / "weights" / "best.pt")
    assert saved["names"] == ["disc", "square", "bar"]
    assert "optimizer" not in saved
    arguments = [
        "--weights",
        str(folder / "weights" / "best.pt"),
        "--device",
        "cpu",
        "--workers",
        "0",
    ]
    arguments += [
        "--project",
        str(tmp_path / "val"),
        "--cache-dir",
        str(tmp_path / "cache"),
        "--batch-size",
        "4",
    ]
    with batch_norm_not_folded():
        measured = val.main(val.parse_args(arguments)[0], CPU)
    assert measured.coco.stats == result.coco.stats
    assert measured.coco.stats["AP"] == saved["metrics"]["AP"]
    for column, values in vars(result.detections).items():
        assert np.array_equal(getattr(measured.detections, column), values), column


def test_fine_tuning_copies_weights(start, two_epochs, capsys):
    best = two_epochs.folder / "weights" / "best.pt"
    start("--epochs", "1", "--weights", str(best), "--cfg", "")
    assert re.search(
        r"(\d+) of (\d+) tensors and 3 of 3 classes copied from", capsys.readouterr().out
    )


@pytest.mark.slow
def test_flags_that_the_recipe_names_give_the_same_bits(start, two_epochs, capsys):
    lines = two_epochs.said.splitlines()
    line = next(line for line in lines if line.startswith("recipe for "))
    assert line.startswith("recipe for 8 images x 2 epochs, 3 classes, random weights: ")
    flags = re.search(r"(--optimizer \w+) (--hyp \S+)", line)
    assert flags
    _, given = start("--epochs", "2", *flags[1].split(), *flags[2].split(), name="given")
    assert "recipe for" not in capsys.readouterr().out
    states = [
        checkpoint_file.load(folder / "weights" / "last.pt")
        for folder in (two_epochs.folder, given)
    ]
    for part in ("model", "ema", "optimizer"):
        assert same(states[0][part], states[1][part])


@pytest.mark.parametrize(("nominal", "steps"), [(64, 1), (8, 1), (4, 2), (1, 2)])
def test_nominal_batch_sets_the_number_of_optimizer_steps(start, tmp_path, nominal, steps):
    write_hyp(tmp_path / "hyp.yaml", "hyp.scratch-low.yaml", nominal_batch=nominal, warmup_epochs=0)
    _, folder = start(
        "--epochs", "1", "--hyp", str(tmp_path / "hyp.yaml")
    )  # two batches of four images
    assert checkpoint_file.load(folder / "weights" / "last.pt")["ema_updates"] == steps


@pytest.mark.slow
def test_frozen_layers_keep_their_initial_bits(start, micro_model):
    _, folder = start("--epochs", "2", "--freeze", "3")
    last = checkpoint_file.load(folder / "weights" / "last.pt")["model"]
    torch.manual_seed(0)
    fresh = build_model(micro_model, 3).state_dict()
    frozen = [k for k in fresh if re.match(r"layers\.[012]\.", k)]
    assert frozen
    assert all(torch.equal(last[k], fresh[k]) for k in frozen)
    assert any(not torch.equal(last[k], fresh[k]) for k in fresh if k.startswith("layers.3."))


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--rect"],
        ["--rect", "--image-weights"],
        ["--tile", "64", "--imgsz", "64", "--rect", "--image-weights", "--cache"],
        pytest.param(
            ["--tile", "64", "--imgsz", "64", "--multi-scale", "--batch-size", "-1"],
            marks=pytest.mark.slow,
        ),
        ["--checkpoint-activations"],
        ["--amp", "fp64"],
        ["--multi-scale"],
        ["--single-cls"],
        ["--optimizer", "Adam", "--cos-lr"],
        ["--label-smoothing", "0.1", "--amp", "bf16"],
        ["--noval", "--nosave"],
        ["--batch-size", "3", "--close-mosaic", "1", "--save-period", "1"],
        ["--batch-size", "64"],
        ["--noautoanchor", "--freeze", "0", "2"],
        ["--hyp", "hyp.VOC.yaml"],
        ["--hyp", "hyp.scratch-high.yaml"],
    ],
    ids=" ".join,
)
def test_training_runs_with_flags(start, flags):
    _, folder = start("--epochs", "2", *flags)
    rows = rows_of(folder)
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert (folder / "weights" / "best.pt").exists()
    assert all(float(row["train/box_loss"]) > 0 for row in rows)


def test_nosave_saves_last_epoch_as_best_checkpoint(start, capsys):
    _, folder = start("--epochs", "2", "--nosave", "--exist-ok")
    start(
        "--epochs", "1", "--nosave", "--exist-ok"
    )  # the folder has best.pt of the other run, from epoch 2
    assert checkpoint_file.load(folder / "weights" / "best.pt")["epoch"] == 1
    *_, result, _, validate, detect, export = capsys.readouterr().out.splitlines()
    assert "best.pt is from epoch 1:" in result
    best = folder / "weights" / "best.pt"
    assert validate == f"    python val.py --weights {best}"
    assert detect == f"    python detect.py --weights {best} --source IMAGES"
    assert export == f"    python export.py --weights {best} --include onnx"
    assert len(rows_of(folder)) == 1


# ---------------------------------------------------------------------- classes and their balance


@pytest.mark.slow
@pytest.mark.trains
def test_model_of_chosen_classes_is_validated_and_resumed_with_them(
    start, tiny_data, tmp_path, capsys
):
    weights = tmp_path / "weights.yaml"
    weights.write_text("bar: 2.5\nsquare: 3\n")
    given = ["--classes", "2", "disc", "--class-weights", str(weights), "--repeat-factor", "0.9"]
    best, folder = start("--epochs", "1", *given)
    said = capsys.readouterr().out
    assert "train: --classes disc, bar: 12 of 20 boxes; images with boxes of other" in said
    assert "--repeat-factor 0.9: draws images of rare classes more often: disc x1.77 (2" in said
    assert "--class-weights: bar 2.5, disc 1\n" in said

    saved = checkpoint_file.load(folder / "weights" / "last.pt")
    assert saved["names"] == ["disc", "bar"]
    assert saved["config"]["classes"] == ["disc", "bar"]
    assert saved["config"]["class_weights"] == ["disc=1.0", "bar=2.5"]

    # val.py restricts the data as the training did.
    flags = ["--device", "cpu", "--workers", "0", "--project", str(tmp_path / "val")]
    flags += ["--batch", "4"]
    own = [*flags, "--weights", str(folder / "weights" / "best.pt")]
    with batch_norm_not_folded():
        found = val.main(val.parse_args(own)[0], CPU)
    assert found.coco.stats == best.coco.stats

    # Resumed without the file of weights.
    weights.unlink()
    last = str(folder / "weights" / "last.pt")
    _, resumed = start("--resume", last, "--epochs", "2")
    assert [row["epoch"] for row in rows_of(resumed)] == ["1", "2"]
    assert "--class-weights: bar 2.5, disc 1\n" in capsys.readouterr().out

    # A checkpoint that does not say so is refused, with the flag that it needs.
    del saved["config"]["classes"]
    checkpoint_file.save(tmp_path / "other.pt", saved)
    other = [*flags, "--weights", str(tmp_path / "other.pt")]
    with pytest.raises(ValueError, match=r"to use these of the data: --classes disc bar$"):
        val.main(val.parse_args(other)[0], CPU)
    found = val.main(val.parse_args([*other, "--classes", "disc", "bar"])[0], CPU)
    assert found.images == 8


def test_weights_of_data_sets_lengthen_the_epoch(start, tiny_data, capsys):
    mixed = tiny_data.with_name("mixed.yaml")
    text = tiny_data.read_text().replace("train: images", "train: [{path: images, weight: 2.5}]")
    mixed.write_text(text)
    _, folder = start("--epochs", "1", "--data", str(mixed), "--image-weights")
    assert "an epoch draws 20 images, not 8" in capsys.readouterr().out
    # 20 images in batches of 4
    state = checkpoint_file.load(folder / "weights" / "last.pt")["optimizer"]["state"]
    assert state


# ---------------------------------------------------------------------- killed and resumed


class KilledError(Exception):
    pass


def fail_when(monkeypatch, owner, name, when):
    """Make `owner.name` raise KilledError, before its work, if `when(*arguments)` is true; return a
    call to undo it.
    """
    real = getattr(owner, name)

    def work(*arguments, **keywords):
        if when(*arguments):
            raise KilledError
        return real(*arguments, **keywords)

    monkeypatch.setattr(owner, name, work)
    return lambda: monkeypatch.setattr(owner, name, real)


def resume(folder, *flags):
    last = str(folder / "weights" / "last.pt")
    return train.main(train.parse_args(["--resume", last, "--workers", "0", *flags])[0], CPU)


@pytest.mark.slow
def test_run_resumes_from_other_working_folder(start, tiny_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_data.parent)
    undo = fail_when(monkeypatch, checkpoint_file, "save", lambda path, state: state["epoch"] == 2)
    with pytest.raises(KilledError):
        start("--epochs", "2", "--data", tiny_data.name)
    undo()
    (
        tmp_path / "runs" / "exp" / "weights" / "last.pt.tmp.1"
    ).touch()  # of a process that was killed while it wrote
    monkeypatch.chdir(tmp_path / "runs" / "exp" / "weights")
    train.main(train.parse_args(["--resume", "last.pt", "--workers", "0"])[0], CPU)
    assert len(rows_of(tmp_path / "runs" / "exp")) == 2
    assert sorted(file.name for file in Path().iterdir()) == ["best.pt", "last.pt"]


@pytest.mark.slow
def test_patience_stops_training_early_and_no_more_epochs_are_trained_on_resume(start):
    """It stops once two epochs are equally good."""
    _, folder = start("--epochs", "30", "--patience", "1", "--fitness", ALL_EQUAL)
    assert len(rows_of(folder)) == 2
    with pytest.raises(ValueError, match="its run is done after 2 epochs"):
        resume(folder)
    (folder / "metrics.json").unlink()  # as if it had been killed just before its end
    resume(folder)
    assert len(rows_of(folder)) == 2
    assert json.loads((folder / "metrics.json").read_text())["last"]["AP"] >= 0


def test_resume_from_checkpoint_outside_its_run_is_refused(two_epochs, tmp_path):
    last = shutil.copy(two_epochs.folder / "weights" / "last.pt", tmp_path)
    with pytest.raises(ValueError, match="continues in the run's own folder"):
        train.main(train.parse_args(["--resume", str(last)])[0], CPU)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks a process")
def test_ctrl_c_leaves_no_process_and_no_traceback(tiny_data, micro_model, tmp_path):
    endless = small_run_flags(tiny_data, micro_model, tmp_path, "--noval", "--workers", "2")
    command = [sys.executable, str(ROOT / "train.py"), *endless, "--epochs", "100000"]
    job = Job(forked_script(command, tmp_path), tmp_path)
    last = tmp_path / "exp" / "weights" / "last.pt"
    try:
        wait_until(lambda: last.exists() or job.process.poll() is not None, 120, "last.pt")
        assert len(job.running_pids()) >= 1 + 1  # a machine of few cores has fewer workers
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.end(60) == 130
        assert job.err == "interrupted\n"
        assert job.out.endswith(f"continue with --resume {last}\n")
    finally:
        for pid in job.running_pids():
            os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------------- refusals


@pytest.mark.slow
@pytest.mark.parametrize("taken_in", ["between steps", "after the epoch"])
def test_evaluation_overlaps_next_epoch_without_changing_results(start, monkeypatch, taken_in):
    """Only the time at which the result is known changes."""
    real_save, kept = CheckpointManager._save_best, []
    record = lambda self: (kept.append(self.progress.epoch), real_save(self))  # noqa: E731
    monkeypatch.setattr(CheckpointManager, "_save_best", record)
    real_step, steps = train.TrainState.step, []
    monkeypatch.setattr(train.TrainState, "step", lambda self: (steps.append(0), real_step(self)))

    _, plain = start("--epochs", "4", name="plain")
    best_so_far, steps_of_run = kept.copy(), len(steps)
    kept.clear()
    steps.clear()

    if taken_in == "after the epoch":
        monkeypatch.setattr(BackgroundTask, "busy", True)
    real_evaluate, passed = evaluation.SplitPredictions.evaluate, []

    def evaluate(self: evaluation.SplitPredictions) -> Evaluation:
        """Wait for a step, which follows unless the epoch is the last one."""
        begun, deadline = len(steps), time.monotonic() + 60
        while len(steps) == begun < steps_of_run and time.monotonic() < deadline:
            time.sleep(0.002)
        passed.append(len(steps) - begun)
        return real_evaluate(self)

    monkeypatch.setattr(evaluation.SplitPredictions, "evaluate", evaluate)
    _, late = start("--epochs", "4", name="late")
    assert len(steps) == steps_of_run
    of_last_epoch, of_best = False, False
    assert [number > 0 for number in passed] == [True, True, True, of_last_epoch, of_best]
    assert without_time(late) == without_time(plain)
    assert kept == best_so_far
    assert kept[0] == 1  # the first epoch is always the best so far
    for file, parts in (
        ("best.pt", ("model", "epoch", "metrics")),
        ("last.pt", ("ema", "best", "metrics", "pending")),
    ):
        ours, theirs = (checkpoint_file.load(folder / "weights" / file) for folder in (late, plain))
        assert all(same(ours[part], theirs[part]) for part in parts)


def test_too_small_imgsz_is_rounded_up_with_explanation(start, micro_model, capsys):
    start("--epochs", "1", "--imgsz", "32")
    rule = (
        "must be a multiple of the largest stride, 32, and at least twice it (BatchNorm "
        "needs 2 cells)"
    )
    assert f"--imgsz 32 is rounded up to 64: {rule}\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="more than 1 value per channel"):  # as the sentence says
        build_model(micro_model, 3).train()(torch.zeros(1, 3, 32, 32))


def test_a_missing_split_is_reported_before_any_is_scanned(start, tiny_data, tmp_path, monkeypatch):
    file = tmp_path / "data.yaml"
    file.write_text(f"path: {tiny_data.parent}\ntrain: images\nnames: [disc, square, bar]\n")
    monkeypatch.setattr("data.splits.read_split", None)
    with pytest.raises(ValueError, match=r"has no 'val' \(it has: train\)"):
        start("--data", str(file), "--val-split", "0")


def test_folder_trains_and_its_run_has_the_yaml_that_val_reads(start, tiny_data, tmp_path, capsys):
    photos = tmp_path / "photos"
    for part in ("images", "labels"):
        shutil.copytree(tiny_data.parent / part, photos / part)
    flags = ["--names", "disc", "square", "bar", "--val-split", "0.5", "--epochs", "1"]
    _, folder = start("--data", str(photos), *flags)
    assert {path.name for path in folder.glob("*.txt")} >= {"train.txt", "val.txt"}
    assert f"data:\n- {folder}/data.yaml\n" in (folder / "args.yaml").read_text()

    # The run's own copy is enough, also without the cache, and after the run was moved.
    shutil.rmtree(tmp_path / "cache")
    folder = folder.rename(tmp_path / "moved")
    best = str(folder / "weights" / "best.pt")
    flags = ["--weights", best, "--device", "cpu", "--workers", "0", "--img", "96"]
    flags += ["--project", str(tmp_path / "val"), "--cache-dir", str(tmp_path / "again")]
    capsys.readouterr()
    val.main(val.parse_args(flags)[0], CPU)
    held_out = len((folder / "val.txt").read_text().split())
    assert f"val: {held_out} images (" in capsys.readouterr().out


def test_roboflow_export_trains_and_validates(start, tiny_data, tmp_path, capsys):
    export = tmp_path / "export"
    for split in ("train", "valid"):
        for part in ("images", "labels"):
            shutil.copytree(tiny_data.parent / part, export / split / part)
    file = export / "data.yaml"
    file.write_text("train: ../train/images\nval: ../valid/images\nnames: [disc, square, bar]\n")
    _, folder = start("--data", str(file), "--epochs", "1")
    note = f"{file}: ../train/images, ../valid/images not found: used without ../ in {export}\n"
    assert capsys.readouterr().out.count(note) == 1
    best = str(folder / "weights" / "best.pt")
    flags = ["--weights", best, "--project", str(tmp_path / "val")]
    flags += ["--device", "cpu", "--workers", "0", "--imgsz", "64"]
    val.main(val.parse_args(flags)[0], CPU)
    assert capsys.readouterr().out.count(note) == 1


@pytest.mark.slow
def test_val_period_2_validates_every_other_epoch_and_the_last(start):
    _, folder = start("--epochs", "5", "--val-period", "2")
    known = [row["metrics/mAP_0.5"] != "nan" for row in rows_of(folder)]
    assert known == [False, True, False, True, True]  # the last epoch is always validated
    assert checkpoint_file.load(folder / "weights" / "last.pt")["best"]["latest"] == 4


REFUSALS = [
    (["--epochs", "0"], "--epochs 0: train for 1 epoch or more"),
    (["--epochs", "x"], "--epochs: invalid int value: 'x'"),
    (["--epoch", "3"], "unknown flag --epoch (did you mean --epochs?)"),
    (["--bogus=1"], "unknown flag --bogus; --help lists the flags"),
    (["stray"], "unexpected argument 'stray'"),
    (["--evolve_population", "data"], "--evolve_population is not supported: "),
    (["--evolve", "-1"], "--evolve -1: choose a number of trainings, 1 or more"),
    (["--evolve", "--resume"], "--resume and --evolve cannot be used together"),
    (["--fitness", "AP+"], "--fitness column 4: found the end"),
    (["--quad"], "--quad is not supported: "),
    (
        ["--local_rank", "1"],
        "--local-rank 1: RANK and WORLD_SIZE do not describe several processes",
    ),
    (["--rect", "--multi-scale"], "cannot be used together"),
    (["--image-weights", "--repeat-factor", "0.1"], "cannot be used together: both choose how"),
    (["--class-weights", "auto", "--single-cls"], "cannot be used together: there is one class"),
    (["--repeat-factor", "2"], "--repeat-factor 2.0: choose the share of images below which"),
    (["--class-weights", "discs=2"], "class 'discs' is none of the 3 classes of the data (did"),
    (["--classes", "discs"], "--classes: class 'discs': "),
    (["--data-weights", "2"], "--data-weights: 1 weight for 1 data set: give several --data"),
    (["--data", "nowhere.yaml"], "nowhere.yaml"),
    (["--cfg", "yolov5q.yaml"], "yolov5q"),
    (["--device", "99"], "--device 99: this machine has"),
    (["--weights", "nowhere.pt"], "nowhere.pt"),
    (["--freeze", "99"], "--freeze 99: the model has layers 0 to"),
    (["--freeze", "25"], "no parameter is left to train"),
    (["--hyp", "nowhere.yaml"], "nowhere.yaml"),
    (["--resume", "nowhere.pt"], "nowhere.pt"),
    (["--resume"], "--resume finds nothing to continue under"),
]
each_refusal = pytest.mark.parametrize(
    ("flags", "sentence"), REFUSALS, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)


@each_refusal
def test_invalid_train_input_gives_one_line_error_and_no_folder(
    flags, sentence, tmp_path, tiny_data, tiny_model, capsys
):
    paths = [
        "--data",
        str(tiny_data),
        "--project",
        str(tmp_path / "runs"),
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    arguments = ["--cfg", tiny_model, "--device", "cpu", *paths, *flags]
    assert exit_code_of(lambda: train.run_script(arguments)) == 2
    errors = capsys.readouterr().err
    assert sentence in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_train_script_exits_2_on_invalid_flag(tmp_path):
    flags, sentence = ["--epochs", "0"], "--epochs 0: train for 1 epoch or more"
    command = [sys.executable, str(ROOT / "train.py"), *flags]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks a process")
def test_train_script_exits_2_on_missing_data(tmp_path):
    with forked([{}], ["--data", "nowhere.yaml"], tmp_path) as (run,):
        assert run.end(300) == 2
    assert "nowhere.yaml" in run.err
    assert run.err.count("\n") == 1
    assert {file.name for file in run.folder.iterdir()} == {"stdout", "stderr"}


def test_yolov5_command_line_is_parsed():
    words = (
        "--img 320 --batch 8 --data d.yaml --cfg yolov5s.yaml --weights= --cache ram "
        "--sync-bn --freeze 10"
    )
    cfg, launch = train.parse_args(words.split())
    assert cfg.sync_bn
    assert launch == train.Launch()
    assert (cfg.imgsz, cfg.batch_size, cfg.weights, cfg.freeze, cfg.cache_dir) == (
        320,
        8,
        "",
        (10,),
        "",
    )
    assert cfg.cache == "ram"
    assert train.parse_args(["--cache"])[0].cache == "ram"
    assert train.parse_args([])[0].cache == "auto"
