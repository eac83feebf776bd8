"""Ctrl-C during a step that must not be left half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt only at the end of the block; a second Ctrl-C raises at once.

    Changes nothing outside the main thread, where no signal arrives, or if SIGINT is ignored or handled by others.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    arrived = False

    def note(_: int, __: FrameType | None) -> None:
        nonlocal arrived
        arrived = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if arrived:
        raise KeyboardInterrupt
