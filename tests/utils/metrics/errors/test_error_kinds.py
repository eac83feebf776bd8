"""Errors by kind: against the stored numbers of tidecv, and one of each kind worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.box_rows import detections_of, truths_of
from tests.support.error_cases import FIRST_WITH_TIES, NUM_CASES, draw_error_case
from tests.support.error_sets import REAL_SETS, files_of, read_set
from utils.metrics import matching
from utils.metrics.errors import ERROR_KINDS, error_kinds
from utils.metrics.errors.kinds import (
    BACKGROUND,
    CLAIMED,
    CLASSIFICATION,
    DUPLICATE,
    LOCALIZATION,
    MISSED,
    NOT_COUNTED,
    RIGHT,
)
from utils.metrics.records import Detections, GroundTruth

ROOT = Path(__file__).parents[4]
SHARED = ROOT.parent / "shared"
EXPECTED = json.loads((ROOT / "tests" / "fixtures" / "tidecv" / "expected.json").read_text())
NO_TRUTH = GroundTruth([], [], [], [], [])
NO_DETECTIONS = Detections([], [], [], [])
SPECIAL = ["false_positive", "false_negative"]


def errors_of(case):
    return error_kinds(
        truths_of(*case.truths),
        detections_of(*case.detections),
        image_ids=case.images,
        class_ids=case.classes,
    )


def assert_equals_tidecv(errors, expected, name):
    """Counts exactly, AP and costs, which are in per cent in `expected`, to 1e-6 per cent."""
    if errors.ap == -1:  # no ground truth: tidecv gives 0, or divides by zero
        assert expected is None or expected["ap"] == 0, name
        assert not any(errors.cost.values())
        return
    assert list(errors.counts.values()) == expected["counts"], name
    assert 100 * errors.ap == pytest.approx(expected["ap"], abs=1e-6, rel=0), name

    assert list(errors.cost) == [*ERROR_KINDS, *SPECIAL]
    for kind, stated in zip(errors.cost, expected["costs"], strict=True):
        cost = 100 * errors.cost[kind]
        if stated is None:  # no class is left, and AP is 1
            assert cost == pytest.approx(100 - expected["ap"], abs=1e-6, rel=0), (name, kind)
        else:
            assert cost == pytest.approx(stated, abs=1e-6, rel=0), (name, kind)


class TestAgainstTidecv:
    def test_random_cases(self):
        for number, expected in enumerate(EXPECTED["random"]):
            assert_equals_tidecv(errors_of(draw_error_case(number)), expected, number)

    def test_random_cases_have_each_kind_and_edge(self):
        assert len(EXPECTED["random"]) == NUM_CASES >= FIRST_WITH_TIES + 40
        cases = [draw_error_case(number) for number in range(NUM_CASES)]
        stated = [row for row in EXPECTED["random"] if row]
        assert np.sum([row["counts"] for row in stated], axis=0).min() > 200
        assert sum(all(cost is not None for cost in row["costs"]) for row in stated) > 190
        assert any(not case.truths for case in cases)
        assert any(case.truths and not case.detections for case in cases)
        assert any(row[-1] for case in cases for row in case.truths)
        assert any(len(case.detections) > 100 * len(case.images) for case in cases)

        for number, case in enumerate(cases):
            scores = [row[-1] for row in case.detections]
            if number < FIRST_WITH_TIES:
                assert len(set(scores)) == len(scores)

    @pytest.mark.parametrize("name", REAL_SETS)
    def test_real_set(self, name):
        if not all(file.exists() for file in files_of(name, SHARED)):
            pytest.skip(f"the ground truth of {name} is in ../shared, which is missing")
        assert_equals_tidecv(errors_of(read_set(name, SHARED)), EXPECTED["real"][name], name)


# One image: class 0 and class 1, a box of 10 x 10 at every 100 pixels.
ONE_OF_EACH = (
    truths_of(
        (7, 0, 0, 0, 10, 10, False),  # found
        (7, 0, 100, 0, 10, 10, False),  # misplaced
        (7, 1, 200, 0, 10, 10, False),  # misclassified
        (7, 1, 300, 0, 10, 10, False),  # missed
        (7, 1, 500, 0, 10, 10, False),  # missed
    ),
    detections_of(
        (7, 0, 400, 0, 10, 10, 0.4),  # background
        (7, 0, 300, 0, 10, 3, 0.5),  # both: IoU .3 with class 1
        (7, 0, 200, 0, 10, 10, 0.6),  # classification
        (7, 0, 100, 0, 10, 4, 0.7),  # localization: IoU .4
        (7, 0, 0, 0, 10, 8, 0.8),  # duplicate: IoU .8
        (7, 0, 0, 0, 10, 10, 0.9),  # right
    ),
)


def one_of_each():
    return error_kinds(*ONE_OF_EACH, image_ids=[7], class_ids=[0, 1])


class TestByHand:
    def test_kinds_and_partners(self):
        errors = one_of_each()
        names = [ERROR_KINDS[kind] for kind in errors.detection_kind[:-1]]
        assert names == ["background", "both", "classification", "localization", "duplicate"]
        assert errors.detection_kind[-1] == RIGHT
        assert errors.detection_truth.tolist() == [-1, 3, 2, 1, 0, 0]
        assert errors.truth_kind.tolist() == [RIGHT, CLAIMED, CLAIMED, MISSED, MISSED]
        assert errors.truth_detection.tolist() == [5, 3, 2, -1, -1]
        assert list(errors.counts.values()) == [1, 1, 1, 1, 1, 2]
        assert errors.class_counts.tolist() == [[1, 0], [1, 0], [1, 0], [1, 0], [1, 0], [0, 2]]

    def test_costs(self):
        # Class 0 has two objects; the first detection is right: precision 1 up to recall .5, which
        # are 51 of 101 points. Class 1 has none right. AP is the mean, 51/202.
        errors = one_of_each()
        assert errors.ap == pytest.approx(51 / 202)
        cost = dict(errors.cost)
        # The third of class 0 is right too: precision 2/3 at the other 50 points.
        assert cost.pop("localization") == pytest.approx(50 * (2 / 3) / 202)
        # One of three of class 1, precision 1: recall 1/3, the points 0, .01 ... .33.
        assert cost.pop("classification") == pytest.approx(34 / 202)
        # Class 0 has one object, the first detection is right: AP 1. Class 1 is gone.
        assert cost.pop("false_negative") == pytest.approx(1 - 51 / 202)
        # All others rank below what is right already; class 1 keeps the object of the misclassified
        # one.
        assert set(cost.values()) == {0.0}

    def test_plain_values(self):
        content = json.loads(json.dumps(one_of_each().as_dict()))
        assert content["ap"] == pytest.approx(51 / 202)
        assert content["kinds"]["missed"] == {"cost": 0.0, "count": 2, "in_crowd": 0}
        assert list(content["kinds"]) == [*ERROR_KINDS, *SPECIAL]
        assert list(content["kinds"]["false_positive"]) == ["cost"]

    def test_only_the_most_confident_claims_a_ground_truth(self):
        truth = truths_of((1, 0, 0, 0, 10, 10, False))
        detections = detections_of((1, 0, 0, 0, 10, 4, 0.5), (1, 1, 0, 0, 10, 10, 0.9))
        errors = error_kinds(truth, detections, image_ids=[1], class_ids=[0, 1])
        assert errors.truth_detection.tolist() == [1]
        assert errors.counts["localization"] == errors.counts["classification"] == 1
        # Class 0 has a right detection only if the misclassified one is corrected; then class 1 has
        # neither object nor detection. Before: class 0 AP 0, class 1 AP 0. The corrected one ranks
        # first.
        assert errors.cost["classification"] == pytest.approx(1.0)
        assert errors.cost["localization"] == 0

    def test_detection_in_a_crowd_has_no_cost(self):
        # 6 of 10 columns are in the crowd, which is not a ground truth: background, as in tidecv.
        truth = truths_of((1, 0, 0, 0, 6, 10, True), (1, 0, 50, 0, 10, 10, False))
        detections = detections_of((1, 0, 0, 0, 10, 10, 0.9), (1, 0, 50, 0, 10, 10, 0.5))
        errors = error_kinds(truth, detections, image_ids=[1], class_ids=[0])
        assert errors.ap == pytest.approx(1)
        assert errors.detection_in_crowd.tolist() == [True, False]
        assert (errors.counts["background"], errors.in_crowd["background"]) == (1, 1)
        assert errors.cost["background"] == 0
        assert errors.truth_kind.tolist() == [NOT_COUNTED, RIGHT]

        # Half of it is not more than half.
        half = truths_of((1, 0, 0, 0, 5, 10, True), (1, 0, 50, 0, 10, 10, False))
        errors = error_kinds(half, detections, image_ids=[1], class_ids=[0])
        assert errors.detection_in_crowd.tolist() == [False, False]
        assert errors.cost["background"] == pytest.approx(0.5)  # precision 1/2 at all recalls

    def test_what_does_not_count(self):
        """The 101st of an image over all classes; rows of other images and classes."""
        truth = truths_of((1, 0, 0, 0, 10, 10, False), (2, 0, 0, 0, 10, 10, False))
        boxes = [(1, n % 2, 0, 0, 10, 10, 0.9 - n / 200) for n in range(101)]
        detections = detections_of(*boxes, (1, 5, 0, 0, 10, 10, 1), (2, 0, 0, 0, 10, 10, 1))
        errors = error_kinds(truth, detections, image_ids=[1], class_ids=[0, 1])
        assert errors.detection_kind[:3].tolist() == [RIGHT, CLASSIFICATION, DUPLICATE]
        assert errors.detection_kind[-3:].tolist() == [NOT_COUNTED] * 3
        assert errors.truth_kind.tolist() == [RIGHT, NOT_COUNTED]
        assert sum(errors.counts.values()) == 99

    def test_ious_at_the_limits(self):
        """Exactly 0.5 with an object that is taken; exactly 0.1 with one of each class."""
        truth = truths_of((1, 0, 0, 0, 10, 10, False), (1, 1, 50, 0, 10, 10, False))
        detections = detections_of(
            (1, 0, 0, 0, 10, 10, 0.9),
            (1, 0, 0, 0, 10, 5, 0.8),
            (1, 0, 50, 0, 10, 1, 0.7),
            (1, 1, 50, 0, 10, 1, 0.6),
        )
        errors = error_kinds(truth, detections, image_ids=[1], class_ids=[0, 1])
        expected = [RIGHT, LOCALIZATION, BACKGROUND, LOCALIZATION]
        assert errors.detection_kind.tolist() == expected

    def test_of_equal_ious_the_first_ground_truth_is_taken(self):
        truth = truths_of((1, 0, 0, 0, 10, 10, False), (1, 0, 4, 0, 10, 10, False))
        errors = error_kinds(
            truth, detections_of((1, 0, 2, 0, 10, 10, 0.9)), image_ids=[1], class_ids=[0]
        )
        assert errors.detection_truth.tolist() == [0]


class TestEmpty:
    def test_nothing(self):
        errors = error_kinds(NO_TRUTH, NO_DETECTIONS, image_ids=[], class_ids=[])
        assert errors.ap == -1
        assert not any(errors.cost.values())
        assert not any(errors.counts.values())

    def test_no_detections(self):
        truth = truths_of((1, 0, 0, 0, 10, 10, False), (1, 1, 0, 0, 10, 10, False))
        errors = error_kinds(truth, NO_DETECTIONS, image_ids=[1, 2], class_ids=[0, 1])
        assert (errors.ap, errors.counts["missed"]) == (0, 2)
        assert errors.cost["missed"] == errors.cost["false_negative"] == 1

    def test_no_ground_truth(self):
        detections = detections_of((1, 0, 0, 0, 10, 10, 0.5))
        errors = error_kinds(NO_TRUTH, detections, image_ids=[1], class_ids=[0])
        assert (errors.ap, errors.counts["background"]) == (-1, 1)
        assert not any(errors.cost.values())


def test_images_in_blocks_give_the_same_errors(monkeypatch):
    case = draw_error_case(19)
    assert len(case.images) > 2
    expected = errors_of(case)
    monkeypatch.setattr(matching, "PAIRS_AT_ONCE", 7)
    blocks = errors_of(case)
    assert blocks.as_dict() == expected.as_dict()
    for name in ("detection_kind", "detection_truth", "truth_kind", "truth_detection"):
        assert np.array_equal(getattr(blocks, name), getattr(expected, name))


def test_rows_in_any_order_give_the_same_errors():
    case = draw_error_case(29)
    truth = truths_of(*case.truths)
    detections = detections_of(*case.detections)
    errors = errors_of(case)

    generator = np.random.default_rng(0)
    g = generator.permutation(len(truth.areas))
    d = generator.permutation(len(detections.scores))
    shuffled = error_kinds(
        GroundTruth(*(column[g] for column in vars(truth).values())),
        Detections(*(column[d] for column in vars(detections).values())),
        image_ids=case.images,
        class_ids=case.classes,
    )
    assert shuffled.as_dict() == errors.as_dict()
    assert np.array_equal(shuffled.detection_kind, errors.detection_kind[d])
    assert np.array_equal(shuffled.truth_kind, errors.truth_kind[g])
    partner = errors.detection_truth[d]
    has_partner = partner >= 0
    assert np.array_equal(g[shuffled.detection_truth[has_partner]], partner[has_partner])
