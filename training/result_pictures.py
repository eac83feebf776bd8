"""The pictures that a training and val.py draw of an evaluation."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data import Loader
from data.labels import Labels
from data.loader import Batch
from data.sampler import EvaluationSampler
from utils.images.tiles import clip
from utils.metrics.evaluation import Evaluation
from utils.metrics.records import Detections
from utils.plots.pictures import BATCHES, Pictures

SHOWN_CONFIDENCE = 0.25  # lowest score of a detection that is drawn


def draw_results(pictures: Pictures, found: Evaluation, loader: Loader[EvaluationSampler]) -> None:
    """Draw results, curves, confusion matrix, and the first batches with detections."""
    if not pictures.active:
        return
    pictures.results(found.curves.drawn(), found.curves.best_confidence, found.confusion())
    for number, batch in zip(range(BATCHES), loader, strict=False):
        draw_batch(pictures, number, batch, found.detections, loader.labels)


def draw_batch(
    pictures: Pictures, number: int, batch: Batch, found: Detections, labels: Labels
) -> None:
    """Draw a validation batch's ground truth, and its detections from SHOWN_CONFIDENCE on."""
    images = batch.images.cpu().numpy()
    targets = batch.targets.cpu().numpy()
    titles = [Path(labels.path(index)).name for index in batch.indices.tolist()]
    predicted = _on_canvas(found, batch, labels)
    pictures.val_batch(number, images, targets, predicted, titles)


def _on_canvas(found: Detections, batch: Batch, labels: Labels) -> NDArray[np.float64]:
    """Return the detections from SHOWN_CONFIDENCE on, in the batch's pixels, [D, 7].

    Columns: index in the batch, class, x1, y1, x2, y2, score.
    """
    rows = []
    for i, index in enumerate(batch.indices.tolist()):
        image_id, region = labels.part(index)
        of_image = found.image_ids == image_id
        chosen = np.flatnonzero(of_image & (found.scores >= SHOWN_CONFIDENCE))

        # The part of each box that is inside the region of the image, which is a tile or all of it.
        low, size = np.split(found.boxes_xywh[chosen], 2, axis=1)
        visible = clip(np.concatenate([low, low + size], 1), region)
        not_empty = (visible[:, 2:] > visible[:, :2]).all(1)
        chosen = chosen[not_empty]
        corner = np.tile(region[:2], 2)
        boxes = batch.placement_of(i).to_canvas(visible[not_empty] - corner)

        head = np.stack([np.full(len(chosen), i), found.class_ids[chosen]], 1)
        rows.append(np.concatenate([head, boxes, found.scores[chosen, None]], 1))
    return np.concatenate(rows)
