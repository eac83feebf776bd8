"""Run folders, atomic file writes, progress bars, and the events of a run."""

import io
import json
import math
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from utils.files.folders import new_run_folder
from utils.files.writers import write_csv, write_json, write_text, write_yaml
from utils.log import (
    EpochEnded,
    Event,
    ImageWritten,
    Message,
    RunEnded,
    RunLog,
    RunStarted,
)
from utils.loggers.terminal_lines import wrap_groups
from utils.progress_bar import ProgressBar, _Bar


def test_run_folders_are_numbered(tmp_path):
    made = [new_run_folder(tmp_path / "runs" / "train", "exp", False) for _ in range(3)]
    assert [folder.name for folder in made] == ["exp", "exp2", "exp3"]
    assert all(folder.is_dir() for folder in made)
    shutil.rmtree(made[1])
    assert new_run_folder(tmp_path / "runs" / "train", "exp", False).name == "exp2"
    assert (
        new_run_folder(tmp_path / "runs" / "train", "a/b", False)
        == tmp_path / "runs" / "train" / "a" / "b"
    )


def test_concurrent_runs_get_distinct_folders(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_run_folder(tmp_path, "exp", False).name, range(64)))
    assert sorted(made) == sorted(["exp", *(f"exp{n}" for n in range(2, 65))])


def test_exist_ok_reuses_run_folder(tmp_path):
    assert (
        new_run_folder(tmp_path, "exp", True)
        == new_run_folder(tmp_path, "exp", True)
        == tmp_path / "exp"
    )
    assert [folder.name for folder in tmp_path.iterdir()] == ["exp"]


def test_file_at_run_folder_path_is_refused_or_avoided(tmp_path):
    (tmp_path / "exp").touch()
    with pytest.raises(
        ValueError,
        match=r"exp: the run folder cannot be created \(File exists\); --project",
    ):
        new_run_folder(tmp_path, "exp", True)
    assert new_run_folder(tmp_path, "exp", False).name == "exp2"
    with pytest.raises(ValueError, match="the run folder cannot be created"):
        new_run_folder(tmp_path / "exp", "exp", False)


def test_project_with_dangling_symlink_is_refused(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted")
    with pytest.raises(ValueError, match="the run folder cannot be created"):
        new_run_folder(tmp_path / "runs", "exp", False)


def test_too_long_run_name_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"the run folder cannot be created \(File name too long\)"
    ):
        new_run_folder(tmp_path, "x" * 300, False)


# ---------------------------------------------------------------------- files


def test_write_csv_writes_expected_bytes(tmp_path):
    rows = [
        {"epoch": 1, "time": 12.3456789, "metrics/mAP_0.5:0.95": 0.0, "lr": 1e-5},
        {"epoch": 2, "time": 1e6, "metrics/mAP_0.5:0.95": float("nan"), "lr": 0.01},
    ]
    write_csv(tmp_path / "results.csv", rows)
    assert (tmp_path / "results.csv").read_bytes() == (
        b"epoch,time,metrics/mAP_0.5:0.95,lr\n1,12.3457,0,1e-05\n2,1e+06,nan,0.01\n"
    )


def test_run_log_writes_results_csv(tmp_path):
    rows = [{"epoch": 1, "lr": 0.5}, {"epoch": 2, "lr": 0.25}]
    log = RunLog(active=True)
    log.send(RunStarted(tmp_path, {}, {}, rows[:1]))
    assert (tmp_path / "results.csv").read_text() == "epoch,lr\n1,0.5\n"
    log.send(EpochEnded(tmp_path, rows[1], rows, "2/2  box 0.1"))
    assert (tmp_path / "results.csv").read_bytes() == b"epoch,lr\n1,0.5\n2,0.25\n"
    assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]


def test_inactive_log_prints_and_writes_nothing(tmp_path, capsys):
    log = RunLog(active=False)
    log.say("hello")
    log.send(EpochEnded(tmp_path, {"epoch": 1}, [{"epoch": 1}], "1/1"))
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""
    RunLog(active=True).say("hello")
    assert capsys.readouterr().out == "hello\n"


def test_csv_without_rows_is_one_newline(tmp_path):
    write_csv(tmp_path / "a.csv", [])
    assert (tmp_path / "a.csv").read_bytes() == b"\n"


def test_yaml_and_json_round_trip(tmp_path):
    values = {"b": 1, "a": [1.5, None, True], "name": "Füchse: ja"}
    write_yaml(tmp_path / "a.yaml", values)
    assert (tmp_path / "a.yaml").read_text(encoding="utf-8").startswith("b: 1\na:")
    assert yaml.safe_load((tmp_path / "a.yaml").read_text(encoding="utf-8")) == values
    write_json(tmp_path / "a.json", values)
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == values


def test_json_writes_nan_and_infinity_as_null(tmp_path):
    def refuse(word: str) -> None:
        raise AssertionError(word)

    write_json(tmp_path / "a.json", {"a": [math.nan, {"b": math.inf}], "c": (1.0,)})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text, parse_constant=refuse) == {"a": [None, {"b": None}], "c": [1.0]}


def test_readers_never_see_a_partial_file(tmp_path):
    file = tmp_path / "a.txt"
    write_text(file, "0" * 100_000)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [write_text(file, str(n % 10) * 100_000) for n in range(50)])
        while not writing.done():
            text = file.read_text()
            assert len(text) == 100_000
            assert len(set(text)) == 1
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]


def test_failed_text_write_keeps_old_file(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    write_text(file, "old")

    def fail(*_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_text(file, "new")
    assert file.read_text() == "old"
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (60, ["1/3  box 0.0822 obj 0.0085  P 0.0004 R 0.0417", "     7.0 img/s, 0:00:05 left"]),
        (
            44,
            [
                "1/3  box 0.0822 obj 0.0085",
                "     P 0.0004 R 0.0417",
                "     7.0 img/s, 0:00:05 left",
            ],
        ),
        (80, ["1/3  box 0.0822 obj 0.0085  P 0.0004 R 0.0417  7.0 img/s, 0:00:05 left"]),
        (
            9,
            [
                "1/3",
                "     box 0.0822 obj 0.0085",
                "     P 0.0004 R 0.0417",
                "     7.0 img/s, 0:00:05 left",
            ],
        ),
    ],
)
def test_epoch_line_is_wrapped_between_its_groups(width, lines):
    text = "1/3  box 0.0822 obj 0.0085  P 0.0004 R 0.0417  7.0 img/s, 0:00:05 left"
    assert wrap_groups(text, width) == "\n".join(lines)
    assert wrap_groups(f"  {text}", width + 2).splitlines()[0] == f"  {lines[0]}"


# ---------------------------------------------------------------------- progress


def test_progress_measures_waiting_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def slow_batches():
        for n in range(3):
            clock[0] += 4
            yield n

    progress = ProgressBar(slow_batches(), total=3, title="1/3", active=True)
    seen = []
    for batch in progress:
        clock[0] += 2
        seen.append(batch)
        progress.show(["box 0.1"])
    assert seen == [0, 1, 2]
    assert (progress.waited, progress.seconds) == (12, 18)
    assert progress.wait_share == 12 / 18


@pytest.mark.parametrize("active", [True, False])
def test_progress_prints_nothing_into_a_pipe(capsys, active):
    assert list(ProgressBar([1, 2], total=2, title="a", active=active)) == [1, 2]
    assert capsys.readouterr() == ("", "")


TEXTS = ["box 0.0822", "obj 0.0085", "cls 0.0261", "20.1 img/s", "18% waiting for data", "0.8 GiB"]


@pytest.mark.parametrize("columns", range(45, 161, 5))
def test_bar_shows_whole_texts_only(columns):
    """It leaves out the last ones, where tqdm would cut the line in the middle of a number."""
    bar = _Bar(total=1250, desc="100/100", ncols=columns, file=io.StringIO())
    bar.n = 1249
    bar.texts = TEXTS
    line = str(bar)
    assert len(line) <= columns
    assert line.endswith("]")
    shown = line.rpartition("<")[2].rstrip("]").split(", ")[1:]
    assert shown == TEXTS[: len(shown)]


def test_bar_of_80_columns_shows_the_losses():
    bar = _Bar(total=100, desc="1/3", ncols=80, file=io.StringIO())
    bar.texts = TEXTS
    assert "box 0.0822, obj 0.0085, cls 0.0261" in str(bar)


def test_progress_of_empty_iterable():
    progress = ProgressBar([], total=0, title="a", active=True)
    assert list(progress) == []
    assert 0 <= progress.wait_share <= 1


class EventRecorder:
    """A sink that stores all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)


def test_sinks_receive_all_events_in_order(tmp_path):
    first, second = EventRecorder(), EventRecorder()
    log = RunLog(active=True, sinks=[first, second])
    log.say("a", "b")
    log.table("x\ny")
    log.image_written(tmp_path / "labels.png")
    log.send(RunEnded(tmp_path, {"best": {}}))
    assert first.events == second.events
    assert first.events == [
        Message("a"),
        Message("b"),
        Message("x\ny", table=True),
        ImageWritten(tmp_path / "labels.png"),
        RunEnded(tmp_path, {"best": {}}),
    ]


def test_inactive_log_sends_no_events(tmp_path):
    sink = EventRecorder()
    log = RunLog(active=False, sinks=[sink])
    log.say("a")
    log.image_written(tmp_path)
    assert sink.events == []


def test_sink_error_is_raised(tmp_path):
    class Full(EventRecorder):
        def handle(self, event: Event) -> None:
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        RunLog(active=True, sinks=[Full()]).say("a")


def test_sink_can_log(tmp_path):
    class Chatty(EventRecorder):
        def handle(self, event: Event) -> None:
            super().handle(event)
            if isinstance(event, RunEnded):
                log.say("uploaded")

    log = RunLog(active=True, sinks=[sink := Chatty()])
    log.send(RunEnded(tmp_path, {}))
    assert sink.events == [RunEnded(tmp_path, {}), Message("uploaded")]
