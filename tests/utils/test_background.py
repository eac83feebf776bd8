"""BackgroundTask: wait() collects the result once, in the thread that calls it."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from utils.background import BackgroundTask
from utils.terminal import FaultError

ROOT = Path(__file__).parents[2]


def test_result_is_collected_once_in_waiting_thread():
    task, taken, go_on = BackgroundTask("adding"), [], threading.Event()
    assert not task.busy
    task.wait()  # nothing was started

    def work() -> threading.Thread:
        assert go_on.wait(20)
        return threading.current_thread()

    task.start(work, lambda thread: taken.append((thread, threading.current_thread())))
    assert task.busy
    assert taken == []
    go_on.set()
    task.wait()
    assert not task.busy
    ((worked, took),) = taken
    assert worked is not took is threading.current_thread()
    task.wait()
    assert len(taken) == 1


def test_new_task_starts_after_previous_result_is_collected():
    task, taken = BackgroundTask("adding"), []
    for number in range(3):
        task.start(lambda number=number: number, taken.append)
        assert taken == list(range(number))
    task.wait()
    assert taken == [0, 1, 2]


def test_task_error_is_raised_by_wait():
    task = BackgroundTask("adding")
    task.start(lambda: 1 // 0, lambda _: None)
    with pytest.raises(ZeroDivisionError):
        task.wait()
    assert not task.busy
    task.wait()


def test_memory_error_names_the_task():
    def work() -> None:
        raise MemoryError

    task = BackgroundTask("scoring detections")
    task.start(work, lambda _: None)
    with pytest.raises(
        FaultError, match=r"^out of memory \(host RAM, not GPU memory\): scoring detections$"
    ):
        task.wait()


def test_exiting_process_does_not_wait_for_task():
    script = """
import time
from utils.background import BackgroundTask
BackgroundTask("sleeping").start(lambda: time.sleep(60), print)
raise KeyboardInterrupt
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=30, check=False
    )
    assert ended.stderr.endswith(b"KeyboardInterrupt\n")
