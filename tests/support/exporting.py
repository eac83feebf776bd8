"""A small checkpoint with detections, and its exported files, each written once per test run."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock  # which torch requires
from torch import nn

import export
from models import build_model
from models.blocks.backbone import Backbone
from models.detector import Detector
from models.export import FORMATS
from models.heads.cells import OutputConv
from models.tables.read import read_table
from utils.files import checkpoint_file

MICRO = Path(__file__).parents[1] / "tables" / "micro.yaml"
NAMES = ["disc", "square", "bar"]
SIZE = 64  # pixels, also the stride of some models

# Flags of export.py: tests that use the same ones share the files.
FIXED = ("--batch", "2")
WITH_NMS = ("--nms", "--conf-thres", "0.3", "--topk-all", "20", "--batch", "2")
DYNAMIC = ("--dynamic",)


def micro_table(head: str, *arguments: object) -> dict[str, Any]:
    """The table of micro.yaml with another head, at its strides 16 and 32."""
    table = read_table(MICRO)
    del table["anchors"]
    table["head"] = [[[3, 4], 1, head, list(arguments)]]
    return table


def one_level(head: str, *arguments: object) -> dict[str, Any]:
    """A table of two convolutions and a head at stride 4."""
    table = micro_table(head, *arguments)
    table["backbone"] = table["backbone"][:2]
    table["head"][0][0] = [1]
    return table


def short_table() -> dict[str, Any]:
    """The table of micro.yaml with its first level only, for tests whose subject is not the
    graph.
    """
    table = read_table(MICRO)
    table["anchors"] = table["anchors"][:1]
    table["backbone"] = table["backbone"][:3]
    table["head"] = [[[2], 1, "Detect", ["nc", "anchors"]]]
    return table


def two_level_table() -> dict[str, Any]:
    """The table of micro.yaml without its first level: of several, and of stride 32."""
    table = read_table(MICRO)
    table["anchors"] = table["anchors"][1:]
    table["head"] = [[[3, 4], 1, "Detect", ["nc", "anchors"]]]
    return table


def lively_detector(table: str | Mapping[str, Any], seed: int = 0) -> Detector:
    """A detector with random weights whose boxes and scores vary with the image.

    Weights of backbones stay as they are: residual networks would overflow.
    """
    torch.manual_seed(seed)
    detector = build_model(table, len(NAMES))
    own = [layer for layer in detector.layers if not isinstance(layer, Backbone)]
    convolutions = [each for each in nn.ModuleList(own).modules() if isinstance(each, nn.Conv2d)]
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


def tracing_cache(enabled: bool) -> AbstractContextManager[object]:
    """Whether torch.export remembers the shapes that its operations return.

    With free dimensions the keys of this cache take longer than what it saves in a small graph.
    """
    patch: AbstractContextManager[object] = torch._dynamo.config.patch(
        fake_tensor_cache_enabled=enabled
    )
    return patch


class Exports:
    """exports("onnx", "--nms"): the file that export.py writes with these flags, from one
    checkpoint.

    Written once, also where several processes use `folder`. ONNX and OpenVINO files, whose graph
    torch traces for seconds, are written by one command.
    """

    def __init__(self, folder: Path) -> None:
        self.detector = lively_detector(two_level_table())
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, name: str, *flags: str) -> Path:
        for package in FORMATS[name].packages:
            pytest.importorskip(package, reason="an optional package")
        names = [name] if name == "torchscript" else installed("onnx", "openvino")
        folder = self._folder / " ".join([*names, *flags])
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                self._write(folder, names, flags)
        return folder / f"m{FORMATS[name].suffix}"

    def _write(self, folder: Path, names: Sequence[str], flags: Sequence[str]) -> None:
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        unfinished.mkdir(exist_ok=True)  # of an export that failed
        weights = save_checkpoint(unfinished / "m.pt", self.detector)
        is_traced = names != ["torchscript"]  # by torch.export, which has the cache
        with tracing_cache(flags != DYNAMIC) if is_traced else nullcontext():
            export.run_script(["--weights", str(weights), "--include", *names, *flags])
        unfinished.rename(folder)


def installed(*names: str, int8: bool = False) -> list[str]:
    """Those of the formats whose packages are installed."""
    found = []
    for name in names:
        needed = FORMATS[name].packages
        if int8:
            needed += FORMATS[name].int8_packages or ()
        if all(map(find_spec, needed)):
            found.append(name)
    return found
