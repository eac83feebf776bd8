"""Terminal output and exit codes of a script: 0 success, 1 a fault, 2 invalid user input (one sentence)."""

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

from utils.printable import one_line, printable
from utils.startup import SPAWNED, allow_interrupts, has_launcher, open_closed_streams

# Faults of the machine, not bugs: one sentence is shown instead of a traceback.
OUTSIDE = {
    getattr(errno, name, None)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "ESTALE", "EPIPE", "EMFILE", "ENFILE")
}


class AgreedExit(SystemExit):  # no suffix Error, like SystemExit
    """An early exit, with an exit code, that all processes take together."""


class FaultError(Exception):
    """A fault of the machine or the network; one sentence is shown instead of a traceback."""


def print_lines(text: str) -> None:
    """Print lines above a progress bar, if there is one, and flush at once, also into a file.

    Control characters, for example in a file name, are escaped.
    """
    with tqdm.external_write_mode():
        print("\n".join(map(printable, text.split("\n"))), flush=True)


def exit_code_of(run: Callable[[], object]) -> int:
    """Call `run` and return the exit code of the script.

    A ValueError means invalid user input: only its message is printed, and the code is 2. For a FaultError, too little
    memory, or a disk that is full or not writable, only a sentence is printed, and the code is 1. Any other exception
    propagates, and `run_and_exit` ends with 1. Set KESTREL_TRACEBACK=1 to see where an error was raised.
    """
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # do not fail when the terminal cannot show a character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        allow_interrupts()
        run()
    except (ValueError, FaultError) as error:
        return report(f"error: {error}", exit_code(error))
    except MemoryError as error:
        return report(f"error: out of memory (host RAM){': ' if str(error) else ''}{one_line(error)}", exit_code(error))
    except OSError as error:
        if error.errno not in OUTSIDE:
            raise
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        limit = " (over the limit of ulimit -f or of the disk)" if error.errno == errno.EFBIG else ""
        return report(f"error: {where}{error.strerror}{limit}", exit_code(error))
    except KeyboardInterrupt as error:
        return exit_code(error) if SPAWNED in os.environ else report("interrupted", exit_code(error))
    return 0


def run_and_exit(run: Callable[[], object]) -> NoReturn:
    """Run a script and exit with the code of `exit_code_of`.

    With several processes of a launcher it exits with os._exit: when the network hangs, C++ threads can block a normal
    exit for ever.
    """
    try:
        code = exit_code_of(run)
    except BaseException as error:
        code = exit_code(error)
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
    if not has_launcher(os.environ):
        sys.exit(code)
    for child in multiprocessing.active_children():  # DataLoader workers, which only a normal exit would end
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def exit_code(error: BaseException) -> int:
    """The exit code of a script that ends with this error."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return error.code or 0
    return 2 if isinstance(error, ValueError) else 130 if isinstance(error, KeyboardInterrupt) else 1


def report(sentence: str, code: int) -> int:
    """Print the error, with a traceback if KESTREL_TRACEBACK is set, and return `code`."""
    if os.environ.get("KESTREL_TRACEBACK"):
        traceback.print_exc()
    print(printable(sentence), file=sys.stderr)
    return code
