"""Iterate in a background thread, a few items ahead of the consumer."""

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import TypeVar, cast

T = TypeVar("T")
JOIN_S = 10.0  # the longest time to wait for the thread to end
POLL_S = 0.1  # how often a waiting thread looks whether the other one has ended


def prefetch(
    items: Iterable[T], ahead: int, stop: Callable[[], object] = lambda: None
) -> Generator[T, None, None]:
    """Iterate over the items, up to `ahead` of which a background thread has ready. Raises what
    `items` raises.

    The thread ends when the iterator is closed or no longer used; an item that it waits for
    meanwhile is dropped. stop: called then, to end the waiting of `items` for a next item, if they
    can wait for long.

    >>> list(prefetch([1, 2, 3], ahead=2)), list(prefetch([], ahead=1))
    ([1, 2, 3], [])
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
    closed = threading.Event()

    def put(result: tuple[T | None, BaseException | None]) -> None:
        while not closed.is_set():
            with suppress(queue.Full):
                ready.put(result, timeout=POLL_S)
                break

    def produce() -> None:
        iterator = iter(items)
        try:
            for item in iterator:
                put((item, None))
                if closed.is_set():
                    break
            put((None, StopIteration()))
        except BaseException as error:
            put((None, error))
        finally:
            if isinstance(iterator, Generator):
                iterator.close()  # it may itself prefetch

    thread = threading.Thread(target=produce, daemon=True, name="prefetch")
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield cast(T, item)
    finally:
        closed.set()
        stop()
        thread.join(JOIN_S)  # a thread that computes while Python exits could crash the process
