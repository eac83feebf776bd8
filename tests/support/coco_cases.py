"""Ground truths and detections with many ties and limits, and pycocotools on them."""

import contextlib
import io

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from utils.metrics.records import Detections, GroundTruth


def pycocotools_evaluator(truth, detections, image_ids, class_ids, area_ranges=None):
    """COCOeval of the same arrays, after evaluate, accumulate and, unless other area ranges are
    given, summarize.
    """
    annotations = [
        {
            "id": g + 1,
            "image_id": int(truth.image_ids[g]),
            "category_id": int(truth.class_ids[g]),
            "bbox": truth.boxes_xywh[g].tolist(),
            "area": float(truth.areas[g]),
            "iscrowd": int(truth.crowd[g]),
        }
        for g in range(len(truth.areas))
    ]
    results = [
        {
            "image_id": int(detections.image_ids[d]),
            "category_id": int(detections.class_ids[d]),
            "bbox": detections.boxes_xywh[d].tolist(),
            "score": float(detections.scores[d]),
        }
        for d in range(len(detections.scores))
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        reference = COCO()
        categories = [{"id": int(kind)} for kind in class_ids]
        reference.dataset = {
            "images": [{"id": int(i)} for i in image_ids],
            "categories": categories,
            "annotations": annotations,
        }
        reference.createIndex()
        evaluator = COCOeval(reference, reference.loadRes(results), "bbox")
        if area_ranges is not None:
            evaluator.params.areaRng = [list(limits) for limits in area_ranges]
            evaluator.params.areaRngLbl = [str(limits) for limits in area_ranges]
        evaluator.evaluate()
        evaluator.accumulate()
        if area_ranges is None:
            evaluator.summarize()
    return evaluator


def draw_case(seed, num_images=12, num_truths=90, num_detections=500):
    """Whole-pixel boxes on a small canvas, so that ties of score and of IoU, and values exactly at
    thresholds and area limits, are frequent.

    Images 0, 7, 14 ..., classes 3, 13, 23 ... Class 43 has no ground truth, class 53 no detection,
    class 63 neither; the first image has no ground truth; the last one has more than 100 detections
    of a class.
    """
    generator = np.random.default_rng(seed)
    image_ids, class_ids = np.arange(num_images) * 7, np.array([3, 13, 23, 33, 43, 53, 63])
    sides = np.array([0, 8, 16, 31, 32, 33, 64, 95, 96, 97, 128])
    boxes = np.hstack(
        [generator.integers(0, 20, (num_truths, 2)) * 8, generator.choice(sides, (num_truths, 2))]
    ).astype(float)
    areas = boxes[:, 2] * boxes[:, 3]
    odd = generator.random(num_truths) < 0.3
    areas[odd] = generator.choice([0, 1023, 1024, 1025, 9215, 9216, 9217, 2e10], int(odd.sum()))
    truth_classes = generator.choice([3, 13, 23, 33, 53], num_truths)
    truth = GroundTruth(
        generator.choice(image_ids[1:], num_truths),
        truth_classes,
        boxes,
        areas,
        generator.random(num_truths) < 0.15,
    )

    source = generator.integers(0, num_truths, num_detections)
    detected = truth.boxes_xywh[source] + generator.choice([0, 0, 0, 4, 8, -4], (num_detections, 4))
    kinds = np.where(
        generator.random(num_detections) < 0.8,
        truth_classes[source],
        generator.choice([3, 43], num_detections),
    )
    kinds[kinds == 53] = 3
    images = truth.image_ids[source].copy()
    images[:10] = image_ids[0]
    kinds[-130:], images[-130:] = 13, image_ids[-1]
    return (
        truth,
        Detections(images, kinds, detected, generator.random(num_detections).round(1)),
        image_ids,
        class_ids,
    )
