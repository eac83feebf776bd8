"""ONNX: one file, run by onnxruntime."""
