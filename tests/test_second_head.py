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
from tests.support import micro_tables
from tests.support.anchor_free import FAMILY
from tests.support.launching import small_run_flags
from tests.support.micro_tables import write_micro_table
from tests.support.processes import (
    SINGLE_PROCESS,
    PlainDict,
    draw_data,
    launch,
    weights_of,
    write_hyp,
)
from tests.support.unfolded import batch_norm_not_folded
from tests.test_processes import TOLERANCE, state_differences
from tests.test_resume import assert_same_bits, many_steps_here, stop_before_step
from utils.files import checkpoint_file
from utils.metrics.evaluation import Evaluation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.trains,
    pytest.mark.usefixtures("val_without_pictures"),
]
# "dual" contains the head and the loss of "distance_plain", once for each of its two outputs.
KINDS = sorted(micro_tables.HEADS.keys() - {"distance_plain"})
PROCESSES = {kind: 4 if kind == "decoupled" else 2 for kind in KINDS}
REGISTERED = {"KESTREL_FAULT": "tests.support.anchor_free:register"}


@pytest.fixture(autouse=True, scope="module")
def _registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(HEADS, "AnchorFree", FAMILY)
        yield


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def tables(folder: Path) -> dict[str, str]:
    return {kind: str(write_micro_table(folder, kind)) for kind in KINDS}


@pytest.fixture
def table(tables: dict[str, str], kind: str) -> str:
    return tables[kind]


@pytest.fixture(scope="module")
def learn(folder: Path, tables: dict[str, str]) -> Callable[[str], Evaluation]:
    """learn(kind): the evaluation of a run in this process that overfits twelve images; each is
    trained once.
    """
    data = draw_data(folder / "data")
    done: dict[str, Evaluation] = {}

    def run(kind: str) -> Evaluation:
        if kind not in done:
            hyp = folder / f"learn {kind}.yaml"
            write_hyp(hyp, "hyp.no-augmentation.yaml", warmup_epochs=0, **gains_for(kind))
            epochs = 30 if kind == "decoupled" else 20  # which learns more slowly
            words = f"--epochs {epochs} --batch 12 --optimizer AdamW --noval --nosave --name {kind}"
            done[kind] = train_here(folder, data, tables[kind], *words.split(), "--hyp", str(hyp))
        return done[kind]

    return run


@pytest.fixture
def learned(learn: Callable[[str], Evaluation], kind: str) -> Evaluation:
    return learn(kind)


@pytest.fixture
def start(folder: Path, learned: Evaluation, kind: str) -> Path:
    """The folder of that run."""
    return folder / kind


def gains_for(kind: str) -> dict[str, float]:
    """The gains of a head whose own ones are not relative to those of hyp files."""
    return {"box": 1.0, "cls": 1.0} if kind == "anchor_free" else {}


def train_here(folder: Path, data: Path, table: str, *flags: str) -> Evaluation:
    words = small_run_flags(data, table, folder, *flags)
    return train.main(train.parse_args(words)[0], SINGLE_PROCESS)


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
    "flags", ["--multi-scale --image-weights", "--checkpoint-activations --rect"]
)
def test_head_trains_with_flags(tmp_path, table, kind, flags):
    """Memory is measured with the same calls as a step makes: one head of three outputs is
    enough.
    """
    if kind == "auxiliary" and "--multi-scale" in flags:
        flags += " --batch -1"
    data = draw_data(tmp_path / "data", 4)
    train_here(tmp_path, data, table, *flags.split(), "--name", "run")
    (row,) = rows_of(tmp_path / "run")
    assert float(row["train/cls_loss"]) > 0
    assert float(row["val/box_loss"]) > 0


@pytest.fixture(scope="module")
def exact(
    folder: Path, learn: Callable[[str], Evaluation], tables: dict[str, str]
) -> dict[str, list[str]]:
    """By kind: the flags of two epochs of three batches from the learned weights, exact in float64.
    A batch has two images for each process: in some steps a process has no object.
    """
    found = {}
    for kind, size in PROCESSES.items():
        learn(kind)
        data = draw_data(folder / f"few {kind}", 3 * size)
        tuning = {"lr0": 0.002, "warmup_bias_lr": 0.01, "degrees": 5, "mixup": 0.2}
        tuning |= {"nominal_batch": 4 * size, **gains_for(kind)}
        hyp = folder / f"tune {kind}.yaml"
        write_hyp(hyp, "hyp.scratch-low.yaml", **tuning)

        words = f"--epochs 2 --batch {2 * size} --sync-bn --amp fp64 --nosave"
        files = ["--hyp", str(hyp), "--weights", str(weights_of(folder / kind))]
        found[kind] = small_run_flags(data, tables[kind], folder, *words.split(), *files)
    return found


@pytest.fixture(scope="module")
def several(folder: Path, exact: dict[str, list[str]]) -> Path:
    """The folder of runs in several processes, by kind. The processes train one head after
    another.
    """
    for size in sorted({*PROCESSES.values()}):
        works: dict[str, PlainDict] = {
            kind: {"work": "trains", "flags": exact[kind]}
            for kind in KINDS
            if PROCESSES[kind] == size
        }
        launch(folder / "several", size, works, variables=REGISTERED)
    return folder / "several"


@pytest.mark.skipif(sys.platform != "linux", reason="forks processes")
def test_head_in_several_processes_matches_single_process(several, exact, folder, kind):
    """One head is trained in four processes, the others in two."""
    one = folder / "one" / kind
    words = [*exact[kind], "--project", str(one.parent), "--name", kind]
    train.main(train.parse_args(words)[0], SINGLE_PROCESS)
    assert checkpoint_file.load(one / "weights" / "last.pt")["ema_updates"] >= 2

    differences = state_differences(one, several / kind)
    assert max(differences.values()) < TOLERANCE["fp64"], differences
    for row, other in zip(rows_of(one), rows_of(several / kind), strict=True):
        assert {name: float(row[name]) for name in row if name != "time"} == pytest.approx(
            {name: float(other[name]) for name in other if name != "time"}, rel=1e-4
        )


def test_stopped_run_resumes_with_same_bits(table, tmp_path, monkeypatch):
    """In the middle of an epoch; test_resume.py kills a process at every instant."""
    many_steps_here(monkeypatch)
    data = draw_data(tmp_path / "data", 4)
    words = ["--epochs", "2", "--batch", "2", "--save-minutes", "1e-9", "--exist-ok", "--name"]
    last = tmp_path / "broken" / "weights" / "last.pt"

    with monkeypatch.context() as patch:
        stop_before_step(2, patch)
        with pytest.raises(KeyboardInterrupt):
            train_here(tmp_path, data, table, *words, "broken")
    halfway = checkpoint_file.load(last)
    assert (halfway["epoch"], halfway["batch"]) == (0, 1)

    # In this order: what a run leaves in this process is that of the whole one.
    train_here(tmp_path, data, table, *words, "straight")
    train_here(tmp_path, data, table, *words, "broken", "--resume", str(last))
    assert_same_bits(tmp_path / "straight", tmp_path / "broken")
