"""OpenVINO: a folder with graph, weights and metadata, run by OpenVINO on a CPU."""

from models.export.openvino.format import OpenVino

__all__ = ["OpenVino"]
