"""A detector of a table: its size and shapes are tried without memory, before it is built."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.detector import Detector, count_parameters
from models.head_registry import HEADS
from models.tables.entries import Anchors
from models.tables.find import load_model_table
from models.tables.resolve import resolve
from models.tables.rows import TableRow
from models.tables.shape_rules import ShapeRules
from utils.nested import tensors_in

MAX_STRIDE = 4096  # half of the largest image side
MAX_PARAMETERS = 1_000_000_000
MAX_ELEMENTS = 1 << 28  # of any map, for an image of 2 x 2 cells of the coarsest level

RECENT_TABLES = 8
_recent_shapes: dict[str, dict[str, torch.Size]] = {}  # by the table as text


def build_model(
    cfg: str | Path | Mapping[str, Any],
    num_classes: int,
    *,
    channels: int = 3,
    anchors: Anchors | None = None,
) -> Detector:
    """Return a detector with newly initialized weights.

    Args:
        cfg: a name (`yolov5s.yaml`), a YAML file, or a table that is already loaded; see
            models/tables/.
        num_classes: C.
        channels: of the images.
        anchors: replaces the table's anchors, if it has any: pixels w, h, w, h, ... per level, or a
            number of anchors per level, which are to be fitted to data.

    Raises: ValueError that names the file and the wrong row.
    """
    table: Mapping[str, Any]
    if isinstance(cfg, Mapping):
        table = cfg
        scale = None
    else:
        table, scale = load_model_table(cfg)

    resolved = resolve(table, scale, num_classes, channels=channels, anchors=anchors)
    require_fitting_rows(resolved)
    return Detector(resolved)


def require_fitting_rows(table: Mapping[str, Any]) -> None:
    """Raise the errors of `check_shapes`; a recent table is not tried again."""
    tensor_shapes(table)


def tensor_shapes(table: Mapping[str, Any]) -> Mapping[str, torch.Size]:
    """Return the shape of each tensor in the state of a resolved table's model, by its name.

    Those of recent tables are remembered: a training builds its model several times.

    Raises: the errors of `check_shapes`.
    """
    key = repr(table)
    shapes = _recent_shapes.get(key)
    if shapes is None:
        state = check_shapes(table).state_dict()
        shapes = {name: tensor.shape for name, tensor in state.items()}
        if len(_recent_shapes) == RECENT_TABLES:
            _recent_shapes.clear()
        _recent_shapes[key] = shapes
    return shapes


def check_shapes(table: Mapping[str, Any]) -> Detector:
    """Return the detector of a resolved table on the meta device, after a trial run of its rows.

    The run is on 2 x 2 cells of the coarsest level. The model takes no memory and is in eval mode.

    Raises: ValueError that names the row whose maps do not fit, or if the strides of the maps
    differ from those of the head.
    """
    with torch.device("meta"):
        # in training mode BatchNorm raises an error for a single cell
        model = Detector(table).eval()
        check_size(model)
        side = 2 * max(model.strides)
        maps: dict[int, Any] = {-1: torch.empty(1, table["ch"], side, side)}

    with torch.no_grad(), ShapeRules():
        for row in model.rows:
            maps[row.position] = _try_row(model, row, maps)

    head_rows = [row for row in model.rows if row.module in HEADS]
    for row, head in zip(head_rows, model.heads, strict=True):
        cells = [maps[source].shape[2] for source in row.sources]
        if cells != [side // stride for stride in head.strides]:
            raise row.error(
                f"strides must be {head.strides}, but a {side} px image gives {cells} cells"
            )
    return model


def _try_row(model: Detector, row: TableRow, maps: Mapping[int, Any]) -> Any:
    """Return a row's output on the meta device.

    maps: outputs of the rows before. Raises ValueError that names the row if it cannot run on them.
    """
    try:
        output = model._run(row, maps)
        for each in tensors_in(output):
            if each.numel() > MAX_ELEMENTS:
                shape = list(each.shape)
                raise ValueError(f"the output {shape} has over {MAX_ELEMENTS:,} elements")
    except (RuntimeError, ValueError, TypeError, ArithmeticError) as error:
        inputs = tensors_in([maps[source] for source in row.sources])
        shapes = ", ".join(str(list(each.shape)) for each in inputs)
        raise row.error(f"cannot run on maps of {shapes}: {error}") from error
    return output


def check_size(model: Detector) -> None:
    """Raise ValueError for a model with too many parameters or too large a stride.

    model: on the meta device, so that it takes no memory.
    """
    source = model.table["source"]
    parameters = count_parameters(model)
    if parameters > MAX_PARAMETERS:
        limit = f"at most {MAX_PARAMETERS:,} are allowed"
        raise ValueError(f"{source}: the model has {parameters:,} parameters, {limit}")

    largest = max(model.strides)
    if largest > MAX_STRIDE:
        limit = f"at most {MAX_STRIDE} is allowed"
        raise ValueError(f"{source}: the model has stride {largest}, {limit}")


def count_gflops(table: Mapping[str, Any], image_size: int) -> float:
    """Return the billions of floating-point operations for one square image: 2 per multiply-add.

    Those of convolutions and matrix products of all rows are counted, also of an auxiliary branch:
    see `without_auxiliary`. Nothing is computed: the model is built and run on the meta device.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports triton, where it is installed

    with torch.device("meta"):
        model = Detector(table).eval()
        image = torch.empty(1, table["ch"], image_size, image_size)

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model._run_rows(image, model.rows, model._freed_in_training)
    return counter.get_total_flops() / 1e9


def mismatched_tensors(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that only one of the two has, or whose shape or dtype differs."""
    return differing_names(_signatures(model.state_dict()), _signatures(state))


def differing_names(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return the sorted names that only one of the two has, or whose values differ."""
    all_names = sorted(wanted.keys() | given.keys())
    return [name for name in all_names if wanted.get(name) != given.get(name)]


def _signatures(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the shape and dtype of each tensor."""
    return {key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()}
