"""The parts of a training run: settings, state, checkpoints, optimizers, schedule, averaged
weights.
"""
