"""The highest score of a run in which nothing is found: a low one is not the same as none.

B images, N predictions per image, C classes.
"""

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from utils.printable import counted

# Lower scores are not computed: they cost as much time as a third of a forward pass.
FLOOR = 0.01


class HighestScore:
    """Keeps the highest score of the predictions, until something is found.

    Several threads may use it.
    """

    def __init__(
        self,
        confidence: float,
        *,
        class_ids: Sequence[int] | None = None,
        multi_label: bool = False,
        model_confidence: float = 0.0,
    ) -> None:
        """Nothing is found yet.

        Args:
            confidence: that a detection's score must exceed.
            class_ids: of the classes that are wanted; None: all.
            multi_label: a box may be of several classes, otherwise only of its best one.
            model_confidence: scores up to it are left out by the model itself; 0: none are.
        """
        self.confidence = confidence
        self.class_ids = class_ids
        self.multi_label = multi_label
        self.model_confidence = model_confidence
        self.value = 0.0
        self.wanted = True
        self._lock = threading.Lock()

    @property
    def lowest_needed(self) -> float:
        """The confidence above which the model's scores are needed.

        Until something is found, those above the highest score so far.
        """
        if not self.wanted:
            return self.confidence
        return min(max(FLOOR, self.value), self.confidence)

    def stop(self) -> None:
        """Something is found: the highest score needs no attention any more."""
        self.wanted = False

    def add(self, scores: Tensor) -> None:
        """Take in the scores of a batch, [B, N, C], before non-maximum suppression."""
        if not self.wanted or scores.numel() == 0:
            return
        highest = self._of_wanted_classes(scores).amax().item()
        with self._lock:
            if highest > self.value or math.isnan(highest):  # NaN is kept: nothing is above it
                self.value = highest

    def _of_wanted_classes(self, scores: Tensor) -> Tensor:
        if self.class_ids is None:
            return scores
        class_ids = torch.tensor(self.class_ids, device=scores.device)
        if self.multi_label:
            return scores[..., class_ids]

        best, class_id = scores.max(-1)  # [B, N]
        return torch.where(torch.isin(class_id, class_ids), best, 0)

    def sentence(self, images: int) -> str:
        """Return what is said of this number of images, in which nothing was found."""
        which = "" if self.class_ids is None else " of the chosen classes"
        nothing = f"no object{which} found in {counted(images, 'image')}"
        threshold = f"(--conf {self.confidence:g})"

        if math.isnan(self.value):
            return f"{nothing}: the model's scores are not numbers (NaN)"
        if self.model_confidence and self.value <= self.model_confidence:
            return (
                f"{nothing}: the highest score is not known, because the exported file leaves out "
                f"scores up to {self.model_confidence:g}; export it with a lower --conf-thres"
            )
        if self.value < FLOOR:
            return f"{nothing}: all scores are below {FLOOR:g} {threshold}"

        shown = math.floor(self.value * 1000) / 1000  # 0.2499 is not 0.25
        if self.value > self.confidence:
            return (
                f"{nothing}: the highest score is {shown:g} {threshold}, of a box that gives way "
                "to one of another class or to a tile"
            )
        return f"{nothing}: the highest score is {shown:g} {threshold}"
