"""The first steps of a script, before its slow imports: open closed standard streams and handle Ctrl-C with one word.

This module imports almost nothing, so that both work as early as possible.
"""

import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType

SPAWNED = "KESTREL_SPAWNED"  # set in processes of --spawn, whose launcher reports Ctrl-C and killed processes


def prepare_script() -> None:
    """Prepare standard streams and Ctrl-C. Call it before the imports of a script; `exit_code_of` takes over later."""
    open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as under nohup
        signal.signal(signal.SIGINT, _exit_interrupted)


def open_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed, for example by `2>&-`.

    Otherwise the next opened file gets file descriptor 2, and what libraries write to stderr ends up in that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free descriptor, this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def allow_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, if `prepare_script` changed that."""
    if signal.getsignal(signal.SIGINT) is _exit_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def has_launcher(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has set its variables, also those of a single process."""
    return bool(environment.keys() & {"RANK", "WORLD_SIZE", "SLURM_NTASKS"})


def is_first_process(environment: Mapping[str, str]) -> bool:
    """Whether this process is rank 0 according to the launcher's environment variables, so that it prints for all."""
    return (environment.get("RANK") or environment.get("SLURM_PROCID") or "0") == "0"


def _exit_interrupted(_: int, __: FrameType | None) -> None:
    """Exit at once: an import can turn a KeyboardInterrupt into another error, and torch's C++ code aborts on it."""
    try:
        if is_first_process(os.environ) and SPAWNED not in os.environ:
            os.write(2, b"interrupted\n")
    finally:  # stderr may be a broken pipe
        os._exit(130)
