"""Write the files of the generated data set: into a temporary folder, which is then renamed."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path

from data.shapes.drawing import SPLITS, Drawing, draw_image
from data.shapes.plan import NAMES
from utils.images.opencv import cv2
from utils.threads import map_in_threads, usable_cores

DEFAULT_ROOT = Path(__file__).resolve().parents[2] / "datasets" / "shapes"
MARKER = "shapes.json"  # in the folder of a finished data set: the settings it was made with
RECIPE = 2  # increase it with every change of the code that changes a pixel or a label


def generate(
    root: str | Path = DEFAULT_ROOT,
    *,
    train: int = 1000,
    val: int = 200,
    size: int = 320,
    seed: int = 0,
) -> Path:
    """Draw the data set unless it exists; return its folder.

    The folder has images/, labels/, shapes.yaml and the marker. The data set is drawn into a
    temporary folder beside `root`, which is renamed once complete, so no process sees an incomplete
    data set. If several processes start at once, one of their data sets is kept.

    Args:
        root: the folder of the data set.
        train: number of training images.
        val: number of validation images.
        size: side of the images in pixels.
        seed: of all random numbers.

    Raises ValueError for settings out of range, and if the folder contains anything except this
    data set.
    """
    settings = {"recipe": RECIPE, "train": train, "val": val, "size": size, "seed": seed}
    _check(settings)
    root = Path(root)
    if _exists(root, settings):
        return root

    root.parent.mkdir(parents=True, exist_ok=True)
    draft = root.with_name(f".{root.name}.tmp.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _write_set(draft, settings)
        _move_into_place(draft, root, settings)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return root


def label_text(drawing: Drawing) -> str:
    """Return the label file of a drawing, one row per shape.

    A row has the class, and the outline's points as fractions of the image's side.
    """
    size = len(drawing.image)
    rows = []
    for label, outline in zip(drawing.labels, drawing.outlines, strict=True):
        fractions = (outline / size).ravel()
        values = " ".join(f"{value:.6g}" for value in fractions)
        rows.append(f"{label} {values}\n")
    return "".join(rows)


def _check(settings: dict[str, int]) -> None:
    allowed = {
        "train": (1, 999_999),
        "val": (1, 999_999),
        "size": (64, 4096),
        "seed": (0, 2**63 - 1),
    }
    for name, (low, high) in allowed.items():
        if not low <= settings[name] <= high:
            raise ValueError(f"shapes: {name} is {settings[name]}, but must be {low} to {high}.")


def _exists(root: Path, settings: dict[str, int]) -> bool:
    """Whether `root` contains the data set with these settings.

    Raises ValueError if it contains something else.
    """
    is_empty = root.is_dir() and not any(root.iterdir())
    if is_empty or not root.exists():
        return False

    try:
        existing = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(
            f"{root} exists but is not a generated data set of shapes: choose another folder."
        ) from None
    if existing != settings:
        raise ValueError(
            f"{root} was generated with {existing}, not with {settings}: delete it or choose "
            "another folder."
        )
    return True


def _move_into_place(draft: Path, root: Path, settings: dict[str, int]) -> None:
    try:
        draft.rename(root)
    except OSError:
        # otherwise another process was faster: its data set has the same bytes
        if not _exists(root, settings):
            raise


def _write_set(folder: Path, settings: dict[str, int]) -> None:
    numbered = []
    for split in SPLITS:
        (folder / "images" / split).mkdir(parents=True)
        (folder / "labels" / split).mkdir(parents=True)
        numbered += [(split, index) for index in range(1, settings[split] + 1)]

    def write(image: tuple[str, int]) -> None:
        split, index = image
        drawing = draw_image(settings["seed"], split, index, settings["size"])
        _write_drawing(drawing, folder, f"{split}/{index:06}")

    for _ in map_in_threads(write, numbered, usable_cores()):
        pass

    names = ", ".join(NAMES)
    yaml = f"path: .\ntrain: images/train\nval: images/val\nnames: [{names}]\n"
    (folder / "shapes.yaml").write_text(yaml)
    (folder / MARKER).write_text(json.dumps(settings) + "\n", encoding="utf-8")


def _write_drawing(drawing: Drawing, folder: Path, name: str) -> None:
    """Write the image and the labels of a drawing. name: without suffix, in images/ and labels/."""
    _, encoded = cv2.imencode(".jpg", drawing.image, [cv2.IMWRITE_JPEG_QUALITY, 92])
    (folder / "images" / f"{name}.jpg").write_bytes(encoded.tobytes())

    labels = folder / "labels" / f"{name}.txt"
    labels.write_text(label_text(drawing), encoding="ascii", newline="\n")
