"""What a script says and how it ends: 0 done, 1 a fault, 2 the user's input, in one sentence."""

import errno
import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from tqdm import tqdm

from utils.printable import printable
from utils.startup import SPAWNED, allow_interrupts, open_closed_streams

# The machine's faults, not the program's: a sentence says all that a traceback would.
OUTSIDE = {
    getattr(errno, name, None)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "ESTALE", "EPIPE", "EMFILE", "ENFILE")
}


class AgreedExit(SystemExit):  # as SystemExit itself
    """An end before the end, with an exit code, that all processes come to together."""


class FaultError(Exception):
    """A fault of the machine or the network of which a sentence says all that a traceback would."""


def print_lines(text: str) -> None:
    """Print lines, past a progress bar if there is one, and at once even into a file.

    What a name of a file brings along to steer a terminal is escaped.
    """
    with tqdm.external_write_mode():
        print("\n".join(map(printable, text.split("\n"))), flush=True)


def exit_code_of(run: Callable[[], object]) -> int:
    """The exit code of `run`. A ValueError is a refusal of the user's input: its text is all that is shown.

    So it is with a disk that is full or cannot be written, which is no refusal but ends with 1. Set
    KESTREL_TRACEBACK=1 to see where it was raised. Any other exception keeps its traceback and ends with 1.
    """
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a letter of a class name is no reason to stop
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        allow_interrupts()
        run()
    except (ValueError, FaultError) as error:
        return _end(f"error: {error}", exit_code(error))
    except OSError as error:
        if error.errno not in OUTSIDE:
            raise
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        limit = " (for ulimit -f or for the disk)" if error.errno == errno.EFBIG else ""
        return _end(f"error: {where}{error.strerror}{limit}", exit_code(error))
    except KeyboardInterrupt as error:
        return exit_code(error) if SPAWNED in os.environ else _end("interrupted", exit_code(error))
    return 0


def run_and_exit(run: Callable[[], object]) -> NoReturn:
    """Run a script and end this process as `exit_code_of` says.

    At once, where a launcher has started several: what a stuck network leaves in C++ may hang an orderly end for ever.
    """
    try:
        code = exit_code_of(run)
    except BaseException as error:
        code = exit_code(error)
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
    if not os.environ.keys() & {"WORLD_SIZE", "SLURM_NTASKS"}:
        sys.exit(code)
    for child in multiprocessing.active_children():  # loaders, which an orderly end would end
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def exit_code(error: BaseException) -> int:
    """What a script that ends with this error exits with."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return error.code or 0
    return 2 if isinstance(error, ValueError) else 130 if isinstance(error, KeyboardInterrupt) else 1


def _end(sentence: str, code: int) -> int:
    """Say why; also where it was raised, if that was asked for."""
    if os.environ.get("KESTREL_TRACEBACK"):
        traceback.print_exc()
    print(printable(sentence), file=sys.stderr)
    return code
