"""Simulate two machines with two network namespaces and a virtual cable, and run train.py over
both.

    python tests/support/two_machines.py                 all scenes, takes minutes
    python tests/support/two_machines.py same cut        these scenes

Scenes: `same` trains with torch's launcher on both machines and once in one process, and compares
the two results.csv; `static` does the same with the launcher's static rendezvous, `srun` without a
launcher, with SLURM's variables. `cut` disconnects the cable during a run and measures when both
sides end, `cut-srun` does so without a launcher; `blink` reconnects it after three seconds, which
must not end the run. `restart` kills a process of a run that allows restarts; `elastic` kills a
whole machine, and the other must continue alone.

All processes are forked from one that has imported what they need and has entered new namespaces,
which root can create, or any user if the system allows user namespaces. Nothing is left over,
however the script ends: the first process of the namespaces ends with it, and the kernel then
kills all others. Scripts that run at the same time do not see each other, because each has its own
network. Exit codes: 0 success, 1 failure, 77 namespaces cannot be created here.
"""

import argparse
import csv
import ctypes
import importlib
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.launching import PRELOADED, run_launcher_in_fork, run_script_in_fork

ROOT = Path(__file__).parents[2]
NOT_SUPPORTED = 77
MAX_DIFFERENCE = 0.5e-4  # relative, in results.csv: four significant digits
TIMEOUT_S, MARGIN_S = (
    6,
    15,
)  # --dist-timeout of the scene `cut`, and the time allowed after it until the run has ended
BLINK_S = 3
UNSHARE = "--mount --net --pid --fork --kill-child --mount-proc"
CREATE_NETWORK = """set -e
mount -t tmpfs none /run    # ip netns keeps its names there; this /run is private
mkdir /run/netns
ip netns add A
ip netns add B
ip -n A link add cable type veth peer name cable netns B
ip -n A addr add 10.99.0.1/24 dev cable
ip -n B addr add 10.99.0.2/24 dev cable
for name in A B; do ip -n $name link set lo up; ip -n $name link set cable up; done
echo created
exec cat                    # until its input ends
"""
FORK = multiprocessing.get_context("fork")
LAUNCHER_FLAGS = "--nproc-per-node 1 --redirects 3 --log-dir ranks"
LAUNCHER_OPTIONS = {
    "c10d": "--nnodes 2",
    "static": "--nnodes 2",
    "restart": "--nnodes 2 --max-restarts 1",
    "elastic": "--nnodes 1:2 --max-restarts 3",
}
TINY_RUN_FLAGS = (
    f"--cfg {ROOT / 'tests' / 'tables' / 'micro.yaml'} --img 64 --batch 4 "
    "--workers 0 --device cpu --noplots"
)
ENDLESS_RUN_FLAGS = ("--epochs", "9999", "--amp", "fp32")
CheckResult = tuple[bool, str]  # whether a check passed, and what was observed


# ---------------------------------------------------------------------- namespaces


def create_namespaces() -> "tuple[subprocess.Popen[str] | None, str]":
    """The process that holds new namespaces with the network of two machines, and ""; or None and
    the reason why they cannot be created. They are removed when its input is closed.
    """
    errors = []
    for user in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *user, *UNSHARE.split(), "sh", "-c", CREATE_NETWORK]
        pipe = subprocess.PIPE
        try:
            holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        except FileNotFoundError as error:
            return None, str(error)
        assert holder.stdout
        if holder.stdout.readline():
            return holder, ""
        errors.append(holder.communicate()[1].strip())
    return None, "; ".join(errors)


def enter_namespaces(holder: int) -> None:
    """Move this process into the namespaces of another one, but for that of process ids, which only
    the processes that it starts from now on are in.
    """
    here = Path.cwd()
    names = ["user", "mnt", "net", "pid_for_children"]
    opened = [Path(f"/proc/{holder}/ns/{name}") for name in names]
    opened = [file for file in opened if not file.samefile(f"/proc/self/ns/{file.name}")]
    descriptors = [os.open(file, os.O_RDONLY) for file in opened]  # /proc is soon another one
    for descriptor in descriptors:
        enter_namespace(descriptor)
        os.close(descriptor)
    os.chdir(here)


def enter_namespace(descriptor: int) -> None:
    """Move this process into the namespace of an open file."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, 0):
        raise OSError(ctypes.get_errno(), "setns")


def network_namespace_id(process: str) -> int:
    """The id (inode) of the network namespace of a process; 0 if the process has ended."""
    with suppress(OSError):
        return os.stat(f"/proc/{process}/ns/net").st_ino
    return 0


def processes_on(machine: str) -> list[int]:
    """The ids of the processes in a machine's network namespace."""
    network = os.stat(f"/run/netns/{machine}").st_ino
    names = [folder.name for folder in Path("/proc").glob("[0-9]*")]
    return [int(name) for name in names if network_namespace_id(name) == network]


# ---------------------------------------------------------------------- a run over both


class Machine:
    """One side of a run. The output of its processes is in a folder that the other side does not
    use.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.name, self.folder = number, "AB"[number], folder
        self.process: Any  # the launcher, or the training process if there is none
        self.launched = False  # whether there is a launcher
        self.rank = 0  # process id of the last training process that was found

    def cable(self, state: str) -> None:
        """Connect ("up") or disconnect ("down") this machine."""
        subprocess.run(["ip", "-n", self.name, "link", "set", "cable", state], check=True)

    def start(
        self, launcher: Sequence[str], variables: Mapping[str, str], words: Sequence[str]
    ) -> None:
        """Start train.py on this machine.

        launcher: the arguments of torch's launcher; empty: without one. words: those of train.py.
        """
        self.folder.mkdir(parents=True)
        self.launched = bool(launcher)
        self.process = FORK.Process(
            target=run_on_machine, args=(self.name, launcher, variables, words, self.folder)
        )
        self.process.start()

    def is_training(self) -> bool:
        """Whether a training process runs on this machine."""
        running = processes_on(self.name)
        if self.launched:
            running = [number for number in running if number != self.process.pid]
        if running:
            self.rank = min(running)
        return bool(running)

    def rank_exit_code(self) -> int | None:
        """The exit code of the training process of this machine; None if unknown."""
        with suppress(
            OSError
        ):  # a launcher that hangs has not reaped it: the system still has the code
            return int(Path(f"/proc/{self.rank}/stat").read_text().split()[-1]) >> 8
        found = re.search(
            r"failed \(exitcode: (-?\d+)\)", (self.folder / "stderr").read_text(errors="replace")
        )
        return int(found.group(1)) if found else self.process.exitcode

    def words(self) -> str:
        """The stderr output of the training process, without torch's warnings."""
        files = list(self.folder.glob("ranks/**/stderr.log")) or [self.folder / "stderr"]
        lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
        return "\n".join(line for line in lines if line and not line.startswith("[W"))

    def rows(self) -> list[dict[str, str]]:
        """The rows of results.csv so far."""
        with suppress(OSError), (self.folder / "runs/train/exp/results.csv").open() as file:
            return list(csv.DictReader(file))
        return []

    def clear(self) -> None:
        """Kill all processes on this machine."""
        while running := processes_on(self.name):
            for number in running:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.05)
        self.process.kill()
        self.process.join()


def run_on_machine(
    name: str,
    launcher: Sequence[str],
    variables: Mapping[str, str],
    words: Sequence[str],
    folder: Path,
) -> None:
    """Run train.py in this process, which moves to a machine first; see Machine.start."""
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    enter_namespace(descriptor)
    os.close(descriptor)
    variables = {"GLOO_SOCKET_IFNAME": "cable", **variables}
    warnings.simplefilter("ignore")
    if launcher:
        script = str(ROOT / "train.py")
        module = "torch.distributed.run"
        run_launcher_in_fork(module, variables, [*launcher, script, *words], folder)
    else:
        run_script_in_fork("train", variables, list(words), folder)


def rendezvous_arguments(number: int, way: str) -> tuple[list[str], dict[str, str]]:
    """The launcher arguments before train.py, and the variables, with which the processes find each
    other.
    """
    if way == "srun":
        shared = (
            "SLURM_JOB_ID=1 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=1(x2) "
            "SLURM_JOB_NODELIST=10.99.0.1,10.99.0.2"
        )
        own = f"SLURM_PROCID={number} SLURM_NODEID={number} SLURM_LOCALID=0"
        return [], dict(word.split("=") for word in f"{shared} {own}".split())
    words = f"{LAUNCHER_FLAGS} {LAUNCHER_OPTIONS[way]}"
    if way == "static":
        words += f" --node-rank {number} --master-addr 10.99.0.1 --master-port 29400"
    else:
        words += (
            " --rdzv-backend c10d --rdzv-endpoint 10.99.0.1:29400 --rdzv-id run "
            f"--rdzv-conf is_host={1 - number}"
        )
        words += f" --local-addr 10.99.0.{number + 1}"
    return words.split(), {}


@dataclass
class ScenarioSetup:
    """The environment of the scenes: a data set, and a folder for each run."""

    folder: Path

    def __post_init__(self) -> None:
        from tests.support.tiny_data import draw_tiny_data

        self.data = draw_tiny_data(self.folder / "data")

    def train(self, *flags: str) -> list[str]:
        """The arguments of train.py."""
        return ["--data", str(self.data), *TINY_RUN_FLAGS.split(), *flags]

    @contextmanager
    def run(self, scene: str, way: str, *flags: str) -> Iterator[tuple[Machine, Machine]]:
        """Start a run on both machines; processes left at the end of the block are killed."""
        machines = Machine(0, self.folder / scene / "A"), Machine(1, self.folder / scene / "B")
        for machine in machines:
            machine.cable("up")
            launcher, variables = rendezvous_arguments(machine.number, way)
            machine.start(launcher, variables, self.train("--sync-bn", *flags))
        try:
            yield machines
        finally:
            for machine in machines:
                machine.clear()

    def in_one_process(self, name: str, *flags: str) -> Machine:
        """Train in one process, and wait for the end; a second call with the same name trains
        nothing.
        """
        machine = Machine(0, self.folder / name)
        if not machine.folder.exists():
            machine.folder.mkdir(parents=True)
            words = self.train(*flags)
            process = FORK.Process(
                target=run_script_in_fork, args=("train", {}, words, machine.folder)
            )
            process.start()
            process.join()
        return machine

    def pretrained_flags(self) -> list[str]:
        """Flags of a run that starts from trained weights, so that its metrics are not zero.

        It uses float64, because in so small a run the rounding errors of float32 grow a hundredfold
        per epoch.
        """
        flags = "--epochs 30 --optimizer AdamW --noval --amp fp32"
        before = self.in_one_process("before", *flags.split())
        weights = f"{before.folder}/runs/train/exp/weights/best.pt"
        return f"--weights {weights} --amp fp64 --epochs 3".split()


def seconds_until(condition: Callable[[], object], seconds: float) -> float:
    """Wait until condition() is true; returns how many seconds it took, infinity after the
    timeout.
    """
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            return math.inf
        time.sleep(0.05)
    return time.monotonic() - start


def largest_difference(one: list[dict[str, str]], other: list[dict[str, str]]) -> float:
    """The largest relative difference of two results.csv, without the time column; infinity if the
    rows do not match.

    >>> one = [{"epoch": "1", "time": "3", "loss": "2"}]
    >>> largest_difference(one, [{"epoch": "1", "time": "9", "loss": "2.5"}])
    0.2
    >>> largest_difference([], [])
    inf
    """
    if not one or [list(row) for row in one] != [list(row) for row in other]:
        return math.inf
    pairs = [
        (float(a[k]), float(b[k]))
        for a, b in zip(one, other, strict=True)
        for k in a
        if k != "time"
    ]
    return max(abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0 for a, b in pairs)


# ---------------------------------------------------------------------- scenes


def same(stage: ScenarioSetup, scene: str, way: str) -> Iterator[CheckResult]:
    expected = stage.in_one_process("one", *stage.pretrained_flags()).rows()
    with stage.run(scene, way, *stage.pretrained_flags()) as (a, b):
        seconds_until(lambda: None not in (a.process.exitcode, b.process.exitcode), 150)
        codes = [a.process.exitcode, b.process.exitcode]
        yield codes == [0, 0], f"exit codes {codes}"
        yield compare_results(expected, a.rows())
        yield not list(b.folder.glob("runs/**/*")), "only the machine of rank 0 has a run folder"


def compare_results(expected: list[dict[str, str]], rows: list[dict[str, str]]) -> CheckResult:
    worst = largest_difference(expected, rows)
    ap = [row["metrics/mAP_0.5:0.95"] for row in rows]
    found = any(
        float(value) > 0 for value in ap
    )  # else the comparison of the metrics proves nothing
    return (
        found and worst < MAX_DIFFERENCE,
        f"results.csv differs from one process's by at most {worst:.1e}; AP {', '.join(ap)}",
    )


def cut(stage: ScenarioSetup, scene: str, way: str) -> Iterator[CheckResult]:
    with stage.run(scene, way, *ENDLESS_RUN_FLAGS, "--dist-timeout", str(TIMEOUT_S)) as (a, b):
        began = seconds_until(
            lambda: len(a.rows()) > 1 and a.is_training() and b.is_training(), 100
        )
        yield (
            began < math.inf,
            f"two epochs done after {began:.0f} s; then the cable is disconnected",
        )
        a.cable("down")
        ends = end_times(a, b, TIMEOUT_S + MARGIN_S + 20)
        for machine in (a, b):
            took = ends.get(machine.name, math.inf)
            yield (
                took < TIMEOUT_S + MARGIN_S,
                f"{machine.name}'s training process ended after {took:.1f} s",
            )
            seconds_until(lambda: machine.rank_exit_code() is not None, 2)  # noqa: B023
            code, words = machine.rank_exit_code(), machine.words()
            yield (
                code == 1 and words.startswith("error: "),
                f"{machine.name}'s exit code is {code}, stderr: {words}",
            )
        time.sleep(3)
        left = [machine.name for machine in (a, b) if machine.process.exitcode is None]
        yield (
            True,
            f"launchers that still wait (torch's do) and are killed: {' '.join(left) or 'none'}",
        )


def end_times(a: Machine, b: Machine, seconds: float) -> dict[str, float]:
    """For each machine on which the training ended: after how many seconds."""
    start, ends = time.monotonic(), {}
    while len(ends) < 2 and time.monotonic() - start < seconds:
        ends |= {
            m.name: time.monotonic() - start
            for m in (a, b)
            if m.name not in ends and not m.is_training()
        }
        time.sleep(0.05)
    return ends


def blink(stage: ScenarioSetup) -> Iterator[CheckResult]:
    with stage.run("blink", "c10d", *ENDLESS_RUN_FLAGS, "--dist-timeout", "30") as (a, _):
        began = seconds_until(lambda: len(a.rows()) > 1, 100)
        yield (
            began < math.inf,
            f"two epochs done after {began:.0f} s; then the cable is disconnected for {BLINK_S} s",
        )
        a.cable("down")
        time.sleep(BLINK_S)
        before = len(a.rows())
        a.cable("up")
        took = seconds_until(lambda: len(a.rows()) > before + 2, 25)
        yield (
            took < math.inf,
            f"{before} epochs done when it is connected again, 3 more {took:.1f} s later",
        )


def restart(stage: ScenarioSetup) -> Iterator[CheckResult]:
    """Restart with a project folder that both machines share."""
    flags = [*stage.pretrained_flags(), "--epochs", "8"]
    expected = stage.in_one_process("eight", *flags).rows()
    with stage.run(
        "restart", "restart", *flags, "--project", str(stage.folder / "restart/A/runs/train")
    ) as (a, b):
        began = seconds_until(lambda: len(a.rows()) > 2 and b.is_training(), 100)
        yield (
            began < math.inf,
            f"three epochs done after {began:.0f} s; then the process on B is killed",
        )
        if b.rank:
            os.kill(b.rank, signal.SIGKILL)
        took = seconds_until(lambda: None not in (a.process.exitcode, b.process.exitcode), 100)
        codes = [a.process.exitcode, b.process.exitcode]
        yield codes == [0, 0], f"exit codes {codes}, {took:.0f} s later"
        yield compare_results(expected, a.rows())


def elastic(stage: ScenarioSetup) -> Iterator[CheckResult]:
    with stage.run("elastic", "elastic", *ENDLESS_RUN_FLAGS) as (a, b):
        began = seconds_until(lambda: len(a.rows()) > 2 and b.is_training(), 100)
        yield began < math.inf, f"three epochs done after {began:.0f} s; then B is switched off"
        before = len(a.rows())
        b.clear()
        took = seconds_until(lambda: len(a.rows()) > before + 5, 120)
        yield took < math.inf, f"{before} epochs done then, six more {took:.0f} s later"
        epochs = [int(row["epoch"]) for row in a.rows()]
        yield epochs == list(range(1, len(epochs) + 1)), f"results.csv has the epochs {epochs}"


SCENARIOS: dict[str, Callable[[ScenarioSetup], Iterator[CheckResult]]] = {
    "same": partial(same, scene="same", way="c10d"),
    "static": partial(same, scene="static", way="static"),
    "srun": partial(same, scene="srun", way="srun"),
    "cut": partial(cut, scene="cut", way="c10d"),
    "cut-srun": partial(cut, scene="cut-srun", way="srun"),
    "blink": blink,
    "restart": restart,
    "elastic": elastic,
}


def run_scenarios(names: Sequence[str], folder: Path) -> bool:
    """Run these scenes; returns whether all checks passed."""
    stage, passed = ScenarioSetup(folder), True
    for name in names:
        start = time.monotonic()
        for good, seen in SCENARIOS[name](stage):
            print(f"{name}: {'ok' if good else 'WRONG'}: {seen}", flush=True)
            passed &= good
        print(f"{name}: {time.monotonic() - start:.0f} s in total", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=", ".join(SCENARIOS))
    parser.add_argument("--folder", type=Path, help="a new folder for the output, which is kept")
    args = parser.parse_args()
    names = args.scenes or list(SCENARIOS)
    if unknown := set(names) - SCENARIOS.keys():
        parser.error(f"no such scene: {', '.join(sorted(unknown))}")

    holder, reason = create_namespaces()
    if holder is None:
        print(f"namespaces cannot be created here: {reason}")
        return NOT_SUPPORTED
    with holder:
        enter_namespaces(holder.pid)
        inside = FORK.Process(target=run_inside, args=(holder, names, args.folder))
        inside.start()
        inside.join()
    return inside.exitcode


def run_inside(holder: "subprocess.Popen[str]", names: Sequence[str], folder: Path | None) -> None:
    """Run these scenes in this process, and end it."""
    assert holder.stdin
    holder.stdin.close()  # so that the namespaces end with the parent process
    for name in PRELOADED:
        importlib.import_module(name)
    resource_tracker.ensure_running()  # not by a process of a machine, where it would be found
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(0 if run_scenarios(names, folder or Path(temporary)) else 1)


if __name__ == "__main__":
    sys.exit(main())
