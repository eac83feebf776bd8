"""Heads without anchors, one from outside the project: they learn, resume, and several processes
agree with one.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import train
import val
from models.head_registry import HEADS
from models.weights.kestrel import load_detector
from tests import test_resume
from tests.support import micro_tables
from tests.support.anchor_free import FAMILY, register
from tests.support.launching import forked, free_port, rank_environment, small_run_flags
from tests.support.micro_tables import write_micro_table
from tests.support.processes import SINGLE_PROCESS, draw_data, write_hyp
from tests.support.unfolded import batch_norm_not_folded
from tests.test_processes import TOLERANCE, state_differences
from tests.test_resume import assert_same_bits
from utils.files import checkpoint_file
from utils.metrics.evaluation import Evaluation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.trains,
    pytest.mark.usefixtures("val_without_pictures"),
    pytest.mark.skipif(sys.platform != "linux", reason="forks and kills processes"),
]
# "dual" contains the head and the loss of "distance_plain", once for each of its two outputs.
KINDS = sorted(micro_tables.HEADS.keys() - {"distance_plain"})
REGISTERED = {"KESTREL_FAULT": "tests.support.anchor_free:register"}


@pytest.fixture(autouse=True, scope="module")
def _registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(HEADS, "AnchorFree", FAMILY)
        yield


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Path:
    return tmp_path_factory.mktemp(kind)


@pytest.fixture(scope="module")
def table(folder: Path, kind: str) -> str:
    return str(write_micro_table(folder, kind))


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return draw_data(folder / "data")


@pytest.fixture(scope="module")
def learned(folder: Path, data: Path, table: str, kind: str) -> Evaluation:
    """The evaluation of a run in this process that overfits twelve images."""
    write_hyp(folder / "learn.yaml", "hyp.no-augmentation.yaml", warmup_epochs=0, **gains_for(kind))
    epochs = 30 if kind == "decoupled" else 20  # which learns more slowly
    words = (
        f"--epochs {epochs} --batch 12 --optimizer AdamW --noval --nosave --name start "
        f"--hyp {folder}/learn.yaml"
    )
    return train_here(folder, data, table, *words.split())


@pytest.fixture(scope="module")
def start(folder: Path, learned: Evaluation) -> Path:
    """The folder of that run."""
    return folder / "start"


def gains_for(kind: str) -> dict[str, float]:
    """The gains of a head whose own ones are not relative to those of hyp files."""
    return {"box": 1.0, "cls": 1.0} if kind == "anchor_free" else {}


def train_here(folder: Path, data: Path, table: str, *flags: str) -> Evaluation:
    words = small_run_flags(data, table, folder, *flags)
    return train.main(train.parse_args(words)[0], SINGLE_PROCESS)


def killed() -> None:
    register()
    test_resume.killed()


def rows_of(run: Path) -> list[dict[str, str]]:
    with open(run / "results.csv") as file:
        return list(csv.DictReader(file))


def test_head_learns_and_is_evaluated(learned, start, folder):
    best = start / "weights" / "best.pt"
    model, saved = load_detector(best)
    family = next(family for family in HEADS.values() if family.head is type(model.head))
    assert type(model.head) is not HEADS["Detect"].head
    columns = ["epoch", "time", *(f"train/{term}_loss" for term in family.loss.terms)]
    columns += [f"metrics/{name}" for name in ("precision", "recall", "mAP_0.5", "mAP_0.5:0.95")]
    assert list(rows_of(start)[0]) == [
        *columns,
        *(f"val/{term}_loss" for term in family.loss.terms),
        "lr",
    ]
    # Where the training ends depends on rounding: the limits are far from what is measured.
    for term in {*family.loss.terms} - {"l1"}:
        values = [float(row[f"train/{term}_loss"]) for row in rows_of(start)]
        highest = max(values)  # the first is small where the wanted scores are still near 0
        assert values[-1] < 0.75 * highest
    assert "anchors" not in saved["table"]
    words = (
        f"--weights {best} --device cpu --workers 0 --project {folder}/val --cache-dir "
        f"{folder}/cache --batch 4"
    )
    with batch_norm_not_folded():
        found = val.main(val.parse_args(words.split())[0], SINGLE_PROCESS)
    assert found.coco.stats["AP50"] > 0.2
    assert found.coco.stats == learned.coco.stats


def test_l1_is_trained_in_the_epochs_without_mosaic(tmp_path):
    """Mosaic, mixup and copy-paste are off in all epochs, so these differ in nothing else."""
    data = draw_data(tmp_path / "data", 4)
    write_hyp(tmp_path / "plain.yaml", "hyp.no-augmentation.yaml", lr0=0.05, nominal_batch=4)
    for closed in (0, 1):
        flags = ("--epochs", "3", "--close-mosaic", str(closed), "--name", f"run{closed}")
        table = write_micro_table(tmp_path, "decoupled")
        train_here(tmp_path, data, str(table), *flags, "--hyp", str(tmp_path / "plain.yaml"))
    without, with_l1 = rows_of(tmp_path / "run0"), rows_of(tmp_path / "run1")
    assert all(float(row["val/l1_loss"]) > 0 for row in [*without, *with_l1])
    same = [
        one["val/box_loss"] == other["val/box_loss"]
        for one, other in zip(without, with_l1, strict=True)
    ]
    assert same == [True, True, False]


@pytest.mark.parametrize(
    "flags", ["--batch -1 --multi-scale --image-weights", "--checkpoint-activations --rect"]
)
def test_head_trains_with_flags(tmp_path, table, flags):
    data = draw_data(tmp_path / "data", 4)
    train_here(tmp_path, data, table, *flags.split(), "--name", "run")
    (row,) = rows_of(tmp_path / "run")
    assert float(row["train/cls_loss"]) > 0
    assert float(row["val/box_loss"]) > 0


def run_processes(size: int, words: list[str], folder: Path, **faults: str) -> list[int]:
    """Return the exit codes of a run of `size` processes."""
    port = free_port()
    environments = [rank_environment(rank, size, port) if size > 1 else {} for rank in range(size)]
    with forked(
        [variables | REGISTERED | faults for variables in environments], words, folder / "io"
    ) as ranks:
        codes = [rank.end(300) for rank in ranks]
        assert set(codes) <= {0, -9}, ranks[0].err[-4000:]
        return codes


def test_head_in_several_processes_matches_single_process(start, folder, table, kind):
    """Two images a process: in some steps a process has no object. One head is trained in four
    processes, the others in two; three batches in two epochs.
    """
    size = 4 if kind == "decoupled" else 2
    data = draw_data(folder / "few", 3 * size)
    tuning = {"lr0": 0.002, "warmup_bias_lr": 0.01, "degrees": 5, "mixup": 0.2, **gains_for(kind)}
    tuning["nominal_batch"] = 4 * size
    write_hyp(folder / "tune.yaml", "hyp.scratch-low.yaml", **tuning)

    flags = ["--epochs", "2", "--batch", str(2 * size), "--sync-bn", "--amp", "fp64", "--nosave"]
    flags += ["--hyp", str(folder / "tune.yaml"), "--weights", str(start / "weights" / "last.pt")]
    train_here(folder, data, table, *flags, "--name", "one")
    assert checkpoint_file.load(folder / "one" / "weights" / "last.pt")["ema_updates"] >= 2

    words = small_run_flags(data, table, folder, *flags, "--name", "several")
    assert run_processes(size, words, folder) == [0] * size
    differences = state_differences(folder / "one", folder / "several")
    assert max(differences.values()) < TOLERANCE["fp64"], differences
    for one, several in zip(rows_of(folder / "one"), rows_of(folder / "several"), strict=True):
        assert {name: float(one[name]) for name in one if name != "time"} == pytest.approx(
            {name: float(several[name]) for name in several if name != "time"}, rel=1e-4
        )


@pytest.fixture
def attempt(table: str, tmp_path: Path) -> Callable[..., list[int]]:
    """attempt(name, at=instant): start a run of two epochs with two batches each, or resume it from
    its last checkpoint, and return its exit codes.
    """
    data = draw_data(tmp_path / "data", 4)

    def one(name: str, at: str = "0 nowhere 1") -> list[int]:
        own = f"--epochs 2 --batch 2 --name {name} --exist-ok --save-minutes 1e-9"
        words = small_run_flags(data, table, tmp_path, *own.split())
        last = tmp_path / name / "weights" / "last.pt"
        resume = ["--resume", str(last)] if last.exists() else []
        fault = {"KESTREL_FAULT": "tests.test_second_head:killed", "KESTREL_INSTANT": at}
        return run_processes(1, [*words, *resume], tmp_path, **fault)

    return one


def test_killed_run_resumes_with_same_bits(attempt, tmp_path):
    """In the middle of an epoch; test_resume.py kills at every instant."""
    assert attempt("straight") == [0]
    assert attempt("broken", "0 before a step 2") == [-9]
    halfway = checkpoint_file.load(tmp_path / "broken" / "weights" / "last.pt")
    assert (halfway["epoch"], halfway["batch"]) == (0, 1)
    assert attempt("broken") == [0]
    assert_same_bits(tmp_path / "straight", tmp_path / "broken")
