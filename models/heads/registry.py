"""The heads by their name in model tables, each with its loss. To add a head, add a line to HEADS."""

from dataclasses import dataclass

from models.heads import Head
from models.heads.anchor_based import AnchorBasedHead
from models.heads.decoupled import DecoupledHead
from models.losses import Loss, LossGains
from models.losses.anchor_based import AnchorBasedLoss
from models.losses.decoupled import DecoupledLoss


@dataclass(frozen=True)
class HeadFamily:
    """A head class and the loss class that trains it."""

    head: type[Head]
    loss: type[Loss]


HEADS: dict[str, HeadFamily] = {
    "Detect": HeadFamily(head=AnchorBasedHead, loss=AnchorBasedLoss),
    "DecoupledDetect": HeadFamily(head=DecoupledHead, loss=DecoupledLoss),
}


def build_loss(head: Head, gains: LossGains) -> Loss:
    """Return the loss that trains `head`, which must be of a class in HEADS.

    Raises: ValueError if there is no such loss, or it does not support the head, for example because of its levels.
    """
    losses = {family.head: family.loss for family in HEADS.values()}
    kind = next((kind for kind in type(head).__mro__ if kind in losses), None)  # fully_shard makes a subclass of it
    if kind is None:
        raise ValueError(f"no loss is declared in HEADS for a head of class {type(head).__name__}")
    return losses[kind].from_head(head, gains)
