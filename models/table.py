"""Model tables: YAML files of rows [from, number, module, args], found, checked and resolved.

A table describes a family of models or one model. Both have `backbone` and `head`, the rows, and
`anchors` if a row uses them. A family also has `scales: {s: [depth, width, max channels]}`, and one
model `depth_multiple`, `width_multiple` and `max_channels`. The max channels, a limit before width
multiplies them, may be left out. `{scale}` in a text argument of a family's row, such as
`"resnet{scale}"`, is the name of the scale.

Optional entries are the same for all models of a table. `batch_norm: {eps: 1.0e-5, momentum: 0.1}`
is that of all its batch normalizations, but for those of other libraries' backbones; the default is
0.001 and 0.03. `channel_multiple: 1`: scaled channels are rounded up to a multiple of it; the
default is 8. `letterbox: top_left`: the model takes images at the top left of the canvas; the
default is the center. `auxiliary`: rows that only training computes, after those of `head`; the
last one is a second head. `class_groups: [2, 1]`: the last row of `head` stands for one head for
each group of classes (models/heads/joined.py); only checkpoints have such a table. `distillation:
{channels: [64, 128, 256]}`: in training the model also returns its maps, projected to so many
channels, those of a teacher; 0 for a level that the teacher does not have. Training adds it.

A resolved table describes one model and also has `nc`, `ch` and `source`: plain values that a
checkpoint can store and that `Detector` is built from.
"""

import math
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from utils.files.yaml_tree import is_absent, pairs, read_tree
from utils.images.letterbox import LETTERBOXES, Letterbox
from utils.printable import did_you_mean, excerpt, one_line, printable

MODELS_DIR = Path(__file__).parent
OTHER_FILES = ("pretrained.yaml",)  # in models/, but not a table of a model
MAX_BYTES = 1 << 18
MAX_NUMBER = 1000  # limit for the rows, the layers, the anchor sizes, and the `number` of a row
MAX_MULTIPLE = 100
MAX_CHANNELS = 1_000_000
CHANNEL_MULTIPLE = 8  # of scaled channels, by default
IMAGES = "images"  # in `from`
SCALE = "{scale}"  # in an argument: the name of the scale
# in pixels; far from the limits of float32
SMALLEST_ANCHOR = 1e-3
LARGEST_ANCHOR = 100_000
# as YAML 1.1 writes them
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# not 007, which YAML 1.1 reads as octal and other readers as decimal
WHOLE = re.compile(r"[-+]?(0|[1-9]\d{0,17})", re.ASCII)
FRACTION = re.compile(r"[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
KEYS = (
    "source",
    "nc",
    "ch",
    "scales",
    "depth_multiple",
    "width_multiple",
    "max_channels",
    "channel_multiple",
    "batch_norm",
    "anchors",
    "letterbox",
    "class_groups",
    "distillation",
    "backbone",
    "head",
    "auxiliary",
)

Anchors = int | Sequence[Sequence[float]]


class TableRow(NamedTuple):
    """One row of a table; `sources` are absolute positions of the inputs, -1 for the images."""

    where: str
    position: int
    sources: tuple[int, ...]
    number: int
    module: str
    args: list[Any]

    def error(self, message: object) -> ValueError:
        """Return a ValueError that names this row."""
        return ValueError(f"{self.where}: {one_line(message)}")


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


def read_table(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, with `source`: the file's name for error messages.

    Raises: ValueError if the file cannot be read, is too large, is not YAML, or is not a table.
    """
    is_shipped = path.resolve().parent == MODELS_DIR.resolve()
    source = f"models/{path.name}" if is_shipped else printable(path)

    tree = read_tree(path, source, "model table", MAX_BYTES)
    if not isinstance(tree, MappingNode):
        keys = ", ".join(KEYS[1:])
        raise ValueError(f"{source}: a model table is a mapping with the keys {keys}")
    table = plain_values(tree, source)
    if "class_groups" in table:
        where = "of a checkpoint of --add-classes"
        raise ValueError(f"{source}: `class_groups` is only in the table {where}; leave it out")
    return {**table, "source": source}


def plain_values(node: Node, source: str) -> Any:
    """Return a YAML node as dicts, lists, numbers, True and False, None and text.

    Quoted values are text.

    Raises: ValueError for a duplicate key.
    """
    if isinstance(node, MappingNode):
        entries = pairs(node, source, "one mapping")
        return {key: plain_values(value, source) for key, value in entries}
    if isinstance(node, SequenceNode):
        return [plain_values(value, source) for value in node.value]

    text: str = node.value
    is_quoted = isinstance(node, ScalarNode) and node.style
    if is_quoted:
        return text
    if WHOLE.fullmatch(text):
        return int(text)
    if FRACTION.fullmatch(text):
        return float(text)
    if is_absent(node):
        return None
    return BOOLEANS.get(text.lower(), text)


def resolve(
    table: Mapping[str, Any],
    scale: str | None,
    num_classes: int | None,
    *,
    channels: int = 3,
    anchors: Anchors | None = None,
) -> dict[str, Any]:
    """Return the table of one model: scale, classes, channels and anchors filled in, rows checked.

    Only the form of the rows is checked.

    Args:
        table: of a family or of one model, as `load_model_table` returns it.
        scale: one of the family's; None for a table of one model.
        num_classes: written as `nc`.
        channels: of the images, written as `ch`.
        anchors: pixels as in the YAML, one list w, h, w, h, ... per level; or a number per level,
            to be fitted to data; None for the table's own. Ignored for a table without anchors.

    Raises: ValueError for an unknown or missing key, an unknown scale, or a value out of range.
    """
    source = str(table.get("source", "model table"))
    check_keys(table, source)
    depth, width, max_channels = multiples(table, scale, source)

    if not is_whole(num_classes, 1) or not is_whole(channels, 1):
        given = f"{num_classes} and {channels}"
        raise ValueError(
            f"{source}: a model needs 1 or more classes and image channels, got {given}"
        )
    if table.get("ch") not in (None, channels):
        wanted = reprlib.repr(table["ch"])
        raise ValueError(f"{source}: `ch` is {wanted}, but the images have {channels} channels")

    optional: dict[str, Any] = {}
    if max_channels is not None:
        optional["max_channels"] = max_channels
    if table.get("channel_multiple") is not None:
        optional["channel_multiple"] = plain_channel_multiple(table["channel_multiple"], source)
    if table.get("batch_norm") is not None:
        optional["batch_norm"] = plain_batch_norm(table["batch_norm"], source)
    if "anchors" in table:
        chosen = table["anchors"] if anchors is None else anchors
        optional["anchors"] = plain_anchors(chosen, source)
    letterbox = plain_letterbox(table.get("letterbox"), source)
    if letterbox != "center":
        optional["letterbox"] = letterbox
    if table.get("class_groups") is not None:
        optional["class_groups"] = plain_class_groups(table, source)
    if table.get("distillation") is not None:
        optional["distillation"] = plain_distillation(table["distillation"], source)

    resolved = {
        "source": source,
        "nc": num_classes,
        "ch": channels,
        "depth_multiple": depth,
        "width_multiple": width,
        **optional,
        "backbone": with_scale(table["backbone"], scale),
        "head": with_scale(table["head"], scale),
    }
    if table.get("auxiliary"):
        resolved["auxiliary"] = with_scale(table["auxiliary"], scale)
    check_depth(resolved)
    return resolved


def with_scale(rows: Sequence[Any], scale: str | None) -> list[Any]:
    """Return rows, not checked yet, with the scale's name for {scale} in their text arguments.

    >>> with_scale([[-1, 1, "TorchvisionBackbone", ["resnet{scale}", [8, 16, 32]]]], "18")
    [[-1, 1, 'TorchvisionBackbone', ['resnet18', [8, 16, 32]]]]
    """
    filled = []
    for row in rows:
        has_args = isinstance(row, (list, tuple)) and row and isinstance(row[-1], (list, tuple))
        if scale is not None and has_args:
            args = [arg.replace(SCALE, scale) if isinstance(arg, str) else arg for arg in row[-1]]
            row = [*row[:-1], args]
        filled.append(row)
    return filled


def check_depth(resolved: Mapping[str, Any]) -> None:
    """Raise ValueError for a malformed row, and for more than MAX_NUMBER rows or layers."""
    source = resolved["source"]
    rows = len(all_rows(resolved))
    if rows > MAX_NUMBER:
        raise ValueError(f"{source}: {rows:,} rows, at most {MAX_NUMBER} are allowed")

    depth = resolved["depth_multiple"]
    layers = sum(scale_number(row.number, depth) for row in parse_rows(resolved))
    if layers > MAX_NUMBER:
        limit = f"at most {MAX_NUMBER} are allowed"
        raise ValueError(f"{source}: {layers:,} layers with all repeats, {limit}")


def check_keys(table: Mapping[str, Any], source: str) -> None:
    """Raise ValueError for an unknown key, a bad `nc` or `ch`, or missing rows or anchors."""
    unknown = [excerpt(str(key)) for key in table if key not in KEYS]
    if unknown:
        allowed = ", ".join(KEYS[1:])
        raise ValueError(f"{source}: unknown keys {', '.join(unknown[:10])}; allowed are {allowed}")

    for key in ("nc", "ch"):
        value = table.get(key)
        if value is not None and not is_whole(value, 1):
            given = reprlib.repr(value)
            raise ValueError(f"{source}: `{key}` is {given}, but must be a whole number, 1 or more")

    for key in ("backbone", "head", "auxiliary"):
        is_left_out = key == "auxiliary" and table.get(key) is None
        if not is_left_out and not isinstance(table.get(key), list):
            raise ValueError(
                f"{source}: `{key}` must be a list of rows [from, number, module, args]"
            )

    if "anchors" not in table and any(_names_anchors(row) for row in all_rows(table)):
        wanted = "one list w, h, w, h, ... per level, or a number per level"
        raise ValueError(f"{source}: `anchors` is missing: {wanted}")


def _names_anchors(row: Any) -> bool:
    """Whether a row, which is not checked yet, has the word `anchors` among its args."""
    if not isinstance(row, (list, tuple)) or not row:
        return False

    args = row[-1]
    if not isinstance(args, (list, tuple)):
        return False
    return any(isinstance(arg, str) and arg == "anchors" for arg in args)


def multiples(
    table: Mapping[str, Any], scale: str | None, source: str
) -> tuple[float, float, int | None]:
    """Return the depth and width multiples of a table's scale, and its max channels.

    The max channels are None for no limit.

    Raises: ValueError if the scale is unknown or missing, if a multiple is not a positive number up
    to MAX_MULTIPLE, or if the max channels are not a whole number.
    """
    values = _scale_values(table, scale, source)
    two_or_three = isinstance(values, list) and 2 <= len(values) <= 3
    if not two_or_three or not all(is_positive(value) for value in values[:2]):
        given = reprlib.repr(values)
        raise ValueError(
            f"{source}: depth and width multiple must be two positive numbers, got {given}"
        )

    depth, width = values[:2]
    if max(depth, width) > MAX_MULTIPLE:
        limit = f"at most {MAX_MULTIPLE} is allowed"
        raise ValueError(f"{source}: depth and width multiple are {values[:2]}, {limit}")

    max_channels: int | None = None
    if len(values) == 3:
        if not is_whole(values[2], 1):
            given = reprlib.repr(values[2])
            raise ValueError(
                f"{source}: the most channels must be a whole number, 1 or more, got {given}"
            )
        max_channels = values[2]
    return float(depth), float(width), max_channels


def _scale_values(table: Mapping[str, Any], scale: str | None, source: str) -> Any:
    """Return [depth, width] or [depth, width, max channels] of a scale, not checked yet.

    Raises: ValueError if the table has scales, and not this one.
    """
    if "scales" not in table:
        values = [table.get("depth_multiple"), table.get("width_multiple")]
        if "max_channels" in table:
            values.append(table["max_channels"])
        return values

    scales = table["scales"]
    if not isinstance(scales, Mapping):
        raise ValueError(f"{source}: `scales` must be a mapping from a name to [depth, width]")

    if scale not in scales:
        if scale is not None:
            hint = f"got {scale!r}"
        elif source.startswith("models/"):
            prefix = name_prefix(Path(source))
            names = []
            for file in family_files():
                if name_prefix(file) == prefix:
                    names += names_in(file)
            hint = f"choose one of {', '.join(names)}"
        else:
            hint = (
                "give depth_multiple and width_multiple instead, as the table is given by its path"
            )
        known = ", ".join(excerpt(str(name)) for name in list(scales)[:20])
        raise ValueError(f"{source}: the table has the scales {known}; {hint}")
    return scales[scale]


def plain_channel_multiple(value: Any, source: str) -> int:
    """Return the `channel_multiple` of a table.

    Raises: ValueError unless it is a whole number of 1 to MAX_NUMBER.
    """
    if not is_whole(value, 1) or value > MAX_NUMBER:
        given = reprlib.repr(value)
        allowed = f"must be a whole number, 1 to {MAX_NUMBER}"
        raise ValueError(f"{source}: `channel_multiple` is {given}, but {allowed}")
    return int(value)


def plain_batch_norm(value: Any, source: str) -> dict[str, float]:
    """Return the `eps` and `momentum` of a table's `batch_norm`.

    Raises: ValueError unless both are given, above 0 and at most 1.

    >>> plain_batch_norm({"momentum": 1, "eps": 1e-5}, "table.yaml")
    {'eps': 1e-05, 'momentum': 1.0}
    """
    names = ("eps", "momentum")
    has_both = isinstance(value, Mapping) and value.keys() == set(names)
    if not has_both or not all(is_positive(value[name]) and value[name] <= 1 for name in names):
        given = reprlib.repr(value)
        wanted = "{eps: ..., momentum: ...}, both above 0 and at most 1"
        raise ValueError(f"{source}: `batch_norm` must be {wanted}, got {given}")
    return {name: float(value[name]) for name in names}


def plain_anchors(anchors: Any, source: str) -> int | list[list[float]]:
    """Return anchors as a number per level, or as one list w, h, w, h, ... in pixels per level.

    All lists have the same length.

    Raises: ValueError for anything else.

    >>> plain_anchors([[10, 13, 16, 30], (30, 61, 62, 45)], "table.yaml")
    [[10.0, 13.0, 16.0, 30.0], [30.0, 61.0, 62.0, 45.0]]
    """
    given = reprlib.repr(anchors)
    if is_whole(anchors, 1):
        if anchors > MAX_NUMBER:
            limit = f"at most {MAX_NUMBER} are allowed"
            raise ValueError(f"{source}: {given} anchors per level, {limit}")
        return int(anchors)

    levels = list(anchors) if _is_list(anchors) else []
    if not levels or not all(_is_list(level) for level in levels):
        raise ValueError(
            f"{source}: anchors must be one list w, h, w, h, ... per level, got {given}"
        )

    lengths = [len(level) for level in levels]
    if sum(lengths) > MAX_NUMBER:
        raise ValueError(f"{source}: more than {MAX_NUMBER} anchor sizes")

    sizes = [value for level in levels for value in level]
    if not all(_is_anchor_size(value) for value in sizes):
        wanted = f"positive numbers of pixels, up to {LARGEST_ANCHOR:,}"
        raise ValueError(f"{source}: anchor sizes must be {wanted}, got {given}")

    if lengths[0] % 2 or len(set(lengths)) > 1 or not sizes:
        raise ValueError(
            f"{source}: every level needs the same number of anchors w, h, got {given}"
        )
    return [[float(value) for value in level] for level in levels]


def plain_letterbox(value: Any, source: str) -> Letterbox:
    """Return where a model takes images on the canvas, the center for None.

    Raises: ValueError for anything but one of LETTERBOXES.
    """
    for letterbox in LETTERBOXES:
        if value == letterbox:
            return letterbox
    if value is not None:
        given = reprlib.repr(value)
        allowed = " or ".join(LETTERBOXES)
        raise ValueError(f"{source}: `letterbox` is {given}, but must be {allowed}")
    return "center"


def plain_class_groups(table: Mapping[str, Any], source: str) -> list[int]:
    """Return the number of classes of each group of a table.

    Raises: ValueError unless they are 2 or more whole numbers that sum to `nc`, and for a table
    with an auxiliary branch.

    >>> plain_class_groups({"class_groups": (2, 1), "nc": 3}, "table.yaml")
    [2, 1]
    """
    groups = table["class_groups"]
    is_list = _is_list(groups) and 2 <= len(groups) <= MAX_NUMBER
    are_whole = is_list and all(is_whole(group, 1) for group in groups)
    if not are_whole or sum(groups) != table.get("nc"):
        given = reprlib.repr(groups)
        wanted = f"2 or more whole numbers, which sum to `nc`, {reprlib.repr(table.get('nc'))}"
        raise ValueError(f"{source}: `class_groups` must be {wanted}, got {given}")
    if table.get("auxiliary"):
        raise ValueError(f"{source}: `class_groups` and `auxiliary` cannot be used together")
    return list(groups)


def plain_distillation(value: Any, source: str) -> dict[str, list[int]]:
    """Return the `channels` of a table's `distillation`.

    Raises: ValueError unless they are whole numbers, at least one of them above 0.

    >>> plain_distillation({"channels": (0, 64)}, "table.yaml")
    {'channels': [0, 64]}
    """
    channels = value.get("channels") if isinstance(value, Mapping) and len(value) == 1 else None
    numbers = list(channels or []) if _is_list(channels) else []
    allowed = all(is_whole(number, 0) and number <= MAX_CHANNELS for number in numbers)
    if not any(numbers) or not allowed:
        given = reprlib.repr(value)
        wanted = f"{{channels: [...]}}, whole numbers up to {MAX_CHANNELS:,}, not all 0"
        raise ValueError(f"{source}: `distillation` must be {wanted}, got {given}")
    return {"channels": numbers}


def _is_list(value: Any) -> bool:
    """Whether `value` is a sequence other than text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_anchor_size(value: Any) -> bool:
    """Whether `value` is a number of pixels that an anchor can be wide or high."""
    return is_positive(value) and SMALLEST_ANCHOR <= value <= LARGEST_ANCHOR


def all_rows(table: Mapping[str, Any]) -> list[Any]:
    """Return the rows of a table as they are: backbone, head, and auxiliary if it has any."""
    return [*table["backbone"], *table["head"], *(table.get("auxiliary") or [])]


def without_auxiliary(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without its auxiliary rows: that of the model that detects."""
    return {key: value for key, value in table.items() if key != "auxiliary"}


def without_distillation(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without the projections that its model learns from a teacher with."""
    return {key: value for key, value in table.items() if key != "distillation"}


def parse_rows(table: Mapping[str, Any]) -> list[TableRow]:
    """Return the rows of a resolved table, as `all_rows`, with `from` as absolute indices.

    Raises: ValueError that names the row if it is malformed or its `from` is out of range.
    """
    parsed = []
    for index, row in enumerate(all_rows(table)):
        where = f"{table['source']} row {index}"
        parsed.append(parse_row(row, index, where))
    return parsed


def parse_row(row: Any, index: int, where: str) -> TableRow:
    """Return one row, with its form checked.

    Raises: ValueError for anything but [from, number, module, args], and for a `from` that is not
    above this row.
    """
    if not isinstance(row, (list, tuple)) or len(row) != 4:
        raise ValueError(f"{where}: must be [from, number, module, args], got {reprlib.repr(row)}")
    given, number, module, args = row
    where = f"{where} {format_row(row)}"

    # A negative `from` counts back from this row; the images are in front of row 0.
    sources = list(given) if isinstance(given, (list, tuple)) else [given]
    sources = [-1 - index if source == IMAGES else source for source in sources]
    if not sources or not all(is_whole(source) for source in sources):
        raise ValueError(f"{where}: `from` must be a row's index or a list of them")

    if not is_whole(number, 1) or number > MAX_NUMBER:
        raise ValueError(f"{where}: `number` must be a whole number, 1 to {MAX_NUMBER}")

    if not isinstance(module, str) or not isinstance(args, (list, tuple)):
        raise ValueError(f"{where}: `module` must be a name and `args` a list")

    absolute = []
    for source in sources:
        absolute.append(source + index if source < 0 else source)
    if not all(-1 <= source < index for source in absolute):
        allowed = f"0 to {index - 1}, or count back from it"
        raise ValueError(f"{where}: `from` must name rows above this one, {allowed}")

    return TableRow(
        where=where,
        position=index,
        sources=tuple(absolute),
        number=number,
        module=module,
        args=list(args),
    )


def format_row(row: Sequence[Any]) -> str:
    """Return a row as text in YAML's form, with long values shortened.

    >>> format_row([-1, 6, "C3", [256]])
    '[-1, 6, C3, [256]]'
    """
    shortened = []
    for value in row:
        shortened.append(excerpt(value) if isinstance(value, str) else reprlib.repr(value))
    return f"[{', '.join(shortened)}]"


def scale_channels(
    channels: int, width: float, most: int | None = None, multiple: int = CHANNEL_MULTIPLE
) -> int:
    """Return `channels`, limited to `most`, times `width`, rounded up to a multiple of `multiple`.

    >>> scale_channels(64, 0.25), scale_channels(64, 0.3), scale_channels(1024, 0.75, 768)
    (16, 24, 576)
    >>> scale_channels(32, 0.375, multiple=1)
    12
    """
    limited = min(channels, most or channels)
    return math.ceil(limited * width / multiple) * multiple


def scale_number(number: int, depth: float) -> int:
    """Return how often a row of `number` repeats at `depth`; a `number` of 1 stays 1.

    >>> [scale_number(9, depth) for depth in (0.33, 0.67, 1.33)], scale_number(1, 1.67)
    ([3, 6, 12], 1)
    """
    if number == 1:
        return 1
    return max(round(number * depth), 1)


def is_whole(value: Any, least: int | None = None) -> bool:
    """Whether `value` is an integer (not a bool), and at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return least is None or value >= least


def is_positive(value: Any) -> bool:
    """Whether `value` is a finite number above 0 (not a bool)."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return 0 < value < math.inf
