"""Run stages in processes of their own: each with a time limit, and all together with one.

A stage that hangs, crashes or fails costs only itself. Its process is forked from this one, which
has the imports done and must not use CUDA, and leads a process group; the processes that it starts
are ended with it.
"""

import importlib.util
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.on_gpu.commands import FORK, redirect_streams
from benchmarks.on_gpu.stage import Finding, Scope, Stage
from tests.support.launching import environment_of

CPU_LIMITS = 4.0  # times as long as on a GPU's machine, which has more cores
LOOK_S = 0.05  # between two looks at the running stages
MARK = "KESTREL_STAGE_MARK"  # environment variable that all processes of a stage inherit
RESERVE_S = 3.0  # of the time for all stages, to end the last one and write the report
TAIL = 25  # lines of the output of a stage that did not pass

PASSED, FAILED, ERROR, STOPPED = "passed", "failed", "error", "stopped"
CUT_SHORT, SKIPPED, LEFT_OUT = "cut short", "skipped", "left out"


@dataclass
class Outcome:
    """What became of a stage.

    status: passed; failed (a finding is not good); error (an exception or a crash); stopped (at its
    own limit); cut short (at the limit of all stages); skipped (it cannot run here); left out (no
    time). reason: of the last five. output: its last lines if it did not pass.
    """

    stage: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    output: list[str] = field(default_factory=list)

    @property
    def ran(self) -> bool:
        return self.status not in (SKIPPED, LEFT_OUT)

    @property
    def is_bad(self) -> bool:
        return self.status in (FAILED, ERROR, STOPPED)


class Running:
    """A stage that is running in its own process, with its output and findings in files."""

    def __init__(self, stage: Stage, scope: Scope, log: Path, left_s: float) -> None:
        """left_s: seconds that remain for all stages together."""
        own_limit_s = stage.limit_s * (1 if scope.on_gpu else CPU_LIMITS)
        self.stage = stage
        self.log = log
        self.limit_s = min(own_limit_s, left_s)
        self.is_shortened = left_s < own_limit_s

        self.findings = scope.folder / "findings" / f"{stage.name}.jsonl"
        self.findings.parent.mkdir(exist_ok=True)
        self.findings.touch()

        self.mark = uuid.uuid4().hex
        self.started = time.monotonic()
        self.process = FORK.Process(target=work, args=(stage, scope, log, self.findings, self.mark))
        self.process.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def outcome(self) -> Outcome | None:
        """What became of the stage; None while it runs within its limit."""
        if self.process.exitcode is None and self.seconds < self.limit_s:
            return None

        code = self.process.exitcode
        seconds = self.seconds
        self.end()

        # The last line of a process that was killed may be incomplete.
        lines = self.findings.read_text(encoding="utf-8").splitlines()
        found = [Finding(**json.loads(line)) for line in lines if line.endswith("}")]

        status, reason = self._status(code, found)
        output = []
        if status != PASSED and self.log.exists():
            text = self.log.read_text(encoding="utf-8", errors="replace")
            output = text.splitlines()[-TAIL:]
        return Outcome(self.stage.name, status, reason, seconds, found, output)

    def _status(self, code: int | None, found: Sequence[Finding]) -> tuple[str, str]:
        if any(finding.good is False for finding in found):
            return FAILED, "" if code == 0 else "and did not end by itself"
        if code is None:
            return CUT_SHORT if self.is_shortened else STOPPED, f"after {self.limit_s:.0f} s"
        if code < 0:
            return ERROR, f"ended by {signal.Signals(-code).name}"
        if code > 0:
            return ERROR, f"exit code {code}"
        return PASSED, ""

    def end(self) -> None:
        """Kill the stage's process group and all processes that it started, and wait for it."""
        if self.process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        for pid in marked_pids(self.mark):  # torchrun and others leave the group
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


def marked_pids(mark: str) -> list[int]:
    """The ids of all processes that were started with this mark in their environment."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in numbers if environment_of(pid).get(MARK) == mark]


def work(stage: Stage, scope: Scope, log: Path, findings: Path, mark: str) -> None:
    """The process of a stage: its streams go to `log`, its findings as lines of JSON to a file."""
    os.setsid()
    os.environ[MARK] = mark
    # A process that has computed in several threads must not fork: its children hang.
    torch.set_num_threads(1)
    if not scope.on_gpu:  # several processes with several threads each are slow on few cores
        os.environ["OMP_NUM_THREADS"] = "1"
    redirect_streams(log)
    with open(findings, "w", encoding="utf-8", buffering=1) as file:
        for finding in stage.run(scope):
            file.write(json.dumps(asdict(finding)) + "\n")
            print(finding.text, flush=True)


def run_stages(
    stages: Sequence[Stage],
    scope: Scope,
    logs: Path,
    *,
    deadline: float,
    jobs: int,
    report: Callable[[list[Outcome]], Any],
) -> list[Outcome]:
    """Run the stages in their order, as far as the time allows; return what became of each.

    Args:
        stages: in the order of their importance.
        scope: what they share.
        logs: folder for their output.
        deadline: of time.monotonic(), when all must have ended.
        jobs: how many stages run at the same time, unless one of them measures time.
        report: is called with all outcomes so far when a stage ends.
    """
    waiting = list(stages)
    running: list[Running] = []
    outcomes: list[Outcome] = []
    try:
        while waiting or running:
            for each in list(running):
                outcome = each.outcome()
                if outcome is not None:
                    running.remove(each)
                    outcomes.append(outcome)
                    report(outcomes)

            for stage in list(waiting):
                left_s = deadline - RESERVE_S - time.monotonic()
                refused = refusal(stage, scope, outcomes, waiting, running, left_s)
                if refused is not None:
                    waiting.remove(stage)
                    outcomes.append(refused)
                    report(outcomes)
                elif can_start(stage, waiting, running, jobs):
                    waiting.remove(stage)
                    running.append(Running(stage, scope, logs / f"{stage.name}.txt", left_s))
                elif stage.alone:
                    break  # later stages do not overtake it
            time.sleep(LOOK_S)
    finally:
        for each in running:
            each.end()
    order = [stage.name for stage in stages]
    return sorted(outcomes, key=lambda outcome: order.index(outcome.stage))


def refusal(
    stage: Stage,
    scope: Scope,
    outcomes: Sequence[Outcome],
    waiting: Sequence[Stage],
    running: Sequence[Running],
    left_s: float,
) -> Outcome | None:
    """The outcome of a stage that will not run; None if it may run, now or later."""
    if stage.needs_cuda and not scope.on_gpu:
        return Outcome(stage.name, SKIPPED, "needs CUDA")

    missing = [package for package in stage.packages if importlib.util.find_spec(package) is None]
    if missing:
        return Outcome(stage.name, SKIPPED, f"needs the package {', '.join(missing)}")

    pending = pending_names(waiting, running)
    passed = {outcome.stage for outcome in outcomes if outcome.status == PASSED}
    absent = [name for name in stage.after if name not in passed and name not in pending]
    if absent:
        return Outcome(stage.name, SKIPPED, f"needs {', '.join(absent)}, which did not pass")

    if left_s < stage.least_s:
        reason = f"{max(left_s, 0):.0f} s remained, it takes {stage.least_s:.0f} or more"
        return Outcome(stage.name, LEFT_OUT, reason)
    return None


def pending_names(waiting: Sequence[Stage], running: Sequence[Running]) -> set[str]:
    """The names of the stages that have not ended."""
    return {stage.name for stage in waiting} | {each.stage.name for each in running}


def can_start(
    stage: Stage, waiting: Sequence[Stage], running: Sequence[Running], jobs: int
) -> bool:
    """Whether a stage may start now: what it needs has ended, and it disturbs no measurement."""
    if pending_names(waiting, running) & set(stage.after):
        return False
    if stage.alone or any(each.stage.alone for each in running):
        return not running
    return len(running) < jobs
