"""The pictures of the report: what is around the worst errors, as small JPEG files in the page.

Boxes are not drawn into them: the page draws them, and can hide them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.labels import Labels
from utils.images.boxes import clip_boxes
from utils.images.decode import quiet_decoder, read_image
from utils.images.letterbox import Region, resized
from utils.images.opencv import cv2
from utils.metrics.errors import ERROR_KINDS, ErrorKinds, ErrorPicture, worst_pictures
from utils.metrics.records import SHOWN_CONFIDENCE, Detections, GroundTruth

MAX_PICTURES = 160
MAX_BYTES = 5 * 2**20  # of all pictures in the page
FIRST_OF_KIND = 12  # pictures of each kind, before those for each class
PER_CLASS = 4  # pictures of each kind and class
MAX_SIDE = 360  # pixels of the longer side of a picture
MIN_REGION = 96  # pixels of the image that a picture shows at least
MARGIN = 0.6  # around the boxes, as a share of their longer side
WIDE = 4 / 3  # width by height of a picture
JPEG_QUALITY = 72


def error_pictures(
    errors: ErrorKinds,
    truth: GroundTruth,
    detections: Detections,
    labels: Labels,
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the pictures of the worst errors as plain values, kind by kind in turns.

    Those of an image that can no longer be read are left out, and the last ones if all would be
    larger than MAX_BYTES.

    Args:
        errors: of these ground truths and detections.
        truth, detections: of the evaluation.
        labels: of the whole images.
        names: of the classes.
    """
    chosen = choose(errors, truth, detections)
    content = Content(truth, detections, [picture.image_id for picture in chosen])
    index_of = {image_id: index for index, image_id in enumerate(labels.image_ids.tolist())}

    # Each image is decoded once.
    positions_of: dict[int, list[int]] = defaultdict(list)
    for position, picture in enumerate(chosen):
        positions_of[picture.image_id].append(position)

    made: dict[int, dict[str, Any]] = {}
    for image_id, positions in positions_of.items():
        path = Path(labels.path(index_of[image_id]))
        try:
            with quiet_decoder():
                image = read_image(path)
        except (OSError, ValueError):
            continue
        for position in positions:
            subject = Subject.of(chosen[position], errors, detections)
            made[position] = picture_values(image, subject, content, names) | {"file": path.name}
    return list(_within_budget(made[position] for position in sorted(made)))


def choose(errors: ErrorKinds, truth: GroundTruth, detections: Detections) -> list[ErrorPicture]:
    """Return the pictures to show, at most MAX_PICTURES.

    First the FIRST_OF_KIND worst ones of each kind, in turns, then the worst ones of each kind and
    class, until there are PER_CLASS.
    """
    by_kind = {kind: worst_pictures(errors, truth, detections, kind) for kind in ERROR_KINDS}
    chosen = []
    for rank in range(FIRST_OF_KIND):
        chosen += [worst[rank] for worst in by_kind.values() if rank < len(worst)]

    later: dict[int, list[ErrorPicture]] = defaultdict(list)  # by their number of kind and class
    for worst in by_kind.values():
        seen: Counter[int] = Counter()
        for rank, picture in enumerate(worst):
            class_id = _class_of(picture, truth, detections)
            seen[class_id] += 1
            if rank >= FIRST_OF_KIND and seen[class_id] <= PER_CLASS:
                later[seen[class_id]].append(picture)
    for number in sorted(later):
        chosen += later[number]
    return chosen[:MAX_PICTURES]


def _class_of(picture: ErrorPicture, truth: GroundTruth, detections: Detections) -> int:
    """Return the class of the worst error of a picture."""
    if picture.detections:
        return int(detections.class_ids[picture.detections[0]])
    return int(truth.class_ids[picture.truths[0]])


class Content:
    """The boxes of the images that are shown, in pixels of the image."""

    def __init__(
        self, truth: GroundTruth, detections: Detections, image_ids: Sequence[int]
    ) -> None:
        self.truth = truth
        self.detections = detections
        self.truth_boxes = _corners(truth.boxes_xywh)
        self.detection_boxes = _corners(detections.boxes_xywh)
        ids = np.unique(np.array(image_ids, np.int64))
        self.truth_rows = _rows_by_image(truth.image_ids, ids)
        confident = np.flatnonzero(detections.scores >= SHOWN_CONFIDENCE)
        rows = _rows_by_image(detections.image_ids[confident], ids)
        self.detection_rows = {image_id: confident[of_image] for image_id, of_image in rows.items()}


def _corners(boxes_xywh: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return boxes as x1, y1, x2, y2, [N, 4]."""
    corner, size = np.split(boxes_xywh, 2, axis=1)
    return np.concatenate([corner, corner + size], 1)


def _rows_by_image(
    image_ids: NDArray[np.int64], shown: NDArray[np.int64]
) -> dict[int, NDArray[np.int64]]:
    """Return the rows of each image of `shown`, which is sorted. image_ids: of all rows."""
    rows = np.flatnonzero(np.isin(image_ids, shown))
    rows = rows[np.argsort(image_ids[rows], kind="stable")]
    starts = np.searchsorted(image_ids[rows], shown)
    return dict(zip(shown.tolist(), np.split(rows, starts)[1:], strict=True))


@dataclass(frozen=True)
class Subject:
    """The boxes that a picture is about.

    worst: rows of detections and of ground truths of the worst error; they are what is shown.
    shown: those of all errors of its kind in the image that are confident.
    """

    picture: ErrorPicture
    worst: tuple[list[int], list[int]]
    shown: tuple[list[int], list[int]]
    confident: int  # number of errors that are

    @classmethod
    def of(cls, picture: ErrorPicture, errors: ErrorKinds, detections: Detections) -> "Subject":
        """Return the subject of a picture."""
        if not picture.detections:
            missed: tuple[list[int], list[int]] = ([], list(picture.truths))
            return cls(picture, missed, missed, len(picture.truths))

        def rows(number: int) -> tuple[list[int], list[int]]:
            found = list(picture.detections[:number])
            partners = [row for row in picture.truths[:number] if row >= 0]
            if picture.kind == "duplicate":  # also the detections that they repeat
                found += errors.truth_detection[partners].tolist()
            return found, partners

        scores = detections.scores[list(picture.detections)]
        confident = int((scores >= SHOWN_CONFIDENCE).sum())
        return cls(picture, rows(1), rows(max(1, confident)), confident)


def picture_values(
    image: NDArray[np.uint8], subject: Subject, content: Content, names: Sequence[str]
) -> dict[str, Any]:
    """Return a picture as plain values.

    Args:
        image: BGR, the whole one.
        subject: of the picture.
        content: the boxes of all images that are shown.
        names: of the classes.
    """
    height, width = image.shape[:2]
    detections, truths = subject.worst
    corners = [content.detection_boxes[detections], content.truth_boxes[truths]]
    region = region_around(np.concatenate(corners), (width, height))

    # The part of the image, not enlarged.
    x1, y1, x2, y2 = region
    scale = min(1.0, MAX_SIDE / max(x2 - x1, y2 - y1))
    wide = max(1, round((x2 - x1) * scale))
    high = max(1, round((y2 - y1) * scale))

    detections, truths = subject.shown
    class_ids = [*content.detections.class_ids[detections], *content.truth.class_ids[truths]]
    return {
        "kind": subject.picture.kind,
        "classes": sorted({int(class_id) for class_id in class_ids}),
        "text": describe(subject, content, names),
        "image": _as_jpeg(resized(image[y1:y2, x1:x2], wide, high)),
        "width": wide,
        "height": high,
        "boxes": drawn_boxes(region, scale, subject, content, names),
    }


def describe(subject: Subject, content: Content, names: Sequence[str]) -> list[str]:
    """Return a sentence about the errors of a picture: text and names of classes in turn.

    Text is first and last. The page keeps the names apart, as they may run from right to left.
    """
    picture = subject.picture
    if not picture.detections:
        missed = Counter(content.truth.class_ids[list(picture.truths)].tolist())
        parts: list[str] = []
        for class_id, number in missed.most_common():
            parts += [f"{', ' if parts else ''}{number} × ", names[class_id]]
        return [*parts, ""]

    detected = names[content.detections.class_ids[picture.detections[0]]]
    more = subject.confident - 1
    end = f"; {more} more in this image" if more > 0 else ""
    between = {"classification": "labeled", "both": "near"}
    if picture.kind in between:
        labeled = names[content.truth.class_ids[picture.truths[0]]]
        return ["", detected, f" {picture.score:.2f}, {between[picture.kind]} ", labeled, end]
    what = {
        "localization": "its label is elsewhere",
        "duplicate": "found twice",
        "background": "nothing is labeled",
    }[picture.kind]
    return ["", detected, f" {picture.score:.2f}, {what}{end}"]


def drawn_boxes(
    region: Region, scale: float, subject: Subject, content: Content, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the boxes in a region of the image, in pixels of the picture, labels first.

    Besides the subject those are all labels, and the detections of SHOWN_CONFIDENCE or more.
    """
    image_id = subject.picture.image_id
    detections, truths = subject.shown
    corner = np.tile(region[:2], 2)
    drawn: list[dict[str, Any]] = []

    def draw(box: NDArray[np.float64], title: str, *, truth: bool, main: bool) -> None:
        x1, y1, x2, y2 = clip_boxes(box, region)
        if x2 > x1 and y2 > y1:
            place = (np.array([x1, y1, x2, y2]) - corner) * scale
            drawn.append({"truth": truth, "main": main, "box": place.round(1), "title": title})

    for row in content.truth_rows[image_id].tolist():
        title = f"label: {names[content.truth.class_ids[row]]}"
        draw(content.truth_boxes[row], title, truth=True, main=row in truths)
    for row in sorted({*content.detection_rows[image_id].tolist(), *detections}):
        name = names[content.detections.class_ids[row]]
        title = f"detection {content.detections.scores[row]:.2f}: {name}"
        draw(content.detection_boxes[row], title, truth=False, main=row in detections)
    return drawn


def region_around(boxes_xyxy: NDArray[np.float64], size: tuple[int, int]) -> Region:
    """Return the part of an image that shows boxes and what is around them.

    It has about the shape of all pictures, WIDE, where the image is large enough.

    size: width and height of the image.

    >>> region_around(np.array([[400.0, 400, 500, 500]]), (1000, 1000))
    (303, 340, 597, 560)
    >>> region_around(np.array([[0.0, 0, 10, 10]]), (64, 1000))
    (0, 0, 64, 96)
    """
    x1, y1 = boxes_xyxy[:, :2].min(0).tolist()
    x2, y2 = boxes_xyxy[:, 2:].max(0).tolist()
    margin = MARGIN * max(x2 - x1, y2 - y1)
    wide = max(x2 - x1 + 2 * margin, MIN_REGION * WIDE)
    high = max(y2 - y1 + 2 * margin, MIN_REGION)
    wide, high = max(wide, high * WIDE), max(high, wide / WIDE)

    left, right = _span((x1 + x2) / 2, wide, size[0])
    top, bottom = _span((y1 + y2) / 2, high, size[1])
    return left, top, right, bottom


def _span(middle: float, length: float, limit: int) -> tuple[int, int]:
    """Return start and stop of a range around a point, moved or cut to be within [0, limit]."""
    length = min(length, limit)
    start = min(max(middle - length / 2, 0), limit - length)
    first = min(round(start), limit - 1)
    return first, max(first + 1, min(limit, round(start + length)))


def _as_jpeg(picture: NDArray[np.uint8]) -> bytes:
    """Return a BGR picture as the content of a JPEG file."""
    _, content = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return content.tobytes()


def _within_budget(pictures: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield pictures until all together would be larger than MAX_BYTES."""
    total = 0.0
    for picture in pictures:
        total += len(picture["image"]) * 4 / 3  # in base64
        if total > MAX_BYTES:
            return
        yield picture
