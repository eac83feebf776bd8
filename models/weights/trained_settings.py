"""What a checkpoint says of its training, which val.py, detect.py and export.py go by.

The file may come from a stranger: another type or range than train.py writes is an error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.export.metadata import (
    checked_choice,
    checked_flag,
    checked_overlap,
    checked_text,
    checked_tile,
    whole_number,
)
from utils.flags import LARGEST_IMAGE, SMALLEST_IMAGE
from utils.images.tiles import DEFAULT_OVERLAP
from utils.log import Say
from utils.printable import printable


@dataclass(frozen=True)
class TrainedSettings:
    """The data YAML, "" if it is not known, and flags of train.py, with their defaults."""

    data: str = ""
    imgsz: int = 640
    single_cls: bool = False
    tile: int = 0
    tile_overlap: float = DEFAULT_OVERLAP
    classes: tuple[str, ...] = ()
    fitness: str = ""


def trained_settings(path: Path, saved: Mapping[str, Any]) -> TrainedSettings:
    """Return the settings in the entries of a checkpoint; the defaults for those that it lacks.

    Raises ValueError, with the path, if one has a wrong type or is out of range.
    """
    try:
        config = saved.get("config", {})
        if not isinstance(config, dict):
            raise ValueError("config must have names and values")
        flags = {name: check(name, config[name]) for name, check in FLAGS.items() if name in config}
        data = checked_text("data", saved.get("data", ""))
    except ValueError as error:
        raise ValueError(f"{printable(path)}: its settings cannot be used: {error}") from None
    return TrainedSettings(data, **flags)


def say_other_size(
    flag: str, file: str, checkpoint: Mapping[str, Any], image_size: int, say: Say
) -> None:
    """Say it if a checkpoint was trained at another image size than it is used for now.

    Checkpoints of other projects do not state theirs. flag: which names the file.
    """
    config = checkpoint.get("config")
    if not isinstance(config, dict) or "imgsz" not in config:
        return
    before = trained_settings(Path(file), checkpoint).imgsz
    if before != image_size:
        say(
            f"{flag} {printable(file)}: trained at {before} px, this run is at {image_size} px: "
            "see --img"
        )


FLAGS: dict[str, Callable[[str, Any], Any]] = {
    "imgsz": whole_number(LARGEST_IMAGE, SMALLEST_IMAGE),
    "single_cls": checked_flag,
    "tile": checked_tile,
    "tile_overlap": checked_overlap,
    "classes": checked_choice,
    "fitness": checked_text,
}
