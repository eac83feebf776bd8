"""What a training run is: settings, start, state, checkpoints, validation."""
