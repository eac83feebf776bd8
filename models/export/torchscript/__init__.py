"""TorchScript: one file, run by torch on any device."""

from models.export.torchscript.format import TorchScript

__all__ = ["TorchScript"]
