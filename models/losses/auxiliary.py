"""The loss of a model with an auxiliary branch: that of its head, and a share of the other's."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.heads import WithAuxiliary
from models.losses.base import Loss, LossGains

AUXILIARY_WEIGHT = 0.25


class BothAssignments(NamedTuple):
    """The assignments of both losses. auxiliary: None in validation. counts: of the main loss."""

    main: Any
    auxiliary: Any
    counts: int


class AuxiliaryLoss(Loss):
    """Each term is that of the main loss plus 0.25 times the auxiliary loss's of the same name.

    Terms that only the auxiliary loss has keep their names, and follow those of the main loss. In
    validation, where the auxiliary branch is not computed, all terms are those of the main loss
    alone.

    main, auxiliary: of any two heads. How the main loss weights its terms holds for the sums.

    Source: the auxiliary branch is that of YOLOv9, arXiv 2402.13616, section 4.1; the weight is a
    fact of YOLOv9's training.
    """

    uses = ()

    def __init__(self, main: Loss, auxiliary: Loss) -> None:
        super().__init__()
        self.main = main
        self.auxiliary = auxiliary
        self.box_weight = main.box_weight
        further = [name for name in auxiliary.terms if name not in main.terms]
        self.terms = (*main.terms, *further)

    @classmethod
    def from_head(cls, head: Any, gains: LossGains) -> "AuxiliaryLoss":
        """Raise ValueError: this loss is of two heads. See `build_loss`."""
        raise ValueError("the loss of an auxiliary branch needs two heads")

    @property
    def validation_terms(self) -> tuple[str, ...]:
        """Those of the main loss: in validation there is no auxiliary branch."""
        return self.main.validation_terms

    def start_epoch(self, epoch: int, epochs: int, *, without_mosaic: bool) -> None:
        """Pass the epoch on to both losses."""
        for loss in (self.main, self.auxiliary):
            loss.start_epoch(epoch, epochs, without_mosaic=without_mosaic)

    def assign(self, raw: Any, targets: Tensor) -> tuple[BothAssignments, Tensor]:
        """Return the assignments, and the counts of the main loss, then of the auxiliary one.

        raw: of both heads, or in validation of the main one.
        """
        if not isinstance(raw, WithAuxiliary):
            assignment, counts = self.main.assign(raw, targets)
            return BothAssignments(assignment, None, len(counts)), counts

        main, main_counts = self.main.assign(raw.main, targets)
        auxiliary, auxiliary_counts = self.auxiliary.assign(raw.auxiliary, targets)
        counts = torch.cat([main_counts, auxiliary_counts])
        return BothAssignments(main, auxiliary, len(main_counts)), counts

    def compute_terms(
        self, raw: Any, targets: Tensor, assignment: BothAssignments, counts: Tensor
    ) -> dict[str, Tensor]:
        """Return this process's share of each term, in validation of those of the main loss."""
        main_counts = counts[: assignment.counts]
        if not isinstance(raw, WithAuxiliary):
            return self.main.compute_terms(raw, targets, assignment.main, main_counts)

        auxiliary_counts = counts[assignment.counts :]
        terms = self.main.compute_terms(raw.main, targets, assignment.main, main_counts)
        further = self.auxiliary.compute_terms(
            raw.auxiliary, targets, assignment.auxiliary, auxiliary_counts
        )
        for name, term in further.items():
            share = term * AUXILIARY_WEIGHT
            terms[name] = terms[name] + share if name in terms else share
        return {name: terms[name] for name in self.terms}

    def weighted_sum(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Return the sum of the terms, each weighted as the loss does that names it first."""
        of_main = {name: terms[name] for name in self.main.terms}
        total = self.main.weighted_sum(of_main)
        if len(of_main) == len(self.terms):
            return total

        # The auxiliary loss weights all of its terms: those that are in the first sum count as 0.
        zero = torch.zeros_like(total)
        further = {}
        for name in self.auxiliary.terms:
            further[name] = zero if name in of_main else terms[name]
        return total + self.auxiliary.weighted_sum(further)
