"""The pictures that a training and val.py draw of an evaluation."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data import Loader
from data.labels import Labels
from data.loader import Batch
from data.sampler import EvaluationSampler
from utils.images.boxes import clip_boxes
from utils.metrics.evaluation import Evaluation
from utils.metrics.records import SHOWN_CONFIDENCE, Detections
from utils.plots.pictures import BATCHES, Pictures


def draw_results(
    pictures: Pictures, evaluation: Evaluation, loader: Loader[EvaluationSampler]
) -> None:
    """Draw results, curves, confusion matrix, and the first batches with detections."""
    if not pictures.active:
        return
    curves = evaluation.curves
    pictures.results(curves.drawn(), curves.best_confidence, evaluation.confusion())
    for number, batch in zip(range(BATCHES), loader, strict=False):
        draw_val_batch(pictures, number, batch, evaluation.detections, loader.labels)


def draw_val_batch(
    pictures: Pictures, number: int, batch: Batch, detections: Detections, labels: Labels
) -> None:
    """Draw a validation batch's ground truth, and its detections from SHOWN_CONFIDENCE on.

    Args:
        pictures: of the run folder.
        number: of the batch, in the names of its pictures.
        batch: as the loader yields it.
        detections: of all images.
        labels: of all images.
    """
    images = batch.images.cpu().numpy()
    targets = batch.targets.cpu().numpy()
    titles = [Path(labels.path(index)).name for index in batch.indices.tolist()]
    predicted = _on_canvas(detections, batch, labels)
    pictures.val_batch(number, images, targets, predicted, titles)


def _on_canvas(detections: Detections, batch: Batch, labels: Labels) -> NDArray[np.float64]:
    """Return the detections from SHOWN_CONFIDENCE on, in the batch's pixels, [D, 7].

    Columns: index in the batch, class, x1, y1, x2, y2, score.
    """
    rows = []
    for i, index in enumerate(batch.indices.tolist()):
        image_id, region = labels.part(index)
        of_image = detections.image_ids == image_id
        shown = np.flatnonzero(of_image & (detections.scores >= SHOWN_CONFIDENCE))

        # The part of each box that is inside the region of the image, which is a tile or all of it.
        low, size = np.split(detections.boxes_xywh[shown], 2, axis=1)
        boxes = clip_boxes(np.concatenate([low, low + size], 1), region)
        not_empty = (boxes[:, 2:] > boxes[:, :2]).all(1)
        shown = shown[not_empty]

        # From pixels of the image to pixels of the batch.
        corner = np.tile(region[:2], 2)
        on_canvas = batch.placement_of(i).to_canvas(boxes[not_empty] - corner)

        in_batch = np.full(len(shown), i)
        head = np.stack([in_batch, detections.class_ids[shown]], 1)
        rows.append(np.concatenate([head, on_canvas, detections.scores[shown, None]], 1))
    return np.concatenate(rows)
