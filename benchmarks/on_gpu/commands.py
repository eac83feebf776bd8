"""Run the project's scripts from a stage, as on the command line, in forked processes."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.on_gpu.stage import Finding
from utils.terminal import run_and_exit

FORK = multiprocessing.get_context("fork")
THREADS = torch.get_num_threads()  # of torch on the CPU; stages themselves use one, see running.py
TAIL = 8  # lines that are reported of the output of a script that failed


@dataclass(frozen=True)
class Done:
    """A script that has ended.

    code: its exit code, negative for a signal. output: what it wrote to both streams.
    """

    code: int
    output: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        """The lines of the output, without empty ones; a progress bar is only its last state."""
        shown = []
        for line in self.output.split("\n"):
            states = line.rstrip("\r").split("\r")
            shown.append(states[-1].rstrip())
        return [line for line in shown if line]

    def findings(self, what: str, lines: Sequence[str] = ()) -> Iterator[Finding]:
        """The exit code, which must be 0, then these lines, or the end of a failed output."""
        yield Finding(f"{what}: exit code {self.code}, {self.seconds:.1f} s", self.code == 0)

        shown = self.lines[-TAIL:] if self.code else lines
        for line in shown:
            yield Finding(line)


class Command:
    """A script that starts at once. It forks a process that has not used CUDA or several threads.

    entry: the function that the script calls; it reads sys.argv. words: the arguments. prepare: is
    called before.
    """

    def __init__(
        self,
        entry: Callable[[], object],
        words: Sequence[str],
        output: Path,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        self._output = output
        self._started = time.monotonic()
        self.process = FORK.Process(target=_run, args=(entry, list(words), output, prepare))
        self.process.start()

    def end(self) -> Done:
        """Wait for the end, and print the script's output, so that the stage's log has it."""
        self.process.join()
        seconds = time.monotonic() - self._started
        # read_text would turn \r into \n
        output = self._output.read_bytes().decode(errors="replace")
        done = Done(self.process.exitcode or 0, output, seconds)
        print(f"--- {self._output.stem}: exit code {done.code} after {seconds:.1f} s", flush=True)
        print(*done.lines, sep="\n", flush=True)
        return done


def run_command(entry: Callable[[], object], words: Sequence[str], output: Path) -> Done:
    """Run a script to its end. Arguments as those of Command."""
    return Command(entry, words, output).end()


def redirect_streams(file: Path) -> None:
    """Let this process, and those that it starts, write stdout and stderr to a new file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    # The objects that they replace may be closed, which must not close the new file.
    sys.stdout = open(  # noqa: SIM115
        1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
    sys.stderr = open(  # noqa: SIM115
        2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def _run(
    entry: Callable[[], object], words: list[str], output: Path, prepare: Callable[[], None] | None
) -> None:
    """The forked process: its streams are the file, its arguments the words."""
    redirect_streams(output)
    os.chdir(output.parent)
    if os.environ.get("OMP_NUM_THREADS") != "1":
        torch.set_num_threads(THREADS)  # as in a process of its own
    sys.argv = ["script", *words]
    if prepare is not None:
        prepare()
    run_and_exit(entry)
