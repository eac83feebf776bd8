"""Loggers of whole trainings: killed and resumed, with two processes, of val.py, and without a
package.
"""

import csv
import json
import os
import sys
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

import train
import val
from tests.support.launching import forked, free_port, rank_environment, small_run_flags
from tests.support.logged_values import Found, in_mlflow, in_tensorboard, in_wandb
from tests.support.own_process import run_program
from tests.support.processes import draw_data
from utils.distributed.world import World
from utils.loggers.registry import LOGGERS

CPU = World(torch.device("cpu"))
FLAGS = [f"--{name}" for name in LOGGERS]
IMAGES, BATCH, EPOCHS = 18, 4, 3
BATCHES = IMAGES * EPOCHS // BATCH  # of the run
OFFLINE = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "", "KESTREL_LOGGER_WAIT": "300"}

needs_packages = pytest.mark.skipif(
    not all(map(find_spec, LOGGERS)),
    reason="optional packages",
)


# A program that forks the processes of all attempts, so that they need not import the packages of
# the loggers, for seconds each.
ATTEMPTS = """
import sys
from pathlib import Path
from tests.support.logged_run import import_packages
from tests.test_loggers import attempt
from utils.loggers.registry import LOGGERS
import_packages(LOGGERS)
for place in ("0 before a step 3", "0 when a file is there 9", "0 nowhere 1"):
    print(attempt(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], at=place))
"""


def attempt(folder: Path, data: Path, model: str, *, at: str) -> list[int]:
    """Start the run folder/exp with two processes, or resume it; kill it at an instant of
    test_resume.py. Returns the exit codes.
    """
    own = f"--name exp --exist-ok --save-minutes 1e-9 --batch {BATCH} --dist-timeout 60".split()
    words = small_run_flags(data, model, folder, *own, "--epochs", str(EPOCHS), *FLAGS)
    last = folder / "exp" / "weights" / "last.pt"
    if last.exists():
        words += ["--resume", str(last)]
    faults = {"KESTREL_FAULT": "tests.test_resume:killed", "KESTREL_INSTANT": at}
    port = free_port()
    environments = [rank_environment(rank, 2, port) | faults | OFFLINE for rank in range(2)]
    with forked(environments, words, folder / "io", context=get_context("fork")) as ranks:
        return [rank.end(400) for rank in ranks]


@pytest.fixture(scope="module")
def project(micro_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project folder of a run of two processes, of which rank 0 was killed twice."""
    folder = tmp_path_factory.mktemp("runs")
    data = draw_data(folder / "set", IMAGES)
    done = run_program(ATTEMPTS, folder, data, micro_model, folder=folder)
    *killed, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [min(codes) for codes in killed] == [-9, -9], done.stderr
    assert last == [0, 0], done.stderr
    assert "it is left out" not in (folder / "io" / "rank0" / "stderr").read_text()
    return folder


def held_by(name: str, project: Path) -> Found:
    if name == "mlflow":
        return in_mlflow(project / "mlflow")
    return {"tensorboard": in_tensorboard, "wandb": in_wandb}[name](project / "exp")


@needs_packages
@pytest.mark.slow
@pytest.mark.parametrize("name", LOGGERS)
def test_killed_and_resumed_run_has_each_step_once_and_one_logger(project, name):
    found = held_by(name, project)
    assert [step for step, _ in found["step/box_loss"]] == list(range(1, BATCHES + 1))
    with open(project / "exp" / "results.csv") as file:
        rows = list(csv.DictReader(file))
    for column in rows[0].keys() - {"epoch"}:
        values = [(int(row["epoch"]), float(row[column])) for row in rows]
        steps, numbers = zip(*values, strict=True)
        assert [step for step, _ in found[column]] == list(steps), column
        assert [value for _, value in found[column]] == pytest.approx(numbers, rel=1e-4), column
    assert len(found["evaluation/AP"]) == 1


@needs_packages
@pytest.mark.slow
def test_val_logs_its_evaluation(project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    best = str(project / "exp" / "weights" / "best.pt")
    cache = str(project / "cache")
    words = ["--weights", best, "--img", "64", "--workers", "0", "--cache-dir", cache]
    result = val.main(val.parse_args([*words, "--tensorboard"])[0], CPU)
    found = in_tensorboard(Path("runs/val/exp"))
    assert found["evaluation/AP50"] == [(0, pytest.approx(result.coco.stats["AP50"], abs=1e-6))]
    assert not Path("runs/val/exp/results.csv").exists()


@pytest.mark.parametrize("name", LOGGERS)
@pytest.mark.parametrize("script", [train, val])
def test_missing_package_ends_the_script_before_anything_is_read(
    script, name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    words = [f"--{name}", "--data", "there-is-none.yaml"]
    with pytest.raises(ValueError, match=f"^--{name} needs the package {name}: pip install"):
        script.main(script.parse_args(words)[0], CPU)
    assert not os.listdir()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--loggers", "wandbb"], "--loggers wandbb: choose among tensorboard, wandb, mlflow"),
        (
            ["--entity", "me"],
            "--entity me: is an account of Weights & Biases; give --wandb, too",
        ),
    ],
)
def test_wrong_logger_flags_are_one_sentence(words, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        train.parse_args(words)


def test_logger_flags_add_up():
    assert train.parse_args([])[0].loggers == ()
    words = ["--mlflow", "--wandb", "--loggers", "tensorboard"]
    assert train.parse_args(words)[0].loggers == ("mlflow", "wandb", "tensorboard")
