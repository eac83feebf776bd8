"""--add-classes: from the command line to checkpoints, in one process and in two, and resumed."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import export
import train
import val
from models.export.compare import ReferenceBackend
from models.heads import JoinedHead
from models.weights.kestrel import load_detector
from tests.support.exporting import lively_detector, save_checkpoint
from tests.support.launching import forked, free_port, rank_environment, small_run_flags
from tests.support.processes import SINGLE_PROCESS, draw_data, write_hyp
from tests.support.run_differences import state_differences
from tests.support.unfolded import batch_norm_not_folded
from tests.test_resume import assert_same_bits
from training.settings.config import TrainConfig
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.log import say_nothing
from utils.metrics.evaluation import Evaluation
from utils.metrics.fitness import parse_fitness

pytestmark = [pytest.mark.trains, pytest.mark.usefixtures("val_without_pictures")]
OLD = ["disc", "square", "bar"]
NEW = ["blue", "green", "red"]
PAIR = World(torch.device("cpu"), devices=(torch.device("cpu"), torch.device("cpu")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("added")


@pytest.fixture(scope="module")
def old(folder: Path, micro_model: str) -> Path:
    return save_checkpoint(folder / "old.pt", lively_detector(micro_model))


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return draw_data(folder / "data", 8)


@pytest.fixture(scope="module")
def flags(folder: Path, old: Path, data: Path) -> Callable[..., list[str]]:
    """flags("--name", "run"): the command line of a run of two epochs with two batches each."""
    tuning = {"lr0": 0.002, "warmup_bias_lr": 0.01, "mixup": 0.2, "nominal_batch": 4}
    write_hyp(folder / "tune.yaml", "hyp.scratch-low.yaml", **tuning)
    words = f"--epochs 2 --ignore-old 0.5 --hyp {folder}/tune.yaml --add-classes --weights {old}"

    def line(*further: str) -> list[str]:
        return [*small_run_flags(data, "", folder, *words.split()), *further]

    return line


def run(arguments: list[str], world: World = SINGLE_PROCESS) -> Evaluation:
    return train.main(train.parse_args(arguments)[0], world)


@pytest.fixture(scope="module")
def one(folder: Path, flags: Callable[..., list[str]]) -> Path:
    """The folder of a run in this process."""
    run(flags("--name", "one", "--amp", "fp64"))
    return folder / "one"


@pytest.fixture(scope="module")
def sure(one: Path) -> Path:
    """Its best checkpoint with higher scores of the new classes, which have hardly been trained."""
    saved = checkpoint_file.load(one / "weights" / "best.pt")
    for key, values in saved["model"].items():
        if ".parts.1.m." in key and key.endswith(".bias"):
            boxes_and_scores = values.view(3, 5 + len(NEW))  # of three anchors
            boxes_and_scores[:, 4:] += 5
    checkpoint_file.save(one / "weights" / "sure.pt", saved)
    return one / "weights" / "sure.pt"


def old_tensors(run: Path, entry: str, old: Path, file: str = "last") -> list[tuple[str, bool]]:
    """Return each tensor of the old model, and whether the run's checkpoint has the same bits."""
    state = checkpoint_file.load(run / "weights" / f"{file}.pt")[entry]
    model, _ = load_detector(old)
    head = f"layers.{model.head_position}."
    found = []
    for key, values in model.state_dict().items():
        own_key = f"{head}parts.0.{key.removeprefix(head)}" if key.startswith(head) else key
        found.append((key, torch.equal(state[own_key].to(values.dtype), values)))
    return found


@pytest.mark.slow
def test_old_model_is_frozen_also_in_the_average(one, old):
    for file, entry in (("last", "model"), ("last", "ema"), ("best", "model")):
        tensors = old_tensors(one, entry, old, file)
        assert len(tensors) > 30
        assert all(same for _, same in tensors)
    saved = checkpoint_file.load(one / "weights" / "last.pt")
    assert saved["ema_updates"] == 4
    trained = {key: value for key, value in saved["model"].items() if ".parts.1." in key}
    averaged = {key: saved["ema"][key] for key in trained}
    assert any(not torch.equal(value, averaged[key]) for key, value in trained.items())


def test_checkpoint_has_all_classes_old_ones_first(one):
    model, saved = load_detector(one / "weights" / "best.pt")
    assert saved["names"] == [*OLD, *NEW]
    assert model.table["class_groups"] == [3, 3]
    assert isinstance(model.head, JoinedHead)
    metrics = json.loads((one / "metrics.json").read_text())["best"]
    assert [metrics["per_class"][name]["AP"] for name in OLD] == [-1, -1, -1]
    assert all(metrics["per_class"][name]["AP"] >= 0 for name in NEW)


def validated(weights: Path, folder: Path, *words: str) -> Any:
    fixed = f"--weights {weights} --device cpu --workers 0 --project {folder}/val --batch 4"
    arguments = [*fixed.split(), "--cache-dir", f"{folder}/cache", *words]
    return val.main(val.parse_args(arguments)[0], SINGLE_PROCESS)


@pytest.mark.slow
def test_val_with_the_data_of_the_run_and_with_all_classes(sure, data, folder, capsys):
    """In the first, objects of the old classes have no labels: finding them is no mistake."""
    found = validated(sure, folder)
    assert "has no labels of 3 classes of the model" in capsys.readouterr().out
    assert set(found.detections.class_ids) == {3, 4, 5}

    names = [*NEW, *reversed(OLD)]
    everything = data.with_name("all.yaml")
    everything.write_text(f"path: .\ntrain: images\nval: images\nnames: {names}\n")
    again = validated(sure, folder, "--data", str(everything))
    is_old = again.detections.class_ids >= 3
    assert is_old.any()
    assert np.array_equal(again.detections.scores[~is_old], found.detections.scores)
    assert again.coco.stats["AP"] == found.coco.stats["AP"]

    one_class = validated(sure, folder, "--data", str(everything), "--classes", "red")
    of_class = one_class.as_dict(["red"], parse_fitness(""))["per_class"]["red"]
    whole = again.as_dict(names, parse_fitness(""))["per_class"]["red"]
    assert of_class["AP"] == whole["AP"]
    red = again.detections.class_ids == names.index("red")
    assert np.array_equal(one_class.detections.scores, again.detections.scores[red])

    other = data.with_name("other.yaml")
    other.write_text("path: .\ntrain: images\nval: images\nnames: [red, green, teal]\n")
    with pytest.raises(ValueError, match=r"the model's classes are disc, .*, but red, green, teal"):
        validated(sure, folder, "--data", str(other))


@pytest.mark.slow
def test_val_with_the_data_of_the_old_model_finds_what_it_found(one, old, data, folder, capsys):
    """Classes are matched by their names: the data list them in another order."""
    of_old = data.with_name("old.yaml")
    of_old.write_text(f"path: .\ntrain: images\nval: images\nnames: {OLD[::-1]}\n")
    words = f"--data {of_old} --conf 0.05 --max-det 3000".split()
    before = validated(old, folder, *words)
    assert "not evaluated" not in capsys.readouterr().out
    after = validated(one / "weights" / "best.pt", folder, *words)
    assert len(before.detections.scores) > 50
    assert np.array_equal(after.detections.scores, before.detections.scores)
    assert np.array_equal(after.detections.boxes_xywh, before.detections.boxes_xywh)
    assert after.coco.stats == before.coco.stats
    said = f"{of_old} does not have 3 classes of the model, not evaluated"
    assert said in capsys.readouterr().out

    # Not as an ensemble: the old model lacks classes of the first one.
    both = ["--weights", str(one / "weights" / "best.pt"), str(old)]
    with pytest.raises(ValueError, match=r"old\.pt does not fit .*: the model's classes are disc"):
        validated(old, folder, *words, *both)


@pytest.mark.slow
def test_classes_are_added_again_and_only_some_of_the_data(one, folder, flags, data, capsys):
    more = data.with_name("more.yaml")
    more.write_text("path: .\ntrain: images\nval: images\nnames: [red, teal, ruby]\n")
    words = f"--epochs 1 --data {more} --classes teal --weights {one}/weights/best.pt --name more"
    result = run(flags(*words.split(), "--class-weights", "auto"))
    assert set(result.detections.class_ids) == {6}  # others would be false in its pictures
    said = capsys.readouterr().out
    assert "--class-weights: teal 1\n" in said
    assert "--class-weights: no effect" not in said
    assert "6 old classes + 1 new one; trained are the " in said
    assert "--ignore-old 0.5" in said
    model, saved = load_detector(folder / "more" / "weights" / "best.pt")
    assert saved["names"] == [*OLD, *NEW, "teal"]
    assert model.table["class_groups"] == [3, 3, 1]

    best = folder / "more" / "weights" / "best.pt"
    with batch_norm_not_folded():
        found = validated(best, folder)
    assert "was trained with --classes" not in capsys.readouterr().out
    assert len(found.detections.scores) > 0
    for column, values in vars(result.detections).items():
        assert np.array_equal(getattr(found.detections, column), values), column
    words = f"--include torchscript --device cpu --data {more} --cache-dir {folder}/cache"
    export.run_script(["--weights", str(best), *words.split()])
    assert "boxes differ from torch" in capsys.readouterr().out


@pytest.mark.slow
def test_weight_of_an_old_class_is_said_to_have_no_effect(flags, folder, old, capsys):
    words = f"--epochs 1 --name weighted --class-weights {OLD[0]}=2 {NEW[0]}=3"
    run(flags(*words.split()))
    said = capsys.readouterr().out
    assert f"--class-weights: {NEW[0]} 3, {NEW[1]} 1, {NEW[2]} 1\n" in said
    assert f"--class-weights: no effect on {OLD[0]}, which the old model finds" in said

    # In float32 rounding would show in the average of frozen weights.
    tensors = old_tensors(folder / "weighted", "ema", old)
    assert [name for name, same in tensors if not same] == []


def test_ordinary_training_starts_from_one_of_the_heads(one, folder, data, capsys):
    """With one head for all classes."""
    words = f"--weights {one}/weights/best.pt --name plain"
    run(small_run_flags(data, "", folder, *words.split()))
    assert "3 of 3 classes copied" in capsys.readouterr().out
    model, _ = load_detector(folder / "plain" / "weights" / "best.pt")
    assert "class_groups" not in model.table
    assert not isinstance(model.head, JoinedHead)


@pytest.mark.slow
def test_export(one):
    """export.py compares its file with torch."""
    weights = one / "weights" / "best.pt"
    export.run_script(["--weights", str(weights), "--include", "torchscript", "--device", "cpu"])
    assert (one / "weights" / "best.torchscript").exists()


@pytest.mark.slow
@batch_norm_not_folded()
@pytest.mark.parametrize("names", [OLD, NEW, [*NEW, *OLD], ["bar", "disc", "red"]])
def test_export_measures_map_on_data_with_some_of_the_classes(sure, data, tmp_path, names):
    """--int8 does, on data that val.py accepts, too: with the same result."""
    listed = data.with_name(f"some_{len(names)}_{names[0]}.yaml")
    listed.write_text(f"path: .\ntrain: images\nval: images\nnames: {names}\n")
    words = f"--int8 --data {listed} --workers 0 --cache-dir {tmp_path}"
    args = export.parse_args(["--weights", str(sure), *words.split()])
    writer = export.open_writer(sure, args, torch.device("cpu"), say_nothing)
    images = export.open_dataset_images(args, sure, writer.model, say_nothing)
    images.dataset.read("val")
    found = images.mean_ap(ReferenceBackend(writer.reference))

    expected = validated(sure, tmp_path, "--data", str(listed), "--square").coco.stats["AP"]
    assert found == expected


@pytest.mark.slow
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="DataParallel runs on the CPU only if there is no GPU"
)
def test_data_parallel_equals_a_single_process(one, folder, flags):
    run(flags("--name", "pair", "--amp", "fp64"), PAIR)
    assert max(state_differences(one, folder / "pair").values()) == 0


@pytest.mark.slow
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="DataParallel runs on the CPU only if there is no GPU"
)
def test_data_parallel_trains_the_newest_head_alone(folder, flags):
    """Without ignore regions, the old head does not run in training."""
    alone = ["--ignore-old", "1", "--amp", "fp64"]
    run(flags("--name", "one_alone", *alone))
    run(flags("--name", "pair_alone", *alone), PAIR)
    differences = state_differences(folder / "one_alone", folder / "pair_alone")
    assert max(differences.values()) == 0


# Refusals


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "--add-classes adds classes to a trained model: give its checkpoint with --weights"),
        ({"cfg": "yolov5n.yaml"}, "and --cfg cannot be used together: the model is the checkpoint"),
        ({"freeze": (3,)}, "and --freeze cannot be used together: all layers of the old model"),
        ({"single_cls": True}, "and --single-cls cannot be used together: new classes are added"),
        ({"image_weights": True}, "and --image-weights cannot be used together"),
        ({"teacher": ("a.pt",)}, "and --teacher cannot be used together: the maps that the new"),
        ({"checkpoint_activations": True}, "and --checkpoint-activations cannot be used together"),
        ({"ignore_old": 0.0}, "--ignore-old 0.0: choose a score above 0, or 1: nothing is ignored"),
        ({"ignore_old": 1.5}, "--ignore-old 1.5: choose a score"),
    ],
)
def test_flags_that_make_no_sense_are_refused(given, sentence):
    weights = "old.pt" if given else ""
    with pytest.raises(ValueError, match=sentence):
        TrainConfig(add_classes=True, weights=weights, **given)


def test_ignore_old_alone_is_refused():
    with pytest.raises(ValueError, match=r"--ignore-old 0\.3: give --add-classes, too"):
        train.parse_args(["--ignore-old", "0.3"])


def test_classes_of_the_old_model_are_refused(folder, flags, data):
    twice = data.with_name("twice.yaml")
    twice.write_text("path: .\ntrain: images\nval: images\nnames: [blue, square, bar]\n")
    sentence = "--add-classes: .*twice.yaml has square, bar, which the model has already"
    with pytest.raises(ValueError, match=sentence):
        run(flags("--data", str(twice), "--name", "refused"))
    assert not (folder / "refused").exists()


def test_fitness_of_a_class_without_labels_is_refused(folder, flags):
    sentence = "unknown class 'disc'; classes are blue, green, red"
    with pytest.raises(ValueError, match=sentence):
        run(flags("--fitness", "AP[disc]", "--name", "refused"))


# Several processes


def end_of_run(size: int, words: list[str], folder: Path, **variables: str) -> list[int]:
    """Return the exit codes of a run of `size` processes."""
    port = free_port()
    environments = [rank_environment(rank, size, port) if size > 1 else {} for rank in range(size)]
    given = [each | variables for each in environments]
    with forked(given, words, folder / "io") as ranks:
        codes = [rank.end(300) for rank in ranks]
        assert set(codes) <= {0, -9}, ranks[0].err[-4000:]
        return codes


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks processes")
@pytest.mark.parametrize("mode", ["--sync-bn", "--shard"])
def test_two_processes_match_one(one, old, folder, flags, mode):
    words = flags("--amp", "fp64", "--name", mode.strip("-"), mode)
    assert end_of_run(2, words, folder) == [0, 0]
    several = folder / mode.strip("-")
    differences = state_differences(one, several)
    assert max(differences.values()) < 1e-9, differences
    assert all(same for entry in ("model", "ema") for _, same in old_tensors(several, entry, old))
    for first, second in zip(rows_of(one), rows_of(several), strict=True):
        assert first == pytest.approx(second, rel=1e-4)


def rows_of(run: Path) -> list[dict[str, float]]:
    with open(run / "results.csv") as file:
        rows = list(csv.DictReader(file))
    return [{name: float(row[name]) for name in row if name != "time"} for row in rows]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kills a process")
def test_killed_run_resumes_with_same_bits_without_the_old_checkpoint(folder, flags, old):
    words = flags("--save-minutes", "1e-9", "--name", "killed")
    faults = {"KESTREL_FAULT": "tests.test_resume:killed", "KESTREL_INSTANT": "0 nowhere 1"}
    assert end_of_run(
        1, flags("--save-minutes", "1e-9", "--name", "straight"), folder, **faults
    ) == [0]
    faults["KESTREL_INSTANT"] = "0 before a step 2"
    assert end_of_run(1, words, folder, **faults) == [-9]

    moved = old.rename(folder / "moved.pt")
    faults["KESTREL_INSTANT"] = "0 nowhere 1"
    resume = ["--resume", str(folder / "killed"), "--project", str(folder)]
    assert end_of_run(1, resume, folder, **faults) == [0]
    moved.rename(old)
    assert_same_bits(folder / "straight", folder / "killed")
