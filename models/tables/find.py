"""The tables in models/, and the names of their models."""

import os
from pathlib import Path
from typing import Any

from models.tables.read import MODELS_DIR, read_table
from utils.printable import did_you_mean, excerpt

OTHER_FILES = ("pretrained.yaml",)  # in models/, but not a table of a model


def load_model_table(name: str | Path) -> tuple[dict[str, Any], str | None]:
    """Return the table for a model name, and the scale in that name.

    The scale is None for a table of one model. `name` is a file path; or a file in models/, with or
    without .yaml; or a family and one of its scales: `yolov5s.yaml` is scale `s` of
    models/yolov5.yaml, `yolov5s6` is scale `s6` of models/yolov5-p6.yaml.

    Raises: ValueError if there is no such model, or if its file cannot be read.
    """
    path = Path(name)
    if os.path.isfile(path):  # False, not an error, for text that cannot be a path
        return read_table(path), None

    # YOLOv5 commands use models/yolov5s.yaml and models/hub/yolov5s6.yaml; any other folder means a
    # user's own file.
    stem = path.stem if path.suffix in {".yaml", ".yml"} else path.name
    if str(path.parent) in {".", "models", "models/hub"}:
        files = family_files()

        for file in files:
            if file.stem == stem:
                return read_table(file), None

        for file in files:
            table = read_table(file)
            prefix = name_prefix(file)
            for scale in table.get("scales", {}):
                if stem == prefix + scale:
                    return table, scale

    names = model_names()
    known = ", ".join(names) + did_you_mean(stem, names)
    raise ValueError(f"no model '{excerpt(str(name), 300)}': give a YAML file or one of {known}")


def model_names() -> list[str]:
    """Return all names that `load_model_table` accepts without a path.

    >>> [name for name in model_names() if name.startswith("yolov5s")]
    ['yolov5s', 'yolov5s-p2', 'yolov5s6', 'yolov5su']
    """
    names = []
    for file in family_files():
        names += names_in(file)
    return sorted(names)


def names_in(file: Path) -> list[str]:
    """Return the names of the models in a table of models/."""
    scales = read_table(file).get("scales")
    if scales is None:
        return [file.stem]
    return [name_prefix(file) + scale for scale in scales]


def family_files() -> list[Path]:
    """Return the tables in models/, sorted."""
    return sorted(file for file in MODELS_DIR.glob("*.yaml") if file.name not in OTHER_FILES)


def name_prefix(file: Path) -> str:
    """Return what the names of a table's models start with.

    >>> name_prefix(Path("models/yolov5-p6.yaml"))
    'yolov5'
    """
    return file.stem.split("-")[0]
