"""Whole searches: --fitness, --evolve in each mode, killed at any moment, and training.tune."""

import csv
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import train
from tests.support.launching import (
    forked,
    free_port,
    rank_environment,
    small_run_flags,
)
from tests.test_resume import die_at_call, many_steps
from training import evaluation, state
from training.search import evolve
from training.settings.hyperparameters import read_hyp
from training.tune import __main__ as tune_command
from utils.distributed.world import World
from utils.files import atomic, checkpoint_file
from utils.plots import search as search_plot

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="forks and kills processes")

FITNESS = "AR100 + AP50[disc] - min(AP50[disc], 0.5)"  # AP alone is 0 in such short trainings
GENERATIONS = 3

# ---------------------------------------------------------------------- faults

# What a process is about to do, or has just done, when it is killed.
CALLS: dict[str, tuple[Any, str]] = {
    "a step": (state.TrainState, "step"),
    "an evaluation": (evaluation, "evaluate_boxes"),
    "a checkpoint": (checkpoint_file, "save"),
    "a file": (atomic.os, "replace"),
    "a row": (evolve, "write_history"),
    "the best": (evolve.Search, "_write_best"),
}


def faulty() -> None:
    """Run with KESTREL_KILLED, "before/after CALL NUMBER" or "": where this process is killed."""
    many_steps()
    search_plot.plot_search = lambda csv_path, png_path, keys: None
    if os.environ.get("KESTREL_TUNES"):
        train.run_script = tune_command.main
    if where := os.environ.get("KESTREL_KILLED"):
        when, _, rest = where.partition(" ")
        what, _, number = rest.rpartition(" ")
        if os.environ.get("RANK", "0") == "0":
            die_at_call(*CALLS[what], float(number), after=when == "after")


Start = Callable[..., list[int]]


@pytest.fixture(scope="module")
def start(
    tiny_data: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Start]:
    """The folder of all runs, and start(flags, ...): runs train.py; returns the exit codes."""
    folder = tmp_path_factory.mktemp("searches")

    def run(*flags: str, size: int = 1, killed: str = "", tunes: str = "") -> list[int]:
        words = small_run_flags(tiny_data, micro_model, folder, "--dist-timeout", "20", *flags)
        faults = {
            "KESTREL_FAULT": "tests.test_search:faulty",
            "KESTREL_KILLED": killed,
            "KESTREL_TUNES": tunes,
        }
        port = free_port()
        environments = [
            (rank_environment(rank, size, port) if size > 1 else {}) | faults
            for rank in range(size)
        ]
        io = folder / "io" / f"{len(list(folder.glob('io/*')))}"
        with forked(environments, words, io) as ranks:
            codes = [rank.end(300) for rank in ranks]
        assert killed or not any(codes), "".join(rank.err for rank in ranks)
        return codes

    return folder, run


EVOLVE = ("--evolve", str(GENERATIONS), "--epochs", "2", "--save-minutes", "1e-9")


@pytest.fixture(scope="module")
def straight(start: tuple[Path, Start]) -> Path:
    """The folder of a search that nothing interrupted."""
    folder, run = start
    run(*EVOLVE, "--fitness", FITNESS, "--name", "straight")
    return folder / "straight"


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open() as stream:
        return list(csv.DictReader(stream))


# ---------------------------------------------------------------------- --fitness


def expected_fitness(metrics: dict[str, Any]) -> float:
    of_disc = max(metrics["per_class"]["disc"]["AP50"], 0.0)
    return max(metrics["AR100"], 0.0) + of_disc - min(of_disc, 0.5)


@pytest.mark.slow
@linux_only
def test_fitness_is_that_of_the_expression_everywhere(straight):
    """In metrics.json, evolve.csv and best.pt, which is from the epoch where it is highest."""
    rows = rows_of(straight / "evolve.csv")
    best = max(range(GENERATIONS), key=lambda number: float(rows[number]["fitness"]))
    for number, row in enumerate(rows):
        run = straight / "generations" / str(number)
        metrics = json.loads((run / "metrics.json").read_text())
        for which in ("last", "best"):
            assert metrics[which]["fitness"] == expected_fitness(metrics[which])
        assert float(row["fitness"]) == pytest.approx(metrics["best"]["fitness"], rel=1e-5)
        assert metrics["best"]["fitness"] >= metrics["last"]["fitness"]
        assert f"fitness: {FITNESS}\n" in (run / "args.yaml").read_text()
    saved = checkpoint_file.load(straight / "generations" / str(best) / "weights" / "best.pt")
    assert saved["config"]["fitness"] == FITNESS
    assert saved["metrics"]["fitness"] == pytest.approx(float(rows[best]["fitness"]), rel=1e-5)


def test_unknown_class_in_fitness_is_refused_before_training(tiny_data, micro_model, tmp_path):
    words = small_run_flags(tiny_data, micro_model, tmp_path / "runs", "--fitness", "AP[disk]")
    sentence = r"^--fitness column 1: unknown class 'disk' \(did you mean disc\?\); classes are"
    flags = train.parse_args(words)[0]
    with pytest.raises(ValueError, match=sentence):
        train.main(flags, World(torch.device("cpu")))
    assert not (tmp_path / "runs" / "exp").exists()
    with pytest.raises(ValueError, match=r"^--fitness column 1: unknown metric 'map'"):
        train.parse_args(["--fitness", "map"])


# ---------------------------------------------------------------------- --evolve


@linux_only
def test_search_leaves_hyper_parameters_that_train_py_takes(straight, start):
    folder, run = start
    rows = rows_of(straight / "evolve.csv")
    assert len(rows) == GENERATIONS
    assert len({row["lr0"] for row in rows} | {row["box"] for row in rows}) > 2
    best = max(rows, key=lambda row: float(row["fitness"]))
    run("--hyp", str(straight / "hyp_evolve.yaml"), "--name", "again")
    used = read_hyp(folder / "again" / "hyp.yaml")[1].as_dict()
    assert used == {name: float(best[name]) for name in used}


KILLED = (
    "before a file 1",  # evolve.json
    "after a file 3",
    "before a step 2",
    "before an evaluation 2",
    "after a checkpoint 3",
    "before a row 1",
    "after a row 1",
    "after a step 3",
    "before the best 1",
    "before a file 12",
)


@linux_only
@pytest.mark.slow
def test_search_killed_at_any_moment_continues_as_if_it_had_not_been(straight, start):
    folder, run = start
    started = ("--name", "killed", *EVOLVE, "--fitness", FITNESS)
    for moment in KILLED:
        has_begun = (folder / "killed" / "evolve.json").exists()
        flags = ("--resume-evolve", str(folder / "killed")) if has_begun else started
        assert run(*flags, "--exist-ok", killed=moment) == [-9], moment
    run("--resume-evolve", str(folder / "killed" / "evolve.csv"))
    for name in ("evolve.csv", "hyp_evolve.yaml", "metrics.json"):
        assert (folder / "killed" / name).read_text() == (straight / name).read_text()
    assert sorted(folder.glob("killed/*.tmp.*")) == []


@linux_only
@pytest.mark.slow
def test_processes_search_together(straight, start):
    """They mutate alike, as one process does, and continue after a kill."""
    folder, run = start
    two = ("--evolve", "2", "--epochs", "1", "--save-minutes", "1e-9", "--fitness", FITNESS)
    run("--name", "two", *two, size=2)
    assert min(run("--name", "broken", *two, size=2, killed="after a step 2")) == -9
    run("--resume-evolve", str(folder / "broken"), size=2)
    text = (folder / "two" / "evolve.csv").read_text()
    assert (folder / "broken" / "evolve.csv").read_text() == text

    rows, expected = rows_of(folder / "two" / "evolve.csv"), rows_of(straight / "evolve.csv")
    assert len(rows) == 2
    for row, other in zip(rows, expected, strict=False):
        for name in ("lr0", "momentum", "box", "mosaic", "perspective"):
            assert row[name] == other[name]


# ---------------------------------------------------------------------- training.tune


TUNE = ("--trials", "3", "--epochs", "2", "--fitness", "AR100")


@linux_only
@pytest.mark.slow
def test_two_processes_tune_together_and_one_is_killed(start, tmp_path):
    pytest.importorskip("optuna", reason="an optional package")
    folder, run = start
    space = tmp_path / "space.yaml"
    space.write_text(
        "lr0: {low: 1e-3, high: 0.1, log: true}\noptimizer: {choices: [SGD, AdamW]}\n"
        "imgsz: {choices: [64, 96]}\n"
    )
    words = ("--space", str(space), "--name", "tuned", *TUNE)
    assert run(*words, tunes="yes", killed="before a step 6") == [-9]
    # two ranks of one launch: rank 0 asks the study, both train
    run(*words, tunes="yes", size=2)
    rows = rows_of(folder / "tuned" / "trials.csv")
    assert [row["state"] for row in rows].count("fail") == 1
    done = [row for row in rows if row["state"] in ("complete", "pruned")]
    assert sorted(row["index"] for row in done) == ["0", "1", "2"]

    best = max(done, key=lambda row: float(row["fitness"]))
    optimizer, hyp = read_hyp(folder / "tuned" / "hyp_tune.yaml")
    assert (optimizer, str(hyp.lr0)) == (best["optimizer"], best["lr0"])
    run_folder = folder / "tuned" / "trials" / best["trial"]
    assert f"imgsz: {best['imgsz']}\n" in (run_folder / "args.yaml").read_text()
    assert json.loads((run_folder / "metrics.json").read_text())["best"]["fitness"] == (
        pytest.approx(float(best["fitness"]), rel=1e-5)
    )
