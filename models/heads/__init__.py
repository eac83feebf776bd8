"""Heads: feature maps -> raw predictions -> boxes and scores; see models/head_registry.py."""

from models.heads.anchor_based import AnchorBasedHead
from models.heads.base import CellPredictions, Head, Raw, WithAuxiliary, WithProjections
from models.heads.decoupled import DecoupledHead
from models.heads.distance import DistanceHead, DualDistanceHead, GroupedDistanceHead
from models.heads.joined import JoinedHead
from models.heads.point_distance import PointDistanceHead
from models.heads.shared_distance import SharedDistanceHead

__all__ = [
    "AnchorBasedHead",
    "CellPredictions",
    "DecoupledHead",
    "DistanceHead",
    "DualDistanceHead",
    "GroupedDistanceHead",
    "Head",
    "JoinedHead",
    "PointDistanceHead",
    "Raw",
    "SharedDistanceHead",
    "WithAuxiliary",
    "WithProjections",
]
