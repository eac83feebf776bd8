"""The loss of a joined head: the newest part is trained, the others say what it must not learn.

B images, N predictions per image of the older parts, K of them that can be ignore regions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.assign.targets import PADDING_CLASS
from models.heads import Head, Raw
from models.losses.base import Loss, LossGains
from utils.boxes import IGNORE_CLASS

MAX_REGIONS = 1000  # of an image, those of the highest scores: several predictions find one object


class AddedClassesAssignment(NamedTuple):
    """What the newest part was assigned, and its targets with the ignore regions."""

    own: Any
    targets: Tensor


class AddedClassesLoss(Loss):
    """The terms of the newest part of a joined head, whose classes are the last ones.

    Only boxes of its classes are targets. Objects of the older classes need no labels. Where an
    older part predicts a box with a score above `confidence`, the box is an ignore region, so that
    what lies in it is not trained as background. A prediction that is assigned to a target counts
    in any case.

    Args:
        loss: of the newest part.
        older: the other parts. They are not trained.
        confidence: 1 for no ignore regions.
    """

    uses = ("ignore_old",)

    def __init__(self, loss: Loss, older: Sequence[Head], confidence: float) -> None:
        super().__init__()
        self.loss = loss
        self.terms = loss.terms
        self.confidence = confidence
        self.first_class = sum(part.num_classes for part in older)
        # Not the parts: they would be modules of the loss.
        self._decode_older = [part.decode for part in older]

    @classmethod
    def from_head(cls, head: Any, gains: LossGains) -> "AddedClassesLoss":
        """Raise ValueError: this loss is of several heads. See `build_loss`."""
        raise ValueError("the loss of a joined head needs that of its newest part")

    def start_epoch(self, epoch: int, epochs: int, *, without_mosaic: bool) -> None:
        """Pass the epoch on."""
        self.loss.start_epoch(epoch, epochs, without_mosaic=without_mosaic)

    def assign(self, raw: Sequence[Raw], targets: Tensor) -> tuple[AddedClassesAssignment, Tensor]:
        """Return what the newest part is assigned, and its counts.

        raw: of all parts, or of the newest alone if there are no ignore regions.

        Ignore regions are never assigned, so they are added afterwards, where they cost no time.
        """
        own_targets = self._own_targets(targets)
        assignment, counts = self.loss.assign(raw[-1], own_targets)
        if self.confidence < 1:
            regions = self._ignore_regions(raw[:-1], own_targets)
            own_targets = torch.cat([own_targets, regions])
        return AddedClassesAssignment(assignment, own_targets), counts

    def compute_terms(
        self,
        raw: Sequence[Raw],
        targets: Tensor,
        assignment: AddedClassesAssignment,
        counts: Tensor,
    ) -> dict[str, Tensor]:
        """Return this process's share of each term of the newest part."""
        return self.loss.compute_terms(raw[-1], assignment.targets, assignment.own, counts)

    def weighted_sum(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Return the sum as the loss of the newest part weights it."""
        return self.loss.weighted_sum(terms)

    def _own_targets(self, targets: Tensor) -> Tensor:
        """Return the targets with the numbers of the newest part's classes.

        Older classes become padding; ignore regions and padding stay.
        """
        class_id = targets[:, 1]
        is_older = (class_id >= 0) & (class_id < self.first_class)
        is_own = class_id >= self.first_class
        own_id = torch.where(is_own, class_id - self.first_class, class_id)
        own_id = own_id.masked_fill(is_older, PADDING_CLASS)
        return torch.cat([targets[:, :1], own_id[:, None], targets[:, 2:]], 1)

    @torch.no_grad()
    def _ignore_regions(self, raw: Sequence[Raw], targets: Tensor) -> Tensor:
        """Return the confident boxes of the older parts as targets, [B * K, 6].

        Rows of less confident ones are padding. raw: of the older parts. targets: for dtype.
        """
        all_boxes = []
        all_scores = []
        for decode, of_part in zip(self._decode_older, raw, strict=True):
            boxes, scores = decode(of_part)
            all_boxes.append(boxes)
            all_scores.append(scores.amax(2))
        boxes = torch.cat(all_boxes, 1)  # [B, N, 4]
        scores = torch.cat(all_scores, 1)  # [B, N]

        count = min(MAX_REGIONS, scores.shape[1])
        best, number = scores.topk(count, 1, sorted=False)  # [B, K]
        best_boxes = boxes.gather(1, number[..., None].expand(-1, -1, 4))
        is_region = (best > self.confidence)[..., None]

        image = torch.arange(len(best), device=best.device)[:, None, None].expand_as(is_region)
        class_id = torch.where(is_region, IGNORE_CLASS, PADDING_CLASS)
        kept_boxes = torch.where(is_region, best_boxes, 0)
        rows = torch.cat([image.to(boxes.dtype), class_id.to(boxes.dtype), kept_boxes], 2)
        return rows.flatten(0, 1).to(targets.dtype)
