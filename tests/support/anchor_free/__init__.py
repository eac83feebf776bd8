"""A plain anchor-free head: it shows that another kind of head needs a file per concern and a line.

Source: FCOS (arXiv 1904.01355), without its centerness and its ranges of sizes per level.
"""

from models.heads.registry import HEADS, HeadFamily
from tests.support.anchor_free.head import AnchorFreeHead
from tests.support.anchor_free.loss import AnchorFreeLoss

FAMILY = HeadFamily(head=AnchorFreeHead, loss=AnchorFreeLoss)


def register() -> None:
    """For a process of its own: KESTREL_FAULT=tests.support.anchor_free:register."""
    HEADS["AnchorFree"] = FAMILY
