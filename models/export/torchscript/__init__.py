"""TorchScript: one file, run by torch on any device."""
