"""Work in a thread beside the caller's: one primitive, and one piece of work whose result is taken in later."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from utils.terminal import FaultError

T = TypeVar("T")


def run_in_background(work: Callable[[], T], after: "Future[Any] | None" = None) -> "Future[T]":
    """The future result of `work`, which runs in a thread of its own. after: work that has to end before, somehow.

    The thread is a daemon: a process that was interrupted need not wait for it.

    >>> run_in_background(lambda: 1 + 1).result()
    2
    """
    future: Future[T] = Future()

    def run() -> None:
        if after is not None:
            after.exception()
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class BackgroundTask:
    """One piece of work at a time, whose result is taken in at a point that the caller chooses. what: for errors."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._work: Future[Any] | None = None
        self._take: Callable[[Any], None] = lambda _: None

    def start(self, work: Callable[[], T], take: Callable[[T], None]) -> None:
        """Begin work, after waiting for what was begun before. take: called with its result by `wait`."""
        self.wait()
        self._work, self._take = run_in_background(work), take

    @property
    def busy(self) -> bool:
        """Whether work is going on."""
        return self._work is not None and not self._work.done()

    def wait(self) -> None:
        """Wait for the work, and take in its result, if that was not done. Raises what the work has raised.

        Raises FaultError where memory ran out: it is the host's, whatever the device has.
        """
        work, self._work = self._work, None
        if work is None:
            return
        if isinstance(error := work.exception(), MemoryError):
            raise FaultError(f"out of memory (of this machine, not of a GPU): {self.what}") from error
        self._take(work.result())
