"""python -m training.check: how disagreeing labels and detections are ranked, and what is said."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from data.check.reading import Split
from data.labels import LabelRow, LabelsBuilder
from data.splits import Dataset, open_dataset
from models import build_model
from models.loading import load_backend
from models.tables.read import read_table
from tests.support.exporting import lively_detector, save_checkpoint
from training.check import __main__ as training_check
from training.check import ranking
from training.check.disagreements import FAULT_KINDS
from training.check.known_classes import KnownClasses, match_known_classes
from training.check.predictions import compare
from training.check.ranking import Boxes, Ranked
from utils.distributed.world import World
from utils.metrics.records import Detections


def boxes(*rows: tuple[float, ...], scores: bool = False) -> Boxes:
    """Rows of image, class, left, top, width, height and, for detections, the score."""
    values = np.array(rows, float).reshape(-1, 7 if scores else 6)
    given = values[:, 6] if scores else np.ones(len(values))
    return Boxes(values[:, 0].astype(int), values[:, 1].astype(int), values[:, 2:6], given)


def detections(*rows: tuple[float, ...]) -> Boxes:
    return boxes(*rows, scores=True)


def ranked(kind: str, labels: Boxes, found: Boxes) -> Ranked:
    return getattr(ranking, kind)(labels, found, ranking.overlaps(labels, found))


def test_missing_labels_by_confidence_and_overlap():
    """An overlap of IoU 1/3 takes a ninth; a label of another class in the place takes all; the
    less confident of two detections in one place does not count.
    """
    labels = boxes((0, 0, 0, 0, 10, 10), (1, 1, 0, 0, 10, 10))
    found = detections(
        (0, 0, 5, 0, 10, 10, 0.9),  # IoU 50 / 150
        (0, 1, 50, 50, 10, 10, 0.7),
        (0, 0, 51, 50, 10, 10, 0.6),  # IoU 90 / 110 with the one before
        (1, 0, 0, 0, 10, 10, 0.95),  # the label has class 1
    )
    result = ranked("missing_labels", labels, found)
    assert result.detections.tolist() == [0, 1]
    assert result.labels.tolist() == [-1, -1]
    np.testing.assert_allclose(result.scores, [0.9 * (1 - 1 / 9), 0.7])


def test_swapped_classes_by_both_confidences():
    """0.8 of another class beside 0.2 of the label's: 0.8 * 0.8 / 1.0. A detection that is that of
    another label, in the same place, speaks for no swap.
    """
    labels = boxes(
        (0, 0, 0, 0, 10, 10), (1, 0, 0, 0, 10, 10), (2, 0, 0, 0, 10, 10), (2, 1, 1, 0, 10, 10)
    )
    found = detections(
        (0, 1, 0, 0, 10, 10, 0.8),
        (0, 0, 0, 0, 10, 10, 0.2),
        (1, 2, 0, 0, 10, 10, 0.6),
        (2, 1, 1, 0, 10, 10, 0.9),
    )
    result = ranked("swapped_classes", labels, found)
    assert result.labels.tolist() == [0, 1]
    assert result.detections.tolist() == [0, 2]
    np.testing.assert_allclose(result.scores, [0.64, 0.6])


def test_badly_placed_by_how_unusual_the_overlap_is():
    """Six labels with IoU 1, so 1 is usual. An IoU of 2/3 is a third less, of 0.35 that are
    clear. 9/11 is above GOOD_IOU. A box of another label is its own.
    """
    fitting = [(image, 0, 0, 0, 10, 10) for image in range(6)]
    labels = boxes(
        *fitting,
        (6, 0, 0, 0, 10, 10),
        (7, 0, 0, 0, 10, 10),
        (8, 0, 0, 0, 10, 10),
        (8, 0, 4, 0, 10, 10),
    )
    found = detections(
        *((*row, 0.9) for row in fitting),
        (6, 0, 2, 0, 10, 10, 0.8),
        (7, 0, 1, 0, 10, 10, 0.9),
        (8, 0, 4, 0, 10, 10, 0.9),
    )
    result = ranked("badly_placed", labels, found)
    assert result.labels.tolist() == [6]
    np.testing.assert_allclose(result.ious, [2 / 3])
    np.testing.assert_allclose(result.scores, [0.8**0.5 / 3 / 0.35])


def test_unfound_labels_by_the_recall_of_their_class():
    """Of class 0 three of four are found, of class 1 none: the model says nothing of that one."""
    labels = boxes(*((image, 0, 0, 0, 10, 10) for image in range(4)), (4, 1, 0, 0, 10, 10))
    found = detections(
        *((image, 0, 0, 0, 10, 10, 0.9) for image in range(3)), (3, 0, 0, 0, 10, 10, 0.2)
    )
    result = ranked("unfound_labels", labels, found)
    assert result.labels.tolist() == [3]
    np.testing.assert_allclose(result.scores, [0.75 * 0.8])


def test_image_has_the_score_of_its_surest_fault():
    labels = boxes((0, 0, 0, 0, 10, 10), (2, 0, 0, 0, 10, 10))
    found = detections(
        (1, 0, 0, 0, 10, 10, 0.4), (2, 1, 0, 0, 10, 10, 0.7), (2, 0, 50, 0, 10, 10, 0.3)
    )
    faults = [ranked(kind, labels, found) for kind in ("missing_labels", "swapped_classes")]
    np.testing.assert_allclose(ranking.image_scores(labels, found, faults, 4), [0, 0.4, 0.7, 0])


KINDS = ("missing_labels", "swapped_classes", "badly_placed", "unfound_labels")


@pytest.mark.parametrize("kind", KINDS)
def test_no_labels_and_no_detections(kind):
    label, found = boxes((0, 0, 0, 0, 10, 10)), detections((0, 0, 0, 0, 10, 10, 0.9))
    nothing, no_detection = boxes(), detections()
    for labels, given in ((nothing, no_detection), (label, no_detection), (nothing, found)):
        result = ranked(kind, labels, given)
        expected = kind == "missing_labels" and given is found
        assert len(result.scores) == expected
        assert (ranking.image_scores(labels, given, [result], 1) > 0).sum() == expected


def test_scores_are_in_order_and_at_most_1():
    random = np.random.default_rng(0)

    def drawn(count: int) -> Boxes:
        images = np.sort(random.integers(0, 5, count))
        corners = random.uniform(0, 20, (count, 2))
        sizes = random.uniform(5, 20, (count, 2))
        classes = random.integers(0, 3, count)
        return Boxes(
            images, classes, np.concatenate([corners, sizes], 1), random.uniform(0, 1, count)
        )

    for _ in range(20):
        labels, found = drawn(30), drawn(60)
        for kind in KINDS:
            result = ranked(kind, labels, found)
            assert (np.diff(result.scores) <= 0).all()
            assert ((result.scores > 0) & (result.scores <= 1)).all()
            used = result.labels[result.labels >= 0]
            assert len(np.unique(used)) == len(used)


# ------------------------------------------------------------------------------------ the command


@pytest.mark.slow
def test_command_adds_the_models_findings(tiny_data, micro_model, tmp_path, capsys):
    """A model with random weights disagrees everywhere; the file has each place with its score."""
    weights = save_checkpoint(tmp_path / "m.pt", lively_detector(micro_model))
    flags = ["--weights", str(weights), "--cache-dir", str(tmp_path / "cache"), "--device", "cpu"]
    file, page = tmp_path / "found.json", tmp_path / "found.html"
    training_check.main(
        [str(tiny_data), *flags, "--workers", "0", "--json", str(file), "--html", str(page)]
    )
    values = json.loads(file.read_text())
    assert values["weights"] == str(weights)
    assert values["image_size"] == 64
    by_check = {found["check"]: found for found in values["findings"]}
    assert {"labels-missing", "copies-across-splits"} <= set(by_check)
    for name in ("labels-missing", "labels-swapped", "labels-badly-placed", "labels-not-found"):
        if name not in by_check:
            continue
        scores = [example["score"] for example in by_check[name]["examples"]]
        assert scores == sorted(scores, reverse=True)
        assert by_check[name]["count"] == sum(score >= 0.5 for score in scores)
    ranked_scores = [entry["score"] for entry in values["ranked_images"]]
    assert ranked_scores
    assert ranked_scores == sorted(ranked_scores, reverse=True)
    assert "label" in page.read_text()
    assert "detections without a label" in capsys.readouterr().out


@pytest.mark.slow
def test_only_classes_that_the_model_knows_are_compared_by_name(
    tiny_data, micro_model, tmp_path, capsys
):
    """A model of bar, a class that the data lack, and disc, in this order; the data have disc,
    square and bar.
    """
    names = ["bar", "lamp", "disc"]
    weights = save_checkpoint(tmp_path / "m.pt", lively_detector(micro_model), names=names)
    flags = ["--weights", str(weights), "--cache-dir", str(tmp_path / "cache"), "--device", "cpu"]
    file = tmp_path / "found.json"
    training_check.main([str(tiny_data), *flags, "--workers", "0", "--json", str(file)])

    sentence = "1 class that the model does not know, which are not compared: square"
    assert sentence in capsys.readouterr().out
    by_check = {found["check"]: found for found in json.loads(file.read_text())["findings"]}
    assert by_check["classes-not-known"]["title"] == sentence
    assert by_check["labels-missing"]["count"] > 0
    for check in FAULT_KINDS:
        for place in by_check.get(check.name, {"examples": []})["examples"]:
            assert "square" not in place["what"]
            assert "lamp" not in place["what"]

    # Output 0 is the model's third class, output 1 its first one.
    model = load_backend(weights, torch.device("cpu"))
    backend, known_classes = match_known_classes(str(weights), model, open_tiny(tiny_data))
    images = torch.rand(1, 3, 64, 64)
    scores = model.backend.predict(images).scores
    assert torch.equal(backend.predict(images).scores, scores[..., [2, 0]])
    assert known_classes.names == ["disc", "bar"]
    assert known_classes.outputs_of(np.array([0, 1, 2])).tolist() == [0, -1, 1]


def open_tiny(tiny_data) -> Dataset:
    world = World(torch.device("cpu"))
    return open_dataset(
        [str(tiny_data)], (), world, download=False, single_class=False, cache_dir=""
    )


def test_classes_of_a_model_that_has_them_as_one(tiny_data, micro_model, tmp_path):
    """--single-cls with --classes: labels of the others are not compared."""
    table = read_table(Path(micro_model))
    weights = save_checkpoint(
        tmp_path / "m.pt",
        build_model(table, 1),
        names=["object"],
        config={"imgsz": 64, "single_cls": True, "classes": ["bar", "square"]},
    )
    model = load_backend(weights, torch.device("cpu"))
    backend, known_classes = match_known_classes("m.pt", model, open_tiny(tiny_data))
    assert backend.num_classes == 1
    assert known_classes.others == ["disc"]
    assert known_classes.outputs_of(np.array([0, 1, 2])).tolist() == [-1, 0, 0]


def test_a_detection_on_an_object_of_a_class_that_is_not_known_is_no_missing_label():
    """A detection in the place of such an object is left out; one that has an IoU of 81 / 119 with
    it and 90 / 110 with a label of its class stays, and so does one apart.
    """
    rows = [(0, (0, 0, 10, 10)), (1, (40, 0, 10, 10)), (0, (41, 2, 10, 10))]
    builder = LabelsBuilder()
    of_image = [LabelRow(class_id, box, 100, False, None, 1) for class_id, box in rows]
    builder.add_image("a.png", (96, 96), 7, of_image)
    split = Split("val", (), builder.build([1, 2]), report=None)

    found = Detections(
        np.array([7, 7, 7]),
        np.zeros(3, int),
        np.array([[40.0, 0, 10, 10], [41, 1, 10, 10], [70, 70, 10, 10]]),
        np.array([0.9, 0.8, 0.7]),
    )
    compared = compare(split, found, KnownClasses(np.array([0]), ["disc"], ["square"]))
    assert compared.detections.scores.tolist() == [0.8, 0.7]
    assert compared.rows.tolist() == [0, 2]
    assert compared.labels.classes.tolist() == [0, 0]


def test_other_classes_and_wrong_flags_are_refused(tiny_data, micro_model, tmp_path):
    names = ["a", "b", "c"]
    weights = save_checkpoint(tmp_path / "m.pt", lively_detector(micro_model), names=names)
    flags = [str(tiny_data), "--weights", str(weights), "--device", "cpu"]
    sentence = (
        r"m.pt does not fit .*: the model's classes are a, b, c, "
        r"those of the data disc, square, bar, and none is in both$"
    )
    with pytest.raises(ValueError, match=sentence):
        training_check.main([*flags, "--cache-dir", str(tmp_path)])
    with pytest.raises(ValueError, match=r"^--batch-size 0: choose 1 or more$"):
        training_check.main([*flags, "--batch", "0"])
    with pytest.raises(ValueError, match="--weights"):
        training_check.main([str(tiny_data)])
