"""Curves and the confusion matrix against numbers worked out by hand and slow oracles."""

import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure

from utils.metrics.coco import evaluate_boxes
from utils.metrics.confusion import confusion_matrix
from utils.metrics.curves import operating_curves
from utils.metrics.matching import box_iou
from utils.metrics.records import Detections, GroundTruth
from utils.plots.operating import plot_curves

NO_TRUTH = GroundTruth([], [], [], [], [])
NO_DETECTIONS = Detections([], [], [], [])


def truths(*rows):
    """Ground truths from rows (image, class, box, crowd)."""
    images, classes, boxes, crowd = zip(*rows, strict=True)
    return GroundTruth(images, classes, boxes, [box[2] * box[3] for box in boxes], crowd)


def draw(seed, num_images=6, num_classes=3):
    """Images with many boxes, crowds, wrong classes and equal scores; class 3 is evaluated but does
    not occur.
    """
    generator = np.random.default_rng(seed)
    images, classes = generator.integers(0, num_images, 60), generator.integers(0, num_classes, 60)
    boxes = np.hstack([generator.uniform(0, 200, (60, 2)), generator.uniform(20, 80, (60, 2))])
    truth = GroundTruth(
        images, classes, boxes, boxes[:, 2] * boxes[:, 3], generator.random(60) < 0.15
    )
    source = generator.integers(0, 60, 150)
    moved = boxes[source] + generator.normal(0, 6, (150, 4))
    kinds = np.where(
        generator.random(150) < 0.7, classes[source], generator.integers(0, num_classes, 150)
    )
    return truth, Detections(images[source], kinds, moved, generator.random(150).round(1))


def oracle_counts(truth, detections, class_id, least):
    """True and false positives of a class at IoU 0.5 with score `least` or more, one box at a time,
    as COCO matches.
    """
    hits = misses = 0
    for image in np.unique(detections.image_ids):
        own = [
            g
            for g in range(len(truth.areas))
            if truth.image_ids[g] == image and truth.class_ids[g] == class_id
        ]
        own_detections = [
            d
            for d in range(len(detections.scores))
            if detections.image_ids[d] == image and detections.class_ids[d] == class_id
        ]
        free = set(own)
        for d in sorted(own_detections, key=lambda d: -detections.scores[d]):
            overlap = {
                g: iou_of(detections.boxes_xywh[d], truth.boxes_xywh[g], truth.crowd[g])
                for g in own
            }
            real = [g for g in own if g in free and not truth.crowd[g] and overlap[g] >= 0.5]
            in_crowd = any(truth.crowd[g] and overlap[g] >= 0.5 for g in own)
            if real:
                free.remove(max(real, key=overlap.get))
            if detections.scores[d] >= least:
                hits += bool(real)
                misses += not real and not in_crowd
    return hits, misses


def iou_of(box, truth_box, crowd):
    return box_iou(box[:, None], truth_box[:, None], np.array([crowd]))[0]


def oracle_confusion(truth, detections, num_classes, confidence, iou):
    """The matrix, by repeatedly taking the best remaining pair."""
    matrix = np.zeros((num_classes + 1, num_classes + 1), int)
    unmatched = {d for d in range(len(detections.scores)) if detections.scores[d] >= confidence}
    missed = {g for g in range(len(truth.areas)) if not truth.crowd[g]}

    def overlap(d, g):
        same_image = detections.image_ids[d] == truth.image_ids[g]
        return (
            iou_of(detections.boxes_xywh[d], truth.boxes_xywh[g], truth.crowd[g])
            if same_image
            else 0.0
        )

    shared = {(d, g): overlap(d, g) for d in unmatched for g in range(len(truth.areas))}
    while unmatched and missed:
        d, g = max(((d, g) for d in unmatched for g in missed), key=shared.get)
        if shared[d, g] < iou:
            break
        matrix[detections.class_ids[d], truth.class_ids[g]] += 1
        unmatched.remove(d)
        missed.remove(g)
    for g in missed:
        matrix[num_classes, truth.class_ids[g]] += 1
    for d in unmatched:
        crowds = [
            g
            for g in range(len(truth.areas))
            if truth.crowd[g] and truth.class_ids[g] == detections.class_ids[d]
        ]
        matrix[detections.class_ids[d], num_classes] += not any(shared[d, g] >= iou for g in crowds)
    return matrix


class TestOperatingCurves:
    def test_operating_curves_by_hand(self):
        # Two ground truths; a hit at .9, a miss at .6, a hit at .3.
        truth = truths((1, 5, [0, 0, 10, 10], False), (1, 5, [50, 0, 10, 10], False))
        boxes = [[0, 0, 10, 10], [200, 0, 10, 10], [50, 0, 10, 10]]
        curves = operating_curves(
            truth,
            Detections([1] * 3, [5] * 3, boxes, [0.9, 0.6, 0.3]),
            image_ids=[1],
            class_ids=[5],
        )
        at = {c: int(np.searchsorted(curves.confidence, c)) for c in (0.1, 0.5, 0.8, 0.95)}
        # at .1: 2 of 3 right, 2 of 2 found, F1 = 2 * 2/3 / (5/3) = 4/5
        # at .5: 1 of 2, 1 of 2; at .8: 1 of 1, 1 of 2, F1 = 1 / 1.5 = 2/3
        for confidence, expected in {
            0.1: (2 / 3, 1, 0.8),
            0.5: (0.5, 0.5, 0.5),
            0.8: (1, 0.5, 2 / 3),
        }.items():
            point = at[confidence]
            assert (
                curves.precision[0, point],
                curves.recall[0, point],
                curves.f1[0, point],
            ) == pytest.approx(expected)
        # no detections at .95: recall is 0, precision keeps its last value
        assert (
            curves.precision[0, at[0.95]],
            curves.recall[0, at[0.95]],
            curves.f1[0, at[0.95]],
        ) == (1, 0, 0)
        assert curves.best_confidence < 0.3
        assert curves.precision_at_best == pytest.approx([2 / 3])
        assert curves.recall_at_best == pytest.approx([1])
        # precision 1 up to recall .5 (51 points), then 2/3 (50 points)
        assert curves.pr_precision.mean(1) == pytest.approx([(51 + 50 * 2 / 3) / 101])

    def test_detection_with_score_equal_to_confidence_counts(self):
        truth = truths((0, 0, [0, 0, 10, 10], False))
        curves = operating_curves(
            truth, Detections([0], [0], [[0, 0, 10, 10]], [1.0]), image_ids=[0], class_ids=[0]
        )
        assert curves.recall.min() == 1

    @pytest.mark.parametrize("seed", [0, 1])
    def test_operating_curves_equal_slow_oracle(self, seed):
        truth, detections = draw(seed)
        curves = operating_curves(truth, detections, image_ids=range(6), class_ids=range(4))
        for class_id in range(3):
            wanted = int(((truth.class_ids == class_id) & ~truth.crowd).sum())
            for point in (0, 250, 333, 700):
                hits, misses = oracle_counts(truth, detections, class_id, curves.confidence[point])
                assert curves.recall[class_id, point] == pytest.approx(hits / wanted)
                assert curves.precision[class_id, point] == pytest.approx(hits / (hits + misses))

    def test_ap50_of_curves_equals_evaluator(self):
        truth, detections = draw(2)
        curves = operating_curves(truth, detections, image_ids=range(6), class_ids=range(4))
        result = evaluate_boxes(truth, detections, image_ids=range(6), class_ids=range(4))
        ap50 = curves.pr_precision.mean(1)
        assert curves.mean(ap50) == pytest.approx(result.stats["AP50"], abs=1e-12)
        assert ap50[:3] == pytest.approx([result.per_class[k]["AP50"] for k in range(3)], abs=1e-12)

    def test_best_confidence_maximizes_smoothed_mean_f1(self):
        truth, detections = draw(3)
        curves = operating_curves(truth, detections, image_ids=range(6), class_ids=range(4))
        mean_f1 = curves.f1[:3].mean(axis=0)  # class 3 has no ground truth
        reach = np.arange(-50, 51)
        smoothed = [mean_f1[np.clip(point + reach, 0, 999)].mean() for point in range(1000)]
        point = int(np.argmin(np.abs(curves.confidence - curves.best_confidence)))
        assert smoothed[point] == pytest.approx(max(smoothed), abs=1e-12)
        assert np.array_equal(curves.precision_at_best, curves.precision[:, point])
        assert np.array_equal(curves.recall_at_best, curves.recall[:, point])

    def test_class_without_ground_truth_is_excluded_from_means(self):
        truth = truths((0, 0, [0, 0, 10, 10], False))
        detections = Detections([0, 0], [0, 1], [[0, 0, 10, 10]] * 2, [0.9, 0.9])
        curves = operating_curves(truth, detections, image_ids=[0], class_ids=[0, 1])
        assert curves.has_truth.tolist() == [True, False]
        assert curves.mean(curves.recall_at_best) == 1
        assert curves.mean(curves.precision_at_best) == 1
        assert not curves.precision[1].any()

    def test_detections_matching_crowds_are_not_counted(self):
        truth = truths((0, 0, [0, 0, 100, 100], True), (0, 0, [200, 0, 10, 10], False))
        boxes = [[0, 0, 20, 20], [30, 30, 20, 20], [200, 0, 10, 10]]
        curves = operating_curves(
            truth,
            Detections([0] * 3, [0] * 3, boxes, [0.9, 0.8, 0.7]),
            image_ids=[0],
            class_ids=[0],
        )
        assert (curves.precision[0, 0], curves.recall[0, 0]) == (1, 1)

    @pytest.mark.parametrize("class_ids", [[], [0, 1]])
    def test_curves_without_boxes_are_zero_without_warning(self, class_ids):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            curves = operating_curves(NO_TRUTH, NO_DETECTIONS, image_ids=[], class_ids=class_ids)
            means = [
                curves.mean(rows)
                for rows in (curves.precision, curves.recall, curves.f1, curves.pr_precision)
            ]
        assert (
            curves.precision.shape
            == curves.recall.shape
            == curves.f1.shape
            == (len(class_ids), 1000)
        )
        assert curves.pr_precision.shape == (len(class_ids), 101)
        assert not any(mean.any() for mean in means)
        assert curves.best_confidence == 0


class TestConfusionMatrix:
    def test_confusion_matrix_by_hand(self):
        truth = truths(
            (0, 3, [0, 0, 10, 10], False),  # found as class 3
            (0, 3, [50, 0, 10, 10], False),  # found as class 8
            (1, 8, [0, 0, 10, 10], False),  # not found: the box there scores .2
        )
        boxes = [[0, 0, 10, 10], [50, 0, 10, 9], [0, 0, 10, 10], [100, 100, 5, 5]]
        detections = Detections([0, 0, 1, 1], [3, 8, 8, 8], boxes, [0.9, 0.25, 0.2, 0.5])
        expected = [
            [1, 0, 0],
            [1, 0, 1],
            [0, 1, 0],
        ]  # rows predicted 3, 8, background; columns true
        assert confusion_matrix(truth, detections, class_ids=[3, 8]).tolist() == expected

    def test_confusion_matches_are_one_to_one_by_iou(self):
        # The more confident box overlaps less (81 / 100), so the exact one matches the ground
        # truth.
        truth = truths((0, 0, [0, 0, 10, 10], False))
        detections = Detections([0, 0], [0, 1], [[0, 0, 9, 9], [0, 0, 10, 10]], [0.9, 0.3])
        assert confusion_matrix(truth, detections, class_ids=[0, 1]).tolist() == [
            [0, 0, 1],
            [1, 0, 0],
            [0, 0, 0],
        ]

    def test_crowd_absorbs_only_detections_of_its_class(self):
        truth = truths((0, 0, [0, 0, 100, 100], True))
        detections = Detections(
            [0] * 3, [0, 0, 1], [[0, 0, 9, 9], [20, 20, 9, 9], [40, 40, 9, 9]], [0.9] * 3
        )
        assert confusion_matrix(truth, detections, class_ids=[0, 1]).tolist() == [
            [0, 0, 0],
            [0, 0, 1],
            [0, 0, 0],
        ]

    @pytest.mark.parametrize("seed", [0, 1])
    def test_confusion_matrix_equals_slow_oracle(self, seed):
        truth, detections = draw(seed)
        matrix = confusion_matrix(truth, detections, class_ids=range(3))
        assert np.array_equal(matrix, oracle_confusion(truth, detections, 3, 0.25, 0.45))
        assert matrix.dtype == np.int64
        assert np.array_equal(
            matrix[:, :3].sum(axis=0), np.bincount(truth.class_ids[~truth.crowd], minlength=3)
        )

    def test_confusion_matrix_ignores_other_classes(self):
        truth, detections = (
            truths((0, 7, [0, 0, 10, 10], False)),
            Detections([0], [9], [[0, 0, 10, 10]], [0.9]),
        )
        assert confusion_matrix(truth, detections, class_ids=[1]).tolist() == [[0, 0], [0, 0]]

    @pytest.mark.parametrize("class_ids", [[], [0, 1]])
    def test_confusion_matrix_without_boxes_is_zero(self, class_ids):
        size = len(class_ids) + 1
        assert (
            confusion_matrix(NO_TRUTH, NO_DETECTIONS, class_ids=class_ids).tolist()
            == [[0] * size] * size
        )

    def test_confusion_iou_out_of_range_is_refused(self):
        with pytest.raises(ValueError, match=r"is 0, but must be above 0 and at most 1"):
            confusion_matrix(NO_TRUTH, NO_DETECTIONS, class_ids=[0], iou=0)


@pytest.mark.slow
def test_classes_without_ground_truth_are_not_drawn(tmp_path, monkeypatch):
    """The legend's mean over all classes is AP50, as in the table: class 3 is evaluated but does
    not occur.
    """
    truth, detections = draw(0)
    ids = {"image_ids": range(6), "class_ids": range(4)}
    curves = operating_curves(truth, detections, **ids)
    drawn = curves.drawn()
    for name in ("confidence", "pr_recall"):
        assert drawn.pop(name) is getattr(curves, name)
    assert set(drawn) == {"precision", "recall", "f1", "pr_precision"}
    for name, rows in drawn.items():
        assert np.array_equal(rows[:3], getattr(curves, name)[:3])
        assert np.isnan(rows[3]).all()
    legends = []
    monkeypatch.setattr(Figure, "legend", lambda _, lines, labels, **more: legends.append(labels))
    plot_curves(
        **curves.drawn(),
        names=list("abcd"),
        folder=tmp_path,
        best_confidence=curves.best_confidence,
    )
    ap50 = evaluate_boxes(truth, detections, **ids).stats["AP50"]
    means = [curves.mean(each) for each in (curves.precision_at_best, curves.recall_at_best)]
    pr, _, precision, recall = (
        labels[0] for labels in legends
    )  # the last line drawn is the first in the legend
    assert [pr, precision, recall] == [f"all classes  {value:.3f}" for value in (ap50, *means)]
    assert all(len(labels) == 4 for labels in legends)
