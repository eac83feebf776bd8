"""The layer of each row of a table, given the rows above it."""

import inspect
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from models.blocks import LAYERS, Layer, Level, Stack
from models.head_registry import HEADS
from models.heads import JoinedHead
from models.tables.rows import (
    CHANNEL_MULTIPLE,
    MAX_CHANNELS,
    TableRow,
    scale_channels,
    scale_number,
)
from models.tables.values import is_whole
from utils.printable import excerpt

# The types of value allowed for each annotation of a layer's arguments.
KINDS: dict[Any, set[type]] = {
    bool: {bool},
    int: {int},
    float: {int, float},
    str: {str},
}


class LayerInfo(NamedTuple):
    """One line of the layer table.

    `number` and `args` are scaled, and `args` starts with the input's channels.
    """

    row: int
    sources: tuple[int, ...]
    number: int
    parameters: int
    module: str
    args: list[Any]


def layer_class(row: TableRow) -> type[Layer]:
    """Return the class of a row's module.

    Raises: ValueError that names the row if the module is unknown.
    """
    if row.module in HEADS:
        return HEADS[row.module].head
    if row.module not in LAYERS:
        allowed = ", ".join([*LAYERS, *HEADS])
        raise row.error(f"unknown module '{excerpt(row.module)}'; allowed are {allowed}")
    return LAYERS[row.module]


def check_sources(row: TableRow, channels: Mapping[int, Any]) -> None:
    """Raise ValueError that names the row if it reads a row in a way that it does not allow.

    channels: of the output of each row above, a tuple for a row with several outputs. Only a layer
    that chooses one of them can read that.
    """
    chooses = layer_class(row).chooses_output
    for source in row.sources:
        if source not in channels:
            raise row.error(f"`from` names row {source}, the head")
        has_several = isinstance(channels[source], tuple)
        if has_several and not chooses:
            count = len(channels[source])
            raise row.error(
                f"row {source} has {count} outputs: read one of them by a row "
                f"[{source}, 1, Level, [index]], index 0 to {count - 1}"
            )
        if chooses and not has_several:
            what = "the images are one map" if source == -1 else f"row {source} has one output"
            raise row.error(f"{row.module} reads a row with several outputs, but {what}")


def build_layer(
    row: TableRow, in_channels: Sequence[int], strides: Sequence[Fraction], table: Mapping[str, Any]
) -> tuple[Layer | Stack, LayerInfo]:
    """Return the module of one row, and its line of the layer table.

    in_channels, strides: of each input of the row. table: resolved.

    Raises: ValueError that names the row.
    """
    kind = layer_class(row)
    args = scale_args(row, kind, table)
    number = scale_number(row.number, table["depth_multiple"])
    check_arguments(row, kind, args)

    if not kind.multi_input and len(in_channels) != 1:
        raise row.error(f"{row.module} takes one input, got {len(in_channels)}")
    is_single = kind.multi_input or kind.multi_output or kind.chooses_output
    if is_single and number != 1:
        raise row.error(f"{row.module} cannot be repeated: `number` must be 1, got {row.number}")

    input_channels = list(in_channels) if kind.multi_input else in_channels[0]
    try:
        layer = stack(kind, input_channels, args, number, strides)
    except TypeError as error:
        raise row.error(f"an argument has the wrong type: {error}") from error
    except (ValueError, RuntimeError, ArithmeticError) as error:
        raise row.error(error) from error

    info = LayerInfo(
        row=row.position,
        sources=row.sources,
        number=number,
        parameters=0,  # counted by `Detector.info`
        module=row.module,
        args=[input_channels, *args],
    )
    return layer, info


def build_joined_head(
    row: TableRow, in_channels: Sequence[int], strides: Sequence[Fraction], table: Mapping[str, Any]
) -> tuple[JoinedHead, LayerInfo]:
    """Return one head for each group of classes, joined, and the line of the layer table.

    The arguments, and errors, are those of `build_layer`.
    """
    parts: list[Any] = []
    for classes in table["class_groups"]:
        part, _ = build_layer(row, in_channels, strides, {**table, "nc": classes})
        parts.append(part)
    info = LayerInfo(row.position, row.sources, 1, 0, row.module, [list(in_channels), *row.args])
    return JoinedHead(parts, in_channels), info


def stack(
    kind: Any, source: Any, args: Sequence[Any], number: int, strides: Sequence[Fraction]
) -> Layer | Stack:
    """Return one layer, or a stack of `number` layers of a class that repeats nothing itself.

    Args:
        kind: the class of the layers.
        source: channels of the input; a list of them for a class with several inputs.
        args: further arguments of the class.
        number: of layers, 1 or more.
        strides: of each input.
    """
    if kind.multi_input:
        return kind(source, *args, strides=strides)
    if kind.repeats_inside:
        return kind(source, *args, repeats=number)

    first = kind(source, *args)
    if number == 1:
        return first
    repeats = [kind(first.out_channels, *args) for _ in range(number - 1)]
    return Stack(first, *repeats)


def scale_args(row: TableRow, kind: type[Layer], table: Mapping[str, Any]) -> list[Any]:
    """Return a row's args as the constructor takes them: names replaced by values, channels scaled.

    Raises: ValueError that names the row if the number of channels is missing or out of range.
    """
    values = {"nc": table["nc"], "anchors": table.get("anchors"), "None": None}
    args: list[Any] = []
    for arg in row.args:
        is_name = isinstance(arg, str) and arg in values
        args.append(values[arg] if is_name else arg)

    if kind.scales_width and args:
        channels = args[0]
        if not is_whole(channels, 1) or channels > MAX_CHANNELS:
            allowed = f"1 to {MAX_CHANNELS:,}"
            raise row.error(f"the first argument must be a number of channels, {allowed}")
        args[0] = scale_channels(
            channels,
            table["width_multiple"],
            table.get("max_channels"),
            table.get("channel_multiple", CHANNEL_MULTIPLE),
        )
    return args


def check_arguments(row: TableRow, kind: type[Layer], args: Sequence[Any]) -> None:
    """Raise ValueError that names the row for a wrong number of arguments or a wrong type."""
    # the first one is the input's channels
    parameters = list(inspect.signature(kind).parameters.values())[1:]
    allowed = [each for each in parameters if each.kind is not each.KEYWORD_ONLY]
    required = [each for each in allowed if each.default is each.empty]

    fewest = len(required)
    most = len(allowed)
    if not fewest <= len(row.args) <= most:
        counts = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        names = ", ".join(parameter.name for parameter in allowed)
        raise row.error(f"{row.module} takes {counts} arguments ({names}), got {len(row.args)}")

    for parameter, value in zip(allowed, args, strict=False):
        kinds = KINDS.get(parameter.annotation)
        if kinds and type(value) not in kinds:  # not isinstance, which accepts True as an int
            given = reprlib.repr(value)
            wanted = parameter.annotation.__name__
            raise row.error(
                f"an argument has the wrong type: {parameter.name} is {given}, but must be {wanted}"
            )


def output_stride(layer: Any, stride: Any) -> Any:
    """Return the stride of a layer's output; a tuple for several.

    stride: of its input, a tuple for the several outputs of another row.
    """
    if isinstance(layer, Level):
        return stride[layer.index]
    if isinstance(layer.reduction, tuple):
        return tuple(stride * reduction for reduction in layer.reduction)
    return stride * layer.reduction


def check_outputs(rows: Sequence[TableRow], layers: Iterable[Any]) -> None:
    """Raise ValueError that names the row if no Level row reads the last of its several outputs.

    The layers that only this output needs would have no gradients, for which DDP would wait.
    """
    read = set()
    for row, layer in zip(rows, layers, strict=True):
        if isinstance(layer, Level):
            read.add((row.sources[0], layer.index))
    for row, layer in zip(rows, layers, strict=True):
        if layer_class(row).multi_output:
            last = len(layer.out_channels) - 1
            if (row.position, last) not in read:
                raise row.error(f"no Level row reads its last output, {last}: leave that one out")
