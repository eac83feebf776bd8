"""COCO's files by hand, and our twelve numbers against those of pycocotools on these files."""

import json
import os

import numpy as np
import pytest

from utils.files.writers import write_json
from utils.metrics.coco import evaluate_boxes
from utils.metrics.coco_results import check_with_pycocotools, coco_ground_truth, coco_results
from utils.metrics.records import Detections, GroundTruth

IMAGE_IDS, SIZES, PATHS = (
    np.array([40, 7]),
    np.array([[640, 480], [100, 50]], np.int32),
    ["a/x.jpg", "b/y.png"],
)
NAMES, CATEGORY_IDS = ["cat", "dog"], np.array([18, 90])


def ground_truth(count: int = 0, seed: int = 0) -> GroundTruth:
    random = np.random.default_rng(seed)
    boxes = random.uniform(0, 300, (count, 4)) + [0, 0, 5, 5]
    images, classes = random.choice(IMAGE_IDS, count), random.integers(0, 2, count)
    return GroundTruth(
        images, classes, boxes, boxes[:, 2] * boxes[:, 3] * 0.7, random.random(count) < 0.2
    )


def noisy_detections(truth: GroundTruth, seed: int = 1) -> Detections:
    """The ground truth's boxes, shifted, and a false positive for each."""
    random = np.random.default_rng(seed)
    boxes = np.concatenate(
        [truth.boxes_xywh + random.normal(0, 8, truth.boxes_xywh.shape), truth.boxes_xywh[::-1]]
    )
    boxes[:, 2:] = np.abs(boxes[:, 2:]) + 1
    scores = random.random(len(boxes)).round(2)  # with ties
    images, classes = np.tile(truth.image_ids, 2), np.tile(truth.class_ids, 2)
    order = np.argsort(images, kind="stable")
    return Detections(images[order], classes[order], boxes[order], scores[order])


def test_coco_ground_truth_by_hand():
    truth = GroundTruth(
        [7, 40], [1, 0], [[1, 2, 3.5, 4], [0, 0, 10, 10]], [14, 60.5], [False, True]
    )
    assert coco_ground_truth(truth, IMAGE_IDS, SIZES, PATHS, NAMES, CATEGORY_IDS) == {
        "info": {},
        "images": [
            {"id": 40, "width": 640, "height": 480, "file_name": "x.jpg"},
            {"id": 7, "width": 100, "height": 50, "file_name": "y.png"},
        ],
        "annotations": [
            {
                "id": 1,
                "image_id": 7,
                "category_id": 90,
                "bbox": [1, 2, 3.5, 4],
                "area": 14,
                "iscrowd": 0,
            },
            {
                "id": 2,
                "image_id": 40,
                "category_id": 18,
                "bbox": [0, 0, 10, 10],
                "area": 60.5,
                "iscrowd": 1,
            },
        ],
        "categories": [{"id": 18, "name": "cat"}, {"id": 90, "name": "dog"}],
    }


def test_undecodable_file_name_can_be_written(tmp_path):
    name = os.fsdecode(b"a/\xff \xc3\xa9\n.jpg")
    truth = GroundTruth([], [], np.zeros((0, 4)), [], [])
    document = coco_ground_truth(truth, IMAGE_IDS[:1], SIZES[:1], [name], NAMES, CATEGORY_IDS)
    write_json(tmp_path / "truth.json", document)
    assert (
        json.loads((tmp_path / "truth.json").read_text())["images"][0]["file_name"]
        == "\\xff é\n.jpg"
    )


def test_coco_results_by_hand():
    detections = Detections([40], [1], [[1, 2, 3, 1 / 3]], [0.1])
    results = coco_results(detections, CATEGORY_IDS, IMAGE_IDS, PATHS)
    row = {
        "image_id": 40,
        "category_id": 90,
        "bbox": [1.0, 2.0, 3.0, 1 / 3],
        "score": 0.1,
        "file_name": "x.jpg",
    }
    assert results == [row]
    assert json.loads(json.dumps(results)) == results  # plain numbers, not rounded
    assert (
        coco_results(Detections([], [], np.zeros((0, 4)), []), CATEGORY_IDS, IMAGE_IDS, PATHS) == []
    )


def test_coco_results_name_the_file_of_each_image(tmp_path):
    undecodable = os.fsdecode(b"b/\xff.png")
    detections = Detections([7, 40], [0, 0], [[0, 0, 1, 1]] * 2, [0.5, 0.5])
    results = coco_results(detections, CATEGORY_IDS, IMAGE_IDS, ["a/x.jpg", undecodable])
    assert [row["file_name"] for row in results] == ["\\xff.png", "x.jpg"]
    write_json(tmp_path / "results.json", results)
    assert json.loads((tmp_path / "results.json").read_text()) == results


@pytest.mark.parametrize("count", [1, 60])
def test_metrics_agree_with_pycocotools_on_files(tmp_path, count):
    truth = ground_truth(count)
    detections = noisy_detections(truth)
    ours = evaluate_boxes(truth, detections, image_ids=IMAGE_IDS, class_ids=[0, 1]).stats
    files = tmp_path / "truth.json", tmp_path / "results.json"
    write_json(files[0], coco_ground_truth(truth, IMAGE_IDS, SIZES, PATHS, NAMES, CATEGORY_IDS))
    write_json(files[1], coco_results(detections, CATEGORY_IDS, IMAGE_IDS, PATHS))
    sentence = check_with_pycocotools(*files, ours)
    head, difference = sentence.split("largest difference from ours ")
    assert head == f"pycocotools: AP {ours['AP']:.6f}, AP50 {ours['AP50']:.6f}; "
    assert float(difference) < 1e-9
    assert "1.0e-01" in check_with_pycocotools(*files, ours | {"ARl": ours["ARl"] + 0.1})


def test_pycocotools_check_without_detections(tmp_path):
    files = tmp_path / "truth.json", tmp_path / "results.json"
    write_json(
        files[0], coco_ground_truth(ground_truth(3), IMAGE_IDS, SIZES, PATHS, NAMES, CATEGORY_IDS)
    )
    write_json(files[1], [])
    assert check_with_pycocotools(*files, {}) == "pycocotools: no detections to score"


def test_coco_ground_truth_without_annotations():
    file = coco_ground_truth(ground_truth(0), IMAGE_IDS, SIZES, PATHS, NAMES, CATEGORY_IDS)
    assert file["annotations"] == []
    assert len(file["images"]) == 2
