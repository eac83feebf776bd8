"""Read rank and number of processes from the launcher's variables; start processes for --spawn.

Three launchers are supported: torch's (`python -m torch.distributed.run`, and the older
`torch.distributed.launch`), SLURM's srun, and `--spawn`, which starts torch's launcher from here.
Without a launcher there is a single process.
"""

import logging
import os
import re
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from utils.flags import FlagParser
from utils.startup import SPAWNED
from utils.terminal import FaultError
from utils.threads import machine_cores

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

LOST = 70  # the exit code of a process that ends because another one died
ENDED_BY_OTHERS = (LOST, -signal.SIGTERM)
# for SLURM, which sets no port; higher ports are the system's ephemeral ports
MASTER_PORTS = range(20000, 32768)


@dataclass(frozen=True)
class Launch:
    """The flags for devices and processes; the training settings are in TrainConfig.

    Raises ValueError for a value that is not allowed.
    """

    device: str = ""
    dist_url: str = "env://"
    dist_backend: str = "auto"
    dist_timeout: float = 600.0
    spawn: int | None = None
    local_rank: int = -1
    quiet: bool = False

    def __post_init__(self) -> None:
        scheme, _, rest = self.dist_url.partition("://")
        if scheme not in ("env", "tcp", "file") or (scheme == "env") == bool(rest):
            raise ValueError(
                f"--dist-url {self.dist_url}: choose env://, tcp://HOST:PORT or file:///PATH"
            )

        if scheme == "tcp" and not re.fullmatch(r"(\[[^]]+]|[^:/]+):\d{1,5}/?", rest):
            raise ValueError(f"--dist-url {self.dist_url}: expected tcp://HOST:PORT")
        if scheme == "file" and not rest.startswith("/"):
            raise ValueError(f"--dist-url {self.dist_url}: expected an absolute path, file:///PATH")

        if self.dist_backend not in ("auto", "nccl", "gloo"):
            raise ValueError(f"--dist-backend {self.dist_backend}: choose auto, nccl or gloo")
        if not 1 <= self.dist_timeout <= 86400:
            raise ValueError(f"--dist-timeout {self.dist_timeout:g}: choose 1 to 86400 seconds")

        if self.spawn is not None and self.spawn < 0:
            raise ValueError(
                f"--spawn {self.spawn}: give 1 process or more, or no number for one process per "
                "device"
            )


def read_launch(
    parser: FlagParser, arguments: Sequence[str] | None = None
) -> tuple[Launch, dict[str, Any]]:
    """Parse a command line into Launch, whose flags every script has, and the other flags."""
    add = parser.add_argument_group("devices and processes").add_argument
    add(
        "--device",
        help="cpu, mps, a GPU number, or several (0,1): DataParallel, or one per process",
    )
    add(
        "--spawn",
        nargs="?",
        type=int,
        const=0,
        help="start N processes (default: one per --device)",
    )
    add(
        "--dist-url",
        help="rendezvous address of the processes: env://, tcp://HOST:PORT or file:///PATH",
    )
    add("--dist-backend", help="auto (nccl on GPUs, gloo on CPUs), nccl or gloo")
    add("--dist-timeout", type=float, help="timeout in seconds for a process that does not answer")
    add(
        "--local-rank",
        "--local_rank",
        type=int,
        help="set by older launchers (default: from LOCAL_RANK)",
    )

    add = parser.add_argument_group("output").add_argument
    add("--quiet", action="store_true", help="print warnings of loggers, and errors, only")
    defaults = asdict(Launch())
    parser.set_defaults(**defaults)
    values = vars(parser.read(arguments))
    launch = Launch(**{name: values.pop(name) for name in defaults})
    return launch, values


def find_dist_url(words: Sequence[str]) -> str:
    """Return the value of --dist-url in a command line whose other flags may be invalid.

    >>> find_dist_url(["--bogus", "--dist-url", "tcp://a:1"])
    'tcp://a:1'
    >>> find_dist_url(["--dist-url=file:///x"]), find_dist_url([])
    ('file:///x', 'env://')
    """
    parts: list[str] = []
    for word in words:
        parts += word.split("=", 1)
    for flag, url in pairwise(parts):
        if flag == "--dist-url":
            return url
    return "env://"


@dataclass(frozen=True)
class RankInfo:
    """Rank of a process among the `size` of a run, and among the `local_size` on its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    host: str = ""  # where rank 0 listens
    port: int = 0
    hosted: bool = False  # whether the launcher hosts the store, not rank 0
    # if only one GPU is visible, others may see other GPUs: SLURM or the launcher hides them
    own_gpu: bool = False
    run: str = ""  # identifies the run, where several runs may use the same host and port


def read_rank_info(environment: Mapping[str, str], local_rank: int = -1) -> RankInfo:
    """Return the rank information in the launcher's variables; without, that of a single process.

    local_rank: from the command line, where older launchers pass it; -1 if not given.
    Raises ValueError for variables that are incomplete or contradict each other.
    """
    given = {name: value for name, value in environment.items() if value}
    if given.keys() & {"RANK", "WORLD_SIZE"} and not _is_single(given):
        return _from_torch(given, local_rank)
    if "SLURM_PROCID" in given and _slurm_size(given) > 1 and "TORCHELASTIC_RUN_ID" not in given:
        return _from_slurm(given)

    if local_rank > 0:
        why = "RANK and WORLD_SIZE do not describe several processes; use a launcher"
        raise ValueError(f"--local-rank {local_rank}: {why}")
    return RankInfo()


def read_rank_info_leniently(environment: Mapping[str, str]) -> RankInfo:
    """Return rank, size and rendezvous address, even if other variables are invalid.

    That is enough for processes to end together.
    """
    given = {name: value for name, value in environment.items() if value}
    try:
        return read_rank_info(environment)
    except ValueError:
        rank = _read_count(given, "RANK")
        size = _read_count(given, "WORLD_SIZE")
        if rank >= size:
            raise
        return RankInfo(
            rank,
            size,
            host=given.get("MASTER_ADDR", ""),
            port=_read_count(given, "MASTER_PORT"),
            hosted=given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


def _is_single(given: Mapping[str, str]) -> bool:
    return (
        given.get("WORLD_SIZE") == "1"
        and given.get("RANK", "0") == "0"
        and given.get("LOCAL_RANK", "0") == "0"
    )


def _read_count(given: Mapping[str, str], name: str) -> int:
    """Return the value of a variable as an integer, 0 or more; ValueError for other texts."""
    text = given.get(name, "")
    if not text.isdecimal():
        what = f"is {text[:40]!r}" if text else "is not set"
        raise ValueError(f"{name} {what}: the launcher should set it to a whole number")
    return int(text)


def _from_torch(given: Mapping[str, str], flag: int) -> RankInfo:
    """Return the rank information in the variables of torch's launchers.

    flag: --local-rank, -1 if not given.
    """
    # Among all processes.
    rank = _read_count(given, "RANK")
    size = _read_count(given, "WORLD_SIZE")
    if rank >= size:
        raise ValueError(
            f"RANK is {rank} and WORLD_SIZE is {size}: ranks run from 0 to {max(size - 1, 0)}"
        )

    # Among those of this machine.
    if "LOCAL_RANK" not in given and flag < 0:
        raise ValueError(
            "RANK and WORLD_SIZE are set but LOCAL_RANK is not: set it to select this process's "
            "device"
        )
    local_rank = _read_count(given, "LOCAL_RANK") if "LOCAL_RANK" in given else flag
    if flag >= 0 and flag != local_rank:
        raise ValueError(
            f"--local-rank is {flag} but LOCAL_RANK is {local_rank}: they contradict each other"
        )
    local_size = local_rank + 1
    if "LOCAL_WORLD_SIZE" in given:
        local_size = _read_count(given, "LOCAL_WORLD_SIZE")
    if not local_rank < local_size <= size:
        values = f"LOCAL_RANK is {local_rank}, LOCAL_WORLD_SIZE {local_size} and WORLD_SIZE {size}"
        raise ValueError(f"{values}: they contradict each other")

    # SLURM's variables must agree, unless torch's launcher runs in a task of SLURM.
    if "TORCHELASTIC_RUN_ID" not in given and "SLURM_PROCID" in given:
        slurm_rank = _read_count(given, "SLURM_PROCID")
        slurm_size = _slurm_size(given)
        if (slurm_rank, slurm_size) != (rank, size):
            values = (
                f"SLURM_PROCID is {slurm_rank} of {slurm_size} tasks but RANK is {rank} of "
                f"WORLD_SIZE {size}"
            )
            raise ValueError(
                f"{values}: they contradict each other; unset RANK and WORLD_SIZE, or use torchrun"
            )

    return RankInfo(
        rank,
        size,
        local_rank,
        local_size,
        host=given.get("MASTER_ADDR", ""),
        port=_first_set(given, "MASTER_PORT"),
        hosted=given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        # in all processes under --virtual-local-rank; else in one, and the others raise an error
        own_gpu=local_rank == 0,
    )


def _slurm_size(given: Mapping[str, str]) -> int:
    """Return the number of tasks of the step.

    1 in a batch script, where SLURM_NTASKS counts the tasks that it may start.
    """
    if "SLURM_STEP_NUM_TASKS" in given:
        return _read_count(given, "SLURM_STEP_NUM_TASKS")
    if "SLURM_NTASKS" not in given or given.get("ENVIRONMENT") == "BATCH":
        return 1
    return _read_count(given, "SLURM_NTASKS")


def _from_slurm(given: Mapping[str, str]) -> RankInfo:
    """Return the rank information in SLURM's variables."""
    rank = _read_count(given, "SLURM_PROCID")
    size = _slurm_size(given)
    local_rank = _read_count(given, "SLURM_LOCALID")
    if rank >= size or local_rank > rank:
        values = f"SLURM_PROCID is {rank}, SLURM_LOCALID {local_rank} and SLURM_NTASKS {size}"
        raise ValueError(f"{values}: they contradict each other")

    # The number of tasks on this machine.
    tasks = given.get("SLURM_STEP_TASKS_PER_NODE") or given.get("SLURM_TASKS_PER_NODE") or ""
    counts = tasks_per_node(tasks)
    node = _first_set(given, "SLURM_NODEID")
    local_size = local_rank + 1
    if node < len(counts) and sum(counts) == size:
        local_size = counts[node]

    # Where rank 0 listens: on the first machine, at a port that follows from the job and step.
    hosts = (
        given.get("SLURM_STEP_NODELIST")
        or given.get("SLURM_JOB_NODELIST")
        or given.get("SLURM_NODELIST")
        or ""
    )
    host = given.get("MASTER_ADDR") or first_host(hosts) or "127.0.0.1"
    job = _first_set(given, "SLURM_JOB_ID", "SLURM_JOBID")
    step = _first_set(given, "SLURM_STEP_ID", "SLURM_STEPID")
    port = _first_set(given, "MASTER_PORT")
    if port == 0:
        port = MASTER_PORTS[(8 * job + step) % len(MASTER_PORTS)]

    return RankInfo(
        rank,
        size,
        local_rank,
        local_size,
        host,
        port,
        own_gpu=_slurm_binds_gpus(given, local_size),
        run=f"{job}.{step}",
    )


def _slurm_binds_gpus(given: Mapping[str, str], local_size: int) -> bool:
    """Return whether SLURM gives each task a GPU of its own, so that a task sees only that one.

    >>> binds = ("single:1", "verbose,per_task:1", "none")
    >>> [_slurm_binds_gpus({"SLURM_GPU_BIND": bind}, 2) for bind in binds]
    [True, True, False]
    """
    # The number may follow the type: a100:1.
    per_task = given.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]
    tres = re.search(
        r"gres[/:]gpu(?:[:=][^,:=\d][^,:=]*)?[:=](\d+)", given.get("SLURM_TRES_PER_TASK", "")
    )
    bind = given.get("SLURM_GPU_BIND", "")
    gpus = given.get("SLURM_GPUS_ON_NODE", "").rpartition(":")[2]
    return (
        per_task == "1"
        or (tres is not None and tres[1] == "1")
        or given.get("SLURM_NTASKS_PER_GPU") == "1"
        or re.search(r"single:1\b|per_task:1\b|map_gpu|mask_gpu|closest", bind) is not None
        # but this process may see only one
        or (gpus.isdecimal() and int(gpus) > 1 and int(gpus) >= local_size)
    )


def _first_set(given: Mapping[str, str], *names: str) -> int:
    """Return the first of these variables that is set, as an integer; 0 if none is."""
    for name in names:
        if name in given:
            return _read_count(given, name)
    return 0


def first_host(nodes: str) -> str:
    """Return the first host name in a SLURM node list.

    >>> first_host("gpu[007-010,12],login"), first_host("a,b")
    ('gpu007', 'a')
    >>> first_host("rack[1-2]n[01-04]"), first_host("")
    ('rack1n01', '')
    """
    first = re.match(r"(?:[^,\[]|\[[^]]*])*", nodes)
    return re.sub(r"\[([^],-]+)[^]]*]", r"\1", first.group() if first else "")


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks on each node, from SLURM's SLURM_TASKS_PER_NODE.

    >>> tasks_per_node("4(x2),3"), tasks_per_node("")
    ([4, 4, 3], [])
    """
    counts: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(number)] * int(times or 1)
    return counts


def spawn(script: str, arguments: Sequence[str] | None, processes: int) -> None:
    """Run `script` in several processes with torch's launcher.

    Raises SystemExit with the exit code of the first process that failed, KeyboardInterrupt for
    Ctrl-C, FaultError if a process died.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if read_rank_info(os.environ).size > 1:
        raise ValueError(
            "--spawn: a launcher has already started this process as one of several; remove --spawn"
        )

    # The processes report their errors themselves.
    for part in ("", ".agent.server.api", ".multiprocessing.api"):
        logging.getLogger(f"torch.distributed.elastic{part}").setLevel(logging.CRITICAL)
    threads = max(1, machine_cores() // processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))

    # Signals that the launcher forwards to the processes.
    forwarded = ["SIGTERM", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGHUP"]
    # set by nohup; the launcher's handler would override it
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        forwarded.remove("SIGHUP")

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        max_restarts=0,
        monitor_interval=0.1,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",  # the machine's host name may not resolve
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # else it leaves an empty folder
        signals_to_handle=",".join(forwarded),
    )
    words = without_spawn(sys.argv[1:] if arguments is None else arguments)
    os.environ[SPAWNED] = "1"
    try:
        elastic_launch(config, sys.executable)("-u", script, *words)
    except ChildFailedError as error:
        raise failure_exception(error.failures) from None
    except SignalException as error:
        raise exit_exception(128 + int(error.sigval)) from None
    finally:
        del os.environ[SPAWNED]


def exit_exception(code: int) -> BaseException:
    """Return the exception that --spawn ends with for an exit code.

    Ctrl-C is reported here, other errors by a process.
    """
    return KeyboardInterrupt() if code == 128 + signal.SIGINT else SystemExit(code)


def failure_exception(failures: Mapping[int, "ProcessFailure"]) -> BaseException:
    """Return the exception that --spawn ends with when processes failed.

    FaultError if a signal killed the first failed process, else the exit code of a process that
    reported its error. Later failures are caused by the first one: the launcher sends SIGTERM to
    the other processes, and SIGKILL to those that are stuck after 30 s. Times are in whole seconds,
    so the first failures may be one second apart.
    """
    # A process that a signal killed.
    first_s = min(failure.timestamp for failure in failures.values())
    for rank, failure in sorted(failures.items()):
        killed = failure.exitcode < 0 and failure.exitcode not in ENDED_BY_OTHERS
        if killed and failure.timestamp <= first_s + 1:
            name = signal.Signals(-failure.exitcode).name
            memory = ", probably out of memory" if failure.exitcode == -signal.SIGKILL else ""
            return FaultError(f"process {rank} died ({name}){memory}")

    # A process that reported its error.
    for failure in failures.values():
        if failure.exitcode > 0 and failure.exitcode != LOST:
            return exit_exception(failure.exitcode)

    return FaultError(
        "a process ended without an error message, and the others cannot continue without it"
    )


def without_spawn(arguments: Sequence[str]) -> list[str]:
    """Return a command line without --spawn and its value, for the processes that it starts.

    >>> without_spawn(["--spawn", "2", "--img", "64", "--spawn=4", "--spawn", "--rect"])
    ['--img', '64', '--rect']
    """
    kept = []
    follows_spawn = False
    for word in arguments:
        is_value = follows_spawn and word.lstrip("-").isdecimal()
        follows_spawn = word == "--spawn"
        if not (is_value or follows_spawn or word.startswith("--spawn=")):
            kept.append(word)
    return kept
