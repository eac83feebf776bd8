"""Weights: Kestrel's checkpoints, other projects' checkpoints (one file per format), and transfer
between models.
"""
