"""What a training run is made of: settings, state, checkpoints, optimizers, schedule, averages."""
