"""Losses: raw predictions and targets -> named, weighted terms, each for one kind of head."""

from models.losses.added_classes import AddedClassesLoss
from models.losses.anchor_based import AnchorBasedLoss
from models.losses.auxiliary import AuxiliaryLoss
from models.losses.base import Loss, LossGains
from models.losses.decoupled import DecoupledLoss
from models.losses.distance import DistanceLoss, DualDistanceLoss, GroupedDistanceLoss
from models.losses.distillation import DistillationLoss
from models.losses.shared_distance import SharedDistanceLoss

__all__ = [
    "AddedClassesLoss",
    "AnchorBasedLoss",
    "AuxiliaryLoss",
    "DecoupledLoss",
    "DistanceLoss",
    "DistillationLoss",
    "DualDistanceLoss",
    "GroupedDistanceLoss",
    "Loss",
    "LossGains",
    "SharedDistanceLoss",
]
