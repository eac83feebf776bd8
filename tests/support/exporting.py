"""A small checkpoint with detections, and its exported files, each written once per test run."""

from pathlib import Path

import pytest
import torch
from torch import nn

import export
from models import build_model
from models.detector import Detector
from models.export import FORMATS
from models.heads.cells import OutputConv
from utils.files import checkpoint_file

NAMES = ["disc", "square", "bar"]
SIZE = 64  # pixels, also the stride of some models


def lively_detector(table: str, seed: int = 0) -> Detector:
    """A detector with random weights whose boxes and scores vary with the image."""
    torch.manual_seed(seed)
    detector = build_model(table, len(NAMES))
    convolutions = [module for module in detector.modules() if isinstance(module, nn.Conv2d)]
    outputs = [module for module in detector.head.modules() if isinstance(module, OutputConv)]
    with torch.no_grad():
        for module in convolutions:
            module.weight.mul_(2.5)
        for module in outputs:
            module.weight.mul_(15)
            module.get_parameter("bias").add_(5)
    return detector.eval()


def save_checkpoint(path: Path, detector: Detector, **entries: object) -> Path:
    """Write a checkpoint that was trained at SIZE pixels."""
    state = {"model": detector.state_dict(), "table": detector.table, "names": NAMES, "data": ""}
    checkpoint_file.save(path, state | {"config": {"imgsz": SIZE, "single_cls": False}} | entries)
    return path


class Exports:
    """exports("onnx", "--nms"): the file that export.py writes with these flags, from one
    checkpoint.
    """

    def __init__(self, folder: Path, table: str) -> None:
        self.detector = lively_detector(table)
        self._folder, self._written = folder, dict[tuple[str, ...], Path]()

    def __call__(self, name: str, *flags: str) -> Path:
        key = (name, *flags)
        for package in FORMATS[name].packages:
            pytest.importorskip(package, reason="an optional package")
        if key not in self._written:
            folder = self._folder / str(len(self._written))
            folder.mkdir()
            weights = save_checkpoint(folder / "m.pt", self.detector)
            export.run_script(["--weights", str(weights), "--include", name, *flags])
            self._written[key] = folder / f"m{FORMATS[name].suffix}"
        return self._written[key]
