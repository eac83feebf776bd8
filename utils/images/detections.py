"""The detections in one image, and a frame to detect objects in."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageDetections:
    """The detections in one image, highest score first."""

    boxes_xyxy: NDArray[np.float64]  # [D, 4] in pixels of the image, clipped to its border
    scores: NDArray[np.float64]  # [D] in [0, 1]
    class_ids: NDArray[np.int64]  # [D]
    left_out: int = 0  # further detections that `max_detections` left out; their scores are lower
    capped: bool = False  # the model has a limit of its own, an exported file's, which was reached

    def __len__(self) -> int:
        """Return the number of detections D."""
        return len(self.scores)

    def best(
        self, max_detections: int, class_ids: Sequence[int] | None = None
    ) -> "ImageDetections":
        """Return the first `max_detections` of these classes; None: of all classes.

        The further detections of these classes are counted in `left_out`.
        """
        wanted = np.arange(len(self))
        if class_ids is not None:
            wanted = np.flatnonzero(np.isin(self.class_ids, list(class_ids)))
        kept = wanted[:max_detections]

        return replace(
            self,
            boxes_xyxy=self.boxes_xyxy[kept],
            scores=self.scores[kept],
            class_ids=self.class_ids[kept],
            left_out=self.left_out + len(wanted) - len(kept),
        )

    def rows(self, index: int) -> NDArray[np.float64]:
        """Return [D, 7]: `index` of the image, class, x, y, w, h in pixels, score.

        `from_rows` inverts it.
        """
        low = self.boxes_xyxy[:, :2]
        high = self.boxes_xyxy[:, 2:]
        images = np.full(len(self), index)
        head = np.stack([images, self.class_ids], 1)  # [D, 2]
        return np.concatenate([head, low, high - low, self.scores[:, None]], 1)

    @staticmethod
    def from_rows(rows: NDArray[np.float64]) -> "ImageDetections":
        """Return the detections of the rows of one image, [D, 7]."""
        class_ids = rows[:, 1].astype(np.int64)
        low = rows[:, 2:4]
        high = low + rows[:, 4:6]
        scores = rows[:, 6]
        return ImageDetections(np.concatenate([low, high], 1), scores, class_ids)


@dataclass(frozen=True)
class Frame:
    """An image to detect objects in: an image file, or one frame of a video or stream.

    Args:
        image: uint8 [H, W, 3], blue green red.
        path: of the file, or the address of the stream, as text for the user.
        name: of its outputs: a relative path such as `street/a.jpg`, unique in a run except for the
            frames of one video.
        number: of the frame in its video, from 1; None for an image.
        fps: frames per second of the video that these frames make, 0 for an image.
        step: how far apart the numbers of these frames are, unless frames are left out because the
            model is too slow for a stream.
    """

    image: NDArray[np.uint8]
    path: str
    name: str
    number: int | None = None
    fps: float = 0.0
    step: int = 1
