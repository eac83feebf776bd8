"""Who this process is among those of a run: read from the launcher's variables, before anything else is done.

Three launchers are known: torch's own (`python -m torch.distributed.run`, and the older `torch.distributed.launch`),
SLURM's srun, and `--spawn`, which starts torch's own from here. A process that none of them started is alone.
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

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

LOST = 70  # the exit code of a process that ends because another one died
ENDED_BY_OTHERS = (LOST, -signal.SIGTERM)
MASTER_PORTS = range(20000, 32768)  # for SLURM, which names none; above them the system hands out its own


@dataclass(frozen=True)
class Launch:
    """The flags that say where and how processes run; what they train is in TrainConfig.

    Raises ValueError with a sentence for a value that is not allowed.
    """

    device: str = ""
    dist_url: str = "env://"
    dist_backend: str = "auto"
    dist_timeout: float = 600.0
    spawn: int | None = None
    local_rank: int = -1

    def __post_init__(self) -> None:
        scheme, _, rest = self.dist_url.partition("://")
        if scheme not in ("env", "tcp", "file") or (scheme == "env") == bool(rest):
            raise ValueError(f"--dist-url {self.dist_url}: choose env://, tcp://HOST:PORT or file:///PATH")
        if scheme == "tcp" and not re.fullmatch(r"(\[[^]]+]|[^:/]+):\d{1,5}/?", rest):
            raise ValueError(f"--dist-url {self.dist_url}: expected tcp://HOST:PORT")
        if scheme == "file" and not rest.startswith("/"):
            raise ValueError(f"--dist-url {self.dist_url}: expected a full path, file:///PATH")
        if self.dist_backend not in ("auto", "nccl", "gloo"):
            raise ValueError(f"--dist-backend {self.dist_backend}: choose auto, nccl or gloo")
        if not 1 <= self.dist_timeout <= 86400:
            raise ValueError(f"--dist-timeout {self.dist_timeout:g}: choose 1 to 86400 seconds")
        if self.spawn is not None and self.spawn < 0:
            raise ValueError(f"--spawn {self.spawn}: choose 1 process or more, or none for one per device")


def read_launch(parser: FlagParser, arguments: Sequence[str] | None = None) -> tuple[Launch, dict[str, Any]]:
    """A command line, split into the flags of Launch, which every script takes, and the parser's own."""
    add = parser.add_argument
    add("--device", help="cpu, mps, a GPU number, or several (0,1): DataParallel, or one per process")
    add("--spawn", nargs="?", type=int, const=0, help="start N training processes (default: one per --device)")
    add("--dist-url", help="rendezvous of processes: env://, tcp://HOST:PORT, file:///PATH")
    add("--dist-backend", help="auto (nccl on GPUs, gloo on CPUs), nccl or gloo")
    add("--dist-timeout", type=float, help="seconds to wait for a process that does not answer")
    add("--local-rank", "--local_rank", type=int, help="set by older launchers")
    parser.set_defaults(**asdict(Launch()))
    values = vars(parser.read(arguments))
    return Launch(**{name: values.pop(name) for name in asdict(Launch())}), values


def rough_url(words: Sequence[str]) -> str:
    """--dist-url of a command line whose other flags may be wrong.

    >>> rough_url(["--bogus", "--dist-url", "tcp://a:1"]), rough_url(["--dist-url=file:///x"]), rough_url([])
    ('tcp://a:1', 'file:///x', 'env://')
    """
    words = [part for word in words for part in word.split("=", 1)]
    return next((url for flag, url in pairwise(words) if flag == "--dist-url"), "env://")


@dataclass(frozen=True)
class RankInfo:
    """A process among `size` of a run; `local_rank` counts those of its machine, of which there are `local_size`."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    host: str = ""  # where rank 0 listens
    port: int = 0
    hosted: bool = False  # by the launcher, else by rank 0
    own_gpu: bool = False  # if it sees only one, others may see others: SLURM or the launcher hides them
    run: str = ""  # which run meets there, where there may be several


def read_rank_info(environment: Mapping[str, str], local_rank: int = -1) -> RankInfo:
    """The place that the launcher's variables give; a lone process if there are none.

    local_rank: of the command line, as older launchers pass it; -1 for none.
    Raises ValueError for variables that are incomplete or contradict each other.
    """
    given = {name: value for name, value in environment.items() if value}
    if given.keys() & {"RANK", "WORLD_SIZE"} and not _alone(given):
        return _of_torch(given, local_rank)
    if "SLURM_PROCID" in given and _slurm_size(given) > 1 and "TORCHELASTIC_RUN_ID" not in given:
        return _of_slurm(given)
    if local_rank > 0:
        raise ValueError(f"--local-rank {local_rank}: RANK and WORLD_SIZE tell of no other process; use a launcher")
    return RankInfo()


def rough_rank_info(environment: Mapping[str, str]) -> RankInfo:
    """Rank, size and meeting point alone: enough to end together, over variables that contradict each other, say."""
    given = {name: value for name, value in environment.items() if value}
    try:
        return read_rank_info(environment)
    except ValueError:
        rank, size = _whole(given, "RANK"), _whole(given, "WORLD_SIZE")
        if rank >= size:
            raise
        hosted = given.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return RankInfo(rank, size, 0, 1, given.get("MASTER_ADDR", ""), _whole(given, "MASTER_PORT"), hosted)


def _alone(given: Mapping[str, str]) -> bool:
    return given.get("WORLD_SIZE") == "1" and given.get("RANK", "0") == "0" and given.get("LOCAL_RANK", "0") == "0"


def _whole(given: Mapping[str, str], name: str) -> int:
    """A variable as a number, 0 or more."""
    text = given.get(name, "")
    if not text.isdecimal():
        what = f"is {text[:40]!r}" if text else "is not set"
        raise ValueError(f"{name} {what}: the launcher should set it to a whole number")
    return int(text)


def _of_torch(given: Mapping[str, str], flag: int) -> RankInfo:
    rank, size = _whole(given, "RANK"), _whole(given, "WORLD_SIZE")
    if rank >= size:
        raise ValueError(f"RANK is {rank} and WORLD_SIZE is {size}: ranks run from 0 to {max(size - 1, 0)}")
    if "LOCAL_RANK" not in given and flag < 0:
        raise ValueError("RANK and WORLD_SIZE are set but LOCAL_RANK is not: which device is this process to take?")
    local_rank = _whole(given, "LOCAL_RANK") if "LOCAL_RANK" in given else flag
    if flag >= 0 and flag != local_rank:
        raise ValueError(f"--local-rank is {flag} but LOCAL_RANK is {local_rank}: they contradict each other")
    local_size = _whole(given, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in given else local_rank + 1
    if not local_rank < local_size <= size:
        told = f"LOCAL_RANK is {local_rank}, LOCAL_WORLD_SIZE {local_size} and WORLD_SIZE {size}"
        raise ValueError(f"{told}: they contradict each other")
    if "TORCHELASTIC_RUN_ID" not in given and "SLURM_PROCID" in given:
        slurm = _whole(given, "SLURM_PROCID"), _slurm_size(given)
        if slurm != (rank, size):
            told = f"SLURM_PROCID is {slurm[0]} of {slurm[1]} tasks but RANK is {rank} of WORLD_SIZE {size}"
            raise ValueError(f"{told}: they contradict each other; unset RANK and WORLD_SIZE, or use torchrun")
    hosted = given.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    port = _either(given, "MASTER_PORT")
    own_gpu = local_rank == 0  # of all processes under --virtual-local-rank, else of one, and the others refuse
    return RankInfo(rank, size, local_rank, local_size, given.get("MASTER_ADDR", ""), port, hosted, own_gpu=own_gpu)


def _slurm_size(given: Mapping[str, str]) -> int:
    """Tasks of the step; 1 in a batch script, whose SLURM_NTASKS counts those that it may start."""
    if "SLURM_STEP_NUM_TASKS" in given:
        return _whole(given, "SLURM_STEP_NUM_TASKS")
    if "SLURM_NTASKS" not in given or given.get("ENVIRONMENT") == "BATCH":
        return 1
    return _whole(given, "SLURM_NTASKS")


def _of_slurm(given: Mapping[str, str]) -> RankInfo:
    rank, size, local_rank = _whole(given, "SLURM_PROCID"), _slurm_size(given), _whole(given, "SLURM_LOCALID")
    if rank >= size or local_rank > rank:
        told = f"SLURM_PROCID is {rank}, SLURM_LOCALID {local_rank} and SLURM_NTASKS {size}"
        raise ValueError(f"{told}: they contradict each other")
    tasks = given.get("SLURM_STEP_TASKS_PER_NODE") or given.get("SLURM_TASKS_PER_NODE") or ""
    counts = tasks_per_node(tasks)
    node = _either(given, "SLURM_NODEID")
    local_size = counts[node] if node < len(counts) and sum(counts) == size else local_rank + 1
    hosts = given.get("SLURM_STEP_NODELIST") or given.get("SLURM_JOB_NODELIST") or given.get("SLURM_NODELIST") or ""
    job, step = (_either(given, f"SLURM_{name}_ID", f"SLURM_{name}ID") for name in ("JOB", "STEP"))
    port = _either(given, "MASTER_PORT") or MASTER_PORTS[(8 * job + step) % len(MASTER_PORTS)]
    host = given.get("MASTER_ADDR") or first_host(hosts) or "127.0.0.1"
    own_gpu = given.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2] == "1"  # perhaps with its type: a100:1
    return RankInfo(rank, size, local_rank, local_size, host, port, own_gpu=own_gpu, run=f"{job}.{step}")


def _either(given: Mapping[str, str], *names: str) -> int:
    """The first of these variables that is set, as a number; 0 if none is."""
    return next((_whole(given, name) for name in names if name in given), 0)


def first_host(nodes: str) -> str:
    """The first name of SLURM's list of nodes.

    >>> first_host("gpu[007-010,12],login"), first_host("a,b"), first_host("rack[1-2]n[01-04]"), first_host("")
    ('gpu007', 'a', 'rack1n01', '')
    """
    first = re.match(r"(?:[^,\[]|\[[^]]*])*", nodes)
    return re.sub(r"\[([^],-]+)[^]]*]", r"\1", first.group() if first else "")


def tasks_per_node(text: str) -> list[int]:
    """SLURM's counts of tasks, node by node.

    >>> tasks_per_node("4(x2),3"), tasks_per_node("")
    ([4, 4, 3], [])
    """
    counts: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(number)] * int(times or 1)
    return counts


def spawn(script: str, arguments: Sequence[str] | None, processes: int) -> None:
    """Run `script` in so many processes through torch's launcher.

    Raises SystemExit with the exit code of the first that failed.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if read_rank_info(os.environ).size > 1:
        raise ValueError("--spawn: a launcher has started this process already, one of several; leave it out")
    for part in ("", ".agent.server.api", ".multiprocessing.api"):  # the processes speak for themselves
        logging.getLogger(f"torch.distributed.elastic{part}").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    settings: dict[str, Any] = {"run_id": uuid.uuid4().hex, "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    settings["local_addr"] = "127.0.0.1"  # the machine's own name may lead nowhere
    settings["logs_specs"] = DefaultLogsSpecs(log_dir=os.devnull)  # else it leaves an empty folder behind
    handled = ["SIGTERM", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGHUP"]  # which it passes on
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup's wish, over which the launcher's handler would go
        handled.remove("SIGHUP")
    settings["signals_to_handle"] = ",".join(handled)
    config = LaunchConfig(1, 1, processes, max_restarts=0, monitor_interval=0.1, **settings)
    words = without_spawn(sys.argv[1:] if arguments is None else arguments)
    os.environ[SPAWNED] = "1"
    try:
        elastic_launch(config, sys.executable)("-u", script, *words)
    except ChildFailedError as error:
        raise reported_end(error.failures) from None
    except SignalException as error:
        raise ended_by(128 + int(error.sigval)) from None
    finally:
        del os.environ[SPAWNED]


def ended_by(code: int) -> BaseException:
    """What --spawn ends with for an exit code of its processes: Ctrl-C is reported here, all else by one of them."""
    return KeyboardInterrupt() if code == 128 + signal.SIGINT else SystemExit(code)


def reported_end(failures: Mapping[int, "ProcessFailure"]) -> BaseException:
    """What --spawn ends with: a sentence if a signal ended the first process, else the code of one that has said why.

    Those that end later do so because of the first: the launcher sends them SIGTERM, and after 30 s SIGKILL to one that
    is stuck. Times are in whole seconds, so that the first failures may be a second apart.
    """
    first_s = min(failure.timestamp for failure in failures.values())
    for rank, failure in sorted(failures.items()):
        killed = failure.exitcode < 0 and failure.exitcode not in ENDED_BY_OTHERS
        if killed and failure.timestamp <= first_s + 1:
            memory = ", probably out of memory" if failure.exitcode == -signal.SIGKILL else ""
            return FaultError(f"process {rank} died ({signal.Signals(-failure.exitcode).name}){memory}")
    chosen = [failure.exitcode for failure in failures.values() if failure.exitcode > 0 and failure.exitcode != LOST]
    if not chosen:
        return FaultError("a process ended without an error message, and the others cannot continue without it")
    return ended_by(chosen[0])


def without_spawn(arguments: Sequence[str]) -> list[str]:
    """A command line for the processes that --spawn starts.

    >>> without_spawn(["--spawn", "2", "--img", "64", "--spawn=4", "--spawn", "--rect"])
    ['--img', '64', '--rect']
    """
    kept, skip = [], False
    for word in arguments:
        if skip and word.lstrip("-").isdecimal():
            skip = False
            continue
        skip = word == "--spawn"
        if not skip and not word.startswith("--spawn="):
            kept.append(word)
    return kept
