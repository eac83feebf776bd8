"""Background threads: a function that starts one, and a task whose result the caller collects
later.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from utils.terminal import FaultError

T = TypeVar("T")


def run_in_background(work: Callable[[], T], after: "Future[Any] | None" = None) -> "Future[T]":
    """Run `work` in a new thread and return its future. after: `work` starts when this future has
    ended or failed.

    The thread is a daemon, so an interrupted process can exit without waiting for it.

    >>> run_in_background(lambda: 1 + 1).result()
    2
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            if after is not None:
                after.exception()
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class BackgroundTask:
    """One background job at a time, whose result is collected by `wait`. what: names the job in
    error messages.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._future: Future[Any] | None = None
        self._take: Callable[[Any], None] = lambda _: None

    def start(self, work: Callable[[], T], take: Callable[[T], None]) -> None:
        """Start `work`, after waiting for the previous job. take: called by `wait` with the result
        of `work`.
        """
        self.wait()
        self._future, self._take = run_in_background(work), take

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._future is not None and not self._future.done()

    def wait(self) -> None:
        """Wait for the job and pass its result to `take`, unless that was done before. Raises what
        the job raised.

        Raises FaultError if the job ran out of host memory (MemoryError never means GPU memory).
        """
        future, self._future = self._future, None
        if future is None:
            return
        if isinstance(error := future.exception(), MemoryError):
            raise FaultError(f"out of memory (host RAM, not GPU memory): {self.what}") from error
        self._take(future.result())
