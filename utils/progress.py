"""Progress bar that also measures how long the loop waited for data."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


class Progress(Iterable[T]):
    """Iterate over a loader with a progress bar and measure the time spent waiting for batches.

    wait_share: the share, 0 to 1, of the time since the start that was spent waiting for batches.
    """

    def __init__(self, batches: Iterable[T], *, total: int | None, title: str, active: bool) -> None:
        self.batches = batches
        self.bar = tqdm(total=total, desc=title, disable=None if active else True, dynamic_ncols=True, leave=False)
        self.waited, self.started = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def wait_share(self) -> float:
        return self.waited / max(self.seconds, 1e-9)

    def pace(self, images: int, memory_gib: float) -> str:
        """Text with images per second, the share of the time spent waiting for data, and the memory in GiB."""
        return f"{images / self.seconds:.1f} img/s, {self.wait_share:.0%} waiting for data, {memory_gib:.1f} GiB"

    def text(self, text: str) -> None:
        """Show `text` after the bar."""
        self.bar.set_postfix_str(text, refresh=False)

    def __iter__(self) -> Iterator[T]:
        iterator = iter(self.batches)
        with self.bar:
            while True:
                asked = time.perf_counter()
                batch = next(iterator, None)
                self.waited += time.perf_counter() - asked
                if batch is None:
                    return
                yield batch
                self.bar.update()
