"""Optimizers: built by name, and restored in a resumed run."""

from training.optimizers.build import OPTIMIZERS, OptimizerKind, build_optimizer, kind_of
from training.optimizers.restored_state import check_state, match_strides, restored_group

__all__ = [
    "OPTIMIZERS",
    "OptimizerKind",
    "build_optimizer",
    "check_state",
    "kind_of",
    "match_strides",
    "restored_group",
]
