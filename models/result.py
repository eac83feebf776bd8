"""The result of detecting objects in one image, as arrays, records, files and pictures."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from utils.files.atomic import atomic_write
from utils.images.detections import ImageDetections
from utils.images.encode import encode_bgr
from utils.printable import counted, printable


class Detection(NamedTuple):
    """One detected object."""

    box_xyxy: tuple[float, float, float, float]  # in pixels of the image
    score: float  # in [0, 1]
    class_id: int
    name: str  # of the class


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The detections in one image, highest score first. D detections.

    image: uint8 [H, W, 3], RGB. detections: the boxes, scores and classes. names: of all classes,
    so that `names[class_id]` is the name of a detection's class. path: the image file, "" if it was
    not a file.
    """

    image: NDArray[np.uint8]
    detections: ImageDetections
    names: tuple[str, ...]
    path: str = ""

    @property
    def boxes_xyxy(self) -> NDArray[np.float64]:
        """The boxes [D, 4] in pixels of the image: x1, y1, x2, y2."""
        return self.detections.boxes_xyxy

    @property
    def scores(self) -> NDArray[np.float64]:
        """The scores [D] in [0, 1]."""
        return self.detections.scores

    @property
    def class_ids(self) -> NDArray[np.int64]:
        """The classes [D], indices into `names`."""
        return self.detections.class_ids

    @property
    def left_out(self) -> int:
        """The number of further detections, with lower scores, that `max_detections` left out."""
        return self.detections.left_out

    def __len__(self) -> int:
        """Return the number of detections D."""
        return len(self.detections)

    def __iter__(self) -> Iterator[Detection]:
        """Iterate over the detections."""
        boxes = self.boxes_xyxy.tolist()
        scores = self.scores.tolist()
        class_ids = self.class_ids.tolist()
        for box, score, class_id in zip(boxes, scores, class_ids, strict=True):
            yield Detection(tuple(box), score, class_id, self.names[class_id])

    def __repr__(self) -> str:
        height, width = self.image.shape[:2]
        name = printable(self.path) or "image"
        counts = count_text(Counter(self.class_ids.tolist()), self.names)
        return f"<{name}, {width} x {height} px: {counts}>"

    def _repr_png_(self) -> bytes:
        """Return the picture that a notebook shows, as PNG."""
        return encode_bgr(self._drawn(), ".png")

    def plot(
        self, *, line_width: int = 0, labels: bool = True, scores: bool = True
    ) -> NDArray[np.uint8]:
        """Return the image with its boxes drawn, uint8 [H, W, 3], RGB.

        line_width: of the boxes in pixels, 0 to fit the image. labels, scores: whether they are
        written at the boxes.
        """
        drawn = self._drawn(line_width=line_width, labels=labels, scores=scores)
        return np.ascontiguousarray(drawn[..., ::-1])

    def _drawn(
        self, *, line_width: int = 0, labels: bool = True, scores: bool = True
    ) -> NDArray[np.uint8]:
        """Return what `plot` returns, but BGR."""
        from utils.plots.annotate import draw_detections

        return draw_detections(
            self.image[..., ::-1],
            self.boxes_xyxy,
            self.class_ids,
            self.scores,
            self.names,
            line_width=line_width or None,
            show_labels=labels,
            show_scores=scores,
        )

    def save(self, path: str | Path, **how: Any) -> Path:
        """Write the picture of `plot` as a JPEG or PNG file, atomically, and return its path.

        how: as for `plot`. Raises ValueError for another suffix, FileNotFoundError if the folder
        does not exist.
        """
        path = Path(path)
        if path.suffix.lower() not in (".jpg", ".jpeg", ".png"):
            raise ValueError(f"{printable(path)}: choose a name that ends in .jpg, .jpeg or .png")
        content = encode_bgr(self._drawn(**how), path.suffix)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        return path

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: path, width, height, and a list of detections."""
        height, width = self.image.shape[:2]
        detections = []
        for detection in self:
            detections.append(detection._asdict() | {"box_xyxy": list(detection.box_xyxy)})
        return {"path": self.path, "width": width, "height": height, "detections": detections}

    def to_coco(self, image_id: int | str, *, first_category: int = 1) -> list[dict[str, Any]]:
        """Return the rows of a COCO results list.

        Class k has the category id k + first_category.
        """
        rows = []
        for detection in self:
            x1, y1, x2, y2 = detection.box_xyxy
            row = {
                "image_id": image_id,
                "category_id": detection.class_id + first_category,
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": detection.score,
            }
            rows.append(row)
        return rows

    def to_supervision(self) -> Any:
        """Return a `supervision.Detections` with the class names in its data.

        Raises ValueError if the package supervision is not installed.
        """
        try:
            from supervision import Detections
        except ImportError:
            raise ValueError(
                "to_supervision needs the package supervision: pip install supervision"
            ) from None

        names = [self.names[class_id] for class_id in self.class_ids.tolist()]
        return Detections(
            xyxy=self.boxes_xyxy.astype(np.float32).reshape(-1, 4),
            confidence=self.scores.astype(np.float32),
            class_id=self.class_ids.astype(int),
            data={"class_name": np.array(names, dtype=str)},
        )


def count_text(counts: Mapping[int, int], names: Sequence[str]) -> str:
    """Return the number of detections of each class as text, in the order of the classes.

    >>> count_text({1: 2, 0: 1}, ["cat", "dog"]), count_text({}, ["cat", "dog"])
    ('1 cat, 2 dog', 'no detections')
    """
    parts = [f"{counts[class_id]} {printable(names[class_id])}" for class_id in sorted(counts)]
    return ", ".join(parts) or "no detections"


@dataclass
class ReachedLimits:
    """Counts the images of a run whose detections a limit cut off, for a sentence at its end.

    max_detections: the limit of the run. model_limit: that of an exported file, None without one.
    """

    max_detections: int
    model_limit: int | None = None
    images: int = 0  # that reached max_detections
    left_out: int = 0  # detections of these images
    most: tuple[int, str] = (0, "")  # detections in one image before the limit, and its name
    capped: int = 0  # images that reached model_limit

    def add(self, detections: ImageDetections, name: str) -> None:
        """Count one image, or one frame of a video. name: of the image or video."""
        self.capped += detections.capped
        if not detections.left_out:
            return
        self.images += 1
        self.left_out += detections.left_out
        before = self.max_detections + detections.left_out
        if before > self.most[0]:
            self.most = (before, name)

    def sentences(self) -> list[str]:
        """Return what the user should know, nothing if no limit was reached."""
        sentences = []
        limit = self.max_detections
        if self.images:
            before, name = self.most
            images = counted(self.images, "image")
            left_out = counted(self.left_out, "detection")
            sentences.append(
                f"--max-det {limit} was reached in {images}: {left_out} left out, the most in "
                f"{printable(name)}, {limit} of {before}; a larger --max-det keeps them"
            )
        if self.capped:
            images = counted(self.capped, "image")
            sentences.append(
                f"the exported model's own limit of {self.model_limit} detections was reached in "
                f"{images}, which may have more: export it with a larger --max-det"
            )
        return sentences
