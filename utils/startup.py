"""What a script does first, before its slow imports: standard streams that can be written, and Ctrl-C in one word.

It imports next to nothing, so that both hold from here on.
"""

import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType

SPAWNED = "KESTREL_SPAWNED"  # set for processes of --spawn, whose launcher reports Ctrl-C, and those that were killed


def prepare_script() -> None:
    """Call it before the imports of a script; `exit_code_of` takes over from there."""
    open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as under nohup
        signal.signal(signal.SIGINT, _exit_interrupted)


def open_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed, as by `2>&-`.

    Without that, the next file that is opened gets number 2, and what libraries write to stderr ends up in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number, this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def allow_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, if `prepare_script` has changed that."""
    if signal.getsignal(signal.SIGINT) is _exit_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_first_process(environment: Mapping[str, str]) -> bool:
    """Whether this process speaks for all, as far as the launcher's variables tell."""
    return (environment.get("RANK") or environment.get("SLURM_PROCID") or "0") == "0"


def _exit_interrupted(_: int, __: FrameType | None) -> None:
    """End this process at once: imports turn a KeyboardInterrupt into other errors, and torch's C++ aborts over it."""
    try:
        if is_first_process(os.environ) and SPAWNED not in os.environ:
            os.write(2, b"interrupted\n")
    finally:  # stderr may be a pipe that nobody reads any more
        os._exit(130)
