"""Run a measurement or a program in its own process, so that earlier tests do not affect it."""

import sys
from multiprocessing import Process
from pathlib import Path
from typing import NamedTuple

from tests.support.launching import fork_server, prepare_forked


class Finished(NamedTuple):
    """What a program has left, as in subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def run_program(code: str, *arguments: object, folder: Path, seconds: float = 300) -> Finished:
    """Run `python -c code arguments` in a folder, in a process forked from one that has imported
    torch and Kestrel.

    Raises AssertionError if it runs for more than so many seconds.
    """
    process = start_program(code, *arguments, folder=folder)
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"the program still runs after {seconds:g} s")
    stdout, stderr = ((folder / name).read_text() for name in ("stdout", "stderr"))
    return Finished(process.exitcode, stdout, stderr)


def start_program(code: str, *arguments: object, folder: Path) -> Process:
    """Start a program as `run_program` does; its output is in the files stdout and stderr."""
    words = [str(argument) for argument in arguments]
    process = fork_server().Process(target=_execute, args=(code, words, folder))
    process.start()
    return process


def _execute(code: str, words: list[str], folder: Path) -> None:
    prepare_forked({}, folder)
    sys.argv = ["-c", *words]
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})  # noqa: S102
