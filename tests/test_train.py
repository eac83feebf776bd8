"""train.py end to end, on eight drawn images and a tiny model."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
import torch

import train
import val
from utils import checkpoint
from utils.distributed import World

ROOT = Path(__file__).parents[1]
CPU = World(torch.device("cpu"))


@pytest.fixture(scope="module")
def hyp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """No augmentation, no warm-up: to learn eight images by heart."""
    file = tmp_path_factory.mktemp("hyp") / "plain.yaml"
    text = (ROOT / "data" / "hyps" / "hyp.no-augmentation.yaml").read_text()
    file.write_text(re.sub(r"warmup_epochs: \S+", "warmup_epochs: 0", text))
    return str(file)


@pytest.fixture
def start(tiny_data: Path, tiny_model: str, tmp_path: Path):
    """start("--epochs", "2", ...) trains with small settings; returns (evaluation, run folder)."""

    def run(*flags: str, name: str = "exp", pictures: bool = False) -> tuple[val.Evaluation, Path]:
        small = ["--data", str(tiny_data), "--cfg", tiny_model, "--imgsz", "96", "--batch-size", "4", "--workers", "0"]
        places = ["--project", str(tmp_path / "runs"), "--name", name, "--cache-dir", str(tmp_path / "cache")]
        defaults = ["--device", "cpu", "--amp", "fp32", *small, *places, *([] if pictures else ["--noplots"])]
        return train.main(train.parse_args([*defaults, *flags]), CPU), tmp_path / "runs" / name

    return run


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


def test_learns_eight_images_by_heart(start, hyp):
    result, folder = start("--epochs", "150", "--optimizer", "AdamW", "--hyp", hyp, "--noval")
    assert result.coco.stats["AP50"] > 0.9
    assert len(rows_of(folder)) == 150


def test_run_folder_holds_what_the_readme_lists(start):
    _, folder = start("--epochs", "2")
    assert {p.name for p in folder.iterdir()} >= {"args.yaml", "hyp.yaml", "results.csv", "metrics.json", "weights"}
    header = (folder / "results.csv").read_text().splitlines()[0]
    assert header == (
        "epoch,time,train/box_loss,train/obj_loss,train/cls_loss,metrics/precision,metrics/recall,metrics/mAP_0.5,"
        "metrics/mAP_0.5:0.95,val/box_loss,val/obj_loss,val/cls_loss,lr"
    )
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics.keys() == {"last", "best"}
    assert {"AP", "AP50", "APs", "AR100", "per_class"} <= metrics["best"].keys()
    report = json.loads((folder / "data_report.json").read_text())
    assert report["train"]["images"] == 8


def test_pictures_are_drawn(start):
    _, folder = start("--epochs", "1", pictures=True)
    curves = [f"{name}_curve.png" for name in ("P", "R", "F1", "PR")]
    batches = ["train_batch0.jpg", "val_batch0_labels.jpg", "val_batch0_pred.jpg", "val_batch1_pred.jpg"]
    for name in ["labels.png", "results.png", "confusion_matrix.png", *curves, *batches]:
        picture = cv2.imread(str(folder / name))
        assert picture is not None, name
        assert picture.std() > 5, name  # something is drawn
    _, bare = start("--epochs", "1", name="bare")
    assert not list(bare.glob("*.png")) + list(bare.glob("*.jpg"))


def test_same_seed_same_bits(start):
    _, first = start("--epochs", "2", name="a")
    _, second = start("--epochs", "2", name="b")
    _, other = start("--epochs", "2", "--seed", "1", name="c")
    states = [checkpoint.load(f / "weights" / "last.pt") for f in (first, second, other)]
    assert without_time(first) == without_time(second) != without_time(other)
    for part in ("model", "ema", "optimizer"):
        assert same(states[0][part], states[1][part])
        assert not same(states[0][part], states[2][part])


def test_workers_change_nothing(start):
    _, alone = start("--epochs", "2", name="a")
    _, helped = start("--epochs", "2", "--workers", "2", name="b")
    assert without_time(alone) == without_time(helped)


def test_resume_goes_on_as_if_never_stopped(start, monkeypatch):
    _, straight = start("--epochs", "4", name="straight")

    class StoppedError(Exception):
        pass

    epoch_of, save = [], checkpoint.save

    def save_and_stop(path, state):
        save(path, state)
        epoch_of.append(state["epoch"])
        if path.name == "last.pt" and state["epoch"] == 1:
            raise StoppedError

    monkeypatch.setattr(checkpoint, "save", save_and_stop)
    with pytest.raises(StoppedError):
        start("--epochs", "4", name="broken")
    monkeypatch.setattr(checkpoint, "save", save)
    broken = straight.parent / "broken"
    train.main(train.parse_args(["--resume", str(broken / "weights" / "last.pt"), "--workers", "0"]), CPU)
    assert without_time(broken) == without_time(straight)
    states = [checkpoint.load(f / "weights" / "last.pt") for f in (straight, broken)]
    for part in ("model", "ema", "ema_updates", "optimizer", "scaler", "best"):
        assert same(states[0][part], states[1][part]), part


def test_finished_run_is_not_resumed(start):
    _, folder = start("--epochs", "1")
    last = folder / "weights" / "last.pt"
    with pytest.raises(ValueError, match="its run is done after 1 epochs; there is nothing to resume"):
        train.main(train.parse_args(["--resume", str(last)]), CPU)
    with pytest.raises(ValueError, match="holds no training state"):
        train.main(train.parse_args(["--resume", str(folder / "weights" / "best.pt")]), CPU)


def test_best_holds_the_averaged_weights_and_val_gives_their_number(start, tmp_path):
    result, folder = start("--epochs", "3")
    saved = checkpoint.load(folder / "weights" / "best.pt")
    assert saved["names"] == ["disc", "square", "bar"]
    assert "optimizer" not in saved
    arguments = ["--weights", str(folder / "weights" / "best.pt"), "--device", "cpu", "--workers", "0"]
    arguments += ["--project", str(tmp_path / "val"), "--cache-dir", str(tmp_path / "cache"), "--batch-size", "4"]
    measured = val.main(val.parse_args(arguments), CPU)
    assert measured.coco.stats == pytest.approx(result.coco.stats, abs=1e-6)
    assert measured.coco.stats["AP"] == pytest.approx(saved["metrics"]["AP"], abs=1e-6)


def test_fine_tuning_carries_weights_over(start, capsys):
    _, folder = start("--epochs", "1", name="first")
    start("--epochs", "1", "--weights", str(folder / "weights" / "best.pt"), "--cfg", "", name="second")
    assert re.search(r"(\d+) of (\d+) entries from", capsys.readouterr().out)


def test_frozen_layers_stay_to_the_bit(start, tiny_model):
    _, folder = start("--epochs", "2", "--freeze", "3")
    last = checkpoint.load(folder / "weights" / "last.pt")["model"]
    torch.manual_seed(0)
    fresh = train.build_model(tiny_model, 3).state_dict()
    frozen = [k for k in fresh if re.match(r"layers\.[012]\.", k)]
    assert frozen
    assert all(torch.equal(last[k], fresh[k]) for k in frozen)
    assert any(not torch.equal(last[k], fresh[k]) for k in fresh if k.startswith("layers.3."))


@pytest.mark.parametrize(
    "flags",
    [
        ["--rect"],
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
def test_flags_train(start, flags):
    _, folder = start("--epochs", "2", *flags)
    rows = rows_of(folder)
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert (folder / "weights" / "best.pt").exists()
    assert all(float(row["train/box_loss"]) > 0 for row in rows)


def test_early_stop(start):
    _, folder = start("--epochs", "30", "--patience", "1")
    assert len(rows_of(folder)) < 30


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--epochs", "0"], "--epochs 0: train for 1 epoch or more"),
        (["--data", "nowhere.yaml"], "nowhere.yaml"),
        (["--cfg", "yolov5q.yaml"], "yolov5q"),
        (["--device", "99"], "--device 99: this machine has"),
        (["--weights", "nowhere.pt"], "nowhere.pt"),
        (["--freeze", "99"], "--freeze [99]: the model has layers 0 to"),
        (["--hyp", "nowhere.yaml"], "nowhere.yaml"),
        (["--resume", "nowhere.pt"], "nowhere.pt"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_refusals_are_one_sentence_and_exit_code_2(flags, sentence, tmp_path, tiny_data):
    places = ["--data", str(tiny_data), "--project", str(tmp_path), "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, str(ROOT / "train.py"), *places, *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().count("\n") == 0
