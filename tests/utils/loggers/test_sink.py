"""Loggers get what a checkpoint holds, once, and can neither end nor delay a run."""

import json
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.logged_run import NAMES, evaluation
from utils.log import (
    EpochEnded,
    EvaluationEnded,
    ImageWritten,
    LogClosed,
    RunEnded,
    RunLog,
    RunStarted,
    StepsEnded,
)
from utils.loggers import sink as sink_module
from utils.loggers.base import EPOCH, EVALUATION, PICTURE, STEPS, LoggedRun, Logger, Record
from utils.loggers.journal import Journal, JournalReader, clear_journal, keep_records, last_saved
from utils.loggers.sink import Loggers
from utils.metrics.fitness import parse_fitness
from utils.terminal import quiet_output

ROOT = Path(__file__).parents[3]


def record(number: int, kind: str = STEPS, *, epoch: int = 1, **more: Any) -> Record:
    return Record(number, kind, 1.5, step=number + 1, epoch=epoch, values={"a": number}, **more)


class Recorder(Logger):
    """Keeps what it gets. known: how many records it says it has."""

    title = "Recorder"
    help = ""
    known = 0

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.status = ""

    def start(self, run: LoggedRun) -> int:
        self.run = run
        return self.known

    def log(self, records: Sequence[Record]) -> None:
        self.records += records

    def finish(self, status: str) -> None:
        self.status = status


class Failing(Recorder):
    """Fails at its second record."""

    title = "Failing"

    def log(self, records: Sequence[Record]) -> None:
        for entry in records:
            if self.records:
                raise RuntimeError("the server\nhttps://me:secret@host is down")
            self.records.append(entry)


class Blocking(Recorder):
    """Blocks at its first record."""

    title = "Blocking"

    def log(self, records: Sequence[Record]) -> None:
        threading.Event().wait()


class Session:
    """A run's events, its loggers by title, and the sentences for the user."""

    def __init__(self, folder: Path, *kinds: type[Recorder], **started: Any) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.made: dict[str, Recorder] = {}

        def factory(kind: type[Recorder]) -> Callable[[], Logger]:
            return lambda: self.made.setdefault(kind.title, kind())

        self.loggers = Loggers({kind.title: factory(kind) for kind in kinds}, self.said.append)
        rows = started.pop("rows", [])
        self.send(RunStarted(folder, {"epochs": 2}, {"lr0": 0.1}, rows, **started))

    def send(self, *events: Any) -> None:
        for event in events:
            self.loggers.handle(event)

    def steps(self, *numbers: int) -> None:
        for step in numbers:
            self.send(StepsEnded(step, 1, {"box": step / 2}, lr=0.1))

    def end_epoch(self, epoch: int) -> None:
        row = {"epoch": epoch, "time": 4.0, "val/box_loss": float("nan")}
        self.send(EpochEnded(self.folder, row, [row], ""))

    def save(self) -> int:
        recorded = self.loggers.recorded(0)
        self.loggers.checkpoint_written(recorded)
        return recorded

    def wait(self) -> None:
        for follower in self.loggers._followers:
            assert follower.wait_until_sent(10)

    def steps_of(self, title: str = "Recorder") -> list[int]:
        self.wait()
        return [entry.step for entry in self.made[title].records if entry.kind == STEPS]


# ---------------------------------------------------------------------- what loggers get


def test_logger_gets_records_once_a_checkpoint_holds_them(tmp_path):
    run = Session(tmp_path, Recorder, images=8)
    run.steps(1, 2)
    assert run.steps_of() == [1, 2]  # nothing can be resumed before the first checkpoint
    run.save()
    run.steps(3)
    run.end_epoch(1)
    assert run.steps_of() == [1, 2]
    run.save()
    assert run.steps_of() == [1, 2, 3]
    run.send(RunEnded(tmp_path, {}), LogClosed("finished"))

    logger = run.made["Recorder"]
    assert (logger.status, run.said) == ("finished", [])
    assert [entry.number for entry in logger.records] == [0, 1, 2, 3]
    assert logger.records[0].values == {"step/box_loss": 0.5, "step/lr": 0.1}
    assert logger.records[3].values == {"time": 4.0, "images/s": 2.0}  # without nan
    assert (logger.records[3].kind, logger.records[3].epoch) == (EPOCH, 1)


def test_resumed_run_replaces_steps_that_no_checkpoint_holds(tmp_path):
    run = Session(tmp_path, Recorder)
    run.steps(1, 2)
    recorded = run.save()
    run.steps(3, 4)  # lost

    resumed = Session(tmp_path, Recorder, recorded=recorded, step=2)
    resumed.steps(3)
    assert resumed.steps_of() == [1, 2]
    resumed.save()
    assert resumed.steps_of() == [1, 2, 3]
    assert not resumed.made["Recorder"].run.restarts


def test_logger_is_not_sent_what_it_has(tmp_path):
    class Knowing(Recorder):
        known = 2

    run = Session(tmp_path, Recorder)
    run.steps(1, 2, 3)
    resumed = Session(tmp_path, Knowing, recorded=run.save(), step=3)
    assert resumed.steps_of() == [3]
    assert resumed.made["Recorder"].run.recorded == 3


def test_epochs_before_a_logger_was_on_are_recorded_at_the_resume(tmp_path):
    rows = [{"epoch": 1, "time": 1.0}, {"epoch": 2, "time": 2.0}]
    run = Session(tmp_path, Recorder, recorded=0, rows=rows, step=8)
    run.wait()
    assert [(r.epoch, r.values["time"]) for r in run.made["Recorder"].records] == [(1, 1), (2, 2)]


def test_no_step_comes_twice_after_the_batch_size_has_changed(tmp_path):
    """8 batches of 4 images are 4 batches of 8: the next one is the fifth, but 5 is taken."""
    run = Session(tmp_path, Recorder)
    run.steps(*range(1, 9))
    resumed = Session(tmp_path, Recorder, recorded=run.save(), step=4)
    resumed.steps(5, 6)
    resumed.save()
    assert resumed.steps_of() == [*range(1, 9), 9, 10]


def test_older_checkpoint_lets_loggers_begin_anew(tmp_path):
    run = Session(tmp_path, Recorder)
    run.steps(1, 2)
    older = run.save()
    run.steps(3)
    run.save()
    resumed = Session(tmp_path, Recorder, recorded=older, step=2)
    assert resumed.steps_of() == [1, 2]
    assert resumed.made["Recorder"].run.restarts


def test_picture_is_recorded_again_only_if_it_has_changed(tmp_path):
    picture = tmp_path / "labels.png"
    picture.write_bytes(b"one")
    run = Session(tmp_path, Recorder)
    run.send(ImageWritten(picture), ImageWritten(picture))
    resumed = Session(tmp_path, Recorder, recorded=run.save())
    resumed.send(ImageWritten(picture))
    picture.write_bytes(b"two")
    resumed.send(ImageWritten(picture))
    resumed.save()
    resumed.wait()
    assert [entry.file for entry in resumed.made["Recorder"].records] == ["labels.png"] * 2


def test_picture_that_somebody_has_removed_is_left_out(tmp_path):
    run = Session(tmp_path, Recorder)
    run.send(ImageWritten(tmp_path / "labels.png"))
    run.steps(1)
    assert run.steps_of() == [1]


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "link.png", ".", "gone.png"])
def test_records_of_a_folder_name_no_file_outside(tmp_path, name):
    """Of a run folder that somebody else has made."""
    folder = tmp_path / "exp"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(b"")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "labels.png").write_bytes(b"")
    run = Session(folder, Recorder)
    run.wait()
    logged = run.made["Recorder"].run
    assert logged.picture(record(0, PICTURE, file=name)) is None
    assert logged.picture(record(0, PICTURE, file="labels.png")) == folder / "labels.png"


@pytest.mark.parametrize("saved", [False, True])
def test_new_run_forgets_the_journal_of_an_earlier_one(tmp_path, saved):
    """If that had no checkpoint, a launcher has started it again."""
    earlier = Session(tmp_path, Recorder)
    earlier.steps(1)
    if saved:
        earlier.save()
    run = Session(tmp_path, Recorder)
    assert run.steps_of() == []
    logged = run.made["Recorder"].run
    assert (logged.resumed, logged.restarts) == (not saved, not saved)


def test_evaluation_has_the_fitness_of_the_run(tmp_path):
    run, found = Session(tmp_path, Recorder), evaluation()
    own = parse_fitness("AR100 + 1")
    run.send(EvaluationEnded(tmp_path, found, NAMES, fitness=own), RunEnded(tmp_path, {}))
    run.wait()
    values = run.made["Recorder"].records[0].values
    assert values["evaluation/fitness"] == found.coco.stats["AR100"] + 1


def test_without_loggers_nothing_is_written(tmp_path):
    run = Session(tmp_path)
    run.steps(1)
    assert run.loggers.recorded(7) == 7
    run.send(LogClosed("finished"))
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- failures


def test_failing_logger_is_left_out_with_one_warning(tmp_path):
    run = Session(tmp_path, Failing, Recorder)
    run.steps(1, 2)
    run.wait()
    run.steps(3)
    run.send(RunEnded(tmp_path, {}), LogClosed("finished"))
    assert run.said == [
        "Failing: RuntimeError: the server https://host is down; it is left out from here on; the "
        "run goes on without it"
    ]
    assert run.steps_of() == [1, 2, 3]


def test_warning_is_shown_with_quiet(tmp_path, capsys):
    with quiet_output(True), RunLog(active=True) as log:
        log.say("a line")
        loggers = Loggers({"failing": Failing}, log.say, warn=log.warn)
        log.attach(loggers)
        log.send(RunStarted(tmp_path, {}, {}, []))
        for step in (1, 2):
            log.send(StepsEnded(step, 1, {}, lr=0.1))
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("Failing: RuntimeError: the server https://host is down; it ")
    assert len(written.err.splitlines()) == 1


@pytest.mark.parametrize("failing", [True, False])
def test_the_end_does_not_wait_for_a_logger_that_fails_there(tmp_path, failing):
    """Its thread never ends."""

    class AtTheEnd(Recorder):
        def finish(self, status: str) -> None:
            if failing:
                raise RuntimeError("the server is down")

    loggers = Loggers({"end": AtTheEnd}, lambda _: None)
    loggers.handle(RunStarted(tmp_path, {}, {}, []))
    (follower,) = loggers._followers
    follower.finish("finished")
    assert follower.join(60)
    assert follower.failure == ("RuntimeError: the server is down" if failing else "")
    loggers.handle(LogClosed("finished"))


def test_logger_that_cannot_open_its_run_is_left_out(tmp_path):
    class Closed(Recorder):
        title = "Closed"

        def start(self, run: LoggedRun) -> int:
            raise OSError(28, "No space left on device")

    run = Session(tmp_path, Closed)
    run.wait()
    run.steps(1)
    run.send(LogClosed("failed"))
    assert len(run.said) == 1
    assert run.said[0].startswith("Closed: OSError: [Errno 28] No space left on device; it is left")


def test_blocking_logger_delays_no_step_and_the_end_for_a_limited_time(tmp_path, monkeypatch):
    monkeypatch.setenv("KESTREL_LOGGER_WAIT", "2")
    monkeypatch.setattr(sink_module, "QUIET_S", 0.5)
    run = Session(tmp_path, Blocking, Recorder)
    began = time.monotonic()
    run.steps(*range(1, 200))
    run.save()
    assert time.monotonic() - began < 5
    assert run.said == []

    began = time.monotonic()
    run.send(RunEnded(tmp_path, {}), LogClosed("finished"))
    assert 2 <= time.monotonic() - began < 10
    assert run.said == [
        "waiting for Blocking: at most 2 s",
        "Blocking: was not done 2 s after the end (KESTREL_LOGGER_WAIT sets another limit); "
        "it is left out from here on; the run goes on without it",
    ]
    assert len(run.made["Recorder"].records) == 199
    assert run.made["Recorder"].status == "finished"


def test_blocking_logger_is_left_out_during_a_long_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sink_module, "HANGS_S", 0.01)
    run = Session(tmp_path, Blocking)
    run.steps(1)
    deadline = time.monotonic() + 10
    while not run.said and time.monotonic() < deadline:
        time.sleep(0.02)
        run.steps(2)
    run.steps(3)
    assert [said.partition(";")[0] for said in run.said] == [
        "Blocking: has not answered for 0.01 s"
    ]


def test_records_that_cannot_be_written_do_not_end_the_run(tmp_path):
    run = Session(tmp_path, Recorder)
    run.wait()
    run.loggers._journal.close()
    run.steps(1, 2)
    run.save()
    run.send(LogClosed("finished"))
    reason, warning = run.said
    assert reason.startswith("the records of the loggers cannot be written (")
    assert warning.startswith("Recorder: gets no records; it is left out from here on")


BLOCKED_EXIT = """
import atexit, sys, threading
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.utils.loggers.test_sink import Blocking, Session
from utils.log import LogClosed
from utils.terminal import run_and_exit

def run():
    atexit.register(threading.Event().wait)  # as the library of a logger may do
    session = Session(Path({folder!r}), Blocking)
    session.steps(1)
    session.send(LogClosed("finished"))
    print(session.said[0])

run_and_exit(run)
"""


@pytest.mark.slow
def test_process_ends_although_a_logger_blocks_at_exit(tmp_path, monkeypatch):
    monkeypatch.setenv("KESTREL_LOGGER_WAIT", "0.3")
    code = BLOCKED_EXIT.format(root=str(ROOT), folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Blocking: was not done 0.3 s after the end")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "finished"),
        (KeyboardInterrupt, "interrupted"),
        (SystemExit, "interrupted"),
        (ValueError, "failed"),
    ],
)
def test_log_says_how_the_run_has_ended(error, status):
    events = []

    class Keeper:
        handle = staticmethod(events.append)

    raised = pytest.raises(error) if error else nullcontext()
    with raised, RunLog(active=True, sinks=[Keeper()]):
        if error:
            raise error
    assert [event.status for event in events] == [status]


# ---------------------------------------------------------------------- the journal


def write(file: Path, records: Sequence[Record], saved: int) -> None:
    journal = Journal(file, 0)
    for entry in records:
        journal.append(entry)
    journal.mark_saved(saved)
    journal.close()


def all_records(file: Path) -> list[Record]:
    """The records that are in a file before the first damaged line."""
    whole = keep_records(file, 10**9, epochs=0)
    reader = JournalReader(file)
    records = reader.next_records(whole.count, most=10**9)
    reader.close()
    return records


def test_journal_round_trip(tmp_path):
    file = tmp_path / "a.jsonl"
    records = [record(0), record(1, PICTURE, file="ü.png", digest="ab"), record(2, EPOCH)]
    write(file, records, saved=2)
    assert (last_saved(file), last_saved(tmp_path / "none")) == (2, 0)
    assert all_records(file) == records
    assert all_records(tmp_path / "none") == []

    reader = JournalReader(file)
    assert reader.next_records(2, most=1) == records[:1]
    assert reader.next_records(3, most=9) == records[1:]
    assert reader.next_records(3, most=9) == []


@pytest.mark.parametrize(
    "torn",
    [
        '{"kind": "st',
        '{"kind": "steps"',
        "\x00\x00\n",
        "{}\n",
        "[1]\n",
        # of somebody else
        '"a"\n',
        "[" * 100_000 + "\n",
        '{"saved": Infinity}\n',
        '{"kind": "epoch", "time": 1, "step": "2", "epoch": 1}\n',
        '{"kind": "epoch", "time": 1, "step": 2, "epoch": 1, "values": {"a": "b"}}\n',
        '{"kind": "picture", "time": 1, "step": 2, "epoch": 1, "file": []}\n',
    ],
    ids=range(11),
)
def test_journal_ends_before_a_torn_line(tmp_path, torn):
    file = tmp_path / "a.jsonl"
    write(file, [record(0)], saved=1)
    with open(file, "a") as stream:
        stream.write(torn)
    assert last_saved(file) == 1
    assert all_records(file) == [record(0)]


@pytest.mark.parametrize(
    ("kinds", "saved", "covered", "kept", "restarts"),
    [
        ([STEPS, STEPS, EPOCH], 0, 2, [0, 1], False),
        # killed between the checkpoint and the line that says so
        ([STEPS, STEPS, STEPS], 1, 2, [0, 1], False),
        # finished, then continued: evaluation and pictures stay
        ([STEPS, EVALUATION, PICTURE], 3, 1, [0, 1, 2], False),
        # killed before the end: the evaluation comes again
        ([STEPS, EVALUATION, PICTURE], 1, 1, [0, 2], False),
        # an older checkpoint: what loggers have is taken back
        ([STEPS, STEPS, EVALUATION], 3, 1, [0], True),
        ([], 0, 0, [], False),
        # damaged, or gone: loggers may have more than it
        ([], 0, 5, [], True),
        ([STEPS, STEPS], 2, 5, [0, 1], True),
    ],
)
def test_records_that_a_resumed_run_keeps(tmp_path, kinds, saved, covered, kept, restarts):
    file = tmp_path / "a.jsonl"
    write(file, [record(number, kind) for number, kind in enumerate(kinds)], saved)
    found = keep_records(file, covered, epochs=1)
    assert found.restarts == restarts
    assert found.count == len(kept)
    records = all_records(file)
    assert [entry.values["a"] for entry in records] == kept
    assert [entry.number for entry in records] == list(range(len(kept)))
    assert found.last_step == max([entry.step for entry in records], default=0)
    assert found.evaluated == {entry.epoch for entry in records if entry.kind == EVALUATION}
    assert found.epochs == {entry.epoch for entry in records if entry.kind == EPOCH}
    assert found.pictures == {
        (entry.file, entry.digest) for entry in records if entry.kind == PICTURE
    }


@pytest.mark.slow
def test_a_long_journal_is_not_held_in_memory(tmp_path):
    """20,000 records are 2 MB of text, and were 34 MB as objects."""
    file = tmp_path / "a.jsonl"
    line = '{"kind": "steps", "time": 1.5, "step": 7, "epoch": 1, "values": {"a": 1.0, "b": 2.0}}\n'
    file.write_text(line * 20_000 + '{"saved": 20000}\n')
    tracemalloc.start()
    found = keep_records(file, 20_000, epochs=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.count, found.last_step) == (20_000, 7)
    assert peak < 2**20


def test_a_new_run_empties_the_journal_of_an_earlier_start(tmp_path):
    file = tmp_path / "a.jsonl"
    for saved, restarts in ((0, True), (1, False)):
        write(file, [record(0)], saved)
        assert clear_journal(file).restarts == restarts
        assert file.read_bytes() == b""
    assert not clear_journal(tmp_path / "none").restarts


def test_notes_of_a_logger_survive_and_damage_is_ignored(tmp_path):
    run = Session(tmp_path, Recorder)
    run.wait()
    notes = run.made["Recorder"].run
    assert notes.kept() == {}
    notes.keep(id="a1")
    assert json.loads((tmp_path / "loggers" / "Recorder.json").read_text()) == {"id": "a1"}
    assert notes.kept() == {"id": "a1"}
    notes.notes.write_text("[")
    assert notes.kept() == {}
