"""Weights: Kestrel's checkpoints, those of other projects, and transfer between models.

Each origin has a file; none of their code is run.
"""

from models.weights.kestrel import detector_for_state, digest, load_detector, require_checkpoint
from models.weights.pretrained import fetch_weights, source_of_missing
from models.weights.transfer import Copied, transfer

__all__ = [
    "Copied",
    "detector_for_state",
    "digest",
    "fetch_weights",
    "load_detector",
    "require_checkpoint",
    "source_of_missing",
    "transfer",
]
