"""A run whose processes are restarted by a launcher gives the same results as without a restart."""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import train
from tests.support.launching import (
    ROOT,
    forked,
    forked_launcher,
    free_port,
    rank_environment,
    small_run_flags,
)
from tests.support.processes import write_hyp
from training.checkpoints.restart import MARKS, find_own_run, launcher_mark
from training.checkpoints.status import write_status
from utils.distributed import session
from utils.files import checkpoint_file
from utils.log import FINISHED

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="forks processes, and finds them in /proc"
)
SCRIPT = str(ROOT / "tests" / "support" / "launching.py")  # train.py with a fault

# ---------------------------------------------------------------------- marks


def test_launcher_mark_identifies_the_launcher():
    assert launcher_mark({}) == ""
    mark = launcher_mark({"TORCHELASTIC_RUN_ID": "x"})
    assert mark == launcher_mark({"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "1"})
    assert mark != launcher_mark(
        {"TORCHELASTIC_RUN_ID": "y"}
    )  # a notebook may launch one after another
    assert str(os.getppid()) in mark.split()


def make_run(run: Path, marks: object, *, done: bool = False, age_s: float = 0) -> Path:
    """Create a run folder with the marks of launchers, `age_s` seconds old."""
    run.mkdir(parents=True)
    file = run / MARKS
    file.write_text(marks if isinstance(marks, str) else json.dumps(marks))
    os.utime(file, (time.time() - age_s,) * 2)
    if done:
        write_status(run, FINISHED)
    return run


def test_no_run_is_found_without_common_mark(tmp_path):
    assert not find_own_run(tmp_path / "nowhere", ["a"])
    assert not find_own_run(tmp_path, ["a"])
    make_run(tmp_path / "exp", ["b", "c", ""])
    assert not find_own_run(tmp_path, ["a"])
    assert not find_own_run(tmp_path, [])
    assert not find_own_run(tmp_path, ["", ""])  # no launcher, no mark


def test_run_with_one_common_mark_is_found(tmp_path):
    run = make_run(tmp_path / "exp", ["a", "b"])
    assert find_own_run(tmp_path, ["b", "c"]) == str(run)


def test_newest_unfinished_run_is_found(tmp_path):
    make_run(tmp_path / "exp", ["a"], age_s=30)
    run = make_run(tmp_path / "exp2", ["a"], age_s=20)
    make_run(tmp_path / "exp3", ["a"], age_s=10, done=True)
    make_run(tmp_path / "exp4", ["b"])
    assert find_own_run(tmp_path, ["a"]) == str(run)


@pytest.mark.parametrize(
    "text", ["", "{", "[1", "null", "3", '{"a": 1}', '"a"', "[]", "[null, 3, [], {}]", "\0\xff"]
)
def test_damaged_marks_are_ignored(tmp_path, text):
    make_run(tmp_path / "exp", text)
    run = make_run(tmp_path / "exp2", ["a"], age_s=10)
    assert find_own_run(tmp_path, ["a"]) == str(run)


def test_unreadable_marks_are_ignored(tmp_path):
    (tmp_path / "exp" / MARKS).mkdir(parents=True)
    (tmp_path / "exp2").mkdir()
    (tmp_path / "exp2" / MARKS).symlink_to(tmp_path / "gone")
    make_run(tmp_path / "exp3", b"\xff\xfe".decode("latin-1"))
    run = make_run(tmp_path / "exp4", ["a"], age_s=10)
    assert find_own_run(tmp_path, ["a"]) == str(run)


# ---------------------------------------------------------------------- faults


def wait_briefly() -> None:
    """Wait less for processes that were killed, to keep the tests short."""
    session.SHUTDOWN_WAIT_S = session.LATE_JOIN_TIMEOUT_S = 1.0


def die(rank: int, epoch: int) -> None:
    """Kill a rank at the start of an epoch, counted from 1 in each attempt."""
    wait_briefly()
    real, epochs = train.train_one_epoch, iter(range(1, 1000))

    def work(*arguments, **keywords):
        if next(epochs) == epoch and os.environ["RANK"] == str(rank):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **keywords)

    train.train_one_epoch = work


def dies_once() -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        die(rank=1, epoch=2)


def dies_before_the_first_checkpoint() -> None:
    die(rank=1, epoch=1)


def dies_in_the_second_epoch() -> None:
    die(rank=int(os.environ["WORLD_SIZE"]) - 1, epoch=2)


def dies_after_last_write() -> None:
    wait_briefly()
    real = train.main

    def main(*arguments):
        real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    train.main = main if os.environ["RANK"] == "1" else real


# ---------------------------------------------------------------------- attempts


@pytest.fixture
def flags(tiny_data: Path, micro_model: str, tmp_path: Path) -> list[str]:
    return [*small_run_flags(tiny_data, micro_model, tmp_path), "--epochs", "3", "--sync-bn"]


Attempt = Callable[..., list[int]]


@pytest.fixture
def attempt(flags: list[str], tmp_path: Path) -> Attempt:
    """attempt(processes, flags, fault=name): the exit codes of one attempt, with this process as
    the launcher.
    """

    def one(size: int, *more: str, fault: str = "", launcher: bool = True) -> list[int]:
        elastic = (
            {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"} if launcher else {}
        )
        faults = (
            {"KESTREL_FAULT": f"tests.training.checkpoints.test_restart:{fault}"} if fault else {}
        )
        port = free_port()
        environments = [
            rank_environment(rank, size, port) | elastic | faults for rank in range(size)
        ]
        with forked(environments, [*flags, *more], tmp_path / "io") as ranks:
            return [rank.end(300) for rank in ranks]

    return one


def results_without_times(run: Path) -> list[str]:
    """results.csv without the times."""
    return [
        re.sub(r"^(\d+),[^,]+", r"\1", line)
        for line in (run / "results.csv").read_text().splitlines()
    ]


def run_names(project: Path) -> list[str]:
    return sorted(path.name for path in project.glob("exp*"))


def assert_same_bits(run: Path, other: Path) -> None:
    assert results_without_times(run) == results_without_times(other)
    for file in ("last.pt", "best.pt"):
        first, second = (checkpoint_file.load(folder / "weights" / file) for folder in (run, other))
        assert all(torch.equal(first["model"][key], second["model"][key]) for key in first["model"])
    assert (run / "metrics.json").read_text() == (other / "metrics.json").read_text()


@linux
@pytest.mark.slow
def test_run_continues_after_torchrun_restart(flags, attempt, tmp_path):
    words = ["--standalone", "--nproc_per_node", "2", "--max-restarts", "1", SCRIPT, *flags]
    fault = "tests.training.checkpoints.test_restart:dies_once"
    with forked_launcher(words, tmp_path / "io", KESTREL_FAULT=fault) as job:
        assert job.end(300) == 0, job.err
        assert job.out.count("restarted by the launcher\nresuming") == 1
    assert run_names(tmp_path) == ["exp"]
    assert attempt(2, launcher=False) == [0, 0]  # another launch, not interrupted
    assert run_names(tmp_path) == ["exp", "exp2"]
    assert_same_bits(tmp_path / "exp", tmp_path / "exp2")


@linux
@pytest.mark.slow
def test_attempts_of_one_launcher_share_a_folder(attempt, tmp_path):
    """With three processes, since with two the order in which gradients are added makes no
    difference.
    """
    six = ("--batch", "6")
    assert attempt(3, *six, fault="dies_before_the_first_checkpoint") == [1, -9, 1]
    assert attempt(3, *six, fault="dies_in_the_second_epoch") == [1, 1, -9]
    broken = results_without_times(tmp_path / "exp")
    assert attempt(3, *six, launcher=False) == [
        0,
        0,
        0,
    ]  # another launch, which does not touch the interrupted run
    assert (run_names(tmp_path), results_without_times(tmp_path / "exp")) == (
        ["exp", "exp2"],
        broken,
    )
    assert attempt(3, *six) == [0, 0, 0]
    assert run_names(tmp_path) == ["exp", "exp2"]
    assert_same_bits(tmp_path / "exp", tmp_path / "exp2")


@linux
@pytest.mark.slow
def test_three_processes_resume_with_same_bits_if_graph_is_static(attempt, tmp_path):
    """One batch per optimizer step."""
    write_hyp(tmp_path / "eager.yaml", "hyp.scratch-low.yaml", nominal_batch=6)
    eager = ("--batch", "6", "--hyp", str(tmp_path / "eager.yaml"), "--save-period", "1")
    assert attempt(3, *eager, launcher=False) == [0, 0, 0]
    shutil.copytree(tmp_path / "exp", tmp_path / "exp2")
    second = tmp_path / "exp2" / "weights" / "epoch2.pt"
    assert attempt(3, *eager, "--resume", str(second), launcher=False) == [0, 0, 0]
    assert run_names(tmp_path) == ["exp", "exp2"]
    assert_same_bits(tmp_path / "exp", tmp_path / "exp2")


@linux
@pytest.mark.slow
def test_finished_run_is_not_trained_again_after_restart(attempt, tmp_path):
    """A process may crash at exit, after all is written; its launcher then restarts all
    processes.
    """
    assert attempt(2, fault="dies_after_last_write") in ([0, -9], [1, -9])
    assert (tmp_path / "exp" / "metrics.json").exists()
    written = (tmp_path / "exp" / "weights" / "last.pt").stat().st_mtime_ns
    assert attempt(2) == [0, 0]
    assert run_names(tmp_path) == ["exp"]
    assert (tmp_path / "exp" / "weights" / "last.pt").stat().st_mtime_ns == written
