"""ONNX: one file, run by onnxruntime."""

from models.export.onnx.format import Onnx

__all__ = ["Onnx"]
