"""Measure how long the stages of a program take."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up the seconds of named stages, over all threads that use it.

    >>> watch = Stopwatch()
    >>> with watch("model"):
    ...     pass
    >>> list(watch.seconds)
    ['model']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to `stage`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[stage] += time.perf_counter() - started

    def describe(self, count: int) -> str:
        """Return the milliseconds of each stage for each of `count` images, as text."""
        return ", ".join(
            f"{1000 * seconds / max(count, 1):.1f} ms {stage}"
            for stage, seconds in self.seconds.items()
        )
