"""Runs of several processes for tests: started as users start them, or forked with everything imported already.

As a script it is train.py with a fault: KESTREL_FAULT=MODULE:FUNCTION names what to call before the training, and
KESTREL_LATE the rank that begins three seconds late, KESTREL_LINGER the seconds that a process takes to end.
"""

import importlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MARK = "KESTREL_TEST_MARK"  # an environment variable that every process of a launch inherits
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TOLD_BY_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC_", "SLURM_")


def small(data: Path, model: str, folder: Path, *flags: str) -> list[str]:
    """The command line of a training of some seconds that writes into `folder`."""
    words = f"--img 64 --batch 4 --workers 0 --epochs 1 --amp fp32 --noplots --cache-dir {folder}/cache --device cpu"
    return ["--data", str(data), "--cfg", model, "--project", str(folder), *words.split(), *flags]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(true: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for something to become true. Raises AssertionError if it does not."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


def way_into(*namespaces: str) -> list[str]:
    """The words that start a command in the first of these namespaces, each flags of unshare, that we may make here.

    None if we may make none of them.
    """
    for flags in namespaces:
        way = ["unshare", *flags.split()]
        with suppress(FileNotFoundError):
            if subprocess.run([*way, "true"], capture_output=True).returncode == 0:
                return way
    return []


# ---------------------------------------------------------------------- as users start them


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process began with; empty if it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def alive(mark: str) -> list[int]:
    """Numbers of the processes that have inherited this mark, loaders' included."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in numbers if environment_of(pid).get(MARK) == mark]


class Written:
    """What was written into two files of a folder."""

    folder: Path

    @property
    def out(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()


@dataclass
class Job(Written):
    """A launcher and all that it has started."""

    process: subprocess.Popen[bytes]
    mark: str
    folder: Path

    def alive(self) -> list[int]:
        return alive(self.mark)

    def end(self, seconds: float) -> int:
        """The launcher's exit code, when nothing is left of the job. Raises AssertionError if that takes longer."""
        until(lambda: self.process.poll() is not None and not self.alive(), seconds, f"the end of {self.alive()}")
        return self.process.returncode


@contextmanager
def launched(command: Sequence[str], folder: Path, **variables: str) -> Iterator[Job]:
    """A job that runs in the background; killed at the end of the block, if it is not over."""
    folder.mkdir(parents=True, exist_ok=True)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(TOLD_BY_LAUNCHERS)}
    mark = uuid.uuid4().hex
    own = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", MARK: mark, **variables}
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        process = subprocess.Popen(
            command, env=inherited | own, stdout=out, stderr=err, cwd=folder, start_new_session=True
        )
    job = Job(process, mark, folder)
    try:
        yield job
    finally:
        for pid in job.alive():
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


# ---------------------------------------------------------------------- forked


@dataclass
class Rank(Written):
    """A process started by hand."""

    process: multiprocessing.Process
    environment: Mapping[str, str]
    folder: Path

    def end(self, seconds: float) -> int:
        """Its exit code. Raises AssertionError if it does not end in so many seconds."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"{self.process.name} runs on after {seconds:g} s"
        return self.process.exitcode


def by_hand(rank: int, size: int, port: int) -> dict[str, str]:
    """The variables of a launch by hand."""
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1"} | {name: str(value) for name, value in place.items()}


@contextmanager
def forked(
    environments: Sequence[Mapping[str, str]],
    arguments: Sequence[str],
    folder: Path,
    *,
    script: str = "train",
    delays: Mapping[int, float] | None = None,
) -> Iterator[list[Rank]]:
    """A process for each environment; killed at the end of the block, if they are not over.

    delays: seconds that the process of a place in the list begins late.
    """
    context = _server()
    folder.mkdir(parents=True, exist_ok=True)
    ranks = []
    for number, environment in enumerate(environments):
        own = folder / f"rank{number}"
        own.mkdir(exist_ok=True)
        late = (delays or {}).get(number, 0)
        process = context.Process(target=_live, args=(script, dict(environment), list(arguments), own, late))
        ranks.append(Rank(process, environment, own))
    try:
        for rank in ranks:
            rank.process.start()
        yield ranks
    finally:
        for rank in ranks:
            if rank.process.pid is not None:
                rank.process.kill()
                rank.process.join()


def _server() -> Any:
    """A process to fork from, which has imported what the forked ones need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["train", "val", "tests.support.launching"])
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([path] if path else [])])
    try:
        forkserver.ensure_running()  # it inherits the path
    finally:
        del os.environ["PYTHONPATH"]
        os.environ.update({"PYTHONPATH": path} if path else {})
    return context


def _live(script: str, environment: Mapping[str, str], arguments: list[str], folder: Path, late: float) -> None:
    """What a forked process does: become the script."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith(TOLD_BY_LAUNCHERS)]:
        del os.environ[name]
    os.environ.update({"OMP_NUM_THREADS": "1", **environment})
    time.sleep(late)
    _run(script, arguments)


def _run(script: str, arguments: list[str] | None = None) -> None:
    import torch

    from utils.terminal import run_and_exit

    torch.set_num_threads(1)
    module = importlib.import_module(script)
    if script == "train":
        module.__file__ = __file__  # for --spawn: the processes that it starts have the fault too
    if fault := os.environ.get("KESTREL_FAULT"):
        where, _, name = fault.partition(":")
        getattr(importlib.import_module(where), name)()
    if seconds := float(os.environ.get("KESTREL_LINGER", "0")):
        real = os._exit
        os._exit = lambda code: (time.sleep(seconds), real(code))
    run_and_exit(lambda: module.run(arguments))


if __name__ == "__main__":
    time.sleep(3 if os.environ.get("RANK") == os.environ.get("KESTREL_LATE", "none") else 0)
    sys.path.insert(0, str(ROOT))
    _run("train")
