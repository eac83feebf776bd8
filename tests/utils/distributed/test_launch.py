"""Rank information from launchers' variables, and --spawn. The environments are made by hand."""

import os
import signal
import tempfile
from collections.abc import Callable

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api

from utils.distributed.launch import (
    LOST,
    Launch,
    RankInfo,
    read_launch,
    read_rank_info,
    spawn,
    without_spawn,
)
from utils.flags import FlagParser
from utils.terminal import FaultError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_TASKS_PER_NODE": "4,2",
    "SLURM_JOB_NODELIST": "gpu[007-008]",
    "SLURM_JOB_ID": "20123",
}


def without(names: str, environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names.split()}


@pytest.mark.parametrize(
    "environment",
    [{}, {"WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "", "WORLD_SIZE": ""}],
)
def test_rank_info_of_single_process(environment):
    assert read_rank_info(environment) == RankInfo()
    assert (
        read_rank_info(environment, 0) == RankInfo()
    )  # --local_rank 0, of an older launcher with one process


def test_rank_info_from_torchrun_variables():
    assert read_rank_info(TORCHRUN) == RankInfo(3, 4, 1, 2, "node1", 29500, hosted=True)
    assert read_rank_info(TORCHRUN, 1).local_rank == 1  # torch.distributed.launch passes it too
    assert not read_rank_info(without("TORCHELASTIC_USE_AGENT_STORE", TORCHRUN)).hosted
    assert read_rank_info(
        TORCHRUN | {"LOCAL_RANK": "0"}
    ).own_gpu  # as of all under --virtual-local-rank
    assert not read_rank_info(TORCHRUN).own_gpu


def test_rank_info_from_manual_variables():
    by_hand = read_rank_info({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
    assert by_hand == RankInfo(1, 2, 1, 2, "", 0)
    older = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }  # --local_rank, no --use_env
    assert read_rank_info(older, 1) == RankInfo(1, 2, 1, 2, "a", 1)


def test_rank_info_from_slurm_variables():
    # Job 20123 listens on port 20000 + (8 * 20123 + 0) % 12768 = 27768; the second node has two
    # tasks.
    assert read_rank_info(SLURM) == RankInfo(5, 6, 1, 2, "gpu007", 27768, run="20123.0")
    assert read_rank_info(SLURM | {"SLURM_STEP_ID": "3"}) == RankInfo(
        5, 6, 1, 2, "gpu007", 27771, run="20123.3"
    )
    assert read_rank_info(SLURM | {"MASTER_ADDR": "x", "MASTER_PORT": "7"}) == RankInfo(
        5, 6, 1, 2, "x", 7, run="20123.0"
    )
    assert read_rank_info(SLURM | {"SLURM_GPUS_PER_TASK": "a100:1"}).own_gpu
    assert not read_rank_info(SLURM | {"SLURM_GPUS_PER_TASK": "2"}).own_gpu
    bare = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}
    assert read_rank_info(bare) == RankInfo(1, 2, 1, 2, "127.0.0.1", 20000, run="0.0")
    assert read_rank_info(SLURM | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == RankInfo()
    assert (
        read_rank_info(SLURM | {"SLURM_PROCID": "0", "ENVIRONMENT": "BATCH"}) == RankInfo()
    )  # a batch script: no step, no tasks
    assert (
        read_rank_info(SLURM | {"ENVIRONMENT": "BATCH", "SLURM_STEP_NUM_TASKS": "6"}).size == 6
    )  # srun inherits it
    assert (
        read_rank_info(SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) == RankInfo()
    )  # one task of a larger job


@pytest.mark.parametrize(
    ("variables", "own"),
    [
        ({"SLURM_NTASKS_PER_GPU": "1"}, True),  # --ntasks-per-gpu=1
        ({"SLURM_NTASKS_PER_GPU": "2"}, False),
        ({"SLURM_GPU_BIND": "single:1"}, True),  # --gpu-bind=single:1
        ({"SLURM_GPU_BIND": "verbose,single:1"}, True),
        ({"SLURM_GPU_BIND": "single:10"}, False),
        ({"SLURM_GPU_BIND": "map_gpu:0,1"}, True),
        ({"SLURM_GPU_BIND": "none"}, False),
        ({"SLURM_TRES_PER_TASK": "cpu:4,gres/gpu:1"}, True),  # --tres-per-task
        ({"SLURM_TRES_PER_TASK": "cpu:4,gres/gpu:a100:1"}, True),
        ({"SLURM_TRES_PER_TASK": "gres/gpu=2"}, False),
        ({"SLURM_TRES_PER_TASK": "cpu:1"}, False),
        ({"SLURM_GPUS_ON_NODE": "2"}, True),  # the second node has two tasks
        ({"SLURM_GPUS_ON_NODE": "a100:4"}, True),
        ({"SLURM_GPUS_ON_NODE": "1"}, False),
        ({}, False),
    ],
)
def test_slurm_variables_that_bind_a_gpu_to_each_task(variables, own):
    assert read_rank_info(SLURM | variables).own_gpu == own


def test_torchrun_variables_take_precedence_over_slurm():
    """One SLURM task per node, each of them a torchrun with several processes."""
    assert (
        read_rank_info(
            TORCHRUN | {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
        ).rank
        == 3
    )


@pytest.mark.parametrize(
    ("environment", "flag", "sentence"),
    [
        ({"RANK": "0"}, -1, "WORLD_SIZE is not set: the launcher should set it to a whole number"),
        ({"WORLD_SIZE": "2"}, -1, "RANK is not set"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, -1, "WORLD_SIZE is 'two': the launcher should set it"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, -1, "RANK is '-1'"),
        (
            {"RANK": "0", "WORLD_SIZE": "0"},
            -1,
            "RANK is 0 and WORLD_SIZE is 0: ranks run from 0 to 0",
        ),
        (TORCHRUN | {"RANK": "4"}, -1, "RANK is 4 and WORLD_SIZE is 4: ranks run from 0 to 3"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, -1, "RANK and WORLD_SIZE are set but LOCAL_RANK is not"),
        (TORCHRUN, 0, "--local-rank is 0 but LOCAL_RANK is 1: they contradict each other"),
        (
            TORCHRUN | {"LOCAL_RANK": "2"},
            -1,
            "LOCAL_RANK is 2, LOCAL_WORLD_SIZE 2 and WORLD_SIZE 4: they contradict",
        ),
        (
            TORCHRUN | {"LOCAL_WORLD_SIZE": "8"},
            -1,
            "LOCAL_RANK is 1, LOCAL_WORLD_SIZE 8 and WORLD_SIZE 4: they contra",
        ),
        (
            without("TORCHELASTIC_RUN_ID", TORCHRUN) | SLURM,
            -1,
            "SLURM_PROCID is 5 of 6 tasks but RANK is 3 of WORLD_SIZE 4: they contradict each "
            "other",
        ),
        (
            SLURM | {"SLURM_PROCID": "6"},
            -1,
            "SLURM_PROCID is 6, SLURM_LOCALID 1 and SLURM_NTASKS 6: they contradict",
        ),
        (without("SLURM_LOCALID", SLURM), -1, "SLURM_LOCALID is not set"),
        (
            SLURM | {"SLURM_JOB_ID": "x"},
            -1,
            "SLURM_JOB_ID is 'x': the launcher should set it to a whole number",
        ),
        (SLURM | {"SLURM_NODEID": "x"}, -1, "SLURM_NODEID is 'x'"),
        (TORCHRUN | {"MASTER_PORT": "abc"}, -1, "MASTER_PORT is 'abc'"),
        (
            {},
            1,
            "--local-rank 1: RANK and WORLD_SIZE do not describe several processes; use a launcher",
        ),
    ],
)
def test_invalid_launcher_variables_are_refused(environment, flag, sentence):
    with pytest.raises(ValueError) as caught:
        read_rank_info(environment, flag)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"dist_url": "http://a:1"},
            "--dist-url http://a:1: choose env://, tcp://HOST:PORT or file:///PATH",
        ),
        ({"dist_url": "env://x"}, "--dist-url env://x: choose env://"),
        ({"dist_url": "tcp://host"}, "--dist-url tcp://host: expected tcp://HOST:PORT"),
        (
            {"dist_url": "file://here"},
            "--dist-url file://here: expected an absolute path, file:///PATH",
        ),
        ({"dist_backend": "mpi"}, "--dist-backend mpi: choose auto, nccl or gloo"),
        ({"dist_timeout": 0.0}, "--dist-timeout 0: choose 1 to 86400 seconds"),
        ({"dist_timeout": float("nan")}, "--dist-timeout nan: choose 1 to 86400 seconds"),
        (
            {"spawn": -2},
            "--spawn -2: give 1 process or more, or no number for one process per device",
        ),
    ],
)
def test_invalid_launch_settings_are_refused(values, sentence):
    with pytest.raises(ValueError) as caught:
        Launch(**values)
    assert str(caught.value).startswith(sentence)


def test_launch_flags_are_parsed():
    parser = FlagParser("")
    parser.add_argument("--epochs", type=int, default=3)
    assert read_launch(parser, []) == (Launch(), {"epochs": 3})
    words = (
        "--device 0,1 --spawn --local_rank=1 --dist-url tcp://[::1]:80 --dist-timeout 5 "
        "--dist-backend gloo"
    )
    parser = FlagParser("")
    launch, _ = read_launch(parser, words.split())
    assert launch == Launch("0,1", "tcp://[::1]:80", "gloo", 5.0, 0, 1)
    assert read_launch(FlagParser(""), ["--spawn", "4"])[0].spawn == 4


def test_without_spawn_removes_spawn_flag():
    assert without_spawn([]) == []
    assert without_spawn(["--spawn", "--img", "64"]) == ["--img", "64"]
    assert without_spawn(["--img", "64", "--spawn", "2"]) == ["--img", "64"]


# ---------------------------------------------------------------------- --spawn


@pytest.fixture
def spawned(monkeypatch):
    """spawned(*codes): run spawn() with a fake launcher whose processes end with these codes;
    returns its settings.

    after_s: when each process fails, in seconds after the first failure.
    """
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def start(*codes: int, after_s: tuple[int, ...] = (0, 0)) -> api.LaunchConfig:
        seen = []

        def launcher(config: api.LaunchConfig, *_: object) -> Callable[..., None]:
            seen.append(config)
            failed = {
                rank: ProcessFailure(rank, 1, code, "") for rank, code in enumerate(codes) if code
            }
            for rank, failure in failed.items():
                failure.timestamp = 1_000_000 + after_s[rank]

            def run(*_: object) -> None:
                assert os.environ["KESTREL_SPAWNED"] == "1"  # inherited by the processes
                if failed:
                    raise ChildFailedError("train.py", failed)

            return run

        monkeypatch.setattr(api, "elastic_launch", launcher)
        spawn("train.py", [], max(len(codes), 2))
        return seen[0]

    return start


@pytest.mark.parametrize(("handler", "handled"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_spawn_uses_loopback_address_and_respects_nohup(spawned, handler, handled):
    before = signal.signal(signal.SIGHUP, handler)
    try:
        config = spawned()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (config.nproc_per_node, config.local_addr, config.max_restarts) == (2, "127.0.0.1", 0)
    assert ("SIGHUP" in config.signals_to_handle) == handled


@pytest.mark.parametrize(
    ("codes", "expected"), [((2, 2), 2), ((LOST, 2), 2), ((0, 1), 1), ((-15, 1), 1), ((LOST, 3), 3)]
)
def test_spawn_exits_with_code_of_failed_process(spawned, codes, expected):
    with pytest.raises(SystemExit) as caught:
        spawned(*codes)
    assert caught.value.code == expected


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [
        ((LOST, -9), r"process 1 died \(SIGKILL\), probably out of memory"),
        ((-11, LOST), r"process 0 died \(SIGSEGV\)"),
        (
            (LOST, -15),
            "a process ended without an error message, and the others cannot continue without it",
        ),
    ],
)
def test_spawn_reports_processes_that_died_without_message(spawned, codes, sentence):
    with pytest.raises(FaultError, match=f"^{sentence}$"):
        spawned(*codes)
    assert "KESTREL_SPAWNED" not in os.environ


@pytest.mark.parametrize("after_s", [(0, 1), (1, 0)])
def test_spawn_tolerates_rounded_failure_times(spawned, after_s):
    with pytest.raises(FaultError, match="process 1 died"):
        spawned(LOST, -9, after_s=after_s)


def test_process_killed_by_launcher_is_not_reported_as_cause(spawned):
    """Rank 0 was stopped and did not answer; rank 1 reported that; 30 s later the launcher killed
    rank 0.
    """
    with pytest.raises(SystemExit) as caught:
        spawned(-9, 1, after_s=(30, 0))
    assert caught.value.code == 1
    with pytest.raises(FaultError, match="a process ended without an error message"):
        spawned(-9, LOST, after_s=(30, 0))


def test_spawn_raises_keyboard_interrupt(spawned):
    with pytest.raises(KeyboardInterrupt):
        spawned(130, 130)


def test_spawn_leaves_no_log_folder(spawned, tmp_path, monkeypatch):
    """torch's launcher creates a folder for logs by default, when it is configured and again when
    it starts.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spawned().logs_specs.reify({0: {}, 1: {}})
    assert list(tmp_path.iterdir()) == []
