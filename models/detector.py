"""A table as an nn.Module: images -> raw maps -> boxes and scores.

`layers` holds one module per row of the table, so a YOLOv5 checkpoint's `model.N.*` is `layers.N.*` here. Only its
anchors differ, being in units of the stride: `layers.N.anchors_px` = `model.N.anchors` * stride.

B images, L levels, C classes, H W pixels of the images, N predictions of an image.
"""

import inspect
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.blocks import LAYERS, Conv, Layer, Stack
from models.heads import Head, Raw
from models.heads.registry import HEADS
from models.recompute import recomputed
from models.table import (
    MAX_CHANNELS,
    TableRow,
    is_whole,
    parse_rows,
    resolve,
    scale_channels,
    scale_number,
)
from utils.printable import excerpt

KINDS: dict[Any, set[type]] = {
    bool: {bool},
    int: {int},
    float: {int, float},
    str: {str},
}  # of what a layer's argument may be
MAX_STRIDE = 4096  # half of the largest image
MAX_PARAMETERS = 1_000_000_000
MAX_ELEMENTS = 1 << 28  # of a map of an image of two cells of the coarsest level


class LayerInfo(NamedTuple):
    """A line of the layer table; `number` and `args` are scaled, and `args` starts with the input's channels."""

    row: int
    sources: tuple[int, ...]
    number: int
    parameters: int
    module: str
    args: list[Any]


class Detector(nn.Module):
    """A detector as the table of one model says; its `table` holds plain values, can be stored and builds it again.

    recompute: False; True saves memory in training: a row of one input that has parameters, the head apart, keeps that
    input alone for the backward pass (models/recompute.py). Values and gradients stay the same to the bit. C3 rows only
    would leave twice the bytes (yolov5s: 42 % instead of 21 %) in 0.9 of the time, and YOLOv3 has none.

    Raises: ValueError that names the row for an unknown module, wrong arguments, or strides that cannot be joined.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        super().__init__()
        self.table = resolve(table, None, table.get("nc"), channels=table.get("ch", 3))
        self.rows = parse_rows(self.table)
        self.layers = nn.ModuleList()
        self._info: list[LayerInfo] = []
        self._build()
        self._frees = last_uses(self.rows)
        self.recompute = False
        self._recomputable = recomputable(self.rows, self.layers)

    def _build(self) -> None:
        channels, strides = {-1: self.table["ch"]}, {-1: Fraction(1)}
        for row in self.rows:
            inputs = [channels[source] for source in row.sources]
            scales = [strides[source] for source in row.sources]
            layer, info = build_layer(row, inputs, scales, self.table)
            if (row.module in HEADS) != (row is self.rows[-1]):
                raise row.error(f"the last row, and no other, must be a head ({', '.join(HEADS)})")
            self.layers.append(layer)
            self._info.append(info)
            if row.module not in HEADS:
                channels[row.position], strides[row.position] = layer.out_channels, scales[0] * layer.reduction
        if not self.rows or self.num_classes != self.table["nc"]:
            raise ValueError(
                f"{self.table['source']}: a table needs rows, and a head of {self.table['nc']} classes (nc)"
            )

    @property
    def head(self) -> Head:
        """The last layer."""
        return cast(Head, self.layers[-1])

    @property
    def num_classes(self) -> int:
        """How many classes C the head scores."""
        return self.head.num_classes

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels per cell of each level [L]; image sides must be multiples of the largest."""
        return self.head.strides

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the parameters, which images must have outside autocast."""
        return next(self.parameters()).dtype

    def fit_to_boxes(self, sizes: NDArray[np.float64], **how: Any) -> str | None:
        """Fit the head to box sizes, and have the table say so: what was found. how: as `Head` takes it."""
        sentence = self.head.fit_to_boxes(sizes, **how)
        self.update_table()
        return sentence

    def update_table(self) -> None:
        """Let the table say what the head is fitted to now."""
        self.table |= self.head.table_entries()

    def forward(self, images: Tensor) -> Raw:
        """The head's raw predictions of images [B, 3, H, W] in [0, 1]."""
        maps: dict[int, Any] = {-1: images}
        for row in self.rows:
            maps[row.position] = self._run(row, maps)
            for index in self._frees[row.position]:
                del maps[index]
        return maps[len(self.rows) - 1]

    def _run(self, row: TableRow, maps: Mapping[int, Any]) -> Any:
        layer, inputs = self.layers[row.position], [maps[source] for source in row.sources]
        if self.recompute and self.training and torch.is_grad_enabled() and row.position in self._recomputable:
            return recomputed(layer, inputs[0])
        return layer(inputs if layer_class(row).multi_input else inputs[0])

    def decode(self, raw: Raw) -> tuple[Tensor, Tensor]:
        """boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] in [0, 1] of raw predictions, both float32."""
        return self.head.decode(raw)

    def fuse(self) -> "Detector":
        """This detector with every BatchNorm folded into its convolution, in place and for inference only."""
        self.eval()
        for module in self.modules():
            if isinstance(module, Conv):
                module.fuse()
        return self

    def info(self) -> list[LayerInfo]:
        """The layer table, one line per row, with the parameters that each has now."""
        counts = [count_parameters(layer) for layer in self.layers]
        return [line._replace(parameters=count) for line, count in zip(self._info, counts, strict=True)]


def layer_class(row: TableRow) -> type[Layer]:
    """What a row's module names. Raises ValueError that names the row if it is unknown."""
    if row.module in HEADS:
        return HEADS[row.module].head
    if row.module not in LAYERS:
        raise row.error(f"no module '{excerpt(row.module)}'; allowed are {', '.join([*LAYERS, *HEADS])}")
    return LAYERS[row.module]


def build_layer(
    row: TableRow, in_channels: Sequence[int], strides: Sequence[Fraction], table: Mapping[str, Any]
) -> tuple[Layer | Stack, LayerInfo]:
    """The module of one row, and its line of the layer table.

    Raises: ValueError that names the row.
    """
    kind = layer_class(row)
    args, number = scale_args(row, kind, table), scale_number(row.number, table["depth_multiple"])
    check_arguments(row, kind, args)
    if not kind.multi_input and len(in_channels) != 1:
        raise row.error(f"{row.module} takes one input, got {len(in_channels)}")
    if kind.multi_input and number != 1:
        raise row.error(f"{row.module} cannot be repeated, `number` must be 1")
    source = list(in_channels) if kind.multi_input else in_channels[0]
    try:
        layer = stack(kind, source, args, number, strides)
    except TypeError as error:
        raise row.error(f"an argument is of the wrong kind: {error}") from error
    except (ValueError, RuntimeError, ArithmeticError) as error:
        raise row.error(error) from error
    return layer, LayerInfo(row.position, row.sources, number, 0, row.module, [source, *args])


def stack(kind: Any, source: Any, args: Sequence[Any], number: int, strides: Sequence[Fraction]) -> Layer | Stack:
    """`number` layers of a kind one after another, unless the kind repeats inside itself."""
    if kind.multi_input:
        return kind(source, *args, strides=strides)
    if kind.repeats_inside:
        return kind(source, *args, repeats=number)
    layers = [kind(source, *args)]
    layers += [kind(layers[0].out_channels, *args) for _ in range(number - 1)]
    return Stack(*layers) if number > 1 else layers[0]


def scale_args(row: TableRow, kind: type[Layer], table: Mapping[str, Any]) -> list[Any]:
    """A row's args as the constructor takes them: words looked up, channels scaled.

    Raises: ValueError that names the row if there should be a number of channels and is none.
    """
    words = {"nc": table["nc"], "anchors": table.get("anchors"), "None": None}
    args = [words.get(arg, arg) if isinstance(arg, str) else arg for arg in row.args]
    if kind.scales_width and args:
        if not is_whole(args[0], 1) or args[0] > MAX_CHANNELS:
            raise row.error(f"the first argument must be a number of channels, 1 to {MAX_CHANNELS:,}")
        args[0] = scale_channels(args[0], table["width_multiple"])
    return args


def check_arguments(row: TableRow, kind: type[Layer], args: Sequence[Any]) -> None:
    """Raises ValueError that names the row if its arguments are too few, too many, or one is of the wrong kind."""
    parameters = list(inspect.signature(kind).parameters.values())[1:]
    allowed = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    needed = sum(parameter.default is parameter.empty for parameter in allowed)
    if not needed <= len(row.args) <= len(allowed):
        counts = f"{needed}" if needed == len(allowed) else f"{needed} to {len(allowed)}"
        names = ", ".join(parameter.name for parameter in allowed)
        raise row.error(f"{row.module} takes {counts} arguments ({names}), got {len(row.args)}")
    for parameter, value in zip(allowed, args, strict=False):
        kinds = KINDS.get(parameter.annotation)
        if kinds and type(value) not in kinds:  # not isinstance: True would pass for 1, and "False" for true
            wanted = parameter.annotation.__name__
            raise row.error(f"an argument is of the wrong kind: {parameter.name} is {reprlib.repr(value)}, no {wanted}")


def last_uses(rows: Sequence[TableRow]) -> list[list[int]]:
    """For each row, the maps that no later row reads, so that they can be freed."""
    last = {row.position: row.position for row in rows[:-1]} | {
        source: row.position for row in rows for source in row.sources
    }
    return [[index for index, user in last.items() if user == row.position] for row in rows]


def recomputable(rows: Sequence[TableRow], layers: Iterable[nn.Module]) -> frozenset[int]:
    """The positions of the rows of one input that have parameters.

    Found once, when a model is built: a replica of torch's DataParallel knows no parameters of its own.
    """
    return frozenset(
        row.position
        for row, layer in zip(rows, layers, strict=True)
        if not layer_class(row).multi_input and count_parameters(layer) > 0
    )


def count_parameters(module: nn.Module) -> int:
    """How many numbers the parameters of a module hold."""
    return sum(parameter.numel() for parameter in module.parameters())


def check_shapes(table: Mapping[str, Any]) -> Detector:
    """The detector of a resolved table without memory, in eval mode, run on two cells of the coarsest level.

    Raises: ValueError that names the row whose maps do not fit, or if a level's stride is not what the rows say.
    """
    with torch.device("meta"):
        model = Detector(table).eval()  # in training BatchNorm refuses a single cell
        check_size(model)
        side = 2 * max(model.strides)
        maps: dict[int, Any] = {-1: torch.empty(1, table["ch"], side, side)}
    for row in model.rows:
        try:
            maps[row.position] = model._run(row, maps)
            if isinstance(maps[row.position], Tensor) and maps[row.position].numel() > MAX_ELEMENTS:
                raise ValueError(f"their result {list(maps[row.position].shape)} would fill the memory")
        except (RuntimeError, ValueError, TypeError, ArithmeticError) as error:
            shapes = ", ".join(str(list(maps[source].shape)) for source in row.sources)
            raise row.error(f"cannot run on maps of {shapes}: {error}") from error
    sides = [maps[source].shape[2] for source in model.rows[-1].sources]
    if sides != [side // stride for stride in model.strides]:
        raise model.rows[-1].error(f"strides must be {model.strides}, but {side} pixels give {sides} cells")
    return model


def misfits(model: nn.Module, state: Mapping[str, Tensor], *, types: bool = False) -> list[str]:
    """The entries that only one of both has, or that differ in shape; types: or in type."""
    wanted, given = (
        {key: (value.shape, value.dtype if types else None) for key, value in entries.items()}
        for entries in (model.state_dict(), state)
    )
    return sorted(key for key in wanted.keys() | given.keys() if wanted.get(key) != given.get(key))


def check_size(model: Detector) -> None:
    """Raises ValueError for a model, built without memory, that no machine could train."""
    source, parameters = model.table["source"], count_parameters(model)
    if parameters > MAX_PARAMETERS:
        raise ValueError(f"{source}: a model of {parameters:,} parameters, at most {MAX_PARAMETERS:,} are allowed")
    if max(model.strides) > MAX_STRIDE:
        raise ValueError(f"{source}: a stride of {max(model.strides)} pixels, at most {MAX_STRIDE} is allowed")


def count_gflops(table: Mapping[str, Any], image_size: int) -> float:
    """Billions of floating-point operations for one square image, 2 per multiply-add of the convolutions.

    Nothing is computed: the model is built and run without memory.
    """
    with torch.device("meta"):
        model, image = Detector(table).eval(), torch.empty(1, table["ch"], image_size, image_size)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(image)
    return counter.get_total_flops() / 1e9
