"""A simple anchor-free head: shows that a new kind of head needs one file per part and one line to
register it.

Source: FCOS (arXiv 1904.01355), without centerness and without a range of box sizes per level.
"""

from models.head_registry import HEADS, HeadFamily
from tests.support.anchor_free.head import AnchorFreeHead
from tests.support.anchor_free.loss import AnchorFreeLoss

FAMILY = HeadFamily(head=AnchorFreeHead, loss=AnchorFreeLoss)


def register() -> None:
    """Register the head. For a new process: KESTREL_FAULT=tests.support.anchor_free:register."""
    HEADS["AnchorFree"] = FAMILY
