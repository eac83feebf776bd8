"""benchmarks/gpu.py: every stage that a CPU can run, at 64 px; what happens to stages that fail;
the reports.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import train
from benchmarks import gpu
from benchmarks.on_gpu import resuming, running
from benchmarks.on_gpu.commands import Command, Done, run_command
from benchmarks.on_gpu.host_waits import recorded_waits, settings, waiting_operations, waits_of
from benchmarks.on_gpu.modes import convolution_dtypes
from benchmarks.on_gpu.processes import part_of
from benchmarks.on_gpu.report import markdown, summary, write_results
from benchmarks.on_gpu.running import Outcome, Running, can_start, refusal, run_stages
from benchmarks.on_gpu.stage import Finding, Scope, Sizes, Stage
from benchmarks.on_gpu.stages import STAGES
from benchmarks.on_gpu.trainings import draw_data, said
from benchmarks.timed_steps import Setting, made_up_batch
from data.splits import open_data, read_split
from tests.support.launching import wait_until
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.terminal import exit_code_of

CPU = World(torch.device("cpu"))
linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="forks, and looks for processes in /proc"
)


@pytest.fixture(scope="module")
def scope(tiny_data: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Scope:
    """Eight images of 96 px, at 64 px, and the tiny model for everything."""
    sizes = Sizes(
        img=64,
        model=tiny_model,
        batch=4,
        epochs=2,
        workers=0,
        autobatch_model=tiny_model,
        check_models=(tiny_model,),
        check_img=64,
        check_batch=2,
        resume_epochs=2,
        save_minutes=1e-9,
        models=(tiny_model,),
        batches=(2, 1, 3),
        steps=2,
        loader_passes=1,
        copy_bytes=2**20,
        matrix=64,
    )
    return Scope("cpu", tmp_path_factory.mktemp("gpu"), sizes, str(tiny_data))


# ---------------------------------------------------------------------- stages

MEASURING = {"machine", "data", "steps-64", "steps-16", "steps-128"}  # they check nothing
QUICK = MEASURING | {"uploads", "losses", "nms", "train-ram", "loader"}
LEFT_OUT = {"onnx"}  # half a minute for torch's exporter; the same function as TorchScript
ON_CPU = [
    pytest.param(stage.name, marks=[pytest.mark.slow] * (stage.name not in QUICK))
    for stage in STAGES
    if not stage.needs_cuda and stage.name not in LEFT_OUT
]


@pytest.fixture(scope="module")
def findings_of(scope: Scope) -> Callable[[str], list[Finding]]:
    """findings_of(name): what a stage finds, after those that it needs; each runs once."""
    stages = {stage.name: stage for stage in STAGES}
    known: dict[str, list[Finding]] = {}

    def find(name: str) -> list[Finding]:
        if name not in known:
            for needed in stages[name].after:
                find(needed)
            known[name] = list(stages[name].run(scope))
        return known[name]

    return find


@linux_only
@pytest.mark.parametrize("name", ON_CPU)
def test_stage_finds_nothing_wrong_on_a_cpu(findings_of, name):
    found = findings_of(name)
    assert found
    assert [finding.text for finding in found if finding.good is False] == []
    if name not in MEASURING:
        assert any(finding.good for finding in found)
    json.dumps([finding.values for finding in found], allow_nan=False)


@linux_only
def test_resumed_run_on_a_cpu_must_be_equal_to_the_bit(scope, monkeypatch):
    """The stage's verdict, when a resumed run differs in one weight."""
    monkeypatch.setattr(resuming, "start", lambda *_: FakeCommand())
    monkeypatch.setattr(resuming, "wait_for_second_epoch", lambda *_: True)
    runs = scope.folder / "other"
    for name in ("straight", "again", "killed"):
        write_run(runs / "runs" / name, weight=1.5 if name == "killed" else 1.0)
    verdicts = list(resuming.kill_and_resume(Scope("cpu", runs, scope.sizes)))[-3:]
    assert [finding.good for finding in verdicts] == [None, False, False]
    assert verdicts[0].text == "two uninterrupted runs are equal to the bit"
    assert verdicts[1].text.endswith("(killed) differ in model; losses by 0.0e+00 at most")


@pytest.mark.parametrize(("amp", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision_of_convolutions_leaves_out_those_that_always_use_float32(
    tiny_model, amp, expected
):
    setting = Setting(cfg=tiny_model, img=64, batch=2, amp=amp)
    assert convolution_dtypes(setting, CPU) == {expected}


@linux_only
def test_stage_that_has_computed_can_fork_scripts(scope, tmp_path):
    """OpenMP hangs in a forked process if its parent has computed in several threads."""
    gpu_scope = Scope(
        "0", tmp_path, scope.sizes
    )  # on a GPU stages may use all cores; this one needs no GPU
    stage = Stage("forks", "", compute_then_fork, 20)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        outcomes = run_stages(
            [stage], gpu_scope, tmp_path, deadline=time.monotonic() + 60, jobs=1, report=len
        )
    finally:
        torch.set_num_threads(before)
    assert [outcome.status for outcome in outcomes] == ["passed"]


def compute_then_fork(scope: Scope) -> Iterator[Finding]:
    large_sum()
    done = Command(
        large_sum, [], scope.folder / "output" / "sum.txt", partial(torch.set_num_threads, 2)
    ).end()
    yield from done.findings("sum")


def large_sum() -> None:
    """A sum that torch computes in several threads."""
    torch.ones(1_000_000).add_(1).sum()


class FakeCommand:
    """A command that has ended well."""

    class process:
        @staticmethod
        def kill() -> None:
            pass

    def end(self) -> Done:
        return Done(0, "", 0.0)


def write_run(run: Path, weight: float) -> None:
    """A run folder with one row and a checkpoint with one weight, whose momentum is
    channels-last.
    """
    (run / "weights").mkdir(parents=True)
    (run / "results.csv").write_text("epoch,time,train/box_loss\n1,9,0.5\n")
    momentum = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    optimizer = {"state": {0: {"momentum_buffer": momentum, "step": 1}}, "param_groups": []}
    state = {
        "model": {"weight": torch.tensor(weight)},
        "optimizer": optimizer,
        "seconds": time.time(),
    }
    checkpoint_file.save(run / "weights" / "last.pt", {**state, "table": {}, "names": []})


def test_optimizer_state_becomes_contiguous_and_keeps_its_values(tmp_path):
    write_run(tmp_path, weight=1.0)
    last = tmp_path / "weights" / "last.pt"
    assert resuming.make_state_contiguous(last) == 1
    momentum = checkpoint_file.load(last)["optimizer"]["state"][0]["momentum_buffer"]
    assert momentum.is_contiguous()
    assert momentum.flatten().tolist() == list(range(24))
    assert resuming.make_state_contiguous(last) == 0


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": torch.ones(2), "time": 1}, {"a": torch.ones(2), "time": 2}, True),
        ({"a": torch.ones(2)}, {"a": torch.ones(2), "b": 1}, False),
        ([float("nan"), 1], [float("nan"), 1], True),
        ([1], [1, 2], False),
        (torch.ones(2), [1.0, 1.0], False),
        ({}, {}, True),
    ],
)
def test_records_are_compared_by_bits_without_times(one, other, equal):
    assert resuming.same(one, other) is equal


def test_losses_are_compared_relatively(tmp_path):
    for name, losses in (("one", "1,2"), ("other", "1,2.5")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.csv").write_text(f"train/box_loss,val/cls_loss\n{losses}\n")
    assert (
        resuming.largest_loss_difference(tmp_path / "one", tmp_path / "other") == 0.25
    )  # 0.5 of 2
    (tmp_path / "other" / "results.csv").write_text("train/box_loss,val/cls_loss\n")
    assert resuming.largest_loss_difference(tmp_path / "one", tmp_path / "other") == float("inf")


def test_each_rank_gets_its_images_with_their_boxes():
    batch = made_up_batch(Setting(img=64, batch=4, boxes=3), 0, CPU.device)
    parts = [part_of(batch, rank, 2) for rank in (0, 1)]
    assert [len(part.images) for part in parts] == [2, 2]
    assert torch.equal(torch.cat([part.images for part in parts]), batch.images)
    assert [part.targets[:, 0].tolist() for part in parts] == [[0, 0, 0, 1, 1, 1]] * 2
    assert torch.equal(torch.cat([part.targets[:, 1:] for part in parts]), batch.targets[:, 1:])


@linux_only
def test_shapes_are_drawn_in_parts(tmp_path):
    scope = Scope("cpu", tmp_path, Sizes(img=64, train_images=3, val_images=8))
    assert "images of generated shapes" in next(draw_data(scope)).text
    spec = open_data(scope.data)
    images = {
        split: len(
            read_split(
                spec, split, single=False, cache_dir=str(tmp_path / "cache"), progress=False
            )[0]
        )
        for split in ("train", "val")
    }
    assert images["train"] >= 3
    assert images["val"] >= 8


def test_findings_of_a_failed_script_are_its_last_lines():
    output = "\n".join(f"line {number}" for number in range(20))
    texts = [finding.text for finding in Done(1, output, 2.0).findings("train.py", ["other"])]
    assert texts == [
        "train.py: exit code 1, 2.0 s",
        *(f"line {number}" for number in range(12, 20)),
    ]
    assert [finding.text for finding in Done(0, output, 2.0).findings("train.py", ["other"])][
        1:
    ] == ["other"]
    assert [finding.good for finding in Done(1, "", 2.0).findings("train.py")] == [False]


def test_lines_about_memory_and_speed_are_reported():
    log = "cached in memory\n 10%\r 1/2 box 1 5 img/s\n2/2 box 1 6 img/s\nother"
    assert said(Done(0, log, 0.0))[0] == "cached in memory"
    assert said(Done(0, log, 0.0))[-1] == "2/2 box 1 6 img/s"


@linux_only
def test_command_has_exit_code_and_output(tmp_path):
    done = run_command(train.run_script, ["--no-such-flag"], tmp_path / "a" / "train.txt")
    assert done.code == 2
    assert done.lines == ["error: unknown flag --no-such-flag; --help lists the flags"]


@linux_only
def test_command_within_a_command_writes_to_its_own_file(tmp_path):
    """As in a stage, whose streams are a file already."""
    done = run_command(partial(report_inner, tmp_path), [], tmp_path / "outer.txt")
    assert (done.code, done.lines[-1]) == (0, "['inner']")


def report_inner(folder: Path) -> None:
    print(run_command(print_inner, [], folder / "inner.txt").lines)


def print_inner() -> None:
    print(" 10%\r 50%\rinner\r")


# ---------------------------------------------------------------------- waits for the GPU


def warn_of_wait() -> None:
    warnings.warn(
        "called a synchronizing CUDA operation (Triggered internally at x.cpp:1.)", stacklevel=1
    )


def test_waits_are_counted_by_place():
    found: Counter[str] = Counter()
    with recorded_waits(CPU.device, found):
        for _ in range(2):
            warn_of_wait()
        warnings.warn("something else", stacklevel=1)
    (place,) = found
    assert place.startswith("tests/test_gpu_benchmark.py:")
    assert found[place] == 2


@pytest.mark.filterwarnings("ignore::UserWarning")  # the steps that are not watched
def test_waits_of_a_step_are_counted_after_the_warm_up(tiny_model, monkeypatch):
    """Three watched steps; the warm-up and the end of the epoch are not watched."""
    real = train.TrainState.step

    def waiting(state: train.TrainState) -> None:
        warn_of_wait()
        real(state)

    setting = Setting(cfg=tiny_model, img=64, batch=2, warmup=1, steps=3, amp="fp32")
    assert waits_of(setting, CPU) == Counter()
    monkeypatch.setattr(train.TrainState, "step", waiting)
    found = waits_of(setting, CPU)
    assert found.total() == 3


def test_profile_names_operations_that_wait(tiny_model):
    """On a CPU the host reads flags at once."""
    setting = Setting(cfg=tiny_model, img=64, batch=2, warmup=1, steps=1, amp="fp32")
    assert any(
        name.startswith("aten::_local_scalar_dense in ")
        for name in waiting_operations(setting, CPU)
    )


def test_settings_cover_all_pairs_of_heads_optimizers_and_precisions(scope):
    full = list(settings(Scope("0", scope.folder, Sizes())))
    assert len({(setting.cfg, setting.amp) for setting in full}) == len(full) == 12
    assert len({(setting.optimizer, setting.amp) for setting in full}) == 4 * 3


# ---------------------------------------------------------------------- running stages


def passes(_: Scope) -> Iterator[Finding]:
    yield Finding("one", True)
    yield Finding("two", values={"speed": 2.5})


def finds_fault(_: Scope) -> Iterator[Finding]:
    yield Finding("this is wrong", False)


def raises(_: Scope) -> Iterator[Finding]:
    yield Finding("before", True)
    raise RuntimeError("on purpose")


def crashes(_: Scope) -> Iterator[Finding]:
    yield Finding("before", True)
    faulthandler.disable()  # pytest's would write to its own output
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(scope: Scope) -> Iterator[Finding]:
    """It leaves a process in another session, as torchrun does."""
    sleeping = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (scope.folder / "pid").write_text(str(sleeping.pid))
    yield Finding("before", True)
    time.sleep(600)


def sleeps(_: Scope) -> Iterator[Finding]:
    yield Finding("before", True)
    time.sleep(600)


@linux_only
@pytest.mark.slow
def test_stage_that_fails_costs_only_itself(tmp_path):
    stages = [
        Stage("hangs", "", hangs, 3 / running.CPU_LIMITS, least_s=0),
        Stage("crashes", "", crashes, 60, least_s=0),
        Stage("raises", "", raises, 60, least_s=0),
        Stage("after", "", passes, 60, least_s=0, after=("raises",)),
        Stage("fault", "", finds_fault, 60, least_s=0, alone=True),
        Stage("passes", "", passes, 60, least_s=0),
        Stage("long", "", passes, 600, least_s=500),
    ]
    (tmp_path / "logs").mkdir()
    reported: list[int] = []
    outcomes = run_stages(
        stages,
        Scope("cpu", tmp_path, Sizes()),
        tmp_path / "logs",
        deadline=time.monotonic() + 300,
        jobs=2,
        report=lambda known: reported.append(len(known)),
    )
    assert [(outcome.stage, outcome.status) for outcome in outcomes] == [
        ("hangs", "stopped"),
        ("crashes", "error"),
        ("raises", "error"),
        ("after", "skipped"),
        ("fault", "failed"),
        ("passes", "passed"),
        ("long", "left out"),
    ]
    assert reported == list(range(1, 8))
    hung, crashed, raised, after, fault, passed, long = outcomes
    assert hung.reason == "after 3 s"
    assert crashed.reason == "ended by SIGSEGV"
    assert raised.reason == "exit code 1"
    assert after.reason == "needs raises, which did not pass"
    assert [outcome.findings for outcome in (hung, crashed, raised)] == [
        [Finding("before", True)]
    ] * 3
    assert raised.output[-1] == "RuntimeError: on purpose"
    assert fault.findings == [Finding("this is wrong", False)]
    assert passed.findings == [Finding("one", True), Finding("two", values={"speed": 2.5})]
    assert passed.output == []
    assert long.reason.endswith(" s remained, it takes 500 or more")
    assert [outcome.is_bad for outcome in outcomes] == [True, True, True, False, True, False, False]
    wait_until(
        lambda: not is_running(int((tmp_path / "pid").read_text())),
        10,
        "the end of the process left behind",
    )


@linux_only
@pytest.mark.slow
def test_stage_without_time_left_is_cut_short_and_not_wrong(tmp_path):
    stage = Running(
        Stage("sleeps", "", sleeps, 600),
        Scope("cpu", tmp_path, Sizes()),
        tmp_path / "log",
        left_s=3,
    )
    while (outcome := stage.outcome()) is None:
        time.sleep(0.05)
    assert (outcome.status, outcome.reason, outcome.is_bad) == ("cut short", "after 3 s", False)
    assert outcome.findings == [Finding("before", True)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("stage", "device", "left_s", "reason"),
    [
        (Stage("a", "", passes, 9, needs_cuda=True), "cpu", 99, "needs CUDA"),
        (Stage("a", "", passes, 9, needs_cuda=True), "0", 99, None),
        (
            Stage("a", "", passes, 9, packages=("json", "absent")),
            "cpu",
            99,
            "needs the package absent",
        ),
        (Stage("a", "", passes, 9, after=("bad",)), "cpu", 99, "needs bad, which did not pass"),
        (Stage("a", "", passes, 9, after=("good",)), "cpu", 99, None),
        (Stage("a", "", passes, 9, after=("later",)), "cpu", 99, None),
        (Stage("a", "", passes, 9, least_s=30), "cpu", 29.6, "30 s remained, it takes 30 or more"),
        (Stage("a", "", passes, 9, least_s=30), "cpu", -1, "0 s remained, it takes 30 or more"),
        (Stage("a", "", passes, 90, least_s=30), "cpu", 31, None),
    ],
)
def test_stage_that_cannot_run_is_refused_with_the_reason(tmp_path, stage, device, left_s, reason):
    ended = [Outcome("good", "passed"), Outcome("bad", "failed")]
    waiting = [stage, Stage("later", "", passes, 9)]
    refused = refusal(stage, Scope(device, tmp_path, Sizes()), ended, waiting, [], left_s)
    assert (refused.reason if refused else None) == reason


class Busy:
    """A running stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage


def test_stage_that_measures_runs_alone():
    own, other = Stage("own", "", passes, 9), Stage("other", "", passes, 9)
    measuring = Stage("measuring", "", passes, 9, alone=True)
    assert can_start(own, [own], [Busy(other)], jobs=2)
    assert not can_start(own, [own], [Busy(other)], jobs=1)
    assert not can_start(own, [own], [Busy(measuring)], jobs=2)
    assert not can_start(measuring, [measuring], [Busy(other)], jobs=2)
    assert can_start(measuring, [measuring], [], jobs=1)
    needing = Stage("needing", "", passes, 9, after=("other",))
    assert not can_start(needing, [needing], [Busy(other)], jobs=2)
    assert not can_start(needing, [needing, other], [], jobs=2)
    assert can_start(needing, [needing], [], jobs=2)


# ---------------------------------------------------------------------- reports

OUTCOMES = [
    Outcome("machine", "passed", "", 1.25, [Finding("GPU 0")]),
    Outcome(
        "waits",
        "failed",
        "",
        10.0,
        [Finding("no wait", True), Finding("a wait", False, {"waits": 1})],
        ["log"],
    ),
    Outcome("compiled", "skipped", "needs CUDA"),
    Outcome("long", "left out", "5 s remained, it takes 20 or more"),
]


def test_markdown_has_all_stages_and_findings():
    lines = markdown(OUTCOMES, "python benchmarks/gpu.py")
    assert lines[0] == "# GPU 0"
    assert "| machine | passed | 1.2 |" in lines
    assert "| compiled | skipped: needs CUDA | - |" in lines
    assert "## waits: failed" in lines
    assert "- ok: no wait" in lines
    assert "- **wrong**: a wait" in lines
    assert lines[lines.index("log") - 1 : lines.index("log") + 2] == ["```text", "log", "```"]
    assert not [line for line in lines if line.startswith("## compiled")]
    assert markdown([], "")[0] == "# no stage has run"


def test_summary_names_what_is_wrong_and_left_out(tmp_path):
    lines = summary(OUTCOMES, tmp_path)
    assert lines[1:3] == ["waits                10.0  failed", "    a wait"]
    assert "stages: 1 passed, 1 did not, 2 did not run or had too little time" in lines
    assert "too little time for long" in lines


def test_results_are_three_files(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "waits.txt").write_text("output\n")
    (tmp_path / "out").mkdir()
    write_results(tmp_path / "out", OUTCOMES, tmp_path / "logs", "about")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "gpu.json",
        "gpu.log",
        "gpu.md",
    ]
    stored = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert stored["stages"][1]["findings"][1] == {
        "text": "a wait",
        "good": False,
        "values": {"waits": 1},
    }
    assert (tmp_path / "out" / "gpu.log").read_text() == "===== waits\noutput\n\n"


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--stages step-64", "--stages step-64: there is no such stage (did you mean "),
        ("--minutes 0", "--minutes 0: choose more than 0"),
        ("--out FILE", "--out FILE is a file"),
        ("--device cpu --data absent.yaml", "no data set absent.yaml: neither "),
        ("--device 99", "--device 99: this machine has "),
        ("--device gpu", '--device gpu: choose "cpu", "mps" or GPU numbers, for example 0 or 0,1'),
        ("--smal", "unknown flag --smal (did you mean --small?); --help lists the flags"),
    ],
)
def test_wrong_flags_are_refused_before_anything_runs(tmp_path, capsys, words, sentence):
    file = tmp_path / "file"
    file.touch()
    own = [word.replace("FILE", str(file)) for word in words.split()]
    assert exit_code_of(lambda: gpu.main(["--out", str(tmp_path / "out"), *own])) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence.replace('FILE', str(file))}")
    assert not (tmp_path / "out").exists()


def test_chosen_stages_come_with_those_that_they_need():
    assert [stage.name for stage in gpu.chosen(["onnx"])] == ["data", "train-ram", "val", "onnx"]
    assert gpu.chosen([]) == list(STAGES)


def test_stages_have_unique_names_and_need_earlier_ones():
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    for number, stage in enumerate(STAGES):
        assert set(stage.after) <= set(names[:number])
        assert stage.least_s <= stage.limit_s


def test_report_is_written_even_if_numbers_are_not_finite(tmp_path):
    (tmp_path / "logs").mkdir()
    outcome = Outcome("a", "passed", "", 1.0, [Finding("nan", values={"loss": float(np.nan)})])
    write_results(tmp_path, [outcome], tmp_path / "logs", "")
    assert json.loads((tmp_path / "gpu.json").read_text())["stages"][0]["findings"][0][
        "values"
    ] == {"loss": None}
