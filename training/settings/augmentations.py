"""--augmentations in a run: the file is read once, and its text is a setting of the run.

So a resumed run uses the same transforms, although the file may have changed or be gone.
"""

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from data.augment.transforms import Transforms
from data.augment.transforms.file import text_of
from training.settings.config import TrainConfig
from utils.log import Say
from utils.printable import printable


def with_text(flags: TrainConfig) -> TrainConfig:
    """Return the flags with the text of the file that --augmentations names, if it names one.

    Raises ValueError if the file cannot be read.
    """
    if not flags.augmentations:
        return flags
    path = flags.augmentations[0]
    return replace(flags, augmentations=(path, text_of(Path(path))))


def build_transforms(cfg: TrainConfig, say: Say) -> Transforms | None:
    """Return the transforms of a run's settings, None for none.

    say: logs what they are, and what the library warns of.

    Raises ValueError with file and line for a transform that is not allowed, or if the package is
    missing.
    """
    if not cfg.augmentations:
        return None
    path, text = cfg.augmentations
    transforms = Transforms(text, printable(path))
    say(transforms.describe())
    for note in transforms.notes:
        say(note)
    return transforms


def report_change(cfg: TrainConfig, say: Say) -> None:
    """Log a line if the file of a resumed run has changed since the run began."""
    if not cfg.augmentations:
        return
    path, text = cfg.augmentations
    with suppress(ValueError):  # it is gone, or is on another machine
        if text_of(Path(path)) != text:
            say(f"{printable(path)} has changed: the run keeps the transforms that it began with")


def text_digest(cfg: TrainConfig) -> str:
    """Return a digest of the text, which is the same on all machines; the path may differ."""
    text = "".join(cfg.augmentations[1:])
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else "none"
