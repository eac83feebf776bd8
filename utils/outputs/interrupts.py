"""Ctrl-C, SIGTERM and SIGHUP while files are written: no step is left half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from utils.terminal import EndedBySignalError

END_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def end_on_signals() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP act as Ctrl-C does, so that open files are finished.

    Raises EndedBySignalError for one of them. Signals that are ignored, as SIGHUP under nohup, stay
    ignored. Changes nothing outside the main thread, where no signal arrives.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received:
            return  # a lost connection sends SIGHUP more than once
        received = number
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            # raises KeyboardInterrupt; later within `delay_interrupt`
            handler(signal.SIGINT, frame)
        else:
            raise EndedBySignalError(number)

    previous = {number: signal.getsignal(number) for number in END_SIGNALS}
    handled = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt as error:
        if received:
            raise EndedBySignalError(received) from error
        raise
    finally:
        for number in handled:
            # None: a handler that was not set by Python
            signal.signal(number, previous[number] or signal.SIG_DFL)


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt only at the end of the block.

    A second Ctrl-C raises at once. Changes nothing outside the main thread, where no signal
    arrives, or if SIGINT is ignored or handled by others.
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
