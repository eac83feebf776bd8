"""What an exported file says of itself, as JSON: names, sizes, conventions, suppression.

The same JSON is in the file's metadata in every format. It is read strictly: another value or type
is an error.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from models.nms import check_limits
from utils.images.letterbox import GRAY, LETTERBOXES, Letterbox
from utils.images.tiles import DEFAULT_OVERLAP, MAX_OVERLAP, MIN_SIDE
from utils.printable import excerpt, printable

KEY = "kestrel"  # of the metadata in an ONNX file and in OpenVINO's rt_info
FORMAT = 3  # of this JSON
MAX_JSON = 1 << 24  # characters
MAX_TEXT = 4096  # characters
MAX_STRIDE = 1 << 12
MAX_SIDE = 1 << 16
MAX_BATCH = 1 << 16
MAX_CLASSES = 1 << 16
MAX_DETECTIONS = 1 << 16
PRECISIONS = ("fp32", "fp16", "int8")
INPUT = "images"
RAW_OUTPUTS = ("boxes_xyxy", "scores")
NMS_OUTPUTS = ("detections",)
# Entries that a file may lack, and their values then.
OPTIONAL: dict[str, Any] = {"letterbox": "center", "chosen_classes": ()}
PLACED: dict[Letterbox, str] = {"center": "center it", "top_left": "put it at the top left"}


def convention(letterbox: Letterbox) -> dict[str, Any]:
    """Return what a file says of its input and outputs.

    letterbox: where the images lie in the input.
    """
    return {
        "input": {
            "name": INPUT,
            "shape": "[batch, 3, height, width]",
            "type": "float32",
            "colors": "RGB",
            "range": [0, 1],
            "letterbox": (
                f"resize the image so that it fits, keep its ratio, {PLACED[letterbox]}, "
                "fill the rest with gray"
            ),
            "gray": GRAY,
        },
        "outputs": {
            "boxes_xyxy": "[batch, N, 4] x1, y1, x2, y2 in pixels of the input",
            "scores": "[batch, N, classes] in [0, 1]",
            "detections": (
                "[batch, max_detections, 6] x1, y1, x2, y2, score, class; best first, unused rows "
                "are 0"
            ),
        },
    }


@dataclass(frozen=True)
class Suppression:
    """Non-maximum suppression inside a file, with one class per box.

    The fields are the arguments of `non_max_suppression`.
    """

    confidence: float
    iou: float
    max_detections: int
    agnostic: bool


@dataclass(frozen=True)
class ExportedModel:
    """What is known of an exported model.

    names: of the classes. stride: sides of images must be multiples of it. image_size: long side in
    pixels that it was trained or exported for. canvas: the only (height, width) it takes, or None
    for any. batch_size: the only one it takes, or None for any. nms: None if the file returns all
    predictions. needs_nms, letterbox: as in `Backend`. data, single_class, tile, tile_overlap,
    chosen_classes, digest: as in `LoadedModel`. opset: of ONNX. payload: a checksum of graph,
    weights and metadata.
    """

    names: tuple[str, ...]
    stride: int
    image_size: int
    canvas: tuple[int, int] | None = None
    batch_size: int | None = None
    nms: Suppression | None = None
    needs_nms: bool = True
    letterbox: Letterbox = "center"
    precision: str = "fp32"
    data: str = ""
    single_class: bool = False
    tile: int = 0
    tile_overlap: float = DEFAULT_OVERLAP
    chosen_classes: tuple[str, ...] = ()
    digest: str = ""
    opset: int = 0
    torch_version: str = ""
    kestrel_version: str = ""
    payload: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the file's outputs."""
        return NMS_OUTPUTS if self.nms else RAW_OUTPUTS

    def sealed(self, digest: str) -> "ExportedModel":
        """Return the metadata with `payload` set, for graph and weights with this digest."""
        bare = replace(self, payload="")
        covered = f"{digest} {bare.to_json()}"
        return replace(self, payload=hashlib.sha256(covered.encode()).hexdigest())

    def to_json(self) -> str:
        """Return the metadata as JSON, with the convention of inputs and outputs for readers.

        `letterbox` is an entry only if it is not center, and `chosen_classes` if there are some: so
        versions that do not know them read all files without, and refuse the others.
        """
        entries = asdict(self)
        if self.letterbox == "center":
            del entries["letterbox"]
        if not self.chosen_classes:
            del entries["chosen_classes"]
        values = {"format": FORMAT, **convention(self.letterbox), **entries}
        return json.dumps(values, ensure_ascii=False)


def read_metadata(text: str, file: Path) -> ExportedModel:
    """Return the metadata in a file.

    Raises ValueError that names the file if it is not what `to_json` writes.
    """
    try:
        return _from_json(text)
    except ValueError as error:
        raise ValueError(f"{printable(file)}: its metadata cannot be used: {error}") from None


def _from_json(text: str) -> ExportedModel:
    if len(text) > MAX_JSON:
        raise ValueError(f"it has more than {MAX_JSON} characters")
    try:
        values = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({excerpt(str(error))})") from None

    # The entries are those that this version writes.
    other_format = f"it is not of format {FORMAT}: export the checkpoint again"
    if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
        raise ValueError(other_format)
    wanted = {"format", "input", "outputs", *(field.name for field in fields(ExportedModel))}
    if not isinstance(values, dict) or {*OPTIONAL, *values} != wanted:
        raise ValueError(f"its entries must be {', '.join(sorted(wanted))}")
    values = OPTIONAL | values
    stated = convention(_letterbox("letterbox", values["letterbox"]))
    if any(values[key] != value for key, value in stated.items()):
        raise ValueError(other_format)

    # Each value, and what two of them have to do with each other.
    checked = {name: check(name, values[name]) for name, check in CHECKS.items()}
    model = ExportedModel(**checked)
    for side in (model.image_size, *(model.canvas or ())):
        if side % model.stride:
            raise ValueError(
                f"image_size and canvas must be multiples of the stride, {model.stride}"
            )
    return model


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")


def whole_number(most: int, least: int = 1) -> Callable[[str, Any], int]:
    """Return a check of a value, given its name, which returns the value or raises ValueError."""

    def check(name: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} must be a whole number from {least} to {most}")
        return value

    return check


def _optional(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _names(name: str, value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, list) and 1 <= len(value) <= MAX_CLASSES
    if not is_list or not all(type(text) is str for text in value):
        raise ValueError(f"{name} must be a list of 1 to {MAX_CLASSES} texts")
    return tuple(value)


def checked_choice(name: str, value: Any) -> tuple[str, ...]:
    """Return the classes that a model was trained on. Raises ValueError if they are no texts."""
    is_list = isinstance(value, (list, tuple)) and len(value) <= MAX_CLASSES
    if not is_list or not all(type(word) is str and word for word in value):
        raise ValueError(f"{name} must be a list of at most {MAX_CLASSES} texts")
    return tuple(value)


def _canvas(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{name} must be a height and a width")
    check = whole_number(MAX_SIDE)
    return check(name, value[0]), check(name, value[1])


def checked_text(name: str, value: Any) -> str:
    """Return a text. Raises ValueError if it is none, or a long one."""
    if type(value) is not str or len(value) > MAX_TEXT:
        raise ValueError(f"{name} must be a text of at most {MAX_TEXT} characters")
    return value


def checked_flag(name: str, value: Any) -> bool:
    """Return a boolean. Raises ValueError if it is none."""
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false")
    return value


def _share(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number")
    return float(value)


def checked_tile(name: str, value: Any) -> int:
    """Return the side of tiles, 0 for none. Raises ValueError as `open_tiling` does."""
    side = whole_number(MAX_SIDE, 0)(name, value)
    if 0 < side < MIN_SIDE:
        raise ValueError(f"{name} must be 0, or a side of {MIN_SIDE} pixels or more")
    return side


def checked_overlap(name: str, value: Any) -> float:
    """Return an overlap of tiles. Raises ValueError if it is out of range."""
    overlap = _share(name, value)
    if not 0 <= overlap <= MAX_OVERLAP:
        raise ValueError(f"{name} must be a number from 0 to {MAX_OVERLAP}")
    return overlap


def _precision(name: str, value: Any) -> str:
    if value not in PRECISIONS:
        raise ValueError(f"{name} must be one of {', '.join(PRECISIONS)}")
    return str(value)


def _letterbox(name: str, value: Any) -> Letterbox:
    if type(value) is not str or value not in LETTERBOXES:
        raise ValueError(f"{name} must be {' or '.join(LETTERBOXES)}")
    return value


def _suppression(name: str, value: Any) -> Suppression:
    checks: dict[str, Callable[[str, Any], Any]] = {
        "confidence": _share,
        "iou": _share,
        "agnostic": checked_flag,
        "max_detections": whole_number(MAX_DETECTIONS),
    }
    if not isinstance(value, dict) or value.keys() != checks.keys():
        raise ValueError(f"{name} must have the entries {', '.join(checks)}")

    checked = {key: check(f"{name}.{key}", value[key]) for key, check in checks.items()}
    nms = Suppression(**checked)
    check_limits(nms.confidence, nms.iou, nms.max_detections)
    return nms


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "names": _names,
    "stride": whole_number(MAX_STRIDE),
    "image_size": whole_number(MAX_SIDE),
    "canvas": _optional(_canvas),
    "batch_size": _optional(whole_number(MAX_BATCH)),
    "nms": _optional(_suppression),
    "needs_nms": checked_flag,
    "letterbox": _letterbox,
    "precision": _precision,
    "data": checked_text,
    "single_class": checked_flag,
    "tile": checked_tile,
    "tile_overlap": checked_overlap,
    "chosen_classes": checked_choice,
    "digest": checked_text,
    "opset": whole_number(1000, 0),
    "torch_version": checked_text,
    "kestrel_version": checked_text,
    "payload": checked_text,
}
