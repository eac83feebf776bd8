"""The files of the generated demonstration set: drawn once, moved into place whole."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path

from data.shapes.drawing import SPLITS, Drawing, draw_image
from data.shapes.plan import NAMES
from utils.opencv import cv2

DEFAULT_ROOT = Path(__file__).resolve().parents[2] / "datasets" / "shapes"
MARKER = "shapes.json"  # lies in a finished set and says how it was made
RECIPE = 2  # raise it with any change that changes a pixel or a label


def generate(
    root: str | Path = DEFAULT_ROOT, *, train: int = 1000, val: int = 200, size: int = 320, seed: int = 0
) -> Path:
    """The folder of the set, drawn now unless it exists: images/, labels/, shapes.yaml and the marker.

    The set is drawn into a folder beside and renamed when it is whole, so no process sees half a set; of several
    processes that start at once one set stays.

    Raises ValueError for settings out of range, and where the folder holds anything but this set.
    """
    settings = {"recipe": RECIPE, "train": train, "val": val, "size": size, "seed": seed}
    _check(settings)
    root = Path(root)
    if _is_there(root, settings):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = root.with_name(f".{root.name}.tmp.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _write_set(draft, settings)
        _move_into_place(draft, root, settings)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return root


def label_rows(drawing: Drawing) -> str:
    """The label file of a drawing: one row per shape, its class and the points of its outline as shares of the side."""
    size = len(drawing.image)
    rows = []
    for label, outline in zip(drawing.labels, drawing.outlines, strict=True):
        rows.append(" ".join([str(label), *(f"{value:.6g}" for value in (outline / size).ravel())]) + "\n")
    return "".join(rows)


def _check(settings: dict[str, int]) -> None:
    allowed = {"train": (1, 999_999), "val": (1, 999_999), "size": (64, 4096), "seed": (0, 2**63 - 1)}
    for name, (low, high) in allowed.items():
        if not low <= settings[name] <= high:
            raise ValueError(f"shapes: {name} is {settings[name]}, but must be {low} to {high}.")


def _is_there(root: Path, settings: dict[str, int]) -> bool:
    """Whether root holds this set. Raises ValueError where it holds something else."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return False
    try:
        found = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{root} exists but is not a generated set of shapes: name another folder.") from None
    if found != settings:
        raise ValueError(f"{root} was generated with {found}, not with {settings}: delete it or name another folder.")
    return True


def _move_into_place(draft: Path, root: Path, settings: dict[str, int]) -> None:
    try:
        draft.rename(root)
    except OSError:
        if not _is_there(root, settings):  # else another process was faster: its set has the same bytes
            raise


def _write_set(folder: Path, settings: dict[str, int]) -> None:
    for split in SPLITS:
        images, labels = folder / "images" / split, folder / "labels" / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for index in range(1, settings[split] + 1):
            drawing = draw_image(settings["seed"], split, index, settings["size"])
            _, encoded = cv2.imencode(".jpg", drawing.image, [cv2.IMWRITE_JPEG_QUALITY, 92])
            (images / f"{index:06}.jpg").write_bytes(encoded.tobytes())
            (labels / f"{index:06}.txt").write_text(label_rows(drawing), encoding="ascii", newline="\n")
    names = ", ".join(NAMES)
    (folder / "shapes.yaml").write_text(f"path: .\ntrain: images/train\nval: images/val\nnames: [{names}]\n")
    (folder / MARKER).write_text(json.dumps(settings) + "\n", encoding="utf-8")
