"""The status in metrics.json: running, finished, interrupted or failed with the reason."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from training.checkpoints.preemption import PreemptedExit
from training.checkpoints.status import RUNNING, RunStatus, is_done, write_status
from training.nonfinite import NonFiniteError
from training.progress import RunProgress
from utils.log import FINISHED, Event, LogClosed, RunEnded, RunLog
from utils.terminal import EndedBySignalError


class Progress(RunProgress):
    """Of a run whose last validated epoch has this AP."""

    def __init__(self) -> None:
        self.metrics = {"AP": 0.5}


def end_with(folder: Path, error: BaseException | None, *, active: bool = True) -> None:
    log = RunLog(active=active)
    log.attach(RunStatus(folder, Progress()))
    with suppress(BaseException), log:
        if error:
            raise error


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (KeyboardInterrupt(), "interrupted", "SIGINT"),
        (EndedBySignalError(15), "interrupted", "SIGTERM"),
        (PreemptedExit(128 + 10), "interrupted", "SIGUSR1"),
        (ValueError("lr0 is\n nan"), "failed", "lr0 is nan"),
        (RuntimeError(), "failed", "RuntimeError"),
    ],
)
def test_the_end_of_a_run_is_recorded_with_its_reason(tmp_path, error, status, reason):
    write_status(tmp_path, RUNNING)
    end_with(tmp_path, error)
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written == {"status": status, "reason": reason, "last": {"AP": 0.5}}
    assert not is_done(tmp_path)


def test_nothing_is_recorded_by_other_ranks_or_without_an_error(tmp_path):
    end_with(tmp_path, ValueError("a"), active=False)
    end_with(tmp_path, None)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_hides_no_error(tmp_path):
    end_with(tmp_path / "gone", ValueError("a"))


def test_a_finished_run_stays_finished(tmp_path):
    write_status(tmp_path, FINISHED, best={})
    end_with(tmp_path, KeyboardInterrupt())
    assert is_done(tmp_path)


def test_a_run_that_fails_after_its_evaluation_keeps_all_metrics(tmp_path):
    metrics = {"last": {"AP": 0.5}, "best": {"AP": 0.75, "epoch": 3}}
    log = RunLog(active=True, sinks=[RunStatus(tmp_path, Progress())])
    with suppress(NonFiniteError), log:
        log.send(RunEnded(tmp_path, metrics))
        raise NonFiniteError("most steps were skipped")
    written = json.loads((tmp_path / "metrics.json").read_text())
    assert written == {"status": "failed", "reason": "most steps were skipped", **metrics}


def test_the_status_is_written_before_slow_loggers_are_waited_for(tmp_path):
    class Slow:
        def handle(self, event: Event) -> None:
            if isinstance(event, LogClosed):
                raise KeyboardInterrupt  # while it waits

    log = RunLog(active=True, sinks=[Slow(), RunStatus(tmp_path, Progress())])
    with pytest.raises(KeyboardInterrupt), log:
        raise ValueError("a")
    assert json.loads((tmp_path / "metrics.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("text", ["", "[]", '{"status": "running"}', "{}", '"finished"', "\xff"])
def test_a_run_without_the_status_finished_is_not_done(tmp_path, text):
    assert not is_done(tmp_path)
    (tmp_path / "metrics.json").write_text(text, encoding="latin-1")
    assert not is_done(tmp_path)


def test_a_finished_run_is_done(tmp_path):
    write_status(tmp_path, RUNNING)
    assert not is_done(tmp_path)
    write_status(tmp_path, FINISHED, best={"AP": 0.5})
    assert is_done(tmp_path)
