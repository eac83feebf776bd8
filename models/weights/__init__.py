"""Weights: our own checkpoints, those of other projects (a file per origin), and weights carried between models."""
