"""The evaluator against pycocotools, numbers worked out by hand, and stored cases."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.coco_cases import draw_case, pycocotools_evaluator
from utils.metrics import __main__, matching
from utils.metrics.coco import evaluate_boxes, format_summary
from utils.metrics.coco_json import read_coco_results
from utils.metrics.matching import (
    AREA_RANGES,
    IOU_THRESHOLDS,
    OverlappingPairs,
    match_detections,
    overlapping_pairs,
)
from utils.metrics.records import Detections, GroundTruth

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures" / "coco_eval"
SHARED = ROOT.parent / "shared" / "coco_eval_fixtures"
KEYS = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]
NO_TRUTH = GroundTruth([], [], [], [], [])
NO_DETECTIONS = Detections([], [], [], [])
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="../shared/coco_eval_fixtures (two larger cases) is missing"
)
close = {"abs": 1e-9, "rel": 0}


def write_case(folder, truth, detections):
    """Write both contents as files; text is written unchanged."""
    paths = folder / "gt.json", folder / "dt.json"
    for path, content in zip(paths, (truth, detections), strict=True):
        path.write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )
    return paths


def run_command(*arguments):
    command = [sys.executable, "-m", "utils.metrics", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )


class TestAgainstPycocotools:
    @pytest.mark.parametrize("seed", range(8))
    def test_random_case_equals_pycocotools(self, seed):
        truth, detections, image_ids, class_ids = draw_case(seed)
        expected = pycocotools_evaluator(truth, detections, image_ids, class_ids)
        result = evaluate_boxes(truth, detections, image_ids=image_ids, class_ids=class_ids)
        assert list(result.stats) == KEYS
        assert list(result.stats.values()) == pytest.approx(expected.stats.tolist(), **close)
        assert result.precision.shape == expected.eval["precision"].shape
        np.testing.assert_allclose(result.precision, expected.eval["precision"], rtol=0, atol=1e-9)
        np.testing.assert_allclose(result.recall, expected.eval["recall"], rtol=0, atol=1e-9)

    def test_random_case_contains_edge_cases(self):
        """The data contain what the docstring of draw_case promises."""
        truth, detections, image_ids, _ = draw_case(0)
        _, counts = np.unique(
            np.stack([detections.image_ids, detections.class_ids]), axis=1, return_counts=True
        )
        assert counts.max() > 100
        assert truth.crowd.any()
        assert (truth.boxes_xywh[:, 2:] == 0).any()
        assert np.isin([1024.0, 9216.0], truth.areas).all()
        assert len(np.unique(detections.scores)) < 20
        iou = overlapping_pairs(
            detections.boxes_xywh,
            detections.image_ids * 0,
            truth.boxes_xywh,
            truth.image_ids * 0,
            truth.crowd,
            0.01,
        ).iou
        assert np.isin([0.5, 0.75], iou).all()
        assert image_ids[0] not in truth.image_ids
        assert image_ids[0] in detections.image_ids
        assert not np.isin([43, 63], truth.class_ids).any()
        assert not np.isin([53, 63], detections.class_ids).any()

    def test_matching_in_blocks_gives_same_result(self, monkeypatch):
        """Pairs in several blocks give the same result."""
        truth, detections, image_ids, class_ids = draw_case(20)
        expected = evaluate_boxes(truth, detections, image_ids=image_ids, class_ids=class_ids)
        monkeypatch.setattr(matching, "PAIRS_AT_ONCE", 7)
        blocks = evaluate_boxes(truth, detections, image_ids=image_ids, class_ids=class_ids)
        assert np.array_equal(expected.precision, blocks.precision)
        assert np.array_equal(expected.recall, blocks.recall)

    @pytest.mark.parametrize(
        "folder",
        [
            FIXTURES / "voc100_real_detections",
            pytest.param(SHARED / "coco2014_fakebbox100", marks=needs_shared),
            pytest.param(SHARED / "rodm_sampled_bbox_area", marks=needs_shared),
        ],
        ids=lambda folder: folder.name,
    )
    def test_stored_case_gives_expected_metrics(self, folder):
        expected = json.loads((folder / "expected.json").read_text())
        names = {
            row["id"]: row["name"]
            for row in json.loads((folder / "gt.json").read_text())["categories"]
        }
        files = read_coco_results(folder / "gt.json", folder / "dt.json")
        result = files.evaluate()
        assert result.stats == pytest.approx(expected["stats"], **close)
        assert result.ap_per_iou == pytest.approx(expected["AP_per_iou"], **close)
        per_class = {names[files.categories[k]]: numbers for k, numbers in result.per_class.items()}
        assert set(expected["per_class"]) <= set(per_class)
        for kind, numbers in expected["per_class"].items():
            assert {key: per_class[kind][key] for key in numbers} == pytest.approx(
                numbers, **close
            ), kind

    def test_stored_edge_cases_give_expected_metrics(self, tmp_path):
        cases = json.loads((FIXTURES / "edge_cases.json").read_text())
        assert len(cases) == 22
        for name, case in cases.items():
            result = read_coco_results(*write_case(tmp_path, case["gt"], case["dt"])).evaluate()
            assert result.stats == pytest.approx(case["expected"], **close), name
            assert result.ap_per_iou == pytest.approx(case["AP_per_iou"], **close), name


class TestHandWorked:
    def test_average_precision_by_hand(self):
        # Two ground truths of 50 x 50; a hit at .9 (IoU 1), a miss at .8, a hit at .7 of 50 x 40
        # (IoU .8: a match at .50 to .80, 7 of 10 thresholds). With two hits: precision 1 up to
        # recall .5 (51 points), then 2/3 (50 points). With one hit: 1 on 51 points, then 0.
        truth = GroundTruth(
            [4, 4], [2, 2], [[0, 0, 50, 50], [100, 0, 50, 50]], [2500, 2500], [False, False]
        )
        boxes = [[0, 0, 50, 50], [300, 0, 40, 40], [100, 0, 50, 40]]
        result = evaluate_boxes(
            truth,
            Detections([4] * 3, [2] * 3, boxes, [0.9, 0.8, 0.7]),
            image_ids=[4],
            class_ids=[2],
        )
        both, one = (51 + 50 * 2 / 3) / 101, 51 / 101
        assert result.ap_per_iou == pytest.approx([both] * 7 + [one] * 3)
        assert result.stats["AP"] == pytest.approx(0.7 * both + 0.3 * one)
        assert result.stats["AP50"] == result.stats["AP75"] == pytest.approx(both)
        assert result.stats["AR1"] == pytest.approx(0.5)
        assert result.stats["AR100"] == pytest.approx(0.7 * 1 + 0.3 * 0.5)
        assert (result.stats["APs"], result.stats["APm"], result.stats["APl"]) == pytest.approx(
            (-1, result.stats["AP"], -1)
        )

    def test_per_class_numbers_and_counts(self):
        boxes = [[0, 0, 10, 10], [20, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10]]
        truth = GroundTruth(
            [1, 1, 2, 2], [5, 5, 5, 9], boxes, [100] * 4, [False, False, False, True]
        )
        result = evaluate_boxes(
            truth,
            Detections([1], [5], [[0, 0, 10, 10]], [0.5]),
            image_ids=[1, 2],
            class_ids=[9, 5, 5],
        )
        assert list(result.per_class) == [5, 9]
        assert (result.per_class[5]["images"], result.per_class[5]["instances"]) == (2, 3)
        assert (result.per_class[9]["images"], result.per_class[9]["instances"]) == (
            0,
            0,
        )  # a crowd is not an instance
        assert result.per_class[5]["AP"] == pytest.approx(
            34 / 101
        )  # recall 1/3: points 0, .01 ... .33
        assert result.per_class[9]["AP"] == -1
        assert result.stats["AP"] == result.per_class[5]["AP"]

    def test_match_prefers_the_better_ground_truth(self):
        # The more confident detection has IoU 80/120 with the first and 90/110 with the second: it
        # matches the second.
        truth = GroundTruth(
            [0, 0], [0, 0], [[0, 0, 10, 10], [3, 0, 10, 10]], [100, 100], [False, False]
        )
        detections = Detections([0, 0], [0, 0], [[0, 0, 10, 10], [2, 0, 10, 10]], [0.5, 0.9])
        matches = match_detections(
            truth,
            detections,
            image_ids=[0],
            class_ids=[0],
            iou_thresholds=[0.6],
            area_ranges=AREA_RANGES[:1],
        )
        assert matches.rows.tolist() == [1, 0]
        assert matches.true_positive.tolist() == [[[True, True]]]

    def test_iou_thresholds_equal_coco(self):
        assert np.linspace(0.5, 0.95, 10).tolist() == list(IOU_THRESHOLDS)

    def test_overlapping_pairs_are_of_the_same_group(self):
        boxes = np.array([[0.0, 0, 2, 2], [0, 0, 2, 2]])
        pairs = overlapping_pairs(
            boxes, np.array([5, 4]), boxes[:1], np.array([4]), np.array([False]), 0.5
        )
        assert [column.tolist() for column in pairs] == [[1], [0], [1.0]]
        assert isinstance(pairs, OverlappingPairs)


class TestOrder:
    def test_order_of_images_does_not_change_metrics(self):
        """Only the order within an image and class matters, and only for equal scores."""
        truth, detections, image_ids, class_ids = draw_case(9)
        by_image, by_class = (
            np.argsort(-detections.image_ids, kind="stable"),
            np.argsort(truth.class_ids, kind="stable"),
        )
        turned = Detections(*(column[by_image] for column in vars(detections).values()))
        sorted_truth = GroundTruth(*(column[by_class] for column in vars(truth).values()))
        straight = evaluate_boxes(truth, detections, image_ids=image_ids, class_ids=class_ids)
        other = evaluate_boxes(
            sorted_truth, turned, image_ids=image_ids[::-1], class_ids=class_ids[::-1]
        )
        assert np.array_equal(straight.precision, other.precision)

    def test_rows_of_other_images_and_classes_are_ignored(self):
        truth, detections, image_ids, class_ids = draw_case(10)
        images, classes = image_ids[3:9], class_ids[1:5]
        part = np.isin(detections.image_ids, images) & np.isin(detections.class_ids, classes)
        picked = Detections(*(column[part] for column in vars(detections).values()))
        some = evaluate_boxes(truth, detections, image_ids=images, class_ids=classes)
        assert (
            some.stats == evaluate_boxes(truth, picked, image_ids=images, class_ids=classes).stats
        )


class TestEmpty:
    @pytest.mark.parametrize("image_ids", [[], [1, 2]])
    @pytest.mark.parametrize("class_ids", [[], [0, 1]])
    def test_metrics_without_boxes_are_minus_one(self, image_ids, class_ids):
        result = evaluate_boxes(NO_TRUTH, NO_DETECTIONS, image_ids=image_ids, class_ids=class_ids)
        assert result.stats == dict.fromkeys(KEYS, -1.0)
        assert result.ap_per_iou == [-1.0] * 10
        assert list(result.per_class) == class_ids
        assert result.precision.shape == (10, 101, len(class_ids), 4, 3)

    def test_evaluate_boxes_without_detections(self):
        truth = GroundTruth([1], [0], [[0, 0, 10, 10]], [100], [False])
        stats = evaluate_boxes(truth, NO_DETECTIONS, image_ids=[1], class_ids=[0]).stats
        assert (stats["AP"], stats["AR100"], stats["APs"], stats["APl"]) == (0, 0, 0, -1)

    def test_evaluate_boxes_without_ground_truth(self):
        stats = evaluate_boxes(
            NO_TRUTH, Detections([1], [0], [[0, 0, 9, 9]], [0.5]), image_ids=[1], class_ids=[0]
        ).stats
        assert stats == dict.fromkeys(KEYS, -1.0)


class TestArrays:
    def test_array_lengths_must_agree(self):
        with pytest.raises(
            ValueError,
            match=r"Detections\.scores has shape \(2,\), but image_ids requires \(1,\)\.",
        ):
            Detections([1], [0], [[0, 0, 1, 1]], [0.5, 0.6])

    def test_boxes_must_have_four_values(self):
        with pytest.raises(
            ValueError,
            match=r"GroundTruth\.boxes_xywh has shape \(1, 3\), but image_ids requires \(1, 4\)\.",
        ):
            GroundTruth([1], [0], [[0, 0, 1]], [1], [False])

    def test_scores_must_be_finite(self):
        with pytest.raises(
            ValueError, match=r"Detections\.scores row 1 is nan, but must be finite\."
        ):
            Detections([1, 1], [0, 0], [[0, 0, 1, 1]] * 2, [0.5, float("nan")])


TRUTH = {
    "images": [{"id": 1}],
    "categories": [{"id": 1}, {"id": 2}],
    "annotations": [
        {
            "id": 1,
            "image_id": 1,
            "category_id": 1,
            "bbox": [10, 10, 50, 50],
            "area": 2500,
            "iscrowd": 0,
        }
    ],
}
HIT = {"image_id": 1, "category_id": 1, "bbox": [10, 10, 50, 50], "score": 0.5}
ANNOTATION = TRUTH["annotations"][0]


def without(row, key):
    return {name: value for name, value in row.items() if name != key}


class TestReadCoco:
    def test_unknown_categories_are_ignored(self, tmp_path):
        paths = write_case(tmp_path, TRUTH, [HIT, HIT | {"category_id": 77, "score": 0.9}])
        assert read_coco_results(*paths).evaluate().stats["AP50"] == pytest.approx(1)

    def test_coco_image_ids_may_be_text(self, tmp_path):
        truth = TRUTH | {
            "images": [{"id": "b"}, {"id": "a"}],
            "annotations": [ANNOTATION | {"image_id": "b"}],
        }
        files = read_coco_results(*write_case(tmp_path, truth, [HIT | {"image_id": "b"}]))
        assert files.images == ["a", "b"]
        assert files.evaluate().stats["AP50"] == pytest.approx(1)

    @pytest.mark.parametrize("missing", ["iscrowd", "id"])
    def test_optional_annotation_fields_may_be_missing(self, tmp_path, missing):
        truth = TRUTH | {"annotations": [without(ANNOTATION, missing)]}
        assert read_coco_results(*write_case(tmp_path, truth, [HIT])).evaluate().stats[
            "AP50"
        ] == pytest.approx(1)

    def test_coco_results_file_without_detections_gives_zero_ap(self, tmp_path):
        assert read_coco_results(*write_case(tmp_path, TRUTH, [])).evaluate().stats["AP"] == 0

    @pytest.mark.parametrize(
        ("truth", "detections", "sentence"),
        [
            ("{", [], r"gt\.json line 1: this is not JSON"),
            (
                [],
                [],
                r"gt\.json: the content is a list, but must be an object with images, annotations "
                r"and categories\.",
            ),
            (
                without(TRUTH, "images"),
                [],
                r"gt\.json: images is missing, but must be a list of objects\.",
            ),
            (without(TRUTH, "categories"), [], r"gt\.json: categories is missing"),
            (without(TRUTH, "annotations"), [], r"gt\.json: annotations is missing"),
            (
                TRUTH | {"annotations": [3]},
                [],
                r"gt\.json: annotations\[0\] is a number, but must be an object\.",
            ),
            (
                TRUTH | {"annotations": [without(ANNOTATION, "bbox")]},
                [],
                r'annotations\[0\] has no "bbox", which is required\.',
            ),
            (
                TRUTH | {"annotations": [without(ANNOTATION, "area")]},
                [],
                r'annotations\[0\] has no "area"',
            ),
            (
                TRUTH | {"annotations": [ANNOTATION, ANNOTATION]},
                [],
                r"annotations\[1\]: id 1 is given twice",
            ),
            (
                TRUTH | {"annotations": [ANNOTATION | {"bbox": [1, 2, 3]}]},
                [],
                r"bbox is \[1, 2, 3\], but must be \[left, top",
            ),
            (
                TRUTH,
                {"a": 1},
                r"dt\.json: detections is an object, but must be a list of objects\.",
            ),
            (TRUTH, [HIT, without(HIT, "score")], r'dt\.json: detections\[1\] has no "score"'),
            (
                TRUTH,
                [HIT | {"score": float("nan")}],
                r"detections\[0\]: score is nan, but must be a finite number\.",
            ),
            (
                TRUTH,
                [HIT | {"score": 10**400}],
                r"detections\[0\]: score is 1000+, but must be a finite number\.",
            ),
            (
                TRUTH,
                [HIT | {"bbox": [0, 0, "9", 9]}],
                r"detections\[0\]: bbox is '9', but must be a finite number\.",
            ),
            (
                TRUTH,
                [HIT | {"image_id": 7}],
                r"detections\[0\]: image_id is 7, but the ground truth has no such image\.",
            ),
            (
                TRUTH,
                [HIT | {"image_id": None}],
                r"image_id is None, but must be a whole number or text\.",
            ),
        ],
    )
    def test_invalid_coco_files_are_refused(self, tmp_path, truth, detections, sentence):
        with pytest.raises(ValueError, match=sentence):
            read_coco_results(*write_case(tmp_path, truth, detections))

    def test_undecodable_coco_file_is_refused(self, tmp_path):
        (tmp_path / "gt.json").write_bytes(b"\xff\xfe{}")
        with pytest.raises(ValueError, match=r"gt\.json: this is not JSON"):
            read_coco_results(tmp_path / "gt.json", tmp_path / "gt.json")


class TestCommand:
    def test_metrics_command_prints_json(self, tmp_path):
        done = run_command(*write_case(tmp_path, TRUTH, [HIT]), "--json")
        assert (done.returncode, done.stderr) == (0, "")
        stats = json.loads(done.stdout)
        assert list(stats) == KEYS
        assert (stats["AP50"], stats["APl"]) == (pytest.approx(1), -1)

    def test_metrics_command_prints_summary(self, tmp_path):
        paths = write_case(tmp_path, TRUTH, [HIT])
        done = run_command(*paths)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == format_summary(read_coco_results(*paths).evaluate().stats) + "\n"
        assert [line.split()[0] for line in done.stdout.splitlines()] == KEYS

    def test_metrics_command_reports_invalid_input_in_one_line(self, tmp_path):
        gt, dt = write_case(tmp_path, TRUTH, [HIT | {"image_id": 7}])
        done = run_command(gt, dt)
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr
            == f"error: {dt}: detections[0]: image_id is 7, but the ground truth has no such image."
            "\n"
        )

    def test_metrics_command_reports_missing_file(self, tmp_path):
        missing = tmp_path / "none.json"
        sentence = f"{missing}: the file cannot be read (No such file or directory)."
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            __main__.main([str(missing), "x"])
