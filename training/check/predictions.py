"""A model's detections on all splits of a data set, as arrays to compare with its labels."""

from dataclasses import dataclass

import numpy as np

from data import build_evaluation_loader
from data.check.reading import Examined, Split
from data.labels import Labels
from data.splits import Dataset
from models.backends import Backend
from training.check.known_classes import KnownClasses
from training.check.ranking import SAME_OBJECT, Boxes, largest_ious
from training.evaluation import predict_split
from utils.distributed.devices import loader_workers
from utils.distributed.world import World
from utils.metrics.records import Detections

CONFIDENCE = 0.01  # a class that is not found at all differs from one with a low score
MAX_DETECTIONS = 300


@dataclass(frozen=True)
class Compared:
    """The labels of a split and a model's detections, of the classes that the model knows.

    Regions to ignore are left out.
    """

    split: Split
    labels: Boxes
    rows: np.ndarray  # int64 [G], the number of each label among all rows of the split
    detections: Boxes
    names: list[str]  # of the classes of both


def detect(
    backend: Backend,
    examined: Examined,
    dataset: Dataset,
    world: World,
    *,
    known_classes: KnownClasses,
    image_size: int,
    canvas: tuple[int, int] | None,
    batch_size: int,
    workers: int,
    iou: float,
    confidence: float = CONFIDENCE,
) -> list[Compared]:
    """Return the labels and the detections of each split.

    Args:
        backend: the model, with the classes that are compared.
        examined: the data set.
        dataset: the same one, whose labels may be those of tiles.
        world: this process.
        known_classes: the classes of the data set that the model knows.
        image_size: long side of the images, in pixels.
        canvas: height and width, if the model takes one size only.
        batch_size: images per batch.
        workers: most processes that load images.
        iou: NMS IoU threshold.
        confidence: lowest score of a detection.
    """
    compared = []
    for split in examined.splits:
        loader = build_evaluation_loader(
            dataset.labels[split.name],
            batch_size=batch_size,
            image_size=image_size,
            stride=backend.stride,
            letterbox=backend.letterbox,
            canvas=canvas,
            workers=loader_workers(workers, batch_size, world.device),
            device=world.device,
        )

        found = predict_split(
            backend,
            loader,
            world,
            confidence=confidence,
            iou=iou,
            max_detections=MAX_DETECTIONS,
            title=split.name,
        )

        compared.append(compare(split, found.detections, known_classes))
    return compared


def compare(split: Split, detections: Detections, known_classes: KnownClasses) -> Compared:
    """Return the labels of a split beside detections, which have the ids of its images."""
    labels = split.labels
    rows = np.flatnonzero(~labels.crowd)
    image_of = labels.row_images[rows]
    outputs = known_classes.outputs_of(labels.classes[rows])
    boxes = Boxes(image_of, outputs, labels.boxes_xywh[rows], np.ones(len(rows)))
    found = Boxes(
        _numbers_of(labels, detections.image_ids),
        detections.class_ids,
        detections.boxes_xywh,
        detections.scores,
    )

    is_known = outputs >= 0
    known = boxes.chosen(is_known)
    is_of_others = _lie_on(found, boxes.chosen(~is_known), known)
    return Compared(split, known, rows[is_known], found.chosen(~is_of_others), known_classes.names)


def _lie_on(detections: Boxes, others: Boxes, known: Boxes) -> np.ndarray:
    """Return which detections lie on objects of other classes, rather than on known ones, bool [D].

    They say nothing of the labels: a model takes an object that it does not know for another one.
    """
    iou_with_other = largest_ious(detections, others)
    iou_with_known = largest_ious(detections, known)
    return (iou_with_other >= SAME_OBJECT) & (iou_with_other > iou_with_known)


def _numbers_of(labels: Labels, image_ids: np.ndarray) -> np.ndarray:
    """Return the number of each image, given its id."""
    order = np.argsort(labels.image_ids, kind="stable")
    places = np.searchsorted(labels.image_ids[order], image_ids)
    return order[places]
