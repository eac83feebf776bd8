"""Heads without anchors, one from outside the project: they learn, resume, and 1, 2 and 4 processes
agree.
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
from tests.support.anchor_free import FAMILY, register
from tests.support.launching import forked, free_port, rank_environment, small_run_flags
from tests.support.processes import SINGLE_PROCESS, draw_data, write_hyp
from tests.test_processes import TOLERANCE, state_differences
from tests.test_resume import assert_same_bits
from utils.files import checkpoint_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks and kills processes"),
]
TABLES = Path(__file__).parent / "tables"
EPOCHS = {
    "distance": "250",
    "dual": "150",
}  # until boxes are found; with bins they begin at 15 strides, much too large
REGISTERED = {"KESTREL_FAULT": "tests.support.anchor_free:register"}


@pytest.fixture(autouse=True, scope="module")
def _registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(HEADS, "AnchorFree", FAMILY)
        yield


@pytest.fixture(
    scope="module", params=["anchor_free", "decoupled", "distance", "distance_plain", "dual"]
)
def table(request: pytest.FixtureRequest) -> str:
    return str(TABLES / f"{request.param}.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, table: str) -> Path:
    return tmp_path_factory.mktemp(Path(table).stem)


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return draw_data(folder / "data")


@pytest.fixture(scope="module")
def start(folder: Path, data: Path, table: str) -> Path:
    """The folder of a run in this process that overfits twelve images."""
    write_hyp(
        folder / "learn.yaml", "hyp.no-augmentation.yaml", warmup_epochs=0, **gains_for(table)
    )
    learning = [
        "--epochs",
        EPOCHS.get(Path(table).stem, "100"),
        "--batch",
        "12",
        "--optimizer",
        "AdamW",
    ]
    learning += ["--noval", "--nosave", "--name", "start"]
    train_here(folder, data, table, *learning, "--hyp", str(folder / "learn.yaml"))
    return folder / "start"


def gains_for(table: str) -> dict[str, float]:
    """The gains of a head whose own ones are not relative to those of hyp files."""
    return {"box": 1.0, "cls": 1.0} if "anchor_free" in table else {}


def train_here(folder: Path, data: Path, table: str, *flags: str) -> None:
    train.main(train.parse_args(small_run_flags(data, table, folder, *flags))[0], SINGLE_PROCESS)


def killed() -> None:
    register()
    test_resume.killed()


def rows_of(run: Path) -> list[dict[str, str]]:
    with open(run / "results.csv") as file:
        return list(csv.DictReader(file))


def test_head_learns_and_is_evaluated(start, data, folder, table):
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
    for term in {*family.loss.terms} - {"l1"}:
        values = [float(row[f"train/{term}_loss"]) for row in rows_of(start)]
        assert values[-1] < 0.5 * max(
            values
        )  # the first is small where the wanted scores are still near 0
    assert "anchors" not in saved["table"]
    words = (
        f"--weights {best} --device cpu --workers 0 --project {folder}/val --cache-dir "
        f"{folder}/cache --batch 4"
    )
    found = val.main(val.parse_args(words.split())[0], SINGLE_PROCESS)
    assert found.coco.stats["AP50"] > 0.5
    assert found.coco.stats["AP"] == pytest.approx(saved["metrics"]["AP"], abs=1e-6)


def test_l1_is_trained_in_the_epochs_without_mosaic(tmp_path):
    """Mosaic, mixup and copy-paste are off in all epochs, so these differ in nothing else."""
    data = draw_data(tmp_path / "data")
    write_hyp(tmp_path / "plain.yaml", "hyp.no-augmentation.yaml", lr0=0.05, nominal_batch=4)
    for closed in (0, 1):
        flags = ("--epochs", "3", "--close-mosaic", str(closed), "--name", f"run{closed}")
        table = str(TABLES / "decoupled.yaml")
        train_here(tmp_path, data, table, *flags, "--hyp", str(tmp_path / "plain.yaml"))
    without, with_l1 = rows_of(tmp_path / "run0"), rows_of(tmp_path / "run1")
    assert all(float(row["val/l1_loss"]) > 0 for row in [*without, *with_l1])
    same = [
        one["val/box_loss"] == other["val/box_loss"]
        for one, other in zip(without, with_l1, strict=True)
    ]
    assert same == [True, True, False]


@pytest.mark.parametrize(
    "flags", ["--batch -1", "--multi-scale --image-weights", "--checkpoint-activations --rect"]
)
def test_head_trains_with_flags(data, tmp_path, table, flags):
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
        codes = [rank.end(120) for rank in ranks]
        assert set(codes) <= {0, -9}, ranks[0].err[-4000:]
        return codes


def test_head_in_2_and_4_processes_matches_single_process(start, folder, data, table):
    tuning = {"lr0": 0.002, "warmup_bias_lr": 0.01, "degrees": 5, "mixup": 0.2, **gains_for(table)}
    write_hyp(folder / "tune.yaml", "hyp.scratch-low.yaml", **tuning)
    flags = ["--epochs", "2", "--batch", "8", "--sync-bn", "--amp", "fp64", "--nosave"]
    flags += ["--hyp", str(folder / "tune.yaml"), "--weights", str(start / "weights" / "last.pt")]
    train_here(folder, data, table, *flags, "--name", "1")
    assert checkpoint_file.load(folder / "1" / "weights" / "last.pt")["ema_updates"] == 2
    for size in (2, 4):
        words = small_run_flags(data, table, folder, *flags, "--name", str(size))
        assert run_processes(size, words, folder) == [0] * size
        found = state_differences(folder / "1", folder / str(size))
        assert max(found.values()) < TOLERANCE["fp64"], found
        for one, several in zip(rows_of(folder / "1"), rows_of(folder / str(size)), strict=True):
            assert {name: float(one[name]) for name in one if name != "time"} == pytest.approx(
                {name: float(several[name]) for name in several if name != "time"}, rel=1e-4
            )


@pytest.fixture
def attempt(data: Path, table: str, tmp_path: Path) -> Callable[..., list[int]]:
    """attempt(name, at=instant): start a run, or resume it from its last checkpoint, and return its
    exit codes.
    """

    def one(name: str, at: str = "0 nowhere 1") -> list[int]:
        words = small_run_flags(
            data,
            table,
            tmp_path,
            "--epochs",
            "4",
            "--name",
            name,
            "--exist-ok",
            "--save-minutes",
            "1e-9",
        )
        last = tmp_path / name / "weights" / "last.pt"
        resume = ["--resume", str(last)] if last.exists() else []
        fault = {"KESTREL_FAULT": "tests.test_second_head:killed", "KESTREL_INSTANT": at}
        return run_processes(1, [*words, *resume], tmp_path, **fault)

    return one


def test_killed_run_resumes_with_same_bits(attempt, tmp_path):
    assert attempt("straight") == [0]
    for instant in ("before a step 3", "in a checkpoint 2", "after validation 1"):
        assert attempt("broken", f"0 {instant}") == [-9]
    assert attempt("broken") == [0]
    assert_same_bits(tmp_path / "straight", tmp_path / "broken")
