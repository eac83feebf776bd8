"""training/tune/run.py: what becomes of each trial, and the command line."""

import csv
import os
import sys
from importlib.util import find_spec

import pytest
import torch

from tests.support.pretended_training import PretendedTraining, by_learning_rate
from training.nonfinite import NonFiniteError
from training.settings.config import TrainConfig
from training.settings.hyperparameters import read_hyp
from training.tune.__main__ import parse_args
from training.tune.flags import STARTER, TuneFlags
from training.tune.run import tune
from training.tune.space import Parameter, read_space
from utils.distributed.world import World
from utils.terminal import FaultError

pytestmark = pytest.mark.skipif(not find_spec("optuna"), reason="an optional package")

CPU = World(torch.device("cpu"))
SPACE = (
    Parameter("lr0", low=1e-3, high=0.1, log=True),
    Parameter("imgsz", choices=(64, 96)),
)


def flags_for(folder, **flags):
    given = frozenset({"project", *flags})
    return TrainConfig(project=str(folder), given=given, **flags)


def run(folder, train, *, trials=3, space=SPACE, pruner="median", **flags):
    own = TuneFlags(space, trials, pruner, str(folder / "study.log"), "")
    tune(own, flags_for(folder, **flags), CPU, train)
    with open(folder / "exp" / "trials.csv") as file:
        return list(csv.DictReader(file))


def test_trials_are_trained_and_the_best_is_written(tmp_path, capsys):
    train = PretendedTraining()
    rows = run(tmp_path, train, epochs=2, data=("my data.yaml",))
    assert [row["state"] for row in rows] == ["complete"] * 3
    assert [row["epochs"] for row in rows] == ["2"] * 3
    for number, (config, hyp) in enumerate(train.calls):
        assert (config.project, config.name) == (str(tmp_path / "exp"), f"trials/{number}")
        assert (config.noplots, config.epochs) == (True, 2)
        assert rows[number]["lr0"] == str(hyp.lr0)
        assert rows[number]["imgsz"] == str(config.imgsz)

    best = max(range(3), key=lambda number: float(rows[number]["fitness"]))
    optimizer, hyp = read_hyp(tmp_path / "exp" / "hyp_tune.yaml")
    assert (optimizer, hyp) == ("Muon", train.calls[best][1])
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.pt")] == [
        f"exp/trials/{best}/weights/best.pt"
    ]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"none of 3 trials so far, in {tmp_path}/study.log; writing to {tmp_path}/exp"
    assert said[-1].strip() == (
        f"python train.py --data 'my data.yaml' --epochs 2 --imgsz {train.calls[best][0].imgsz} "
        f"--hyp {tmp_path}/exp/hyp_tune.yaml --batch-size 16"
    )

    # the same command again: all are done
    again = PretendedTraining()
    assert run(tmp_path, again, epochs=2, data=("my data.yaml",)) == rows
    assert again.calls == []
    assert "3 complete of 3 trials so far" in capsys.readouterr().out


def test_trials_that_are_worse_than_others_end_early(tmp_path):
    """Fitness grows with the epochs; from the sixth trial on it falls behind."""
    numbers = iter(range(99))
    rows = run(
        tmp_path,
        PretendedTraining(lambda config, hyp: 1 if next(numbers) < 5 else -1),
        trials=7,
        epochs=5,
    )
    assert [row["state"] for row in rows] == ["complete"] * 5 + ["pruned"] * 2
    assert [row["epochs"] for row in rows] == ["5"] * 5 + ["2"] * 2


def test_trial_is_not_ended_after_its_last_epoch(tmp_path):
    numbers = iter(range(99))
    train = PretendedTraining(lambda config, hyp: 1 if next(numbers) < 5 else -1)
    assert [row["state"] for row in run(tmp_path, train, trials=6, epochs=1)] == ["complete"] * 6


@pytest.mark.parametrize(
    ("error", "cause", "reason"),
    [
        (
            NonFiniteError("not finite in 10 steps; these were skipped"),
            None,
            "not finite in 10 steps",
        ),
        (
            FaultError("out of memory on cuda with --batch-size 64: try less"),
            torch.OutOfMemoryError("CUDA out of memory"),
            "out of memory on cuda with --batch-size 64",
        ),
    ],
)
def test_failure_that_follows_from_the_values_is_recorded(tmp_path, error, cause, reason):
    numbers = iter(range(99))

    def score(config, hyp):
        if next(numbers) == 1:
            raise error from cause
        return by_learning_rate(config, hyp)

    rows = run(tmp_path, PretendedTraining(score))
    assert [row["state"] for row in rows] == ["complete", "pruned", "complete"]
    assert [row["failure"] for row in rows] == ["", reason, ""]


def test_values_that_do_not_go_together_are_recorded(tmp_path):
    space = (Parameter("rect", choices=(True,)), Parameter("multi_scale", choices=(True, False)))
    train = PretendedTraining()
    rows = run(tmp_path, train, space=space, trials=6)
    for row in rows:
        invalid = row["multi_scale"] == "True"
        assert row["state"] == ("pruned" if invalid else "complete")
        assert ("cannot be used together" in row["failure"]) == invalid
    assert 0 < len(train.calls) < 6


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ValueError("--data: nothing there"), FaultError("disk full")]
)
def test_other_errors_end_the_process_and_give_the_trial_back(tmp_path, error, capsys):
    def score(config, hyp):
        raise error

    broken, train = PretendedTraining(score), PretendedTraining()
    with pytest.raises(type(error)):
        run(tmp_path, broken)
    said = capsys.readouterr().out
    assert ("continue with the same command" in said) == isinstance(error, KeyboardInterrupt)
    rows = run(tmp_path, train)
    assert [row["state"] for row in rows] == ["fail"] + ["complete"] * 3
    assert train.calls[0][1] == broken.calls[0][1]  # the same values


# ---------------------------------------------------------------------- the command line


@pytest.fixture
def space(tmp_path):
    (tmp_path / "space.yaml").write_text("lr0: {low: 1e-3, high: 0.1, log: true}\n")
    return str(tmp_path / "space.yaml")


def test_flags_of_the_search_and_of_its_trainings(space):
    words = [
        "--data",
        "a.yaml",
        "--trials",
        "7",
        "--img",
        "64",
        "--space",
        space,
        "--device",
        "cpu",
    ]
    own, flags, launch = parse_args([*words, "--storage", "s.log", "--pruner", "none"])
    assert own == TuneFlags((SPACE[0],), 7, "none", "s.log", "")
    assert (flags.data, flags.imgsz, flags.project) == (("a.yaml",), 64, "runs/tune")
    assert launch.device == "cpu"
    assert parse_args(["--space", space, "--project", "p"])[1].project == "p"


OURS = os.path.relpath(STARTER)


def test_the_space_that_is_to_be_copied_can_be_read():
    names = {parameter.name for parameter in read_space(STARTER)}
    assert {"lr0", "optimizer"} <= names


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            [],
            "--space: give a YAML file of what is searched. docs/tuning.md describes it; begin "
            f"with a copy of ours, and change it:\n    cp {OURS} space.yaml",
        ),
        (
            ["--space", "no such.yaml"],
            "--space no such.yaml: there is no such file. docs/tuning.md describes it; begin with "
            f"a copy of ours, and change it:\n    cp {OURS} 'no such.yaml'",
        ),
        (["--trials", "0"], "--trials 0: choose 1 training or more"),
        (["--pruner", "mean"], "--pruner mean: choose one of median, hyperband, none"),
        (["--resume"], "--resume: to continue, give the same command again"),
        (["--evolve"], "--evolve: to continue, give the same command again"),
        (["--spawn"], "--spawn: start the processes of each training with python -m torch.dist"),
        (["--epoch", "3"], "unknown flag --epoch (did you mean --epochs?)"),
    ],
)
def test_invalid_command_line(space, words, sentence):
    given = ["--space", space] if words else []
    with pytest.raises(ValueError) as error:
        parse_args([*given, *words])
    assert str(error.value).startswith(sentence)


def test_help_fits_in_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse_args(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 15
    assert [line for line in lines if len(line) > 80] == []


def test_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"^training\.tune needs the package optuna: pip install"):
        run(tmp_path, PretendedTraining())
