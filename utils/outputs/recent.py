"""Things that are open while frames of several videos arrive in turn, such as files and windows."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_IDLE = 256  # frames; more streams than this cannot be written at once


class RecentlyUsed(Generic[T]):
    """Open things by name. `close` finishes one.

    Nobody says when a video ends, and each open one takes memory. So before another one is opened,
    those are closed that were not used for MAX_IDLE frames. Streams that arrive in turn stay open:
    they are all opened at the start.
    """

    def __init__(self, close: Callable[[T], None]) -> None:
        self._close = close
        self._open: dict[str, tuple[T, int]] = {}  # by name: the thing and when it was used
        self._time = 0

    def __contains__(self, name: str) -> bool:
        """Return whether the thing of this name is open."""
        return name in self._open

    def get(self, name: str, make: Callable[[], T]) -> T:
        """Return the thing of this name; it is made if it is not open."""
        self._time += 1
        if name not in self._open:
            for other in [
                each for each, (_, used) in self._open.items() if self._time - used > MAX_IDLE
            ]:
                self._close(self._open.pop(other)[0])
            self._open[name] = make(), self._time
        thing = self._open[name][0]
        self._open[name] = thing, self._time
        return thing

    def close(self) -> None:
        """Close all, even if closing some raises; then raise one of these errors."""
        with ExitStack() as stack:
            while self._open:
                stack.callback(self._close, self._open.popitem()[1][0])
