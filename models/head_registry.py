"""The heads by their name in model tables, each with its loss.

To add a head, add a line to HEADS.
"""

from dataclasses import dataclass, replace

from models.heads import Head, JoinedHead
from models.heads.anchor_based import AnchorBasedHead
from models.heads.decoupled import DecoupledHead
from models.heads.distance import DistanceHead, DualDistanceHead, GroupedDistanceHead
from models.heads.shared_distance import SharedDistanceHead
from models.losses import Loss, LossGains
from models.losses.added_classes import AddedClassesLoss
from models.losses.anchor_based import AnchorBasedLoss
from models.losses.auxiliary import AuxiliaryLoss
from models.losses.decoupled import DecoupledLoss
from models.losses.distance import DistanceLoss, DualDistanceLoss, GroupedDistanceLoss
from models.losses.shared_distance import SharedDistanceLoss
from utils.log import Say, say_nothing


@dataclass(frozen=True)
class HeadFamily:
    """A head class, and the loss class that trains it."""

    head: type[Head]
    loss: type[Loss]


HEADS: dict[str, HeadFamily] = {
    "Detect": HeadFamily(head=AnchorBasedHead, loss=AnchorBasedLoss),
    "DecoupledDetect": HeadFamily(head=DecoupledHead, loss=DecoupledLoss),
    "DistanceDetect": HeadFamily(head=DistanceHead, loss=DistanceLoss),
    "GroupedDistanceDetect": HeadFamily(head=GroupedDistanceHead, loss=GroupedDistanceLoss),
    "DualDistanceDetect": HeadFamily(head=DualDistanceHead, loss=DualDistanceLoss),
    "SharedDistanceDetect": HeadFamily(head=SharedDistanceHead, loss=SharedDistanceLoss),
}


def family_of(head: Head) -> HeadFamily:
    """Return the family of `head`. Raises ValueError if it is not in HEADS."""
    families = {family.head: family for family in HEADS.values()}
    # also the base classes: fully_shard makes a subclass
    for kind in type(head).__mro__:
        if kind in families:
            return families[kind]
    raise ValueError(f"no loss is declared in HEADS for a head of class {type(head).__name__}")


def build_loss(
    head: Head, gains: LossGains, say: Say = say_nothing, *, auxiliary: Head | None = None
) -> Loss:
    """Return the loss that trains `head`, which must be of a class in HEADS.

    Args:
        head: that of the model.
        gains: weights and settings of the terms.
        say: logs the `gains` without effect.
        auxiliary: the head of the model's auxiliary branch, which the loss trains, too.

    Of a joined head, `trains_alone` is set: whether the loss needs its newest part only.

    Raises: ValueError if there is no such loss, or it does not support the head, for example
    because of its levels.
    """
    if isinstance(head, JoinedHead):
        return _build_joined_loss(head, gains, say)
    loss = family_of(head).loss
    unused = [name for name in gains.changed() if name not in loss.used_settings(head)]
    if unused:
        say(f"the loss of this head does not use {', '.join(unused)}: no effect")
    main = loss.from_head(head, gains)
    if auxiliary is None:
        return main
    return AuxiliaryLoss(main, build_loss(auxiliary, gains))


def _build_joined_loss(head: JoinedHead, gains: LossGains, say: Say) -> Loss:
    """Return the loss that trains the newest part of a joined head."""
    *older, newest = head.heads
    rule = "for the new classes, what the old model finds is background"
    if gains.ignore_old < 1:
        rule = f"where the old model scores above {gains.ignore_old:g}, background is not trained"
    say(f"--ignore-old {gains.ignore_old:g}: {rule}")
    head.trains_alone = gains.ignore_old == 1  # the older parts find no ignore regions
    own_gains = replace(
        gains,
        class_weights=gains.class_weights[-newest.num_classes :],
        ignore_old=LossGains.ignore_old,
    )
    return AddedClassesLoss(build_loss(newest, own_gains, say), older, gains.ignore_old)
