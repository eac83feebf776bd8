"""Assignment of predictions to targets: one file per rule.

base.py says what comes back, targets.py what goes in.
"""

from models.assign.anchor_ratio import AnchorMatches, match_anchors
from models.assign.base import Assignment, assigned_predictions
from models.assign.dynamic_soft_label import dynamic_soft_label
from models.assign.simota import simota
from models.assign.targets import ignored_cells, ignored_predictions, made_up_targets, pad_targets
from models.assign.task_aligned import ScoredAssignment, task_aligned

__all__ = [
    "AnchorMatches",
    "Assignment",
    "ScoredAssignment",
    "assigned_predictions",
    "dynamic_soft_label",
    "ignored_cells",
    "ignored_predictions",
    "made_up_targets",
    "match_anchors",
    "pad_targets",
    "simota",
    "task_aligned",
]
