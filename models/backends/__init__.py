"""Models that are ready to predict, run by torch, alone or combined with others."""

from models.backends.base import Backend, Prediction

__all__ = ["Backend", "Prediction"]
