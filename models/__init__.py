"""Models: the detectors that layer tables describe, their losses, and trained ones ready to use."""

from models.detector import Detector, build_model, check_shapes, count_parameters
from models.head_registry import build_loss
from models.losses import LossGains
from models.python_api import LoadedDetector, load
from models.result import ReachedLimits, Result, count_text

__all__ = [
    "Detector",
    "LoadedDetector",
    "LossGains",
    "ReachedLimits",
    "Result",
    "build_loss",
    "build_model",
    "check_shapes",
    "count_parameters",
    "count_text",
    "load",
]
