"""The pictures that show a kind of error best."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from utils.metrics.errors.kinds import ERROR_KINDS, MISSED, ErrorKinds
from utils.metrics.records import Detections, GroundTruth


@dataclass(frozen=True)
class ErrorPicture:
    """The errors of one kind in an image. Rows are those of the Detections and the GroundTruth."""

    kind: str
    image_id: int
    score: float  # of the most confident of them; 0 for missed objects
    detections: tuple[int, ...]  # rows, most confident first; none for missed objects
    truths: tuple[int, ...]  # rows: of each detection, -1 for none; or missed, largest first

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        fields = asdict(self)
        fields["detections"] = list(self.detections)
        fields["truths"] = list(self.truths)
        return fields


def worst_pictures(
    errors: ErrorKinds,
    truth: GroundTruth,
    detections: Detections,
    kind: str,
    *,
    class_id: int | None = None,
    limit: int | None = None,
) -> list[ErrorPicture]:
    """Return the images with errors of a kind, the worst first.

    Detections: the image whose most confident error is the most confident, then that with more of
    them. Missed objects: the image with most of them, then that where their total area is largest.
    Then the lowest image id.

    Detections in a crowd are left out.

    Args:
        errors: of these ground truths and detections.
        truth, detections: as they were given to `error_kinds`.
        kind: one of ERROR_KINDS.
        class_id: only errors whose detection or ground truth is of this class.
        limit: of the number of images.

    Raises: ValueError if the kind is unknown.
    """
    if kind not in ERROR_KINDS:
        raise ValueError(f"The kind of error is {kind!r}, but must be one of {list(ERROR_KINDS)}.")
    number = ERROR_KINDS.index(kind)
    if number == MISSED:
        return _missed_pictures(errors, truth, class_id, limit)

    chosen = (errors.detection_kind == number) & ~errors.detection_in_crowd
    if class_id is not None:
        partner_class = np.append(truth.class_ids, -1)[errors.detection_truth]  # -1: no partner
        has_partner = errors.detection_truth >= 0
        is_partner_class = has_partner & (partner_class == class_id)
        chosen &= (detections.class_ids == class_id) | is_partner_class

    # The errors of each image, the most confident first.
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((-detections.scores[rows], detections.image_ids[rows]))]
    images, starts, counts = np.unique(
        detections.image_ids[rows], return_index=True, return_counts=True
    )
    highest = detections.scores[rows[starts]]

    pictures = []
    for i in np.lexsort((images, -counts, -highest))[:limit].tolist():
        in_image = rows[starts[i] : starts[i] + counts[i]]
        picture = ErrorPicture(
            kind=kind,
            image_id=int(images[i]),
            score=float(highest[i]),
            detections=tuple(in_image.tolist()),
            truths=tuple(errors.detection_truth[in_image].tolist()),
        )
        pictures.append(picture)
    return pictures


def _missed_pictures(
    errors: ErrorKinds, truth: GroundTruth, class_id: int | None, limit: int | None
) -> list[ErrorPicture]:
    """Return the images with missed objects, the worst first."""
    chosen = errors.truth_kind == MISSED
    if class_id is not None:
        chosen &= truth.class_ids == class_id

    # The missed objects of each image, the largest first.
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((-truth.areas[rows], truth.image_ids[rows]))]
    images, starts, counts = np.unique(truth.image_ids[rows], return_index=True, return_counts=True)
    areas = np.zeros(0)
    if len(rows):
        areas = np.add.reduceat(truth.areas[rows], starts)

    pictures = []
    for i in np.lexsort((images, -areas, -counts))[:limit].tolist():
        in_image = rows[starts[i] : starts[i] + counts[i]]
        pictures.append(
            ErrorPicture(
                kind=ERROR_KINDS[MISSED],
                image_id=int(images[i]),
                score=0.0,
                detections=(),
                truths=tuple(in_image.tolist()),
            )
        )
    return pictures
