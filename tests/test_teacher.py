"""train.py --teacher: what a run records and keeps, several processes, killed runs, host waits."""

import csv
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

import train
from models import build_model
from models.loading import load_backend
from models.weights.kestrel import load_detector
from tests.support.launching import forked, free_port, rank_environment, small_run_flags
from tests.support.micro_tables import write_micro_table
from tests.support.processes import SINGLE_PROCESS, draw_data, write_hyp
from tests.test_host_waits import simulate_gpu
from tests.test_processes import TOLERANCE, state_differences
from tests.test_resume import assert_same_bits
from utils.distributed.world import World
from utils.files import checkpoint_file

pytestmark = pytest.mark.trains
NAMES = ["red", "blue", "green"]  # in another order than those of the data
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="forks and kills processes")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a model that has learned nothing, but is confident of it."""
    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(1)
    model = build_model(str(write_micro_table(folder, "distance")), 3)
    with torch.no_grad():
        for branch in model.head.branches.classes:
            branch[2].bias.add_(6)
    file = folder / "teacher.pt"
    state = {"table": model.table, "names": NAMES, "model": model.state_dict()}
    checkpoint_file.save(file, state)
    return file


@pytest.fixture(scope="module")
def run(teacher: Path, micro_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of an epoch."""
    folder = tmp_path_factory.mktemp("runs")
    data = draw_data(folder / "data", 8)
    flags = small_run_flags(data, micro_model, folder, "--teacher", str(teacher))
    train.main(train.parse_args(flags)[0], SINGLE_PROCESS)
    return folder / "exp"


def rows_of(run: Path) -> list[dict[str, str]]:
    with open(run / "results.csv") as file:
        return list(csv.DictReader(file))


def test_run_records_its_teacher(run, teacher):
    path, digest = yaml.safe_load((run / "args.yaml").read_text())["teacher"]
    assert path == str(teacher)
    assert re.fullmatch("[0-9a-f]{16}", digest)
    (row,) = rows_of(run)
    assert float(row["train/feature_loss"]) > 0
    assert float(row["train/output_loss"]) > 0
    assert row["val/feature_loss"] == row["val/output_loss"] == "nan"
    assert float(row["val/box_loss"]) > 0


def test_best_checkpoint_has_no_projections_and_detects_the_same(run):
    last, best = (checkpoint_file.load(run / "weights" / name) for name in ("last.pt", "best.pt"))
    assert last["table"]["distillation"] == {"channels": [32, 32, 32]}
    assert best["table"] == {
        key: value for key, value in last["table"].items() if key != "distillation"
    }
    extra = last["model"].keys() - best["model"].keys()
    assert sorted(extra) == [f"projections.convs.{level}.weight" for level in range(3)]

    images = torch.rand(1, 3, 64, 64)
    found = []
    for name in ("last.pt", "best.pt"):
        model, _ = load_detector(run / "weights" / name)
        found += [model.eval().decode(model(images)), model.fuse().decode(model(images))]
    assert all(boxes.equal(found[2][0]) for boxes, _ in (found[0], found[2]))
    assert all(boxes.equal(found[3][0]) for boxes, _ in (found[1], found[3]))


@pytest.mark.slow
def test_model_of_the_next_run_does_not_inherit_the_projections(run, tmp_path):
    """Fine-tuned from a last.pt with projections; in the second run that is the teacher, too."""
    last = str(run / "weights" / "last.pt")
    data = str(run.parent / "data" / "rectangles.yaml")
    for name, flags in (("alone", []), ("taught", ["--teacher", last])):
        words = small_run_flags(Path(data), "", tmp_path, "--weights", last, "--name", name, *flags)
        train.main(train.parse_args(words)[0], SINGLE_PROCESS)
        table = checkpoint_file.load(tmp_path / name / "weights" / "last.pt")["table"]
        assert ("distillation" in table) == (name == "taught")


@pytest.mark.slow
def test_image_size_for_the_stride_of_the_teacher_is_that_of_val(run, micro_model, tmp_path):
    """The model's stride is 32, the teacher's 64: 96 px become 128, and so do those of val.py."""
    table = {
        "depth_multiple": 1.0,
        "width_multiple": 1.0,
        "backbone": [[-1, 1, "Conv", [8, 3, 8]], [-1, 1, "Conv", [8, 3, 8]]],
        "head": [[[0, 1], 1, "DistanceDetect", ["nc"]]],
    }
    model = build_model(table, 3)
    file = tmp_path / "stride64.pt"
    checkpoint_file.save(file, {"table": model.table, "names": NAMES, "model": model.state_dict()})
    data = run.parent / "data" / "rectangles.yaml"
    words = small_run_flags(data, micro_model, tmp_path, "--teacher", str(file), "--imgsz", "96")
    train.main(train.parse_args(words)[0], SINGLE_PROCESS)
    best = load_backend(tmp_path / "exp" / "weights" / "best.pt", torch.device("cpu"))
    assert best.image_size == 128
    assert best.backend.stride == 32


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="DataParallel runs on the CPU only if there is no GPU"
)
def test_data_parallel_trains_the_same(run, teacher, micro_model, tmp_path):
    """Model and teacher are replicated; on a CPU torch calls them as they are."""
    data = run.parent / "data" / "rectangles.yaml"
    words = small_run_flags(data, micro_model, tmp_path, "--teacher", str(teacher))
    cpu = torch.device("cpu")
    train.main(train.parse_args(words)[0], World(cpu, devices=(cpu, cpu)))
    one, pair = (
        checkpoint_file.load(each / "weights" / "last.pt") for each in (run, tmp_path / "exp")
    )
    assert all(value.equal(pair["model"][key]) for key, value in one["model"].items())
    assert one["results"][0]["train/output_loss"] == pair["results"][0]["train/output_loss"]


def test_run_without_teacher_gets_none_when_it_resumes(run, teacher, tmp_path):
    copied = shutil.copytree(run, tmp_path / "exp")
    last = copied / "weights" / "last.pt"
    saved = checkpoint_file.load(last)
    saved["config"]["teacher"] = []
    checkpoint_file.save(last, saved)
    words = ["--resume", str(copied), "--epochs", "2", "--teacher", str(teacher)]
    with pytest.raises(ValueError, match=r"--teacher .*: the run of .* has no teacher; leave the"):
        train.main(train.parse_args(words)[0], SINGLE_PROCESS)


def test_gain_of_zero_is_refused_before_the_data_are_read(teacher, micro_model, tmp_path):
    hyp = tmp_path / "no.yaml"
    write_hyp(hyp, "hyp.scratch-low.yaml", distillation=0)
    data = tmp_path / "absent.yaml"
    words = small_run_flags(
        data, micro_model, tmp_path, "--teacher", str(teacher), "--hyp", str(hyp)
    )
    with pytest.raises(ValueError, match=r"no\.yaml: distillation is 0: --teacher would"):
        train.main(train.parse_args(words)[0], SINGLE_PROCESS)


@pytest.mark.parametrize(
    ("change", "flags", "sentence"),
    [
        ("missing", "", "last.pt: its teacher .*t.pt is missing; say with --teacher where"),
        ("changed", "", "last.pt: its teacher .*t.pt has changed since the run began; say"),
        ("", "--teacher {other}", r"best.pt: its contents differ from .*t.pt, the teacher"),
        ("", "--teacher none.pt", "--teacher none.pt: cannot be read as a checkpoint: No such"),
        ("missing", "--teacher {moved}", ""),
    ],
)
def test_resume_needs_the_same_teacher(run, teacher, tmp_path, change, flags, sentence):
    copied = shutil.copytree(run, tmp_path / "exp")
    own, moved = tmp_path / "t.pt", tmp_path / "moved.pt"
    for file in (own, moved):
        shutil.copy(teacher, file)
    last = copied / "weights" / "last.pt"
    saved = checkpoint_file.load(last)
    saved["config"]["teacher"][0] = str(own)
    checkpoint_file.save(last, saved)
    if change == "missing":
        own.unlink()
    elif change:
        own.write_bytes(own.read_bytes() + b"\0")

    given = flags.format(other=run / "weights" / "best.pt", moved=moved).split()
    words = ["--resume", str(copied), "--epochs", "2", "--noplots", "--workers", "0", *given]
    config, _ = train.parse_args(words)
    if sentence:
        with pytest.raises(ValueError, match=sentence):
            train.main(config, SINGLE_PROCESS)
    else:
        train.main(config, SINGLE_PROCESS)
        assert len(rows_of(copied)) == 2
        assert checkpoint_file.load(last)["config"]["teacher"][0] == str(moved)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "flags"), [("tiny", "--multi-scale"), ("dual", "--rect --amp bf16")]
)
def test_teacher_never_makes_the_host_wait(tiny_data, teacher, tmp_path, monkeypatch, table, flags):
    file = Path(__file__).parent / "tables" / f"{table}.yaml"
    names = ("--merge", "disc=red", "square=blue")
    words = (*flags.split(), "--teacher", str(teacher), *names)
    with simulate_gpu(monkeypatch) as watch:
        config, _ = train.parse_args(small_run_flags(tiny_data, str(file), tmp_path, *words))
        train.main(config, SINGLE_PROCESS)
    assert watch.operations > 1000
    assert not watch.waits


# Several processes, and killed ones


def run_processes(size: int, words: list[str], folder: Path, **faults: str) -> list[int]:
    """Return the exit codes of a run of `size` processes."""
    port = free_port()
    environments = [rank_environment(rank, size, port) if size > 1 else {} for rank in range(size)]
    with forked([each | faults for each in environments], words, folder / "io") as ranks:
        codes = [rank.end(300) for rank in ranks]
        assert set(codes) <= {0, -9}, ranks[0].err[-4000:]
        return codes


@on_linux
@pytest.mark.slow
def test_several_processes_match_a_single_one(teacher, micro_model, tmp_path):
    """In some steps a process has no object. The second run is sharded."""
    data = draw_data(tmp_path / "few", 6)
    write_hyp(tmp_path / "tune.yaml", "hyp.scratch-low.yaml", lr0=0.002, nominal_batch=4)
    flags = ["--epochs", "2", "--sync-bn", "--nosave", "--optimizer", "AdamW"]
    flags += ["--hyp", str(tmp_path / "tune.yaml"), "--teacher", str(teacher), "--amp", "fp64"]
    words = small_run_flags(data, micro_model, tmp_path, *flags)
    train.main(train.parse_args([*words, "--name", "one"])[0], SINGLE_PROCESS)
    for name, more in (("two", []), ("sharded", ["--shard"])):
        assert run_processes(2, [*words, *more, "--name", name], tmp_path) == [0, 0]
        differences = state_differences(tmp_path / "one", tmp_path / name)
        assert max(differences.values()) < TOLERANCE["fp64"], (name, differences)
        for one, other in zip(rows_of(tmp_path / "one"), rows_of(tmp_path / name), strict=True):
            for column in one.keys() - {"time"}:
                expected = pytest.approx(float(one[column]), rel=1e-4, nan_ok=True)
                assert float(other[column]) == expected, column


@pytest.fixture
def attempt(teacher: Path, micro_model: str, tmp_path: Path) -> Callable[..., list[int]]:
    """attempt(name, at=instant): start a run of two epochs, or resume it from its last checkpoint;
    return its exit codes.
    """
    data = draw_data(tmp_path / "data", 8)

    def one(name: str, at: str = "0 nowhere 1") -> list[int]:
        words = f"--epochs 2 --name {name} --exist-ok --save-minutes 1e-9 --teacher {teacher}"
        flags = small_run_flags(data, micro_model, tmp_path, *words.split())
        last = tmp_path / name / "weights" / "last.pt"
        resume = ["--resume", str(last)] if last.exists() else []
        fault = {"KESTREL_FAULT": "tests.test_resume:killed", "KESTREL_INSTANT": at}
        return run_processes(1, [*flags, *resume], tmp_path, **fault)

    return one


@on_linux
@pytest.mark.slow
def test_killed_run_resumes_with_same_bits(attempt, tmp_path):
    assert attempt("straight") == [0]
    assert attempt("broken", "0 before a step 2") == [-9]
    halfway = checkpoint_file.load(tmp_path / "broken" / "weights" / "last.pt")
    assert (halfway["epoch"], halfway["batch"]) == (0, 1)
    assert attempt("broken") == [0]
    assert_same_bits(tmp_path / "straight", tmp_path / "broken")
