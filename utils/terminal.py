"""Terminal output and exit codes of a script.

0 success, 1 a fault, 2 invalid user input (one sentence).
"""

import errno
import io
import multiprocessing
import os
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import NoReturn, TextIO, cast

from tqdm import tqdm

from utils.printable import one_line, printable
from utils.startup import SPAWNED, allow_interrupts, has_launcher, open_closed_streams

INDENT = " " * 4  # of lines below an error's sentence
MAY_BLOCK = "logger"  # how the names of threads begin that may block, and their exit handlers too
# Faults of the machine, not bugs: one sentence is shown instead of a traceback.
OUTSIDE = {
    getattr(errno, name, None)
    for name in (
        "ENOSPC",
        "EDQUOT",
        "EFBIG",
        "EROFS",
        "EACCES",
        "EPERM",
        "EIO",
        "ESTALE",
        "EPIPE",
        "EMFILE",
        "ENFILE",
        "ENAMETOOLONG",
    )
}


class AgreedExit(SystemExit):  # no suffix Error, like SystemExit
    """An early exit, with an exit code, that all processes take together."""


class EndedBySignalError(KeyboardInterrupt):
    """A signal, such as SIGTERM, ends the program as Ctrl-C does.

    The exit code is 128 + its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class FaultError(Exception):
    """A fault of the machine or the network; one sentence is shown instead of a traceback."""

    says_how_to_continue = False  # whether the sentence ends with what to do next


def print_lines(text: str, *, warning: bool = False) -> None:
    """Print lines above a progress bar, if there is one, and flush at once, also into a file.

    Control characters, for example in a file name, are escaped. If the terminal was closed, prints
    nothing. warning: print to standard error, which --quiet does not silence.
    """
    stream = sys.stderr if warning else sys.stdout
    with tqdm.external_write_mode(), discard_if_terminal_closed(stream):
        print("\n".join(map(printable, text.split("\n"))), file=stream, flush=True)


@contextmanager
def discard_if_terminal_closed(stream: TextIO) -> Iterator[None]:
    """Replace a standard stream by the null device if its terminal was closed in the block.

    A program that ignores SIGHUP, or
    saves because of it, must not fail because nobody reads its output.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO or not stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            raise
        null = os.open(os.devnull, os.O_WRONLY)
        # the stream keeps what it could not write, and would fail again at exit
        os.dup2(null, stream.fileno())
        os.close(null)


@contextmanager
def quiet_output(quiet: bool) -> Iterator[None]:
    """Print no lines and no progress bars in the block, if `quiet`, but warnings and errors.

    Bars are shown on terminals only, so standard error is no terminal in the block.
    """
    if not quiet:
        yield
        return
    errors = cast(TextIO, _WithoutTerminal(sys.stderr))
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(errors):
        yield


class _WithoutTerminal:
    """A stream that says that it is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return False


def exit_code_of(run: Callable[[], object]) -> int:
    """Call `run` and return the exit code of the script.

    A ValueError means invalid user input: only its message is printed, and the code is 2. For a
    FaultError, too little memory, or a disk that is full or not writable, only a sentence is
    printed, and the code is 1. Ctrl-C and signals end with 128 plus the signal's number. Any other
    exception propagates, and `run_and_exit` ends with 1. Set KESTREL_TRACEBACK=1 to see where an
    error was raised.
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
        detail = f": {one_line(error)}" if str(error) else ""
        return report(f"error: out of memory (host RAM){detail}", exit_code(error))
    except OSError as error:
        if error.errno not in OUTSIDE:
            raise

        where = ""
        if isinstance(error.filename, (str, bytes)):
            where = f"{os.fsdecode(error.filename)}: "

        limit = ""
        if error.errno == errno.EFBIG:
            limit = " (over the limit of ulimit -f or of the disk)"

        return report(f"error: {where}{error.strerror}{limit}", exit_code(error))
    except EndedBySignalError as error:
        return report(f"ended by {error}", exit_code(error))
    except KeyboardInterrupt as error:
        if SPAWNED in os.environ:  # the launcher reports it
            return exit_code(error)
        return report("interrupted", exit_code(error))
    return 0


def run_and_exit(run: Callable[[], object]) -> NoReturn:
    """Run a script and exit with the code of `exit_code_of`.

    With several processes of a launcher it exits with os._exit: when the network hangs, C++ threads
    can block a normal exit for ever. So does a logger that has failed or hangs.
    """
    try:
        code = exit_code_of(run)
    except BaseException as error:
        code = exit_code(error)
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
    names = [thread.name for thread in threading.enumerate()]
    may_block = has_launcher(os.environ) or any(name.startswith(MAY_BLOCK) for name in names)
    if may_block:
        for child in multiprocessing.active_children():
            child.terminate()  # DataLoader workers, which only a normal exit would end

    # if this failed at exit, Python would end with code 120
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError), discard_if_terminal_closed(stream):
            stream.flush()
    if not may_block:
        sys.exit(code)
    os._exit(code)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a script that ends with this error."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return error.code or 0
    if isinstance(error, EndedBySignalError):
        return 128 + error.number
    if isinstance(error, ValueError):
        return 2
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return 1


def report(sentence: str, code: int) -> int:
    """Print the error, with a traceback if KESTREL_TRACEBACK is set, and return `code`.

    Lines below the sentence, such as commands to choose from, begin with spaces. Any other newline
    is escaped, since it is part of a name.
    """
    if os.environ.get("KESTREL_TRACEBACK"):
        traceback.print_exc()
    lines = sentence.split(f"\n{INDENT}")
    with discard_if_terminal_closed(sys.stderr):
        print(f"\n{INDENT}".join(map(printable, lines)), file=sys.stderr)
    return code
