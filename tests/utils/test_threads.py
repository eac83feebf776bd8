"""utils/threads.py: results in the order of the items, few of them ahead; items of a background
thread, which ends with its consumer; wait() collects a result once, in the thread that calls it.
"""

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from utils.terminal import FaultError
from utils.threads import BackgroundTask, machine_cores, map_ahead, prefetch, usable_cores

ROOT = Path(__file__).parents[2]


# ---- map_ahead


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(threads):
    def slow_first(number: int) -> int:
        time.sleep(0.02 if number % 3 == 0 else 0)
        return number * number

    assert list(map_ahead(slow_first, range(20), threads)) == [
        number * number for number in range(20)
    ]


@pytest.mark.parametrize(("threads", "ahead"), [(1, 1), (2, 5), (3, 7)])
def test_at_most_two_items_per_thread_are_started_ahead(threads, ahead):
    before, started = threading.active_count(), list[int]()
    results = map_ahead(lambda number: started.append(number) or number, iter(range(100)), threads)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    time.sleep(0.05)
    assert len(started) <= 2 + ahead
    results.close()
    time.sleep(0.05)
    assert len(started) <= 2 + ahead
    assert threading.active_count() <= before


@pytest.mark.parametrize(("most", "ahead"), [(1, 1), (10, 1), (11, 2), (25, 3), (10**9, 6)])
def test_items_are_started_ahead_up_to_a_size(most, ahead):
    """Each of size 10; three threads have six items at most."""
    asked: list[int] = []
    items = (asked.append(number) or number for number in range(9))
    results = map_ahead(abs, items, 3, size=lambda _: 10, most=most)
    for number in range(3):
        assert next(results) == number
        assert asked == list(range(number + ahead))
    assert [*results] == [*range(3, 9)]
    assert [*map_ahead(abs, [], 3, size=lambda _: 10, most=most)] == []


def test_error_is_raised_after_the_results_before_it():
    results = map_ahead(lambda number: 6 // number, [3, 2, 0, 1], 2)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_single_thread_asks_for_an_item_only_when_its_result_is_wanted():
    asked: list[int] = []
    results = map_ahead(abs, (asked.append(number) or number for number in range(9)), 1)
    next(results)
    assert asked == [0]


# ---- prefetch


def threads_ended() -> bool:
    """Whether no background thread is left, after at most two seconds."""
    for _ in range(200):
        if not any(thread.name.startswith("prefetch") for thread in threading.enumerate()):
            return True
        time.sleep(0.01)
    return False


def test_items_come_in_order_from_another_thread():
    names = [
        (number, name)
        for number, name in prefetch(((i, threading.current_thread().name) for i in range(50)), 3)
    ]
    assert [number for number, _ in names] == list(range(50))
    assert {name for _, name in names}.isdisjoint({threading.current_thread().name})
    assert threads_ended()


def test_no_more_items_than_allowed_are_made_ahead():
    made = []
    items = prefetch((made.append(i) or i for i in range(100)), ahead=4)
    assert next(items) == 0
    time.sleep(0.2)
    assert 5 <= len(made) <= 6  # one used, four ready, one waiting for room
    items.close()


def test_none_is_an_item():
    assert list(prefetch([None, None], 1)) == [None, None]


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)])
def test_errors_are_raised_after_the_items_before_them(error):
    def items() -> Iterator[int]:
        yield 1
        raise error

    results = prefetch(items(), 2)
    assert next(results) == 1
    with pytest.raises(type(error)):
        next(results)
    assert threads_ended()


def test_closing_ends_the_thread_and_closes_the_items():
    closed = []

    def items() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed.append(threading.current_thread().name)

    results = prefetch(prefetch(items(), 1), 1)  # one prefetches what the other has prefetched
    assert next(results) == 0
    results.close()
    assert threads_ended()
    assert len(closed) == 1


def test_closing_stops_items_that_wait():
    stopped = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        stopped.wait(5)

    results = prefetch(prefetch(items(), 1), 1, stop=stopped.set)
    assert next(results) == 1
    started = time.monotonic()
    results.close()
    assert time.monotonic() - started < 2
    assert threads_ended()


def test_consumer_that_raises_ends_the_thread():
    def consume() -> None:
        for _ in prefetch(range(1000), 2):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        consume()
    assert threads_ended()


# ---- BackgroundTask


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
from utils.threads import BackgroundTask
BackgroundTask("sleeping").start(lambda: time.sleep(60), print)
raise KeyboardInterrupt
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=300, check=False
    )
    assert ended.stderr.endswith(b"KeyboardInterrupt\n")


def test_usable_cores_are_those_that_the_process_is_bound_to(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("utils.threads.cpu_quota", lambda: math.inf)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert usable_cores() == 2
    monkeypatch.delattr("os.sched_getaffinity")
    assert usable_cores() == 16


@pytest.mark.parametrize(("quota", "cores"), [(2, 2), (1.5, 2), (0.1, 1), (64, 16), (math.inf, 16)])
def test_usable_cores_are_within_the_quota_of_a_container(monkeypatch, quota, cores):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr("utils.threads.cpu_quota", lambda: quota)
    assert usable_cores() == machine_cores() == cores
