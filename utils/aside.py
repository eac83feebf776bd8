"""Work in a thread whose result is taken in later, at a point that all processes agree on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Aside:
    """One piece of work at a time, aside of what this thread does."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "aside")  # starts no thread before it is given something
        self._work: Future[Any] | None = None
        self._take: Callable[[Any], None] = lambda _: None

    def start(self, work: Callable[[], T], take: Callable[[T], None]) -> None:
        """Begin work, when what was begun before is settled. take: what to do with its result, where it is settled."""
        self.settle()
        self._work, self._take = self._pool.submit(work), take

    @property
    def busy(self) -> bool:
        """Whether work goes on."""
        return self._work is not None and not self._work.done()

    def settle(self) -> None:
        """Wait for the work, and take in what came of it, if that was not done. Raises what the work has raised."""
        work, self._work = self._work, None
        if work is not None:
            self._take(work.result())
