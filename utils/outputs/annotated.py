"""Annotated frames, drawn at most once for all outputs that show them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from utils.images.detections import Frame, ImageDetections


class Annotator:
    """Draws detections on frames. The arguments are those of `draw_detections`."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        line_width: int | None = None,
        show_labels: bool = True,
        show_scores: bool = True,
    ) -> None:
        self.names, self.line_width, self.show_labels, self.show_scores = (
            names,
            line_width,
            show_labels,
            show_scores,
        )
        self._last: tuple[Frame, NDArray[np.uint8]] | None = None

    def draw(self, frame: Frame, detections: ImageDetections) -> NDArray[np.uint8]:
        """Return the frame with its detections, uint8 [H, W, 3] BGR.

        It is the same array as before if the last call was for this frame.
        """
        if self._last is None or self._last[0] is not frame:
            from utils.plots.annotate import draw_detections  # loads matplotlib

            drawn = draw_detections(
                frame.image,
                detections.boxes_xyxy,
                detections.class_ids,
                detections.scores,
                self.names,
                line_width=self.line_width,
                show_labels=self.show_labels,
                show_scores=self.show_scores,
            )
            self._last = frame, drawn
        return self._last[1]
