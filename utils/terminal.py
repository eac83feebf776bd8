"""Terminal output and exit codes of a script.

0 success, 1 a fault, 2 invalid user input (one sentence).
"""

import errno
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import NoReturn, TextIO, cast

from tqdm import tqdm

from utils.command_line.standard_streams import prepare_streams
from utils.printable import one_line, printable
from utils.startup import SPAWNED, allow_interrupts, has_launcher

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

    Control characters, for example in a file name, are escaped. warning: print to standard error,
    which --quiet does not silence.
    """
    stream = sys.stderr if warning else sys.stdout
    with tqdm.external_write_mode():
        print("\n".join(map(printable, text.split("\n"))), file=stream, flush=True)


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
    prepare_streams()
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
    can block a normal exit for ever. So does a logger that has failed or hangs. Ctrl-C ends an exit
    that takes long.
    """
    try:
        code = exit_code_of(lambda: _run_and_stop_interrupts(run))
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
        with suppress(OSError, ValueError):
            stream.flush()
    if not may_block:
        sys.exit(code)
    os._exit(code)


def _run_and_stop_interrupts(run: Callable[[], object]) -> None:
    """Call `run`; after it, Ctrl-C ends the process with the code that it is about to end with.

    A KeyboardInterrupt would be raised in what happens at exit, such as joining DataLoader workers,
    whose traceback Python prints.
    """
    code = 0
    try:
        run()
    except BaseException as error:
        code = exit_code(error)
        raise
    finally:
        # not if Ctrl-C is ignored, as under nohup
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: os._exit(code))


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
    print(f"\n{INDENT}".join(map(printable, lines)), file=sys.stderr)
    return code
