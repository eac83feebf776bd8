"""The kinds of heads by the name that tables use, each with its loss. A new kind is a line here."""

from dataclasses import dataclass

from models.heads import Head
from models.heads.anchor_based import AnchorBasedHead
from models.losses import Loss, LossGains
from models.losses.anchor_based import AnchorBasedLoss


@dataclass(frozen=True)
class HeadFamily:
    """A head and the loss that trains it."""

    head: type[Head]
    loss: type[Loss]


HEADS: dict[str, HeadFamily] = {
    "Detect": HeadFamily(head=AnchorBasedHead, loss=AnchorBasedLoss),
}


def build_loss(head: Head, gains: LossGains) -> Loss:
    """The loss that trains a head of HEADS.

    Raises: ValueError if the loss does not take such a head, for example with too many levels.
    """
    losses = {family.head: family.loss for family in HEADS.values()}
    kind = next(kind for kind in type(head).__mro__ if kind in losses)  # fully_shard makes a subclass of its own
    return losses[kind].from_head(head, gains)
