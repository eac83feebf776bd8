# ruff: noqa: F401 - the imports are for type checkers
"""Models: the detectors that layer tables describe, their losses, and trained ones ready to use.

The names are imported when they are first used: importing torch takes seconds, and `--help` of a
script does not wait for it.
"""

from typing import TYPE_CHECKING

from utils.lazy_listing import lazy_listing

if TYPE_CHECKING:
    from models.assign.targets import pad_targets
    from models.build import build_model, check_shapes
    from models.detector import Detector, count_parameters
    from models.head_registry import build_loss
    from models.highest_score import HighestScore
    from models.losses import Loss, LossGains
    from models.python_api import LoadedDetector, load
    from models.result import ReachedLimits, Result, count_text
    from models.weights.kestrel import detector_for_state

__all__, __getattr__ = lazy_listing(
    __name__,
    {
        "assign.targets": ["pad_targets"],
        "build": ["build_model", "check_shapes"],
        "detector": ["Detector", "count_parameters"],
        "head_registry": ["build_loss"],
        "highest_score": ["HighestScore"],
        "losses": ["Loss", "LossGains"],
        "python_api": ["LoadedDetector", "load"],
        "result": ["ReachedLimits", "Result", "count_text"],
        "weights.kestrel": ["detector_for_state"],
    },
)
