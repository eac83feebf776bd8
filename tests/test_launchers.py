"""Every way to start several processes gives the losses and weights of one process."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.launching import (
    ROOT,
    TORCHRUN,
    forked,
    forked_launcher,
    free_port,
    launched,
    rank_environment,
    small_run_flags,
    wait_until,
)
from tests.support.run_differences import assert_losses_agree, state_differences

pytestmark = [
    pytest.mark.slow,
    pytest.mark.trains,
    pytest.mark.skipif(sys.platform != "linux", reason="finds its processes in /proc"),
]

TRAIN = str(ROOT / "train.py")
TWO_PROCESSES = ["--nproc_per_node", "2"]
EXACT = [
    "--sync-bn",
    "--amp",
    "fp64",
]  # with these, the processes together differ from one only by rounding in float64


def assert_same_training(run: Path, other: Path) -> None:
    """The runs have the same losses, weights and optimizer state, up to rounding in float64."""
    assert_losses_agree(run, other, relative=1e-6)
    assert max(state_differences(run, other).values()) < 1e-6


@pytest.fixture(scope="module")
def single_process_run(
    tiny_data: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The run folder of one process."""
    folder = tmp_path_factory.mktemp("single_process_run")
    with forked([{}], small_run_flags(tiny_data, micro_model, folder, *EXACT), folder / "io") as (
        rank,
    ):
        assert rank.end(300) == 0, rank.err
    return folder / "exp"


@pytest.fixture
def flags(tiny_data: Path, micro_model: str, tmp_path: Path) -> list[str]:
    return small_run_flags(tiny_data, micro_model, tmp_path, *EXACT, "--dist-timeout", "30")


def test_torchrun_results_match_single_process(single_process_run, flags, tmp_path):
    """The command line itself, with processes that are not forked."""
    command = [*TORCHRUN, *TWO_PROCESSES, TRAIN, *flags]
    with launched(command, tmp_path / "io") as job:
        assert job.end(300) == 0, job.err
    assert job.out.count("batch 4 (2 in each of 2 processes)") == 1  # only rank 0 prints
    assert job.out.count("see ") == 1
    assert_same_training(tmp_path / "exp", single_process_run)


@pytest.mark.parametrize("form", [[], ["--use_env"]], ids=["--local-rank", "--use_env"])
def test_torch_distributed_launch_results_match_single_process(
    single_process_run, flags, tmp_path, form
):
    module = "torch.distributed.launch"
    pytest.importorskip(module, reason="this torch does not have it")
    words = [*form, *TWO_PROCESSES, "--master_port", str(free_port()), TRAIN, *flags]
    with forked_launcher(words, tmp_path / "io", module=module) as job:
        assert job.end(300) == 0, job.err
    assert_same_training(tmp_path / "exp", single_process_run)


def run_forked_script(
    script: str, flags: list[str], folder: Path, *, real_rank_0: bool = False
) -> str:
    """The output of a script, forked here, that starts processes itself and must succeed."""
    environments = [{"PYTHONWARNINGS": "ignore"}]
    with forked(environments, flags, folder / "io", script=script, real_rank_0=real_rank_0) as (
        rank,
    ):
        assert rank.end(300) == 0, rank.err
        assert rank.err == ""
        return rank.out


def test_spawn_results_match_single_process(single_process_run, flags, tmp_path):
    """Rank 0 is a process that is not forked."""
    output = run_forked_script("train", [*flags, "--spawn", "2"], tmp_path, real_rank_0=True)
    assert output.count("in each of 2 processes") == 1
    assert_same_training(tmp_path / "exp", single_process_run)


def test_val_with_spawn_matches_single_process(single_process_run, tmp_path):
    best = str(single_process_run / "weights" / "best.pt")
    words = ["--weights", best, "--device", "cpu", "--workers", "0", "--batch", "4", "--img", "64"]
    words += ["--project", str(tmp_path), "--cache-dir", str(single_process_run.parent / "cache")]
    two, one = (run_forked_script("val", [*words, *more], tmp_path) for more in (["--spawn=2"], []))
    timeless = [re.sub(r"\d+\.\d+ ms|exp\d?\b", "", text) for text in (two, one)]
    assert timeless[0] == timeless[1] != ""
    assert sorted(path.name for path in tmp_path.glob("exp*")) == ["exp", "exp2"]


def slurm(rank: int, job: int) -> dict[str, str]:
    """The variables of a step of two tasks on one node; the job's second node is not part of the
    step.
    """
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    task = {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "2",
    }
    return {**step, **task, "SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost"}


def manual_launch(form: str, folder: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Environments and flags of two processes that are started without torch's launcher."""
    environments = [rank_environment(rank, 2, free_port()) for rank in range(2)]
    if form == "variables":
        return [
            environment | {"MASTER_PORT": environments[0]["MASTER_PORT"]}
            for environment in environments
        ], []
    if form == "SLURM":
        return [
            slurm(rank, 7) | {"MASTER_PORT": environments[0]["MASTER_PORT"]} for rank in range(2)
        ], []
    bare = [
        {k: v for k, v in environment.items() if not k.startswith("MASTER")}
        for environment in environments
    ]
    if form == "tcp under torchrun":  # which has its own store
        bare = [environment | {"TORCHELASTIC_USE_AGENT_STORE": "True"} for environment in bare]
    url = f"file://{folder}/meeting" if form == "file" else f"tcp://127.0.0.1:{free_port()}"
    return bare, ["--dist-url", url]


@pytest.mark.parametrize("form", ["variables", "SLURM", "tcp", "tcp under torchrun", "file"])
def test_manual_launch_results_match_single_process(single_process_run, flags, tmp_path, form):
    environments, url = manual_launch(form, tmp_path)
    with forked(environments, [*flags, *url], tmp_path / "io") as ranks:
        assert [rank.end(300) for rank in ranks] == [0, 0], ranks[0].err + ranks[1].err
        assert "2 in each of 2 processes" in ranks[0].out
        assert (ranks[1].out, ranks[0].err, ranks[1].err) == ("", "", "")
    assert_same_training(tmp_path / "exp", single_process_run)


def test_slurm_batch_script_runs_as_single_process(single_process_run, flags, tmp_path):
    """Its variables count the tasks that it may start; only srun adds those of a step. It runs as a
    single process.
    """
    batch = {"ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
    with forked([batch], [*flags, "--dist-timeout", "2"], tmp_path / "io") as (rank,):
        assert rank.end(300) == 0, rank.err
    assert_same_training(tmp_path / "exp", single_process_run)


def test_rendezvous_file_of_killed_run_can_be_reused(single_process_run, flags, tmp_path):
    """The file contains keys of the killed processes, but the next run can use it; rank 1 starts
    first.
    """
    environments, url = manual_launch("file", tmp_path)
    with forked(environments, [*flags, *url, "--epochs", "1000"], tmp_path / "io") as ranks:
        wait_until(
            lambda: (tmp_path / "exp" / "weights" / "last.pt").exists(), 120, "the first checkpoint"
        )
        for rank in ranks:
            os.kill(rank.process.pid, signal.SIGKILL)
            rank.end(20)
    with forked(environments, [*flags, *url], tmp_path / "io", delays={0: 1}) as ranks:
        assert [rank.end(300) for rank in ranks] == [0, 0], ranks[0].err + ranks[1].err
    assert_same_training(tmp_path / "exp2", single_process_run)
