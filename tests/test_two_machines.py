"""A run on two machines, and the SLURM job for such a run. More scenarios: python
tests/support/two_machines.py.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import Process
from pathlib import Path

import pytest
import torch

from tests.support.launching import running_pids, wait_until
from tests.support.own_process import start_program
from tests.support.two_machines import NOT_SUPPORTED
from train import parse_args
from utils.distributed.devices import pick_devices
from utils.distributed.launch import MASTER_PORTS, read_rank_info

TESTS = Path(__file__).parent
SCRIPT, JOB = TESTS / "support" / "two_machines.py", TESTS.parent / "docs" / "slurm.sbatch"

# ---------------------------------------------------------------------- two network namespaces


SCENARIOS = """
import sys
from tests.support.two_machines import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def running_scenarios(tmp_path_factory):
    """The processes of both scenarios and the folders of their output; started at the same time
    because they mostly wait.
    """
    folders = {scene: tmp_path_factory.mktemp(scene) for scene in ("same", "cut")}
    with ExitStack() as stack:
        yield {
            scene: (stack.enter_context(running_script(scene, output=folder)), folder)
            for scene, folder in folders.items()
        }


@contextmanager
def running_script(*words: str | Path, output: Path) -> Iterator[Process]:
    """Run the script in the background; kill it at the end of the block if it is still running."""
    script = start_program(SCENARIOS, *words, folder=output)
    try:
        yield script
    finally:
        script.kill()
        script.join()


def skip_where_not_supported(script: Process, output: Path) -> None:
    if script.exitcode == NOT_SUPPORTED:
        pytest.skip((output / "stdout").read_text().strip())


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["same", "cut"])
def test_two_machine_scenario_passes(running_scenarios, scene):
    script, output = running_scenarios[scene]
    script.join(300)
    skip_where_not_supported(script, output)
    out, err = ((output / name).read_text() for name in ("stdout", "stderr"))
    assert script.exitcode == 0, out + err
    assert f"{scene}: ok" in out


@pytest.mark.slow
def test_killed_scenario_script_leaves_no_processes(tmp_path):
    with running_script("blink", "--folder", tmp_path / "runs", output=tmp_path) as script:
        launchers = tmp_path / "runs" / "blink"
        wait_until(
            lambda: running_pids(launchers) or script.exitcode is not None, 100, "the launchers"
        )
        skip_where_not_supported(script, tmp_path)
        others = {*running_pids(tmp_path)} - {script.pid, *running_pids(launchers)}
        assert len(others) >= 2  # of the namespaces, and the one that starts the launchers
    wait_until(lambda: not running_pids(tmp_path), 10, "the end of all processes")


def test_unknown_scenario_is_refused():
    done = subprocess.run([sys.executable, SCRIPT, "explosion"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "no such scene: explosion" in done.stderr


# ---------------------------------------------------------------------- the SLURM job


STUBS = {
    "srun": 'printf "%s\\n" "$@" > srun.txt\necho $$ > srun.pid\nexec sleep "$NAP"\n',
    # SLURM ends the processes of a requeued job
    "scontrol": 'echo "$@" > scontrol.txt\nkill $(cat srun.pid)\n',
}


def directives() -> dict[str, str]:
    """The job's #SBATCH options."""
    found = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", JOB.read_text(), re.MULTILINE)
    assert len(found) == JOB.read_text().count("#SBATCH")
    return dict(found)


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """submit(nap) starts the job script with a stub of srun that writes its arguments to a file and
    sleeps.
    """
    bash = shutil.which("bash")
    if not bash or sys.platform == "win32":
        pytest.skip("no bash")
    (tmp_path / "bin").mkdir()
    for name, text in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!{bash}\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def start(nap: str) -> "subprocess.Popen[bytes]":
        slurm = {"SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "8", "NAP": nap}
        return subprocess.Popen([bash, JOB], cwd=tmp_path, env=os.environ | slurm)

    return start


def test_first_start_of_slurm_job_starts_a_new_run(submit, tmp_path):
    assert submit("0").wait(10) == 0
    words = (tmp_path / "srun.txt").read_text().splitlines()
    assert words[:3] == ["--kill-on-bad-exit=1", "python", "train.py"]
    cfg, launch = parse_args(words[3:])
    tasks = int(directives()["nodes"]) * int(directives()["ntasks-per-node"])
    assert cfg.batch_size % tasks == 0
    assert cfg.resume == ""
    assert (cfg.project, cfg.name, cfg.exist_ok) == ("runs/train", "job77", True)
    assert len(launch.device.split(",")) == int(directives()["gpus-per-node"])


def test_requeued_slurm_job_resumes_its_last_checkpoint(submit, tmp_path):
    last = tmp_path / "runs/train/job77/weights/last.pt"
    last.parent.mkdir(parents=True)
    last.touch()
    assert submit("0").wait(10) == 0
    words = (tmp_path / "srun.txt").read_text().splitlines()[3:]
    assert parse_args(words)[0].resume == "runs/train/job77/weights/last.pt"


def test_slurm_job_is_requeued_before_its_time_limit(submit, tmp_path):
    assert directives()["signal"].startswith("B:USR1@")  # only to the batch script
    assert "requeue" in directives()
    job = submit("60")
    while not (tmp_path / "srun.pid").exists() or not (tmp_path / "srun.pid").read_text():
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(10) == 128 + signal.SIGTERM  # of its processes
    assert (tmp_path / "scontrol.txt").read_text().split() == ["requeue", "77"]


def test_slurm_job_returns_exit_code_of_its_processes(submit):
    assert submit("no number").wait(10) == 1  # the exit code of sleep


def test_slurm_job_processes_get_distinct_nodes_and_devices(monkeypatch):
    """The variables that srun sets for each process of the job give each a different node and
    device.
    """
    nodes, each = int(directives()["nodes"]), int(directives()["ntasks-per-node"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(directives()["gpus-per-node"]))
    job = {
        "SLURM_JOB_ID": "77",
        "SLURM_NTASKS": str(nodes * each),
        "SLURM_TASKS_PER_NODE": f"{each}(x{nodes})",
        "SLURM_JOB_NODELIST": f"gpu[01-0{nodes}]",
    }
    found = set()
    for rank in range(nodes * each):
        task = {"PROCID": rank, "NODEID": rank // each, "LOCALID": rank % each}
        rank_info = read_rank_info(
            job | {f"SLURM_{name}": str(value) for name, value in task.items()}
        )
        assert (rank_info.rank, rank_info.size, rank_info.local_size) == (rank, 8, 4)
        assert (rank_info.host, rank_info.port, rank_info.hosted) == (
            "gpu01",
            MASTER_PORTS[8 * 77],
            False,
        )
        found.add((rank // each, rank_info.local_rank, pick_devices("0,1,2,3", rank_info)[0]))
    assert found == {
        (node, local, torch.device("cuda", local)) for node in range(2) for local in range(4)
    }
