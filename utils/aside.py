"""Work in a thread whose result is taken in later, at a point that all processes agree on."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from utils.terminal import FaultError

T = TypeVar("T")


class Aside:
    """One piece of work at a time, aside of what this thread does. what: its subject, for errors."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._work: Future[Any] | None = None
        self._take: Callable[[Any], None] = lambda _: None

    def start(self, work: Callable[[], T], take: Callable[[T], None]) -> None:
        """Begin work, when what was begun before is settled. take: what to do with its result, where it is settled."""
        self.settle()
        self._work, self._take = Future(), take
        # A daemon: a process that was interrupted need not wait for it.
        threading.Thread(target=_do, args=(work, self._work), daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether work goes on."""
        return self._work is not None and not self._work.done()

    def settle(self) -> None:
        """Wait for the work, and take in what came of it, if that was not done. Raises what the work has raised.

        Raises FaultError where memory ran out: it is the host's, whatever the device has.
        """
        work, self._work = self._work, None
        if work is None:
            return
        if isinstance(error := work.exception(), MemoryError):
            raise FaultError(f"out of memory (of this machine, not of a GPU): {self.what}") from error
        self._take(work.result())


def _do(work: Callable[[], Any], future: "Future[Any]") -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
