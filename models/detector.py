"""The detector that a model table describes: images -> raw maps -> boxes and scores.

`layers` holds one module per row of the table, so `model.N.*` of a YOLOv5 checkpoint is
`layers.N.*` here. Only the anchors differ, because YOLOv5's are in units of the stride:
`layers.N.anchors_px` = `model.N.anchors` * stride.

B images, L levels, C classes, H W pixels of the images, N predictions per image.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models.blocks import Backbone, Layer
from models.blocks.depthwise import speed_up_gradients
from models.head_registry import HEADS
from models.heads import Head, Raw, WithAuxiliary, WithProjections
from models.heads.projections import Projections
from models.layers import (
    LayerInfo,
    build_joined_head,
    build_layer,
    check_outputs,
    check_sources,
    layer_class,
    output_stride,
)
from models.recompute import recomputed
from models.tables.entries import without_distillation
from models.tables.resolve import resolve
from models.tables.rows import TableRow, parse_rows, without_auxiliary
from utils.images.letterbox import Letterbox


class Detector(nn.Module):
    """A detector built from the table of one model.

    table: plain values; store them to build the model again.

    head_position: the row of the head. Rows after it are the auxiliary branch, with a head of its
    own. Only training mode computes them, and `fuse` removes them.

    projections: of the maps that the head reads, to the channels of a teacher; None for a model
    that learns from none. Only training mode computes them, and `fuse` removes them.

    recompute: False by default; True saves memory in training. A row with one input and parameters,
    except the head, then keeps only that input for the backward pass (models/recompute.py). Values
    and gradients are bit-identical. yolov5s then keeps 21 % of the bytes. Recomputing only its C3
    rows would keep 42 %, in 0.9 of the time, and not every model has C3 rows.

    Raises: ValueError that names the row for an unknown module, wrong arguments, a Concat of
    different strides, or heads in other places.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        super().__init__()
        # Checks the table; one that is already resolved stays as it is.
        self.table = resolve(table, None, table.get("nc"), channels=table.get("ch", 3))
        self.rows = parse_rows(self.table)
        self.head_position = len(self.table["backbone"]) + len(self.table["head"]) - 1
        self.layers = nn.ModuleList()
        self._info: list[LayerInfo] = []
        self._build()
        self._set_batch_norm()
        speed_up_gradients(self.layers)
        self._freed_after = last_uses(self.rows[: self.head_position + 1])
        self._freed_in_training = last_uses(self.rows, self.head_position)
        self._freed_for_teacher = self._freed_keeping_maps(self.head_position + 1)
        self.projections: Projections | None = None
        if "distillation" in self.table:
            self.add_projections(self.table["distillation"]["channels"])
        self.recompute = False
        self._recomputable = recomputable(self.rows, self.layers)

    def _build(self) -> None:
        """Append the layer of each row, given the channels and strides of the rows above it."""
        channels: dict[int, Any] = {-1: self.table["ch"]}
        strides: dict[int, Any] = {-1: Fraction(1)}
        head_positions = {self.head_position, len(self.rows) - 1}
        for row in self.rows:
            check_sources(row, channels)
            input_channels = [channels[source] for source in row.sources]
            input_strides = [strides[source] for source in row.sources]
            is_head = row.module in HEADS
            build = build_joined_head if is_head and "class_groups" in self.table else build_layer
            layer, info = build(row, input_channels, input_strides, self.table)

            if is_head != (row.position in head_positions):
                heads = ", ".join(HEADS)
                of_both = " of `head` and of `auxiliary`" if len(head_positions) > 1 else ""
                raise row.error(
                    f"the last row{of_both}, and only the last row, must be a head ({heads})"
                )

            self.layers.append(layer)
            self._info.append(info)
            if not is_head:
                channels[row.position] = layer.out_channels
                strides[row.position] = output_stride(layer, input_strides[0])

        check_outputs(self.rows, self.layers)
        num_classes = self.table["nc"]
        if not self.rows or any(head.num_classes != num_classes for head in self.heads):
            source = self.table["source"]
            raise ValueError(
                f"{source}: the table needs rows, and a head with {num_classes} classes (nc)"
            )

    def _set_batch_norm(self) -> None:
        """Give all batch normalizations the eps and momentum of the table, if it has them.

        Backbones of other libraries keep theirs, with which published weights were trained.
        """
        given = self.table.get("batch_norm")
        if given is None:
            return
        own = [layer for layer in self.layers if not isinstance(layer, Backbone)]
        for module in nn.ModuleList(own).modules():
            if isinstance(module, _BatchNorm):
                module.eps = given["eps"]
                module.momentum = given["momentum"]

    @property
    def head(self) -> Head:
        """The head that detects: the last row of the table's `head`."""
        return cast(Head, self.layers[self.head_position])

    @property
    def auxiliary_head(self) -> Head | None:
        """The head of the auxiliary branch; None for a model without one."""
        branch = self.auxiliary_layers
        return cast(Head, branch[-1]) if branch else None

    @property
    def auxiliary_layers(self) -> list[nn.Module]:
        """The layers after the head, which only training computes."""
        return list(self.layers)[self.head_position + 1 :]

    @property
    def heads(self) -> list[Head]:
        """The head that detects, and the auxiliary one if there is one."""
        auxiliary = self.auxiliary_head
        return [self.head] if auxiliary is None else [self.head, auxiliary]

    @property
    def head_channels(self) -> list[int]:
        """The channels of the maps that the head reads [L]."""
        channels: list[int] = self._info[self.head_position].args[0]
        return channels

    def add_projections(self, channels: Sequence[int]) -> Projections:
        """Let training also return the head's maps, projected to these channels; update the table.

        Returns the projections, with random weights.

        channels: of a teacher's maps [L], 0 for a level that it does not have.

        Raises: ValueError unless there is a number for each level.
        """
        if len(channels) != len(self.strides):
            levels = len(self.strides)
            raise ValueError(
                f"{self.table['source']}: `distillation` has {len(channels)} channels, but the "
                f"head has {levels} levels"
            )
        self.projections = Projections(self.head_channels, channels)
        self.table["distillation"] = {"channels": list(channels)}
        self._freed_in_training = self._freed_keeping_maps(len(self.rows))
        return self.projections

    def _freed_keeping_maps(self, rows: int) -> list[list[int]]:
        """Return what `last_uses` does for the first rows, with the maps that the head reads."""
        maps = self.rows[self.head_position].sources
        return last_uses(self.rows[:rows], self.head_position, *maps)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.head.num_classes

    def choose_output(self, name: str) -> None:
        """Decode the predictions of this name, of a head that has several; "" chooses none.

        Raises: ValueError for a name that the head does not have.
        """
        if name:
            self.head.choose_output(name)

    @property
    def needs_nms(self) -> bool:
        """Whether several predictions find the same object."""
        return self.head.needs_nms

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels per cell of each level [L]; image sides must be multiples of the largest."""
        return self.head.strides

    @property
    def letterbox(self) -> Letterbox:
        """Where the images lie on their canvases, "center" unless the table says otherwise."""
        letterbox: Letterbox = self.table.get("letterbox", "center")
        return letterbox

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters. Without autocast, images must have it too."""
        return next(self.parameters()).dtype

    def fit_to_boxes(self, sizes: NDArray[np.float64], **how: Any) -> str | None:
        """Fit the head to box sizes, update the table, and return a sentence on the result.

        how: as for `Head.fit_to_boxes`.
        """
        sentences = [head.fit_to_boxes(sizes, **how) for head in self.heads]
        self.update_table()
        return sentences[0]  # of the head that detects

    def update_table(self) -> None:
        """Write the head's fitted values into the table."""
        self.table |= self.head.table_entries()

    def forward(self, images: Tensor) -> Raw:
        """Return the head's raw predictions for images [B, 3, H, W] in [0, 1].

        In training mode, a model with an auxiliary branch returns those of both heads, as
        `WithAuxiliary`, and a model with projections these too, as `WithProjections`.
        """
        with self._precision_for(images):
            has_branch = len(self.rows) > self.head_position + 1
            if self.training and (has_branch or self.projections is not None):
                return self._forward_in_training(images)

            rows = self.rows[: self.head_position + 1]
            return self._run_rows(images, rows, self._freed_after)[self.head_position]

    def _forward_in_training(self, images: Tensor) -> WithAuxiliary | WithProjections:
        """Return the raw predictions of both heads, or with the projected maps."""
        results = self._run_rows(images, self.rows, self._freed_in_training)
        last = len(self.rows) - 1
        raw = results[self.head_position]
        if last > self.head_position:
            raw = WithAuxiliary(raw, results[last])
        if self.projections is None:
            return cast(WithAuxiliary, raw)
        return WithProjections(raw, self.projections(self._maps_of_head(results)))

    def forward_with_maps(self, images: Tensor) -> tuple[Raw, list[Tensor]]:
        """Return the head's raw predictions, and the maps that it reads, [B, channels, H, W] each.

        As in eval mode: without an auxiliary branch or projections.
        """
        rows = self.rows[: self.head_position + 1]
        with self._precision_for(images):
            results = self._run_rows(images, rows, self._freed_for_teacher)
        return results[self.head_position], self._maps_of_head(results)

    def _maps_of_head(self, results: Mapping[int, Any]) -> list[Tensor]:
        """Return the maps that the head reads. results: of the rows."""
        return [results[source] for source in self.rows[self.head_position].sources]

    def _precision_for(self, images: Tensor) -> AbstractContextManager[object]:
        """Return a context manager for the rows: autocast as it is, or without it."""
        # On CPUs with AMX, oneDNN 3.12 leaves values uninitialized (often NaN) in a 16-bit map of
        # one column, and in gradients: such images are computed in 32 bits.
        if torch.is_autocast_enabled("cpu") and images.shape[3] <= max(self.strides):
            return torch.autocast("cpu", enabled=False)
        return nullcontext()

    def _run_rows(
        self, images: Tensor, rows: Sequence[TableRow], freed_after: Sequence[Sequence[int]]
    ) -> dict[int, Any]:
        """Return the maps that are left after rows 0 to N: the raw predictions of their heads.

        freed_after: as `last_uses` returns it for these rows.
        """
        maps: dict[int, Any] = {-1: images}
        for row in rows:
            maps[row.position] = self._run(row, maps)
            for index in freed_after[row.position]:
                del maps[index]
        return maps

    def _run(self, row: TableRow, maps: Mapping[int, Any]) -> Any:
        """Return the output of a row's layer for the maps that the row reads."""
        layer = self.layers[row.position]
        inputs = [maps[source] for source in row.sources]

        in_training = self.training and torch.is_grad_enabled()
        if self.recompute and in_training and row.position in self._recomputable:
            return recomputed(layer, inputs[0])

        if layer_class(row).multi_input:
            return layer(inputs)
        return layer(inputs[0])

    def decode(self, raw: Raw, confidence: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] in [0, 1], both float32.

        raw: as `forward` returns it. confidence: leave out predictions without a score above it, as
        `Head.decode_candidates` does.
        """
        if confidence > 0:
            return self.head.decode_candidates(raw, confidence)
        return self.head.decode(raw)

    def fuse(self) -> "Detector":
        """Fold every BatchNorm into its convolution, and merge convolutions, in place.

        Returns this detector.

        For inference only. The auxiliary branch, projections, and branches of the head that only
        training needs, are removed.
        """
        self.eval()
        self._remove_auxiliary()
        self.projections = None
        self.table = without_distillation(self.table)
        self.head.fuse()
        for module in list(self.modules()):
            if isinstance(module, Layer):
                module.fuse()
        return self

    def _remove_auxiliary(self) -> None:
        """Remove the layers after the head, in place."""
        kept = self.head_position + 1
        del self.layers[kept:]
        del self.rows[kept:]
        del self._info[kept:]
        self.table = without_auxiliary(self.table)

    def info(self) -> list[LayerInfo]:
        """Return the layer table, one line per row, with the present number of parameters."""
        table = []
        for line, layer in zip(self._info, self.layers, strict=True):
            table.append(line._replace(parameters=count_parameters(layer)))
        return table


def last_uses(rows: Sequence[TableRow], *results: int) -> list[list[int]]:
    """Return, for each row, the maps that no later row reads and that can be freed after it.

    results: rows whose maps are kept, besides that of the last one.
    """
    # A map that nobody reads is freed after its own row.
    last_user = {row.position: row.position for row in rows[:-1]}
    for row in rows:
        for source in row.sources:
            last_user[source] = row.position
    for position in results:
        last_user.pop(position, None)

    freed_after: list[list[int]] = [[] for _ in rows]
    for index, user in last_user.items():
        freed_after[user].append(index)
    return freed_after


def recomputable(rows: Sequence[TableRow], layers: Iterable[nn.Module]) -> frozenset[int]:
    """Return the positions of the rows that have one input and parameters.

    Computed once, when the model is built, because replicas of torch's DataParallel list no
    parameters.
    """
    positions = []
    for row, layer in zip(rows, layers, strict=True):
        if not layer_class(row).multi_input and count_parameters(layer) > 0:
            positions.append(row.position)
    return frozenset(positions)


def count_detecting(model: Detector) -> int:
    """Return the parameters of the layers that detect: `count_parameters` up to the head.

    An auxiliary branch and projections, which only training needs, do not count.
    """
    return sum(map(count_parameters, model.layers[: model.head_position + 1]))


def count_parameters(module: nn.Module) -> int:
    """Return the number of elements in a module's parameters and its heads' constants.

    Published totals count the constants too.
    """
    constants = sum(part.constants for part in module.modules() if isinstance(part, Head))
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return constants + parameters
