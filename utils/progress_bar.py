"""Progress bar that also measures how long the loop waited for data."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tqdm import tqdm
from tqdm.utils import disp_len

T = TypeVar("T")

# Without the rate: the text after the bar says images per second, and 80 columns have no room for
# both.
LAYOUT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
SMALLEST_BAR = 4  # columns


class _Bar(tqdm):  # type: ignore[type-arg]
    """A bar that shows as many of its texts, from the first on, as the terminal has room for."""

    texts: Sequence[str] = ()

    def __str__(self) -> str:
        settings: dict[str, Any] = dict(self.format_dict)
        if not self.texts:
            return str(self.format_meter(**settings))
        settings |= {"bar_format": LAYOUT}
        width = settings["ncols"] or 80
        for count in range(len(self.texts), -1, -1):
            settings["postfix"] = ", ".join(self.texts[:count])
            text_only = settings | {"bar_format": LAYOUT.replace("{bar}", "")}
            without_bar = self.format_meter(**text_only)
            if disp_len(without_bar) + SMALLEST_BAR <= width:
                break
        return str(self.format_meter(**settings))


class ProgressBar(Iterable[T]):
    """Iterate over a loader with a progress bar and measure the time spent waiting for batches.

    wait_share: the share, 0 to 1, of the time since the start that was spent waiting for batches.
    """

    def __init__(
        self, batches: Iterable[T], *, total: int | None, title: str, active: bool
    ) -> None:
        self.batches = batches
        self.bar = _Bar(
            total=total,
            desc=title,
            disable=None if active else True,
            dynamic_ncols=True,
            leave=False,
        )
        self.waited = 0.0
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def wait_share(self) -> float:
        return self.waited / max(self.seconds, 1e-9)

    def pace(self, images: int, memory_gib: float) -> str:
        """Return text with images per second, the wait for data and the memory in GiB.

        The wait is a share of the time.
        """
        return ", ".join(self.pace_texts(images, memory_gib))

    def pace_texts(self, images: int, memory_gib: float) -> list[str]:
        """Return the parts of `pace`."""
        return [
            f"{images / self.seconds:.1f} img/s",
            f"{self.wait_share:.0%} waiting for data",
            f"{memory_gib:.1f} GiB",
        ]

    def show(self, texts: Sequence[str]) -> None:
        """Show the texts after the bar, the most important ones first.

        Those that do not fit are left out.
        """
        self.bar.texts = texts

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
