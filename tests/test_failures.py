"""A failure of one process soon ends all of them, with an exit code and one error message; and
refused input.

Faults are functions that a process calls before it trains: see launching.py.
"""

import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist

import train
from data import splits
from tests.support.launching import (
    ROOT,
    Job,
    Rank,
    forked,
    forked_launcher,
    free_port,
    rank_environment,
    running_pids,
    small_run_flags,
    wait_until,
)
from tests.support.stores import start_store
from training import evaluation
from utils.distributed import modes, session
from utils.distributed.peer_watch import PEER_DIED
from utils.distributed.rendezvous import PeerFailedError
from utils.files import checkpoint_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc"),
]

SCRIPT = str(ROOT / "tests" / "support" / "launching.py")  # train.py with a fault
MAX_END_S = 30.0  # seconds within which a job must end, as the README says
TWO_PROCESSES = ["--nproc_per_node", "2"]

# ---------------------------------------------------------------------- faults


def in_second_epoch(
    rank: int, act: Callable[[], object], others: Callable[[], object] = bool
) -> None:
    """Have one rank call `act` before its second epoch, and the other ranks `others` before
    theirs.
    """
    short_timeouts()
    real, epochs = train.train_one_epoch, iter(range(1, 1000))

    def work(*arguments, **keywords):
        if next(epochs) == 2:
            if os.environ["RANK"] == str(rank):
                time.sleep(0.5)  # by then the others have started their second epoch
                Path(os.environ["KESTREL_STAMP"]).touch()
                act()
            else:
                others()
        return real(*arguments, **keywords)

    train.train_one_epoch = work


def raise_error(error: BaseException) -> NoReturn:
    raise error


def rank_1_runs_out_of_memory() -> None:
    in_second_epoch(1, lambda: torch.empty(2**58))


def rank_1_refuses() -> None:
    in_second_epoch(1, lambda: raise_error(ValueError("the data of rank 1 is not there")))


def rank_0_refuses() -> None:
    in_second_epoch(0, lambda: raise_error(ValueError("the data of rank 0 is not there")))


def rank_1_is_killed() -> None:
    in_second_epoch(1, lambda: os.kill(os.getpid(), signal.SIGKILL))


def rank_0_is_killed() -> None:
    in_second_epoch(0, lambda: os.kill(os.getpid(), signal.SIGKILL))


def rank_1_is_killed_while_rank_0_computes() -> None:
    in_second_epoch(1, lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: time.sleep(2))


def rank_1_is_terminated() -> None:
    in_second_epoch(1, lambda: os.kill(os.getpid(), signal.SIGTERM))


def rank_1_raises() -> None:
    in_second_epoch(1, lambda: raise_error(RuntimeError("sabotage")))


def rank_0_raises_while_rank_1_computes() -> None:
    in_second_epoch(0, lambda: raise_error(RuntimeError("sabotage")), lambda: time.sleep(3))


def rank_1_raises_while_rank_0_is_stuck() -> None:
    session.GRACE_S = 1.5
    in_second_epoch(1, lambda: raise_error(RuntimeError("sabotage")), lambda: time.sleep(60))


def rank_1_raises_and_exits_slowly() -> None:
    if os.environ["RANK"] == "1":
        session.GRACE_S = 3
        dist.destroy_process_group = lambda *_: time.sleep(60)

    def notice() -> None:
        time.sleep(1)
        raise PeerFailedError(1)

    in_second_epoch(1, lambda: raise_error(RuntimeError("sabotage")), notice)


def rank_0_refuses_data_while_rank_1_reads() -> None:
    def read(*_, **__) -> NoReturn:
        Path(os.environ["KESTREL_STAMP"]).touch()
        time.sleep(60 * int(os.environ["RANK"]))
        raise ValueError("bad labels")

    short_timeouts()
    splits.read_split = read


def rank_1_is_killed_before_it_reads() -> None:
    """While the processes exchange values through the store, which does not notice who leaves
    it.
    """
    real = splits.read_split
    session.GRACE_S = 1.0

    def read(*arguments, **keywords):
        if os.environ["RANK"] == "1":
            Path(os.environ["KESTREL_STAMP"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **keywords)

    splits.read_split = read


def rank_1_reads_other_images() -> None:
    short_timeouts()
    real = splits.read_split

    def read(*arguments, **keywords):
        labels, report = real(*arguments, **keywords)
        return labels.subset(range(int(os.environ["RANK"]), len(labels))), report

    splits.read_split = read


def rank_1_uses_other_precision() -> None:
    short_timeouts()
    chosen = torch.bfloat16 if os.environ["RANK"] == "1" else torch.float32
    modes.choose_precision = lambda *_: chosen


def rank_1_has_another_seed() -> None:
    short_timeouts()
    real = train.TrainConfig.training
    train.TrainConfig.training = lambda self: real(self) | {"seed": int(os.environ["RANK"])}


def kill_dataloader_worker() -> None:
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    Path(os.environ["KESTREL_STAMP"]).touch()


def rank_0_worker_dies_in_training() -> None:
    many_cores()
    in_second_epoch(0, kill_dataloader_worker)


def rank_0_worker_dies_in_validation() -> None:
    many_cores()
    short_timeouts()
    real, calls = evaluation.detections_in_images, iter(range(10**6))

    def work(*arguments, **keywords):
        if next(calls) == 0 and os.environ["RANK"] == "0":
            kill_dataloader_worker()
        return real(*arguments, **keywords)

    evaluation.detections_in_images = work


def closed_streams() -> None:
    os.close(1)
    os.close(2)
    sys.stdout = sys.stderr = None


def one_gpu() -> None:
    torch.cuda.device_count = lambda: 1


def many_cores() -> None:
    os.cpu_count = lambda: 16
    os.sched_getaffinity = lambda _: set(range(16))


def short_timeouts() -> None:
    """Shorten the time that a process waits for others, to keep the tests short."""
    session.SHUTDOWN_WAIT_S = 1.0


def short_join() -> None:
    """Shorten the rendezvous of a process that failed before it. Only where no other process can
    come: on a machine under load, another process may start seconds later.
    """
    short_timeouts()
    session.LATE_JOIN_TIMEOUT_S = 1.0


# ---------------------------------------------------------------------- jobs


@pytest.fixture
def flags(tiny_data: Path, micro_model: str, tmp_path: Path) -> list[str]:
    return [*small_run_flags(tiny_data, micro_model, tmp_path), "--epochs", "1000"]


@pytest.fixture
def stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a fault creates when it happens."""
    monkeypatch.setenv("KESTREL_STAMP", str(tmp_path / "stamp"))
    return tmp_path / "stamp"


def fault(name: str) -> dict[str, str]:
    return {"KESTREL_FAULT": f"tests.test_failures:{name}"}


def end_after(job: Job, stamp: Path) -> int:
    """The exit code of a job that ends soon after its fault, and leaves no process behind."""
    wait_until(lambda: stamp.exists() or job.process.poll() is not None, 120, "the fault")
    assert stamp.exists(), job.err
    return job.end(MAX_END_S)


def exit_codes(job: Job) -> list[int]:
    """The exit codes of all failed ranks, as torch's launcher lists them."""
    return [int(code) for code in re.findall(r"^ *exitcode *: (-?\d+)", job.err, re.MULTILINE)]


def error_lines(text: str) -> list[str]:
    """The lines of stderr with an error message: also the last lines of tracebacks, but none of
    torch's launcher.
    """
    lines = [
        re.sub(r"^\[rank\d]: ", "", line) for line in text.splitlines()
    ]  # torch's prefix of tracebacks
    return [line for line in lines if re.match(r"(error|interrupted|\w*Error)\b", line)]


def test_torchrun_job_ends_when_rank_runs_out_of_memory(flags, stamp, tmp_path):
    words = [*TWO_PROCESSES, SCRIPT, *flags]
    with forked_launcher(words, tmp_path, **fault("rank_1_runs_out_of_memory")) as job:
        assert end_after(job, stamp) == 1
        assert len(error_lines(job.err)) == 1, job.err
        assert "can't allocate memory" in error_lines(job.err)[0]


def test_torchrun_job_ends_on_ctrl_c(flags, tmp_path):
    words = [*TWO_PROCESSES, SCRIPT, *flags, "--workers", "2"]
    with forked_launcher(words, tmp_path, **fault("many_cores")) as job:
        wait_until(
            lambda: (tmp_path / "exp" / "weights" / "last.pt").exists(), 120, "the first checkpoint"
        )
        assert len(job.running_pids()) >= 1 + 2 + 2 * 2  # launcher, ranks, their DataLoader workers
        os.killpg(
            job.process.pid, signal.SIGINT
        )  # as a terminal does: the ranks are in groups of their own
        assert job.end(MAX_END_S) == 1
        assert error_lines(job.err).count("interrupted") == 1
        assert [line for line in error_lines(job.err) if line.startswith("[rank")] == []


@dataclass
class Spawned:
    """`train.py --spawn`, forked as all processes that it starts."""

    parent: Rank

    def running_pids(self) -> list[int]:
        return running_pids(self.parent.folder)

    def end(self, seconds: float) -> int:
        """Its exit code, after all its processes have ended."""
        wait_until(
            lambda: self.parent.process.exitcode is not None and not self.running_pids(),
            seconds,
            "the end of all",
        )
        return self.parent.end(0)


@pytest.fixture
def spawned(flags: list[str], tmp_path: Path) -> Iterator[Callable[..., Spawned]]:
    """spawned(fault, *flags) starts one."""
    with ExitStack() as stack:

        def start(name: str, *more: str) -> Spawned:
            variables = {
                "PYTHONWARNINGS": "ignore",
                "KESTREL_STAMP": str(tmp_path / "stamp"),
                **fault(name),
            }
            parents = stack.enter_context(forked([variables], [*flags, *more], tmp_path / "io"))
            return Spawned(parents[0])

        yield start
    for pid in running_pids(tmp_path / "io"):
        os.kill(pid, signal.SIGKILL)


def test_spawned_job_ends_when_process_is_killed(spawned, stamp):
    """The launcher terminates the other process, perhaps before that has noticed the failure."""
    job = spawned("rank_1_is_killed_while_rank_0_computes", "--spawn", "2")
    wait_until(stamp.exists, 120, "the fault")
    assert job.end(MAX_END_S) == 1
    assert len(error_lines(job.parent.err)) == 1, job.parent.err
    assert re.search(
        "probably out of memory|without an error message", error_lines(job.parent.err)[0]
    )


def test_spawned_job_saves_and_exits_on_sigterm(spawned, stamp, tmp_path):
    """Both processes save and exit; see test_resume.py."""
    job = spawned("rank_1_is_terminated", "--spawn", "2")
    wait_until(stamp.exists, 120, "the fault")
    assert job.end(MAX_END_S) == 128 + signal.SIGTERM
    assert error_lines(job.parent.err) == []
    assert (tmp_path / "exp" / "preempted.json").exists()


def test_spawned_job_ends_on_ctrl_c(spawned, tmp_path):
    job = spawned("many_cores", "--spawn", "2", "--workers", "2")
    wait_until(
        lambda: (tmp_path / "exp" / "weights" / "last.pt").exists(), 120, "the first checkpoint"
    )
    assert len(job.running_pids()) >= 2 + 2 * 2  # ranks, their DataLoader workers
    os.kill(job.parent.process.pid, signal.SIGINT)
    assert job.end(MAX_END_S) == 130
    assert error_lines(job.parent.err) == ["interrupted"]


def test_processes_end_when_launcher_is_killed(spawned, tmp_path):
    """A killed launcher cannot forward a signal; a single process that it started must not outlive
    it either.
    """
    job = spawned("many_cores", "--spawn", "1", "--workers", "2")
    wait_until(
        lambda: (tmp_path / "exp" / "weights" / "last.pt").exists(), 120, "the first checkpoint"
    )
    assert len(job.running_pids()) >= 1 + 2
    job.parent.process.kill()
    job.end(MAX_END_S)


def test_spawn_reports_invalid_batch_size_in_one_line(spawned):
    job = spawned("many_cores", "--spawn", "2", "--batch", "5")
    assert job.end(300) == 2
    why = "--batch-size 5 is the total over all processes"
    sentence = f"error: {why}: choose a multiple of 2, the number of processes (WORLD_SIZE)\n"
    assert (job.parent.err, job.parent.out) == (sentence, "")


# ---------------------------------------------------------------------- who ends when


def wait_for_first_exit(ranks: list[Rank]) -> None:
    wait_until(
        lambda: any(rank.process.exitcode is not None for rank in ranks), 60, "the first end"
    )


@dataclass
class Outcome:
    """How processes ended: exit codes, stderr of each process, and the seconds since the fault."""

    codes: list[int]
    stderr: list[str]
    seconds: float


@pytest.fixture(params=["alone", "launcher"])
def end(
    request: pytest.FixtureRequest, flags: list[str], stamp: Path, tmp_path: Path
) -> Callable[..., Outcome]:
    """end(fault): processes without a launcher, or with one, which terminates the others when the
    first one ends.
    """

    def run(name: str, size: int = 2) -> Outcome:
        store = start_store()
        launcher = request.param == "launcher"
        hosted = (
            {"TORCHELASTIC_USE_AGENT_STORE": "True", "KESTREL_LINGER": "0.5"} if launcher else {}
        )
        port = store.port if launcher else free_port()
        variables = fault(name) | {"KESTREL_STAMP": str(stamp)} | hosted
        with forked(
            [rank_environment(rank, size, port) | variables for rank in range(size)],
            flags,
            tmp_path / "io",
        ) as ranks:
            if launcher:
                wait_for_first_exit(ranks)
                time.sleep(0.05)
                for rank in ranks:
                    rank.process.terminate()
            codes = [rank.end(300) for rank in ranks]
            return Outcome(codes, [rank.err for rank in ranks], time.time() - stamp.stat().st_mtime)

    return run


alone = pytest.mark.parametrize("end", ["alone"], indirect=True)


@alone
def test_all_ranks_end_when_one_rank_raises(end):
    result = end("rank_1_raises", size=4)
    assert result.codes == [1, 1, 1, 1]
    assert [error_lines(text) for text in result.stderr] == [[], ["RuntimeError: sabotage"], [], []]
    assert result.seconds < MAX_END_S / 2


def test_exception_is_reported_although_its_rank_exits_slowly(end):
    """Leaving a process group may take long: meanwhile the others have ended, and the launcher
    terminates this one.
    """
    result = end("rank_1_raises_and_exits_slowly")
    assert result.codes == [1, 1]
    assert [error_lines(text) for text in result.stderr] == [[], ["RuntimeError: sabotage"]]
    assert result.seconds < MAX_END_S / 2


@alone
def test_all_ranks_end_when_rank_0_raises_and_its_store_closes(end):
    result = end("rank_0_raises_while_rank_1_computes")
    assert result.codes == [1, 1]
    assert [error_lines(text) for text in result.stderr] == [["RuntimeError: sabotage"], []]
    assert "Traceback" not in result.stderr[1]
    assert result.seconds < MAX_END_S / 2


@pytest.mark.parametrize(("end", "rank"), [("alone", 0), ("launcher", 1)], indirect=["end"])
def test_all_ranks_exit_2_when_one_rank_refuses_input(end, rank):
    """For example, only its machine lacks a file. The others also end with 2, whatever a launcher
    does meanwhile.
    """
    result = end(f"rank_{rank}_refuses")
    assert result.codes == [2, 2]
    assert error_lines(result.stderr[rank]) == [f"error: the data of rank {rank} is not there"]
    assert error_lines(result.stderr[1 - rank]) == []
    assert "Traceback" not in "".join(result.stderr)
    assert result.seconds < MAX_END_S / 2


def test_all_ranks_exit_2_when_first_reader_refuses_data(end):
    """The other processes of its machine end with it, even if reading the same data takes them an
    hour.
    """
    result = end("rank_0_refuses_data_while_rank_1_reads")
    assert result.codes == [2, 2]
    assert [error_lines(text) for text in result.stderr] == [["error: bad labels"], []]
    assert result.seconds < MAX_END_S / 2


@alone
@pytest.mark.parametrize("rank", [0, 1])
def test_other_rank_reports_killed_rank(end, rank):
    result = end(f"rank_{rank}_is_killed")
    assert (result.codes[rank], result.codes[1 - rank]) == (-signal.SIGKILL, 1)
    assert error_lines(result.stderr[1 - rank]) == [f"error: {PEER_DIED}"]
    assert "Traceback" not in result.stderr[1 - rank]
    assert result.seconds < MAX_END_S / 2


def test_others_report_rank_killed_outside_collectives(flags, stamp, tmp_path):
    """Launched by hand, or by srun: no launcher ends the others."""
    variables = fault("rank_1_is_killed_before_it_reads") | {"KESTREL_STAMP": str(stamp)}
    port = free_port()
    environments = [rank_environment(rank, 4, port) | variables for rank in range(4)]
    with forked(environments, [*flags, "--dist-timeout", "5"], tmp_path / "io") as ranks:
        assert [rank.end(300) for rank in ranks] == [1, -signal.SIGKILL, 1, 1]
        assert error_lines(ranks[0].err) == [
            "error: rank 1 gave no sign of life for 5 s (--dist-timeout)"
        ]
        assert [error_lines(rank.err) for rank in ranks[1:]] == [[], [], []]
    assert time.time() - stamp.stat().st_mtime < MAX_END_S


@pytest.mark.parametrize(("size", "when"), [(1, "validation"), (2, "training")])
def test_job_ends_when_dataloader_worker_is_killed(flags, tiny_model, stamp, tmp_path, size, when):
    port = free_port()
    variables = fault(f"rank_0_worker_dies_in_{when}") | {"KESTREL_STAMP": str(stamp)}
    environments = [rank_environment(rank, size, port) | variables for rank in range(size)]
    words = [*flags, "--cfg", tiny_model, "--workers", "2"]
    with forked(environments, words, tmp_path / "io") as ranks:
        assert [rank.end(300) for rank in ranks] == [1] * size
        reason = "error: a DataLoader worker died, probably out of memory: use fewer --workers"
        last = tmp_path / "exp" / "weights" / "last.pt"
        advice = f"; continue with --resume {last}" if last.exists() else ""
        assert ranks[0].err == f"{reason}{advice}\n"
        assert not any(
            error_lines(rank.err) for rank in ranks[1:]
        )  # torch may warn that the store is closed
    assert time.time() - stamp.stat().st_mtime < MAX_END_S


@alone
def test_stuck_rank_is_ended_after_grace_period(end):
    result = end("rank_1_raises_while_rank_0_is_stuck")
    assert result.codes == [1, 1]
    assert [error_lines(text) for text in result.stderr] == [[], ["RuntimeError: sabotage"]]
    assert result.seconds < 1.5 + MAX_END_S / 3  # GRACE_S as the fault sets it


# ---------------------------------------------------------------------- refusals


def assert_all_refuse(
    environments: list[dict[str, str]],
    flags: list[str],
    folder: Path,
    sentence: str,
    late: Mapping[int, float],
) -> None:
    with forked(environments, flags, folder / "io", delays=late) as ranks:
        assert [rank.end(300) for rank in ranks] == [2] * len(environments), (
            ranks[0].err + ranks[1].err
        )
        errors = "".join(rank.err for rank in ranks)
        assert errors.startswith("error: ")
        assert sentence in errors
        assert errors.count("\n") == 1
        assert not any(line for rank in ranks for line in said_after_device(rank))


def said_after_device(rank: Rank) -> list[str]:
    """The lines on standard output but for the first one, which names the device."""
    return [line for line in rank.out.splitlines() if not line.startswith("device: ")]


def two_environments(number: int | None, **variables: str) -> list[dict[str, str]]:
    """The environments of two processes; `variables` change one or both of them, and empty values
    are removed.
    """
    port = free_port()
    environments = [rank_environment(rank, 2, port) for rank in range(2)]
    for rank, environment in enumerate(environments):
        if number in (None, rank):
            environment.update(variables)
    return [
        fault("short_timeouts") | {name: value for name, value in one.items() if value}
        for one in environments
    ]


REFUSALS = {
    "unknown flag": (two_environments(None), ["--bogus"], "unknown flag --bogus"),
    "batch": (
        two_environments(None),
        ["--batch", "5"],
        "--batch-size 5 is the total over all processes: choose a multiple of",
    ),
    "no data": (two_environments(None), ["--data", "nowhere.yaml"], "no data set nowhere.yaml"),
    "no such device": (two_environments(None), ["--device", "99"], "--device 99: this machine has"),
    "too few devices": (
        two_environments(None, **fault("one_gpu")),
        ["--device", "0"],
        "--device 0: 2 processes on this machine need 2 devices",
    ),
    "another seed": (
        two_environments(None, **fault("rank_1_has_another_seed")),
        [],
        "the command line differs between the processes: seed 0 on rank 0, seed 1 on rank 1",
    ),
    "SLURM contradicts": (
        two_environments(
            None, SLURM_PROCID="0", SLURM_NTASKS="4", SLURM_LOCALID="0", SLURM_STEP_NUM_TASKS="4"
        ),
        [],
        "of 4 tasks but RANK is",
    ),
    "no folder": (two_environments(None), ["--dist-url", "file:///nowhere/at/all"], "/nowhere/at"),
    "rank 1 contradicts itself": (
        two_environments(1, LOCAL_WORLD_SIZE="1"),
        [],
        "they contradict each other",
    ),
    "rank 1 lacks a variable": (two_environments(1, LOCAL_RANK=""), [], "LOCAL_RANK"),
    "spawn by both": (two_environments(None), ["--spawn", "2"], "--spawn"),
}


DATA_REFUSALS = {
    "nothing to train": (
        two_environments(None),
        ["--freeze", "6"],
        "--freeze 6: no parameter is left to train",
    ),
    "other data": (
        two_environments(None, **fault("rank_1_reads_other_images")),
        [],
        "train differs between the processes: ",
    ),
    "other arithmetic": (
        two_environments(None, **fault("rank_1_uses_other_precision")),
        ["--amp", "auto"],
        "--amp auto differs between the processes: torch.float32 on rank 0, torch.bfloat16 on rank "
        "1",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_invalid_input_gives_one_error_line_and_no_run_folder(name, flags, tmp_path):
    environments, more, sentence = REFUSALS[name]
    assert_all_refuse(environments, [*flags, *more], tmp_path, sentence, {})
    assert not (tmp_path / "exp").exists()


@pytest.mark.parametrize("name", DATA_REFUSALS)
def test_input_error_found_after_reading_data_is_printed_once_by_rank_0(name, flags, tmp_path):
    environments, more, sentence = DATA_REFUSALS[name]
    with forked(environments, [*flags, *more], tmp_path / "io") as ranks:
        assert [rank.end(300) for rank in ranks] == [2, 2]
        assert sentence in ranks[0].err
        assert (ranks[0].err.count("\n"), ranks[1].err) == (1, "")
    assert not (tmp_path / "exp").exists()


NO_RENDEZVOUS = {
    "rank 1 alone": (
        [{"RANK": "1"}],
        "WORLD_SIZE is not set: the launcher should set it to a whole number",
    ),
    "no number": (
        [{"RANK": "abc", "WORLD_SIZE": "1"}],
        "RANK is 'abc': the launcher should set it to a whole number",
    ),
    "counted from 1": (
        two_environments(None, RANK="2")[:1],
        "RANK is 2 and WORLD_SIZE is 2: ranks run from 0 to 1",
    ),
    "SLURM without a size": (
        [{"SLURM_PROCID": "1", "SLURM_NTASKS": "x", "SLURM_LOCALID": "0"}],
        "SLURM_NTASKS is 'x': the launcher should set it to a whole number",
    ),
    "no address": (
        two_environments(None, MASTER_ADDR=""),
        "MASTER_ADDR and MASTER_PORT are not set: give --dist-url tcp://HOST:PORT, or use torchrun",
    ),
    "no such port": (
        two_environments(None, MASTER_PORT="99999"),
        "127.0.0.1 port 99999: a port is a number from 1 to 65535",
    ),
}


@pytest.mark.parametrize("name", NO_RENDEZVOUS)
def test_every_process_reports_invalid_rendezvous_variables(name, tmp_path):
    """There may be no rank 0, or it may have different variables. Half of the cases start val.py:
    both scripts connect with the same function.
    """
    script = ("train", "val")[list(NO_RENDEZVOUS).index(name) % 2]
    environments, sentence = NO_RENDEZVOUS[name]
    with forked(environments, ["--device", "cpu"], tmp_path / "io", script=script) as ranks:
        assert [rank.end(300) for rank in ranks] == [2] * len(environments)
        assert [rank.err for rank in ranks] == [f"error: {sentence}\n"] * len(environments)
        assert not any(rank.out for rank in ranks)


def test_processes_starting_seconds_apart_print_one_error_line(flags, tmp_path):
    """All jobs run at the same time, to save time."""
    patient = {"KESTREL_FAULT": ""}
    with ExitStack() as stack:
        jobs = []
        for number, name in enumerate(["unknown flag", "batch", "no such device"]):
            environments, more, sentence = REFUSALS[name]
            late = {number % 2: 1.5}
            folder = tmp_path / str(number)
            processes = [environment | patient for environment in environments]
            ranks = stack.enter_context(forked(processes, [*flags, *more], folder, delays=late))
            jobs.append((ranks, sentence))
        for ranks, sentence in jobs:
            assert [rank.end(300) for rank in ranks] == [2, 2]
            assert sentence in ranks[0].err
            assert (ranks[0].err.count("\n"), ranks[1].err) == (1, "")


def test_torchrun_job_reports_unknown_flag_in_one_line(tmp_path):
    """Each process writes into its own files; one starts seconds after the other."""
    logs = ["--log-dir", str(tmp_path / "logs"), "--redirects", "3"]
    words = [*TWO_PROCESSES, *logs, SCRIPT, "--bogus"]
    with forked_launcher(words, tmp_path, KESTREL_LATE="1") as job:
        assert job.end(300) == 1
        assert exit_codes(job) == [2, 2]
    errors = {file.parent.name: file.read_text() for file in tmp_path.glob("logs/*/*/*/stderr.log")}
    assert errors == {"0": "error: unknown flag --bogus; --help lists the flags\n", "1": ""}


def test_error_is_reported_although_other_rank_never_starts(flags, tmp_path):
    """Rank 0 may accept the input, and start late."""
    environment = rank_environment(1, 2, free_port()) | fault("short_join")
    with forked([environment], [*flags, "--bogus"], tmp_path / "io") as (rank,):
        assert rank.end(300) == 2
        assert rank.err == "error: unknown flag --bogus; --help lists the flags\n"


# ---------------------------------------------------------------------- who does not come


def test_lone_rank_reports_missing_peer_after_timeout(flags, tmp_path):
    """One of two processes starts: it ends by itself with an error message, whichever rank it
    is.
    """
    with ExitStack() as stack:
        ranks = []
        for number in range(2):
            environments = [rank_environment(number, 2, free_port()) | fault("short_timeouts")]
            words = [*flags, "--dist-timeout", "2"]
            ranks += stack.enter_context(forked(environments, words, tmp_path / str(number)))
        assert [rank.end(40) for rank in ranks] == [1, 1]
        assert ranks[0].err == "error: rank 1 of 2 processes did not connect within 2 s\n"
        assert [line for line in ranks[1].err.splitlines() if line.startswith("error: ")] == [
            f"error: 127.0.0.1 port {ranks[1].environment['MASTER_PORT']}: no answer within 2 s "
            "(--dist-timeout)"
        ]


@pytest.mark.parametrize("rank", [0, 1])
def test_lone_rank_exits_soon_after_rendezvous_timeout(flags, tmp_path, rank):
    """After the timeout of the rendezvous, a process does not wait again for others to end together
    with.
    """
    environments = [rank_environment(rank, 2, free_port())]
    began = time.monotonic()
    with forked(environments, [*flags, "--dist-timeout", "2"], tmp_path / "io") as (alone,):
        assert alone.end(40) == 1
        assert alone.err.startswith("error: ")
        assert alone.err.count("\n") == 1
    assert time.monotonic() - began < 2 + 3 + 5  # 5 s for a busy machine


# ---------------------------------------------------------------------- standard streams


def test_training_works_with_closed_standard_streams(flags, tmp_path):
    """As with `>&- 2>&-`. Output of libraries must not end up in the files of the run."""
    with forked([fault("closed_streams")], [*flags, "--epochs", "1"], tmp_path / "io") as (rank,):
        assert rank.end(300) == 0
    assert checkpoint_file.load(tmp_path / "exp" / "weights" / "last.pt")["epoch"] == 1
