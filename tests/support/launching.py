"""Start runs of several processes for tests: as users start them, or forked from a process with all
imports done.

As a script it is train.py with a fault: KESTREL_FAULT=MODULE:FUNCTION is called before the
training, KESTREL_LATE is the rank that starts 1.5 seconds late, KESTREL_LINGER is how many
seconds a process takes to exit.
"""

import gc
import importlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NoReturn, TextIO

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
PRELOADED = [
    "train",
    "val",
    "detect",
    "export",
    "utils.plots.canvas",
    "torch._dynamo",  # which optimizers import, for seconds
    "pytest",
    "tests.support.processes",
    "torch.distributed.run",
]
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "GROUP_",
    "ROLE_",
    "TORCHELASTIC_",
    "SLURM_",
)


def small_run_flags(data: Path, model: str, folder: Path, *flags: str) -> list[str]:
    """The arguments of a training run that takes a few seconds and writes to `folder`."""
    words = (
        "--img 64 --batch 4 --workers 0 --epochs 1 --amp fp32 --noplots --cache-dir "
        f"{folder}/cache --device cpu"
    )
    return ["--data", str(data), "--cfg", model, "--project", str(folder), *words.split(), *flags]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until condition() is true. Raises AssertionError, which names `what`, after so many
    seconds.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


def unshare_command(*namespaces: str) -> list[str]:
    """The unshare command for the first of these namespaces that this user is allowed to create; []
    if there is none.

    namespaces: flags of unshare.
    """
    for flags in namespaces:
        command = ["unshare", *flags.split()]
        with suppress(FileNotFoundError):
            if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
                return command
    return []


# ---------------------------------------------------------------------- as users start them


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def running_pids(folder: Path) -> list[int]:
    """The process ids of all processes that work in this folder, or below it: those of a job,
    DataLoader workers included.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if Path(os.readlink(entry / "cwd")).is_relative_to(folder.resolve()):
                found.append(int(entry.name))
    return found


class ProcessOutput:
    """The files stdout and stderr of a folder."""

    folder: Path

    @property
    def out(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()


@dataclass
class Job(ProcessOutput):
    """A launcher and all processes that it started."""

    process: "subprocess.Popen[bytes] | ForkedProcess"
    folder: Path

    def running_pids(self) -> list[int]:
        return running_pids(self.folder)

    def end(self, seconds: float) -> int:
        """Wait until all processes have ended; returns the launcher's exit code. Raises
        AssertionError on timeout.
        """
        wait_until(
            lambda: self.process.poll() is not None and not self.running_pids(),
            seconds,
            f"the end of {self.running_pids()}",
        )
        return self.process.returncode


@contextmanager
def launched(command: Sequence[str], folder: Path, **variables: str) -> Iterator[Job]:
    """Run a job in the background; at the end of the block it is killed if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
    own = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **variables}
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        process = subprocess.Popen(
            command, env=inherited | own, stdout=out, stderr=err, cwd=folder, start_new_session=True
        )
    job = Job(process, folder)
    try:
        yield job
    finally:
        for pid in job.running_pids():
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


# ---------------------------------------------------------------------- forked


@dataclass
class Rank(ProcessOutput):
    """A forked process with the variables of a launch by hand."""

    process: multiprocessing.Process
    environment: Mapping[str, str]
    folder: Path

    def end(self, seconds: float) -> int:
        """Wait for the exit code. Raises AssertionError if the process does not end in so many
        seconds.
        """
        self.process.join(seconds)
        assert self.process.exitcode is not None, (
            f"{self.process.name} still runs after {seconds:g} s"
        )
        return self.process.exitcode


def rank_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """The environment variables of a launch by hand."""
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_PORT": port,
    }
    return {"MASTER_ADDR": "127.0.0.1"} | {name: str(value) for name, value in numbers.items()}


@contextmanager
def forked(
    environments: Sequence[Mapping[str, str]],
    arguments: Sequence[str],
    folder: Path,
    *,
    script: str = "train",
    delays: Mapping[int, float] | None = None,
    real_rank_0: bool = False,
    context: Any = None,
) -> Iterator[list[Rank]]:
    """Fork one process per environment; at the end of the block they are killed if they still run.

    delays: by index in `environments`, how many seconds the process starts late. real_rank_0: the
    first of the processes that --spawn starts is not forked. context: of multiprocessing; None: of
    the fork server.
    """
    context = context or fork_server()
    folder.mkdir(parents=True, exist_ok=True)
    ranks = []
    for number, environment in enumerate(environments):
        own = folder / f"rank{number}"
        own.mkdir(exist_ok=True)
        late = (delays or {}).get(number, 0)
        process = context.Process(
            target=_run_forked,
            args=(script, dict(environment), list(arguments), own, late, real_rank_0),
        )
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


def fork_server() -> Any:
    """The context of a fork server that has imported what forked processes need.

    A fork server that something else has started is replaced: its processes would import for
    seconds each.
    """
    context = multiprocessing.get_context("forkserver")
    if forkserver._forkserver._preload_modules != PRELOADED:
        forkserver._forkserver._stop()
        context.set_forkserver_preload(PRELOADED)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([path] if path else [])])
    try:
        forkserver.ensure_running()  # the server inherits PYTHONPATH
    finally:
        del os.environ["PYTHONPATH"]
        os.environ.update({"PYTHONPATH": path} if path else {})
    return context


def _run_forked(
    script: str,
    environment: Mapping[str, str],
    arguments: list[str],
    folder: Path,
    late: float,
    real_rank_0: bool,
) -> None:
    """Run the script in a forked process."""
    prepare_forked(environment, folder)
    fork_workers(real_rank_0=real_rank_0)
    time.sleep(late)
    run(script, arguments)


def prepare_forked(environment: Mapping[str, str], folder: Path) -> None:
    """Redirect the output of a forked process and set its environment and working directory."""
    assert sys.modules.keys() >= {*PRELOADED}, (
        "the fork server skips a module that it cannot import"
    )
    gc.freeze()  # garbage collections would copy, and look at, a million objects of the imports
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith(LAUNCHER_VARIABLES)]:
        del os.environ[name]
    os.environ.update({"OMP_NUM_THREADS": "1", **environment})

    # As a terminal starts programs, also if the tests run under nohup, or in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    # DataLoader workers start as the user's do. By a fork server of their own, which this process
    # inherits as the default, each would import for seconds.
    multiprocessing.set_start_method(None, force=True)


def run(script: str, arguments: list[str] | None = None) -> None:
    """Run train.py or another script in this process, with the fault in its environment."""
    import torch

    from utils.terminal import run_and_exit

    torch.set_num_threads(1)
    module = importlib.import_module(script)
    if script == "train":
        module.__file__ = __file__  # for --spawn: the processes that it starts get the fault too
    if fault := os.environ.get("KESTREL_FAULT"):
        where, _, name = fault.partition(":")
        getattr(importlib.import_module(where), name)()
    if seconds := float(os.environ.get("KESTREL_LINGER", "0")):
        real = os._exit
        os._exit = lambda code: (time.sleep(seconds), real(code))
    run_and_exit(lambda: module.run_script(arguments))


def _start_late() -> None:
    time.sleep(1.5 if os.environ.get("RANK") == os.environ.get("KESTREL_LATE", "none") else 0)


# ---------------------------------------------------------------------- torch's launcher, forked


@dataclass
class ForkedProcess:
    """A forked launcher, with the methods of subprocess.Popen."""

    process: multiprocessing.Process

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def forked_script(command: Sequence[str], folder: Path) -> ForkedProcess:
    """Start `python SCRIPT ARGUMENTS...`, of train.py or val.py, in a forked process with a session
    of its own; its output is in the files stdout and stderr of `folder`.
    """
    python, script, *words = command
    assert python == sys.executable
    assert Path(script) in (ROOT / "train.py", ROOT / "val.py")
    folder.mkdir(parents=True, exist_ok=True)
    process = fork_server().Process(
        target=run_script_in_fork, args=(Path(script).stem, {}, words, folder)
    )
    process.start()
    return ForkedProcess(process)


def run_script_in_fork(
    script: str, environment: Mapping[str, str], words: list[str], folder: Path
) -> None:
    """Run train.py or val.py in this forked process; its output is in files of `folder`."""
    os.setsid()
    prepare_forked(environment, folder)
    run(script, words)


@contextmanager
def forked_launcher(
    words: Sequence[str],
    folder: Path,
    *,
    module: str = "torch.distributed.run",
    **variables: str,
) -> Iterator[Job]:
    """As `launched` with the command line `python -m module words`, but the launcher is forked, and
    the processes that it starts are too: none of them imports anything.

    The script in `words` is train.py, val.py or this file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("stdout", "stderr"):
        (folder / name).touch()  # as with `launched` they exist from the start
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
    environment = {**inherited, "PYTHONWARNINGS": "ignore", **variables}
    process = fork_server().Process(
        target=run_launcher_in_fork, args=(module, environment, list(words), folder)
    )
    process.start()
    job = Job(ForkedProcess(process), folder)
    try:
        yield job
    finally:
        process.kill()
        process.join()
        for pid in job.running_pids():
            os.kill(pid, signal.SIGKILL)


def run_launcher_in_fork(
    module: str, environment: Mapping[str, str], words: list[str], folder: Path
) -> None:
    """Run torch's launcher in this forked process; its output is in files of `folder`."""
    os.setsid()
    prepare_forked(environment, folder)
    fork_workers()
    importlib.import_module(module).main(words)


def fork_workers(*, real_rank_0: bool = False) -> None:
    """Let torch's launcher fork its processes from this one, instead of starting Python anew.

    real_rank_0: all but rank 0.
    """
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    real = SubprocessHandler._popen

    def popen(
        handler: SubprocessHandler, command: Sequence[str], environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes] | ForkedWorker":
        if real_rank_0 and environment["RANK"] == "0":
            return real(handler, command, environment)
        return ForkedWorker(command, environment, handler._stdout, handler._stderr)

    SubprocessHandler._popen = popen


class ForkedWorker:
    """A process of torch's launcher, with the methods of subprocess.Popen that the launcher uses.

    As there it has a session of its own, no open files but the standard streams, and the default
    handlers of all signals.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: TextIO | None,
        stderr: TextIO | None,
    ) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run_worker(command, environment, stdout, stderr)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("the script", timeout)
            time.sleep(0.02)
        return self.returncode or 0


def _run_worker(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdout: TextIO | None,
    stderr: TextIO | None,
) -> NoReturn:
    """Run `python -u SCRIPT ARGUMENTS...` in a process that was forked for it, and end it."""
    code = 1
    try:
        os.setsid()
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

        for number, stream in ((1, stdout), (2, stderr)):
            if stream:
                os.dup2(stream.fileno(), number)
        tracker = resource_tracker.getfd()  # of semaphores, also of other processes
        os.closerange(3, tracker)
        os.closerange(tracker + 1, os.sysconf("SC_OPEN_MAX"))

        os.environ.clear()
        os.environ.update(environment)
        _start_late()
        script, *words = command[command.index("-u") + 1 :]
        run("val" if Path(script).name == "val.py" else "train", words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _start_late()
    sys.path.insert(0, str(ROOT))
    run("train")
