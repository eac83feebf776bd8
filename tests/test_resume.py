"""A run that is killed, stopped or changed can be resumed: to the bit where possible, and with
every row once.
"""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import train
from models import predict
from tests.support.launching import (
    ROOT,
    forked,
    forked_launcher,
    free_port,
    rank_environment,
    small_run_flags,
    wait_until,
)
from tests.support.processes import SINGLE_PROCESS, draw_data, write_hyp
from training import evaluation, state
from training.checkpoints.contents import ENTRIES, FORMAT, Checkpoint, checked_checkpoint
from training.checkpoints.resume import find_last, resumed_config
from training.checkpoints.status import RUNNING, write_status
from training.global_batch import GlobalBatch
from training.settings.config import TrainConfig
from utils.distributed import session
from utils.files import atomic, checkpoint_file
from utils.log import FINISHED
from utils.plots import batches, confusion, operating, results
from utils.plots.pictures import Pictures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks and kills processes"),
]

# ---------------------------------------------------------------------- faults


OF_EIGHT = {  # attributes of GlobalBatch with 8 images per optimizer step
    "batches_to_nominal": property(lambda batch: 8 / batch.size),
    "weight_decay": lambda batch, of_nominal_batch: (
        of_nominal_batch * batch.size * batch.accumulate / 8
    ),
}


def many_steps() -> None:
    """Have several optimizer steps per epoch with few images; draw only batches and wait for less
    time, to keep tests short.
    """
    Pictures.labels = lambda *_: None
    operating.plot_curves = lambda **_: []
    results.plot_results = confusion.plot_confusion = lambda *_: None
    checkpoint_file.os.fsync = lambda *_: (
        None
    )  # only needed for a power cut: after a kill the system still writes data
    for name, value in OF_EIGHT.items():
        setattr(GlobalBatch, name, value)
    session.SHUTDOWN_WAIT_S = session.LATE_JOIN_TIMEOUT_S = 1.0


def killed() -> None:
    """Kill this process at KESTREL_INSTANT, "rank instant number": when the rank gets there for the
    number-th time.
    """
    many_steps()
    instant, _, number = os.environ["KESTREL_INSTANT"].rpartition(" ")
    rank, _, instant = instant.partition(" ")
    if rank == os.environ.get("RANK", "0"):
        INSTANTS[instant](float(number))


def die() -> None:
    os.kill(os.getpid(), getattr(signal, os.environ.get("KESTREL_SIGNAL", "SIGKILL")))


def die_at_call(owner: Any, name: str, number: float, *, after: bool = False) -> None:
    """Die before or after the number-th call of a function."""
    real, left = getattr(owner, name), iter(range(int(number), 0, -1))

    def work(*arguments: Any, **keywords: Any) -> Any:
        last = next(left, 0) == 1
        if last and not after:
            die()
        result = real(*arguments, **keywords)
        if last and after:
            die()
        return result

    setattr(owner, name, work)


def die_in_checkpoint_write(number: float) -> None:
    """Die when half of a checkpoint is written."""
    real, left = checkpoint_file._write, iter(range(int(number), 0, -1))

    def write(values: Any, file: Any) -> None:
        real(values, file)
        if next(left, 0) == 1:
            file.truncate(file.tell() // 2)
            die()

    checkpoint_file._write = write


def die_after_delay(number: float) -> None:
    """Die some time after the rendezvous: before it, the others would wait for a process that never
    connects.
    """
    real = train.main

    def main(*arguments: Any) -> Any:
        threading.Timer(number / 6, die).start()
        return real(*arguments)

    train.main = main


INSTANTS: dict[str, Callable[[float], None]] = {
    "before a step": lambda number: die_at_call(state.TrainState, "step", number),
    "after a step": lambda number: die_at_call(state.TrainState, "step", number, after=True),
    "in validation": lambda number: die_at_call(predict, "non_max_suppression", number),
    "after validation": lambda number: die_at_call(evaluation, "evaluate_boxes", number),
    "in a picture": lambda number: die_at_call(batches, "plot_batch", number),
    "in the last pictures": lambda number: die_at_call(operating, "plot_curves", 1),
    "in a checkpoint": die_in_checkpoint_write,
    "before a file is there": lambda number: die_at_call(atomic.os, "replace", number),
    "when a file is there": lambda number: die_at_call(atomic.os, "replace", number, after=True),
    "some time": die_after_delay,
    "nowhere": lambda number: None,
}
WRITING = {
    "in the last pictures",
    "in a picture",
    "in a checkpoint",
    "before a file is there",
    "when a file is there",
}
WRITTEN_ALIKE = WRITING - {"in a checkpoint"}  # by rank 0 of several processes as by a lone one


def instants(size: int) -> list[str]:
    """Where each attempt of a run ends: "rank instant number".

    Those of a lone process end with two that draw pictures. Of several processes, rank 0 is killed
    in one kind of write only: all that differs from a lone process are the others, which end alike.
    """
    chosen = random.Random(size)
    late = ("nowhere", "in the last pictures", "in a picture")
    early = [instant for instant in INSTANTS if instant not in late]
    chosen.shuffle(early)

    places = []
    for instant in [*early, "in the last pictures", "in a picture"]:
        rank = 0 if instant in WRITING else chosen.randrange(size)
        number = 1 if instant == "after validation" else chosen.randint(1, 3)
        if size == 1 or instant not in WRITTEN_ALIKE:
            places.append(f"{rank} {instant} {number}")
    return places


# ---------------------------------------------------------------------- attempts


RARE = ("--epochs", "3", "--save-minutes", "0", "--nosave")  # no checkpoint before the end


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_data(tmp_path_factory.mktemp("data") / "set", 10)


Attempt = Callable[..., list[int]]


def attempts_in(folder: Path, data: Path, model: str) -> Attempt:
    """attempt(processes, name, flags, at=instant, by=signal): starts the run folder/name, or
    resumes it if possible; returns the exit codes.
    """

    def one(
        size: int,
        name: str,
        *flags: str,
        at: str = "0 nowhere 1",
        by: str = "SIGKILL",
        pictures: bool = False,
    ) -> list[int]:
        # A rank that is killed outside a collective is missed after --dist-timeout only: no
        # launcher ends the others.
        own = f"--name {name} --exist-ok --save-minutes 1e-9 --batch 4 --dist-timeout 20".split()
        words = small_run_flags(data, model, folder, *own, *flags)
        if pictures:
            words.remove("--noplots")

        last = folder / name / "weights" / "last.pt"
        if last.exists():
            words += ["--resume", str(last)]

        faults = {
            "KESTREL_FAULT": "tests.test_resume:killed",
            "KESTREL_INSTANT": at,
            "KESTREL_SIGNAL": by,
        }
        port = free_port()
        environments = [
            rank_environment(rank, size, port) if size > 1 else {} for rank in range(size)
        ]
        with forked(
            [environment | faults for environment in environments], words, folder / "io"
        ) as ranks:
            return [rank.end(300) for rank in ranks]

    return one


@pytest.fixture
def attempt(data: Path, micro_model: str, tmp_path: Path) -> Attempt:
    return attempts_in(tmp_path, data, micro_model)


@pytest.fixture(scope="module")
def straight(
    data: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """straight(processes): the folder of an uninterrupted run with the flags RARE; each is trained
    once.
    """
    folder = tmp_path_factory.mktemp("straight")
    attempt = attempts_in(folder, data, micro_model)

    def run(size: int) -> Path:
        if not (folder / f"run{size}").exists():
            assert attempt(size, f"run{size}", *RARE) == [0] * size
        return folder / f"run{size}"

    return run


@pytest.fixture
def killed_run(killed_once: Path, tmp_path: Path) -> Path:
    """The folder of a copy of the run that was killed in the middle of an epoch."""
    return Path(shutil.copytree(killed_once, tmp_path / "exp"))


@pytest.fixture
def resume(attempt: Attempt, killed_run: Path) -> Callable[..., list[int]]:
    """resume(flags): resumes killed_run; returns the exit code."""
    return lambda *flags: attempt(1, killed_run.name, "--epochs", "5", *flags)


@pytest.fixture(scope="module")
def killed_once(data: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 5 epochs that was killed after a batch of the fourth."""
    folder = tmp_path_factory.mktemp("killed")
    attempt = attempts_in(folder, data, micro_model)
    assert attempt(1, "exp", "--epochs", "5", at="0 before a step 7") == [-9]
    saved = checkpoint_file.load(folder / "exp" / "weights" / "last.pt")
    assert (saved["epoch"], saved["batch"]) == (3, 1)
    return folder / "exp"


def rows(run: Path) -> list[dict[str, str]]:
    """results.csv without the times."""
    with open(run / "results.csv") as file:
        return [
            {name: value for name, value in row.items() if name != "time"}
            for row in csv.DictReader(file)
        ]


def same(first: Any, second: Any) -> bool:
    """Whether two nested records have the same bits, except for times."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        ours, theirs = first.keys() - {"time", "seconds"}, second.keys() - {"time", "seconds"}
        return ours == theirs and all(same(first[key], second[key]) for key in ours)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second or (first != first and second != second)


def assert_same_bits(run: Path, other: Path) -> None:
    assert rows(run) == rows(other)
    for file in ("last.pt", "best.pt"):
        first, second = (checkpoint_file.load(folder / "weights" / file) for folder in (run, other))
        assert first.keys() == second.keys()
        for part in first.keys() - {"config", "seconds"}:
            assert same(first[part], second[part]), f"{file}: {part}"
    assert (run / "metrics.json").read_text() == (other / "metrics.json").read_text()


# ---------------------------------------------------------------------- killed


@pytest.mark.parametrize("size", [1, 2])
def test_run_killed_at_every_instant_and_resumed_ends_with_same_bits(attempt, tmp_path, size):
    drawn: dict[str, Any] = {"pictures": size == 1}
    epochs = ("--epochs", "5")
    assert attempt(size, "straight", *epochs) == [0] * size
    for instant in instants(size):
        assert min(attempt(size, "broken", *epochs, at=instant, **drawn)) == -9, instant
    assert attempt(size, "broken", *epochs, **drawn) == [0] * size
    assert_same_bits(tmp_path / "straight", tmp_path / "broken")


@pytest.mark.parametrize(
    ("size", "places"),
    [(1, ("before a step 3", "after a step 2", "in validation 2")), (2, ("after a step 3",))],
)
def test_tiled_run_killed_mid_epoch_and_resumed_ends_with_same_bits(
    micro_model, tmp_path, size, places
):
    attempt = attempts_in(tmp_path, draw_data(tmp_path / "set", 4), micro_model)
    tiled = ["--epochs", "2", "--tile", "48", "--tile-overlap", "0.3", "--repeat-factor", "0.9"]
    tiled += ["--class-weights", "auto", "--classes", "0", "2"]
    assert attempt(size, "straight", *tiled) == [0] * size
    for at in places:
        assert min(attempt(size, "broken", *tiled, at=f"0 {at}")) == -9
        halfway = checkpoint_file.load(tmp_path / "broken" / "weights" / "last.pt")
        assert halfway["config"]["tile"] == 48
        assert halfway["config"]["repeat_factor"] == 0.9
        assert halfway["batch"] > 0
    assert attempt(size, "broken", "--epochs", "2") == [0] * size  # the tiles are those of the run
    assert_same_bits(tmp_path / "straight", tmp_path / "broken")


@pytest.mark.trains
def test_run_resumes_mid_epoch_with_other_number_of_processes(attempt, tmp_path):
    """With lr0 0.001, rounding errors grow from 1e-16 to 3e-11; with 0.01 to 2e-6, which could hide
    a fault.
    """
    write_hyp(tmp_path / "slow.yaml", "hyp.scratch-low.yaml", lr0=0.001, warmup_bias_lr=0.001)
    exact = ("--epochs", "3", "--amp", "fp64", "--sync-bn", "--hyp", str(tmp_path / "slow.yaml"))
    assert attempt(1, "straight", *exact) == [0]
    assert attempt(2, "broken", *exact, at="1 before a step 2") == [1, -9]
    assert attempt(1, "broken", *exact, at="0 before a step 3") == [-9]
    halfway = checkpoint_file.load(tmp_path / "broken" / "weights" / "last.pt")
    assert (halfway["epoch"], halfway["batch"], len(halfway["statistics"])) == (1, 1, 1)
    assert attempt(2, "broken", *exact) == [0, 0]
    first, second = (
        checkpoint_file.load(tmp_path / run / "weights" / "last.pt")
        for run in ("straight", "broken")
    )
    for part in ("model", "ema"):
        for key, weights in first[part].items():
            assert torch.allclose(second[part][key], weights, rtol=1e-9, atol=1e-11), (
                f"{part} {key}"
            )
    for row, other in zip(rows(tmp_path / "straight"), rows(tmp_path / "broken"), strict=True):
        assert {k: float(v) for k, v in other.items()} == pytest.approx(
            {k: float(v) for k, v in row.items()}, rel=1e-4
        )


# ---------------------------------------------------------------------- ended by a signal


@pytest.mark.parametrize(
    ("size", "at", "by"),
    [
        (1, "0 before a step 4", "SIGHUP"),
        (1, "0 in validation 4", "SIGUSR1"),
        (2, "1 before a step 4", "SIGUSR1"),
        (2, "0 in validation 3", "SIGTERM"),
        (1, "0 in validation 8", "SIGTERM"),  # of the last epoch
        (1, "0 in validation 11", "SIGTERM"),  # of best.pt
    ],
)
def test_run_saves_and_exits_on_signal_and_resumes_with_same_bits(
    attempt, straight, tmp_path, size, at, by
):
    """Only one process receives the signal. With --save-minutes 0 and --nosave there is no other
    checkpoint.
    """
    assert attempt(size, "broken", *RARE, at=at, by=by) == [128 + getattr(signal, by)] * size
    run = tmp_path / "broken"
    report, saved = (
        json.loads((run / "preempted.json").read_text()),
        checkpoint_file.load(run / "weights" / "last.pt"),
    )
    assert (report["signal"], report["checkpoint"]) == (by, str(run / "weights" / "last.pt"))
    assert (report["epoch"], report["batch"]) == (saved["epoch"] + 1, saved["batch"])
    output = (tmp_path / "io" / "rank0" / "stdout").read_text().splitlines()[-1]
    where = f"saved in epoch {report['epoch']} after batch {report['batch']}"
    assert output == f"{by}: {where}; continue with --resume {report['checkpoint']}"
    assert [(tmp_path / "io" / f"rank{rank}" / "stderr").read_text() for rank in range(size)] == [
        ""
    ] * size
    assert attempt(size, "broken", *RARE) == [0] * size
    assert not (run / "preempted.json").exists()
    assert_same_bits(straight(size), run)


def test_signal_during_evaluation_saves_resumable_checkpoint(attempt, straight, tmp_path):
    """Also with --nosave there is a checkpoint of the epoch and batch in preempted.json."""
    rare = ("--epochs", "3", "--nosave")
    assert attempt(1, "broken", *rare, at="0 after validation 2", by="SIGTERM") == [143]
    saved = checkpoint_file.load(tmp_path / "broken" / "weights" / "last.pt")
    report = json.loads((tmp_path / "broken" / "preempted.json").read_text())
    ended = json.loads((tmp_path / "broken" / "metrics.json").read_text())
    assert (ended["status"], ended["reason"]) == ("interrupted", report["signal"])
    assert (report["epoch"], report["batch"]) == (saved["epoch"] + 1, saved["batch"])
    assert report["epoch"] == 3  # it trains while the second epoch is evaluated
    assert attempt(1, "broken", *rare) == [0]
    assert_same_bits(straight(1), tmp_path / "broken")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["SIGTERM", "SIGUSR1"])
def test_signaled_launcher_leaves_checkpoint_and_no_processes(data, micro_model, tmp_path, number):
    """It forwards SIGTERM to all processes, DataLoader workers included; SIGUSR1 kills it, and its
    processes notice.
    """
    flags = small_run_flags(
        data,
        micro_model,
        tmp_path,
        "--epochs",
        "1000",
        "--save-minutes",
        "0",
        "--workers",
        "2",
        "--noval",
    )
    script = str(ROOT / "tests" / "support" / "launching.py")
    words = ["--nproc_per_node", "2", script, *flags, "--nosave"]
    fault = "tests.test_failures:many_cores"
    with forked_launcher(words, tmp_path / "io", KESTREL_FAULT=fault) as job:
        wait_until(
            lambda: "1/1000 " in job.out or job.process.poll() is not None, 120, "the first epoch"
        )
        assert (
            len(job.running_pids()) >= 7
        )  # the launcher, two processes, two DataLoader workers for each
        job.process.send_signal(number)
        assert job.end(30) != 0
    report = json.loads((tmp_path / "exp" / "preempted.json").read_text())
    saved = checkpoint_file.load(tmp_path / "exp" / "weights" / "last.pt")
    assert (report["signal"], report["epoch"], report["batch"]) == (
        "SIGTERM",
        saved["epoch"] + 1,
        saved["batch"],
    )
    assert saved["epoch"] > 0
    assert not re.search("^error", job.err, re.MULTILINE), job.err


# ---------------------------------------------------------------------- with other flags


def saved_run(folder: Path, *, best: int = 2, done: bool = True, **config: Any) -> dict[str, Any]:
    """The entries of a checkpoint of a run of 3 epochs; also creates the folder of a run that is
    done.
    """
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    write_status(folder, FINISHED if done else RUNNING)
    made: dict[str, Any] = {
        name: kind() for name, kind in ENTRIES.items() if kind is not torch.Tensor
    }
    made |= {"format": FORMAT, "data": "/data/a.yaml", "epoch": 3, "results": [{}, {}, {}]}
    made |= {
        "losses": torch.zeros(1, 4),
        "statistics": torch.zeros(1, 2),
        "best": {"fitness": 0.5, "epoch": best, "latest": 2},
    }
    return made | {"config": TrainConfig().as_dict() | {"epochs": 3} | config}


def open_checkpoint(folder: Path, saved: dict[str, Any]) -> Checkpoint:
    return checked_checkpoint(str(folder / "weights" / "last.pt"), saved)


def resume_flags(folder: Path, **given: Any) -> TrainConfig:
    return TrainConfig(**given, resume=str(folder / "weights" / "last.pt"), given=frozenset(given))


def test_resume_without_flags_keeps_saved_settings(tmp_path):
    saved = saved_run(tmp_path, done=False, epochs=7, optimizer="AdamW", freeze=[1, 2], workers=3)
    cfg, lines = resumed_config(resume_flags(tmp_path), open_checkpoint(tmp_path, saved))
    assert (cfg.epochs, cfg.optimizer, cfg.freeze, cfg.workers, cfg.data) == (
        7,
        "AdamW",
        (1, 2),
        3,
        ("/data/a.yaml",),
    )
    assert lines == []


def test_resume_applies_flags_that_may_change(tmp_path):
    saved = saved_run(tmp_path, done=False, epochs=300, patience=5)
    given = {
        "epochs": 100,
        "patience": 100,
        "batch_size": 8,
        "workers": 0,
        "data": ("/data/b.yaml",),
    }  # some are defaults
    cfg, lines = resumed_config(resume_flags(tmp_path, **given), open_checkpoint(tmp_path, saved))
    assert {name: getattr(cfg, name) for name in given} == given
    assert lines == [
        "--resume changes --batch-size from 16 to 8",
        "--resume changes --data from /data/a.yaml to /data/b.yaml",
        "--resume changes --epochs from 300 to 100",
        "--resume changes --patience from 5 to 100",
        "--resume changes --workers from 8 to 0",
    ]


def test_resume_ignores_flags_that_may_not_change(tmp_path):
    saved = saved_run(tmp_path, done=False, imgsz=320)
    cfg, lines = resumed_config(
        resume_flags(tmp_path, imgsz=640, seed=1, epochs=3, batch_size=-1, project="x"),
        open_checkpoint(tmp_path, saved),
    )
    assert (cfg.imgsz, cfg.seed, cfg.batch_size) == (320, 0, 16)
    assert lines == [
        "--resume keeps the run's own settings; these flags have no effect: --batch-size, --imgsz, "
        "--seed"
    ]


@pytest.mark.parametrize(
    ("given", "made", "sentence"),
    [
        (
            {},
            {},
            "its run is done after 3 epochs; to continue it, raise --epochs or, if it stopped "
            "early, --patience",
        ),
        ({"epochs": 2}, {}, "--epochs 2, but the run has trained 3 epochs"),
        ({"epochs": 9, "patience": 1}, {"best": 1}, "its run is done after 3 epochs"),
        (
            {},
            {"done": False, "config": {"bogus": 1}},
            "its settings (bogus) are unknown to this version of Kestrel",
        ),
        (
            {},
            {"format": 4},
            "(format 4; this one reads 3): resume it with the version that wrote it, or start a",
        ),
        ({}, {"format": None}, "written by another version of Kestrel (no format number"),
        ({}, {"pending": {"time": 1.0}}, "the entries of its pending epoch are incomplete"),
        (
            {},
            {"pending": {"time": 1.0, "losses": {}, "lr": 0.1, "pace": ""}},
            "its counts contradict each other: epochs 3, batches 0, rows of results 3",
        ),
        (
            {},
            {"optimizer": None},
            "contains no training state to resume; fine-tune from it with --weights",
        ),
    ],
)
def test_invalid_resume_is_refused(tmp_path, given, made, sentence):
    own = made.pop("config", {}) | {
        name: made.pop(name) for name in ("best", "done") if name in made
    }
    saved = {
        name: value
        for name, value in (saved_run(tmp_path, **own) | made).items()
        if value is not None
    }
    with pytest.raises(ValueError, match=re.escape(sentence)):
        resumed_config(resume_flags(tmp_path, **given), open_checkpoint(tmp_path, saved))


def test_finished_run_without_metrics_json_can_be_resumed(tmp_path):
    """Killed between its last checkpoint and metrics.json: it can be resumed to write what is
    missing.
    """
    cfg, _ = resumed_config(
        resume_flags(tmp_path), open_checkpoint(tmp_path, saved_run(tmp_path, done=False))
    )
    assert cfg.epochs == 3


def refuse_to_speak(line):
    raise AssertionError(line)


def test_find_last_accepts_newest_folder_or_file(tmp_path):
    for number, name in enumerate(("new", "old", "older")):
        last = tmp_path / name / "weights" / "last.pt"
        last.parent.mkdir(parents=True)
        last.touch()
        os.utime(last, (9 - number, 9 - number))
    (tmp_path / "empty").mkdir()
    assert find_last("newest", tmp_path, refuse_to_speak) == str(
        tmp_path / "new" / "weights" / "last.pt"
    )
    assert find_last(str(tmp_path / "old"), tmp_path, refuse_to_speak) == str(
        tmp_path / "old" / "weights" / "last.pt"
    )
    assert find_last("any/file.pt", tmp_path, refuse_to_speak) == "any/file.pt"
    with pytest.raises(
        ValueError,
        match=r"empty: there is no weights/last\.pt in it; its run has saved nothing yet",
    ):
        find_last(str(tmp_path / "empty"), tmp_path, refuse_to_speak)
    with pytest.raises(
        ValueError, match=r"empty: there is no run with a weights/last\.pt; train first"
    ):
        find_last("newest", tmp_path / "empty", refuse_to_speak)


def test_resume_names_the_run_that_has_saved_nothing_if_there_is_no_other(tmp_path):
    for name, began in (("exp", 10**9), ("exp2", 10**9 + 1)):
        settings = tmp_path / name / "args.yaml"
        settings.parent.mkdir()
        settings.touch()
        os.utime(settings, (began, began))
    with pytest.raises(ValueError) as caught:
        find_last("newest", tmp_path, refuse_to_speak)
    assert str(caught.value) == (
        f"--resume finds nothing to continue under {tmp_path}: {tmp_path / 'exp2'} has saved "
        "nothing yet; "
        "train first, or name a checkpoint"
    )


def test_newer_run_that_has_saved_nothing_is_named(tmp_path):
    """--resume continues an older run, and says so; a link that leads nowhere is no run."""
    last = tmp_path / "exp" / "weights" / "last.pt"
    last.parent.mkdir(parents=True)
    last.touch()
    os.utime(last, (5, 5))
    for name, began in (("before", 4), ("exp", 9), ("exp2", 7), ("exp3", 8)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "args.yaml").touch()
        os.utime(tmp_path / name / "args.yaml", (began, began))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "args.yaml").symlink_to("nowhere")
    said = []
    assert find_last("newest", tmp_path, said.append) == str(last)
    folders = (
        f"{tmp_path / 'exp3'} is newer, but it has saved nothing: --resume continues "
        f"{tmp_path / 'exp'}"
    )
    assert said == [folders]


def test_finished_run_can_be_extended_with_more_epochs(attempt, tmp_path):
    """The learning rate continues on the curve of the new length: here 1 - 0.95 * step / steps."""
    assert attempt(1, "exp", "--epochs", "2") == [0]
    two = rows(tmp_path / "exp")
    assert attempt(1, "exp", "--epochs", "4") == [0]
    four = rows(tmp_path / "exp")
    assert [row["epoch"] for row in four] == ["1", "2", "3", "4"]
    assert four[:2] == two
    # 10 images in batches of 4 are 10 batches in 4 epochs: 2, 3, 2 and 3. The last one of the third
    # epoch is number 6, counted from 0.
    assert float(four[2]["lr"]) == pytest.approx(0.01 * (1 - 0.95 * 6 / 10), rel=1e-5)
    assert (tmp_path / "exp" / "metrics.json").exists()
    assert attempt(1, "exp", "--epochs", "4") == [2]


def test_run_resumes_mid_epoch_with_other_batch_size(resume, killed_run, tmp_path):
    before = checkpoint_file.load(killed_run / "weights" / "last.pt")
    assert resume("--batch", "2", "--workers", "2") == [0]
    output = (tmp_path / "io" / "rank0" / "stdout").read_text()
    assert "--resume changes --batch-size from 4 to 2\n" in output
    assert [row["epoch"] for row in rows(killed_run)] == ["1", "2", "3", "4", "5"]
    after = checkpoint_file.load(killed_run / "weights" / "last.pt")
    decays = [
        {group["weight_decay"] for group in saved["optimizer"]["param_groups"]}
        for saved in (before, after)
    ]
    assert decays[0] == decays[1] == {0.0, 0.0005}  # 4 x 2 and 2 x 4 images per step


@pytest.mark.parametrize("lost", ["best.pt", "of another epoch", "damaged"])
def test_search_for_best_epoch_restarts_if_best_checkpoint_is_unusable(
    resume, killed_run, tmp_path, lost
):
    best = killed_run / "weights" / "best.pt"
    if lost == "best.pt":
        best.unlink()
    elif lost == "damaged":
        best.write_bytes(best.read_bytes()[:1000])
    else:
        checkpoint_file.save(best, checkpoint_file.load(best) | {"epoch": 99})
    assert resume() == [0]
    output = (tmp_path / "io" / "rank0" / "stdout").read_text()
    sentence = (
        r"best\.pt is not from epoch \d, the best so far: the search for the best epoch "
        r"starts again\n"
    )
    assert re.search(sentence, output)
    assert checkpoint_file.load(best)["epoch"] in (4, 5)
    assert (killed_run / "metrics.json").exists()


def test_nosave_run_shortened_on_resume_writes_best_checkpoint(attempt, tmp_path):
    rare = ("--nosave", "--save-minutes", "0")
    assert attempt(1, "exp", "--epochs", "4", *rare, at="0 before a step 6", by="SIGTERM") == [143]
    behind = checkpoint_file.load(tmp_path / "exp" / "weights" / "last.pt")["epoch"]
    assert behind in (1, 2, 3)
    assert attempt(1, "exp", "--epochs", str(behind), *rare) == [0]
    assert checkpoint_file.load(tmp_path / "exp" / "weights" / "best.pt")["epoch"] == behind


def test_run_resumes_mid_epoch_with_fewer_images(resume, killed_run, data, tmp_path):
    """Fewer than the epoch had before it was killed. Also, the changed data are reported."""
    copy = tmp_path / "copy"
    shutil.copytree(data.parent, copy)
    for file in sorted((copy / "images").iterdir())[3:]:
        file.unlink()
    assert resume("--data", str(copy / data.name)) == [0]
    assert [row["epoch"] for row in rows(killed_run)] == ["1", "2", "3", "4", "5"]
    assert_changed_data_reported(copy / data.name, tmp_path)


def assert_changed_data_reported(data: Path, folder: Path) -> None:
    since = f"{data}: since {folder}/exp/weights/last.pt was written the training images"
    assert f"{since} or their labels " in (folder / "io" / "rank0" / "stdout").read_text()


def test_second_run_in_locked_folder_is_refused(resume, killed_run, tmp_path):
    with lock_in_other_process(killed_run):
        assert resume() == [2]
        assert "another run is writing there" in (tmp_path / "io" / "rank0" / "stderr").read_text()
    assert resume() == [0]


@contextmanager
def lock_in_other_process(folder: Path) -> Iterator[None]:
    """Lock a run's folder in another process."""
    imports = "import sys; from pathlib import Path; from utils.files.disk import lock_folder"
    words = f"{imports}; held = lock_folder(Path(sys.argv[1]))"
    command = [
        sys.executable,
        "-c",
        f"{words}; print(1, flush=True); sys.stdin.read()",
        str(folder),
    ]
    with subprocess.Popen(command, stdin=-1, stdout=-1, cwd=ROOT) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.kill()


def test_resume_reports_changed_training_data(resume, data, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(data.parent, copy)
    (copy / "labels" / "01.txt").write_text("0 0.5 0.5 0.25 0.25\n")
    assert resume("--data", str(copy / data.name)) == [0]
    assert_changed_data_reported(copy / data.name, tmp_path)


# --------------------------------------------------------------------- checkpoints with any content


@pytest.fixture(scope="module")
def stopped_run(data: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped in its second epoch."""
    folder = tmp_path_factory.mktemp("stopped_run")
    words = [
        *small_run_flags(data, micro_model, folder),
        "--epochs",
        "3",
        "--batch",
        "4",
        "--save-minutes",
        "1e-9",
    ]
    with pytest.MonkeyPatch.context() as patch:
        many_steps_here(patch)
        stop_before_step(4, patch)
        with pytest.raises(KeyboardInterrupt):
            train.main(train.parse_args(words)[0], SINGLE_PROCESS)
    return folder / "exp"


def many_steps_here(patch: pytest.MonkeyPatch) -> None:
    for name, value in OF_EIGHT.items():
        patch.setattr(GlobalBatch, name, value)


def stop_before_step(number: int, patch: pytest.MonkeyPatch) -> None:
    """Have the number-th optimizer step raise KeyboardInterrupt instead."""
    real, left = state.TrainState.step, iter(range(1, number))

    def step(self: state.TrainState[Any]) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(self)

    patch.setattr(state.TrainState, "step", step)


def set_entry(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A function that replaces the entry at a path of a checkpoint; the value "" removes it."""

    def change(state: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for name in parents:
            state = state[int(name) if name.isdecimal() else name]
        if isinstance(value, str) and not value:
            del state[last]
        else:
            state[last] = value

    return change


NAN = torch.tensor([float("nan")])
INVALID_ENTRIES = [
    *((name, value) for name in ENTRIES for value in ("", torch.zeros(2))),
    *(("epoch", value) for value in (-3, 0, 2, 10**9, True)),
    *(("batch", value) for value in (-1, 1 << 50, 2.5)),
    *(
        (f"config.{name}", value)
        for name, value in (("epochs", "9"), ("patience", None), ("freeze", 3), ("lr", 1))
    ),
    *(
        (f"config.{name}", value)
        for name, value in (("batch_size", 0), ("epochs", torch.zeros(1)), ("imgsz", 10**9))
    ),
    *((f"hyp.{name}", value) for name, value in (("lr0", "x"), ("bogus", 1.0), ("box", NAN))),
    *((f"best.{name}", value) for name, value in (("epoch", ""), ("fitness", "x"), ("epoch", "x"))),
    *(
        (f"table.{name}", value)
        for name, value in (("nc", 3_000_000), ("width_multiple", 8.0), ("backbone", 3))
    ),
    *(
        (f"{part}.layers.0.conv.weight", v)
        for part in ("model", "ema")
        for v in ("", torch.zeros(1), "x")
    ),
    ("optimizer.state", {0: {"momentum_buffer": torch.zeros(99)}}),
    ("optimizer.state", {10**6: {"momentum_buffer": torch.zeros(1)}}),
    ("optimizer.param_groups", []),
    ("optimizer", {}),
    ("statistics", torch.zeros(0, 3)),
    ("statistics", torch.zeros(1, 3)),
    ("statistics", torch.zeros(1)),
    ("losses", torch.zeros(1, 99)),
    ("losses", torch.full((1, 4), float("nan"))),
    ("random", {"cpu": torch.zeros(3)}),
    ("random.cpu", torch.zeros(3, dtype=torch.uint8)),
    ("guard", {"skipped": "x"}),
    ("results", [{"epoch": 1}, {"other": 2}]),
    ("results", []),
    ("names", ["blue", "green\n", "red"]),
]


@pytest.mark.parametrize(
    ("where", "value"), INVALID_ENTRIES, ids=lambda v: v if isinstance(v, str) else type(v).__name__
)
def test_invalid_checkpoint_entry_gives_one_line_error(stopped_run, monkeypatch, where, value):
    """The error is one sentence with the checkpoint's path, and the run's folder does not
    change.
    """
    many_steps_here(monkeypatch)
    last, kept = (
        stopped_run / "weights" / "last.pt",
        (stopped_run / "weights" / "last.pt").read_bytes(),
    )
    state = checkpoint_file.load(last)
    if "layers" in where:
        part, _, name = where.partition(".")
        state[part] |= {name: value}
        if isinstance(value, str) and not value:
            del state[part][name]
    else:
        set_entry(where, value)(state)
    try:
        checkpoint_file.save(last, state)
        before = {file: file.read_bytes() for file in stopped_run.rglob("*") if file.is_file()}
        cfg, _ = train.parse_args(["--resume", str(stopped_run), "--workers", "0"])
        with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
            train.main(cfg, SINGLE_PROCESS)
        assert str(last) in str(refused.value)
        assert {
            file: file.read_bytes() for file in stopped_run.rglob("*") if file.is_file()
        } == before
    finally:
        last.write_bytes(kept)
