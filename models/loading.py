"""Load a file of weights, of any kind, as a backend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from models.backends import Backend
from models.backends.combined import AugmentedViews, Ensemble, ReorderedClasses
from models.backends.in_torch import TorchBackend
from models.backends.packed import pack_convolutions
from models.export.exported import ExportedBackend
from models.export.registry import export_format_of
from models.weights.kestrel import digest, load_detector
from models.weights.trained_settings import trained_settings
from utils.distributed.precision import choose_precision
from utils.files.folders import data_of_run
from utils.files.stand_ins import require_no_stand_in
from utils.images.letterbox import round_up_to_stride
from utils.images.tiles import DEFAULT_OVERLAP
from utils.printable import excerpt, printable


@dataclass(frozen=True)
class LoadedModel:
    """A backend and what its file says of it.

    names: of the classes. image_size: long side in pixels that it was trained or exported for.
    data: the data YAML it was trained on, "" if the file does not say. single_class: it was trained
    with all classes as one. digest: differs between files with different weights. tile,
    tile_overlap: the tiles that it was trained on; a side of 0 for none. chosen_classes: those of
    its data that it was trained on, () for all. fitness: --fitness of its training, "" for the
    default, and for exported files, which do not say it.
    """

    backend: Backend
    names: tuple[str, ...]
    image_size: int
    data: str
    single_class: bool
    digest: str
    tile: int = 0
    tile_overlap: float = DEFAULT_OVERLAP
    chosen_classes: tuple[str, ...] = ()
    fitness: str = ""

    def tiles(
        self, tile: int | None, tile_overlap: float | None, tile_whole: bool
    ) -> dict[str, Any]:
        """Return the arguments of `open_tiling`; where None is given, as the model was trained.

        Raises ValueError for settings of tiles without tiles.
        """
        if tile is None:
            tile = self.tile
        if tile == 0 and (tile_overlap is not None or tile_whole):
            raise ValueError(
                "--tile-overlap and --tile-whole need tiles: give --tile, their side in pixels, too"
            )
        if tile_overlap is None:
            tile_overlap = self.tile_overlap
        return {"tile": tile, "tile_overlap": tile_overlap, "tile_whole": tile_whole}

    def with_classes(self, wanted: Sequence[str], among: Sequence[str] = ()) -> "LoadedModel":
        """Return the model with its classes in the order of `wanted`.

        among: all classes of the data, if `wanted` are some of them: the model may have them all.

        Raises ValueError if it has others, or the order is ambiguous because two have the same
        name.
        """
        if self.names == tuple(wanted):
            return self
        allowed = [sorted(wanted), sorted(among or wanted)]
        others = sorted(self.names) not in allowed or not set(wanted) <= set(self.names)
        ambiguous = len(set(self.names)) < len(self.names)
        if others or ambiguous:
            raise ValueError(
                f"the model's classes are {join_names(self.names)}, but {join_names(wanted)} are "
                "wanted"
            )
        order = [self.names.index(name) for name in wanted]
        reordered = ReorderedClasses(self.backend, order)
        return replace(self, backend=reordered, names=tuple(wanted))


def load_backend(
    path: Path, device: torch.device, *, half: bool = False, threads: int = 1, head: str = ""
) -> LoadedModel:
    """Return the model in a file, on `device`: a checkpoint, or what export.py made of one.

    An exported file is recognized by its name, a checkpoint by no such name.

    Args:
        path: the file, or the folder of an export.
        device: where the model computes.
        half: compute in 16 bits where the device supports it; most exported files have a precision
            of their own.
        threads: the number that will detect at the same time, for backends on the CPU.
        head: the output of a checkpoint with several, o2o or o2m; "" for its first.

    Raises ValueError as `load_detector`, `trained_settings` and `ExportFormat.load` do.
    """
    if device.type != "cpu":
        threads = 1
    export_format = export_format_of(path)
    if export_format is None:
        return _load_checkpoint(path, device, half, threads, head)

    require_no_stand_in(path, printable(path))
    backend = export_format.load(path, device, half=half, threads=threads)
    if head:
        raise ValueError(f"{printable(path)}: its head was chosen at export; leave out --head")
    if half and export_format.precision_is_fixed:
        raise ValueError(f"{printable(path)}: its precision was chosen at export; leave out --half")
    return loaded_from_metadata(backend)


def _load_checkpoint(
    path: Path, device: torch.device, half: bool, threads: int, head: str
) -> LoadedModel:
    """Return the model in a checkpoint, with its BatchNorm folded into the convolutions."""
    detector, saved = load_detector(path, head)
    known = description(path, saved)
    settings = trained_settings(path, saved)
    weights = digest(detector)
    detector.to(memory_format=torch.channels_last).to(device)
    detector.fuse().requires_grad_(False)

    precision = choose_precision("auto" if half else "fp32", device)
    packed = device.type == "cpu" and pack_convolutions(detector, precision)
    backend = TorchBackend(detector, precision=precision, packed=packed, threads=threads)
    return LoadedModel(
        backend,
        digest=weights,
        fitness=settings.fitness,
        **known,
    )


def description(path: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint states of `LoadedModel`, as `ExportedModel` takes it, too.

    Raises ValueError as `trained_settings` does.
    """
    settings = trained_settings(path, saved)
    return {
        "names": tuple(saved["names"]),
        "image_size": settings.imgsz,
        "data": data_of_run(path, settings.data),
        "single_class": settings.single_cls,
        "tile": settings.tile,
        "tile_overlap": settings.tile_overlap,
        "chosen_classes": settings.classes,
    }


def loaded_from_metadata(backend: ExportedBackend) -> LoadedModel:
    """Return the model of an exported file, from its metadata."""
    own = ("backend", "fitness")
    same = [field.name for field in fields(LoadedModel) if field.name not in own]
    return LoadedModel(backend, **{name: getattr(backend.model, name) for name in same})


def combine(
    paths: Sequence[str | Path],
    loaded: Sequence[LoadedModel],
    names: Sequence[str] | None,
    what: str,
    *,
    augment: bool,
    among: Sequence[str] = (),
) -> Backend:
    """Return one backend of all models, with their classes in the order of `names`.

    Args:
        paths: where each model was loaded from, for errors.
        loaded: the models.
        names: of the classes; None leaves the classes alone.
        what: the text for where the names come from.
        augment: with test-time augmentation.
        among: as in `LoadedModel.with_classes`.

    Raises ValueError, with the file's path, if a model has other classes than `names`.
    """
    members: list[Backend] = []
    for path, model in zip(paths, loaded, strict=True):
        try:
            fitting = model if names is None else model.with_classes(names, among)
        except ValueError as error:
            raise ValueError(f"{printable(path)} does not fit {what}: {error}") from None
        members.append(AugmentedViews(fitting.backend) if augment else fitting.backend)
    return Ensemble(members) if len(members) > 1 else members[0]


def fixed_settings_notes(backend: Backend, confidence: float, *, multi_label: bool) -> list[str]:
    """Return a sentence for each setting of an exported model that changes what it finds.

    Those are suppression inside, which does not follow a lower confidence nor give several classes
    per box, and a canvas that is not the one of a checkpoint.
    """
    notes = []
    lower = confidence < backend.min_confidence
    if backend.min_confidence and (lower or multi_label):
        notes.append(
            "the model has non-maximum suppression inside, with one class per box and scores above "
            f"{backend.min_confidence:g}; lower thresholds or several classes per box find no "
            "more: export it without --nms"
        )
    if backend.canvas:
        height, width = backend.canvas
        notes.append(
            f"the exported model puts all images on a canvas of {width} x {height}, a checkpoint "
            "on rectangles that fit them: to compare the two, give the checkpoint "
            f"--img {height} {width}"
        )
    return notes


def canvas_for(
    backend: Backend, wanted: Sequence[int], default: int
) -> tuple[int, tuple[int, int] | None]:
    """Return the long side of the canvases, and their (height, width) if all have the same.

    wanted: nothing, a long side, or height and width in pixels; rounded up to multiples of the
    stride. default: the long side if nothing is wanted. Raises ValueError if the backend takes
    images of one size only, and another one is wanted, or more than two numbers are given.
    """
    if len(wanted) > 2:
        raise ValueError(
            f"image size {' '.join(map(str, wanted))}: give a long side, or a height and a width"
        )
    if backend.canvas:
        height, width = backend.canvas
        if list(wanted) not in ([], [max(height, width)], [height, width]):
            shown = " x ".join(map(str, reversed(wanted)))
            raise ValueError(
                f"image size {shown}: the model was exported for images of {width} x {height} "
                "pixels only"
            )
        return max(height, width), backend.canvas

    sides = [round_up_to_stride(side, backend.stride) for side in wanted or [default]]
    canvas = (sides[0], sides[1]) if len(sides) == 2 else None
    return max(sides), canvas


def join_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first `most` names as text, long ones cut, and the number of the others.

    >>> join_names(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(excerpt, names[:most])) + more
