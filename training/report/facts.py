"""What the report says about a run besides its results: data, model, environment, times."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from data import Dataset
from models.detector import Detector, count_detecting
from training.settings.config import TrainConfig
from training.settings.recipe import Recipe
from utils import __version__
from utils.distributed.devices import describe
from utils.distributed.world import World
from utils.images.opencv import cv2
from utils.printable import counted

Rows = list[tuple[str, str]]  # keys and values, as they are shown


def data_facts(data: Dataset) -> Rows:
    """Return the file, the classes, and each split that was read: counts, problems, digest.

    The digest is equal on two machines if they read the same images and boxes.
    """
    rows = [("data", str(data.file)), ("classes", f"{len(data.names):,}")]
    for split, report in data.reports.items():
        images = counted(report.images, "image")
        boxes = counted(report.instances, "box")
        text = f"{images}, {report.background:,} of them without objects; {boxes}"
        rows.append((split, text))

        problems = sum(count for kind, count in report.problem_counts if kind != "note")
        if problems:
            rows.append((f"{split}, problems", f"{problems:,}: see data_report.json"))
        rows.append((f"{split}, digest", data.digests[split]))
    return rows


def model_facts(cfg: TrainConfig, model: Detector, training: str, recipe: Recipe | None) -> Rows:
    """Return what the model is, and how it is trained.

    training: device, precision, batch and optimizer, as text. recipe: None if the user chose.
    """
    rows = [
        ("model", cfg.cfg or cfg.weights or "yolov5n.yaml"),
        ("weights", cfg.weights or "random ones"),
        *(("teacher", file) for file in cfg.teacher[:1]),
        ("parameters", f"{count_detecting(model):,}"),
        ("image size", f"{cfg.imgsz} px"),
        ("training", training),
    ]
    if recipe is not None:
        rows.append(("recipe", f"chosen for {recipe.reason}"))
    return rows


def environment_facts(world: World) -> Rows:
    """Return versions, device and the number of processes."""
    processes = "1"
    if world.size > 1:
        processes = f"{world.size}, {world.local_size} on this machine"
    elif world.devices:
        processes = f"1, DataParallel over {len(world.devices)} GPUs"
    return [
        ("device", describe(world.device)),
        ("processes", processes),
        ("Kestrel", __version__),
        ("torch", str(torch.__version__)),
        ("torchvision", version_of("torchvision")),
        ("NumPy", np.__version__),
        ("OpenCV", cv2.__version__),
        ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("CPU cores", f"{os.cpu_count() or 1}"),
    ]


def version_of(package: str) -> str:
    """Return the version of an installed package, which is not imported for it.

    >>> version_of("no such package")
    'unknown'
    """
    try:
        return version(package)
    except PackageNotFoundError:  # not installed by a package manager of Python
        return "unknown"


def setting_rows(
    values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> list[tuple[str, str, bool]]:
    """Return name, value as text, and whether it differs from the default, of each setting.

    >>> setting_rows({"epochs": 3, "data": ["a.yaml"]}, {"epochs": 100, "data": ("a.yaml",)})
    [('epochs', '3', True), ('data', 'a.yaml', False)]
    """
    rows = []
    for name, value in values.items():
        default = defaults.get(name, value)
        rows.append((name, setting_text(value), setting_text(value) != setting_text(default)))
    return rows


def setting_text(value: Any) -> str:
    """Return the value of a setting as text; a dash for an empty one.

    >>> [setting_text(value) for value in (True, 0.010000001, ("a", "b"), "", None)]
    ['yes', '0.01', 'a, b', '-', '-']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ", ".join(map(setting_text, value))
    return "-" if value in ("", None) else str(value)
