"""utils/prefetch.py: items of a background thread, in order, with its errors; the thread ends with
its consumer.
"""

import threading
import time
from collections.abc import Iterator

import pytest

from utils.prefetch import prefetch


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

    found = prefetch(items(), 2)
    assert next(found) == 1
    with pytest.raises(type(error)):
        next(found)
    assert threads_ended()


def test_closing_ends_the_thread_and_closes_the_items():
    closed = []

    def items() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed.append(threading.current_thread().name)

    found = prefetch(prefetch(items(), 1), 1)  # one prefetches what the other has prefetched
    assert next(found) == 0
    found.close()
    assert threads_ended()
    assert len(closed) == 1


def test_closing_stops_items_that_wait():
    stopped = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        stopped.wait(5)

    found = prefetch(prefetch(items(), 1), 1, stop=stopped.set)
    assert next(found) == 1
    started = time.monotonic()
    found.close()
    assert time.monotonic() - started < 2
    assert threads_ended()


def test_consumer_that_raises_ends_the_thread():
    def consume() -> None:
        for _ in prefetch(range(1000), 2):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        consume()
    assert threads_ended()
