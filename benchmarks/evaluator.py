"""Whether the evaluator in utils/metrics/ agrees with pycocotools, and how fast it is.

Claim: it gives the twelve numbers of pycocotools, up to 1e-9, at least 20 times faster.

    OMP_NUM_THREADS=1 python benchmarks/evaluator.py [--quick] [--repeats 3] [--seed 0]

The data are random: 5,000 images, about 36,500 ground truths (1 % crowds), 100 detections per
image, 80 classes. Two thirds of the detections are ground truths moved and resized, a tenth of
those with a wrong class; the rest is noise. Scores have three digits, so that there are ties.

Both evaluators are timed from prepared data to the twelve numbers, in CPU seconds of this process:
pycocotools from its COCO objects (without loadRes), ours from flat arrays. pycocotools runs once,
ours `--repeats` times; the ratio uses the median.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # must be set before numpy is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
from pycocotools.coco import COCO  # noqa: E402
from pycocotools.cocoeval import COCOeval  # noqa: E402

from utils.metrics.coco import evaluate_boxes  # noqa: E402
from utils.metrics.records import Detections, GroundTruth  # noqa: E402

NUM_CLASSES = 80
DETECTIONS_PER_IMAGE = 100
TRUTHS_PER_IMAGE = 7.3  # as in COCO
SIDE = 640.0  # pixels


def draw_boxes(generator: np.random.Generator, count: int) -> np.ndarray:
    """Random boxes xywh in pixels, float64 [count, 4]; sides from 8 to 400 pixels, log-uniform."""
    sizes = np.exp(generator.uniform(np.log(8), np.log(400), (count, 2)))
    corners = generator.uniform(0, SIDE - sizes)
    return np.hstack([corners, sizes]).round(2)


def draw_truth(generator: np.random.Generator, num_images: int) -> GroundTruth:
    """About TRUTHS_PER_IMAGE random boxes per image."""
    counts = generator.poisson(TRUTHS_PER_IMAGE, num_images)
    image_ids = np.repeat(np.arange(num_images), counts)
    count = len(image_ids)
    boxes = draw_boxes(generator, count)
    # As in segmentations, a part of the box.
    areas = boxes[:, 2] * boxes[:, 3] * generator.uniform(0.5, 1.0, count)
    class_ids = generator.integers(0, NUM_CLASSES, count)
    is_crowd = generator.random(count) < 0.012
    return GroundTruth(image_ids, class_ids, boxes, areas, is_crowd)


def draw_detections(
    generator: np.random.Generator, truth: GroundTruth, num_images: int
) -> Detections:
    """DETECTIONS_PER_IMAGE per image; two thirds are near a ground truth, if the image has one."""
    image_ids = np.repeat(np.arange(num_images), DETECTIONS_PER_IMAGE)
    count = len(image_ids)
    class_ids = generator.integers(0, NUM_CLASSES, count)
    boxes = draw_boxes(generator, count)

    # A ground truth of the same image for each detection; of no meaning where there is none.
    counts = np.bincount(truth.image_ids, minlength=num_images)
    first = np.cumsum(counts) - counts
    offset = (generator.random(count) * counts[image_ids]).astype(np.int64)
    source = first[image_ids] + offset

    # Two thirds are moved and resized ground truths.
    near = np.flatnonzero((generator.random(count) < 2 / 3) & (counts[image_ids] > 0))
    moved = truth.boxes_xywh[source[near]]
    shift = generator.normal(0, 0.08, moved.shape) * np.tile(moved[:, 2:], 2)
    corners = moved[:, :2] + shift[:, :2]
    sizes = np.maximum(moved[:, 2:] + shift[:, 2:], 1)
    boxes[near] = np.hstack([corners, sizes])

    # A tenth of them has any class.
    right = near[generator.random(len(near)) < 0.9]
    class_ids[right] = truth.class_ids[source[right]]

    # Three digits, so that there are ties.
    scores = generator.beta(1, 4, count)
    scores[near] = generator.beta(2, 3, len(near))
    return Detections(image_ids, class_ids, boxes.round(2), scores.round(3))


def as_coco(truth: GroundTruth, detections: Detections, num_images: int) -> tuple[COCO, COCO]:
    """The same data as COCO objects of pycocotools: ground truth and detections."""
    columns = [column.tolist() for column in vars(truth).values()]
    annotations = [
        {
            "id": row + 1,
            "image_id": image,
            "category_id": class_id,
            "bbox": box,
            "area": area,
            "iscrowd": int(crowd),
        }
        for row, (image, class_id, box, area, crowd) in enumerate(zip(*columns, strict=True))
    ]
    columns = [column.tolist() for column in vars(detections).values()]
    results = [
        {"image_id": image, "category_id": class_id, "bbox": box, "score": score}
        for image, class_id, box, score in zip(*columns, strict=True)
    ]

    reference = COCO()
    reference.dataset = {
        "images": [{"id": image} for image in range(num_images)],
        "categories": [{"id": class_id} for class_id in range(NUM_CLASSES)],
        "annotations": annotations,
    }
    reference.createIndex()
    return reference, reference.loadRes(results)


def time_pycocotools(
    truth: GroundTruth, detections: Detections, num_images: int
) -> tuple[float, list[float]]:
    """CPU seconds of the evaluation, and the twelve numbers."""
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        reference, results = as_coco(truth, detections, num_images)
        start = time.process_time()
        evaluator = COCOeval(reference, results, "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
        seconds = time.process_time() - start
    return seconds, list(evaluator.stats)


def time_ours(
    truth: GroundTruth, detections: Detections, num_images: int
) -> tuple[float, list[float]]:
    """CPU seconds of the evaluation, and the twelve numbers."""
    image_ids = np.arange(num_images)
    class_ids = np.arange(NUM_CLASSES)
    start = time.process_time()
    result = evaluate_boxes(truth, detections, image_ids=image_ids, class_ids=class_ids)
    return time.process_time() - start, list(result.stats.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="200 images instead of 5,000")
    parser.add_argument("--repeats", type=int, default=3, help="runs of Kestrel's evaluator")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    num_images = 200 if options.quick else 5000
    generator = np.random.default_rng(options.seed)
    truth = draw_truth(generator, num_images)
    detections = draw_detections(generator, truth, num_images)

    time_ours(truth, detections, num_images)  # warm up
    ours = [time_ours(truth, detections, num_images) for _ in range(options.repeats)]
    reference_seconds, reference_numbers = time_pycocotools(truth, detections, num_images)

    seconds = [run[0] for run in ours]
    numbers = ours[0][1]
    typical = statistics.median(seconds)
    difference = max(abs(a - b) for a, b in zip(numbers, reference_numbers, strict=True))

    packages = f"numpy {np.__version__}, pycocotools {version('pycocotools')}"
    print(f"Python {platform.python_version()}, {packages}, one thread, seed {options.seed}")
    counts = f"{len(truth.areas):,} ground truths, {len(detections.scores):,} detections"
    print(f"{num_images:,} images, {counts}, {NUM_CLASSES} classes")
    ap, ap50, ar100 = (reference_numbers[index] for index in (0, 1, 8))
    print(f"AP {ap:.4f}, AP50 {ap50:.4f}, AR100 {ar100:.4f}")
    print(f"pycocotools   {reference_seconds:7.2f} CPU s (n = 1)")
    spread = f"median, n = {len(seconds)}, {min(seconds):.2f} to {max(seconds):.2f}"
    print(f"utils.metrics {typical:7.2f} CPU s ({spread})")
    print(f"ratio         {reference_seconds / typical:7.1f}")
    print(f"largest difference in the twelve numbers {difference:.1e}")


if __name__ == "__main__":
    main()
