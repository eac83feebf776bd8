"""Load a trained detector and use it from a Python program: `load("best.pt")("street.jpg")`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from models.backends import Backend
from models.backends.combined import AugmentedViews, Ensemble
from models.backends.loading import canvas_for, load_backend
from models.image_inputs import ChannelOrder, read_input, split_inputs
from models.predict import Predictor
from models.result import Result
from models.tiled import TiledPredictor
from utils.distributed.devices import pick_devices
from utils.distributed.launch import RankInfo
from utils.images.tiles import open_tiling
from utils.printable import excerpt, printable

Weights = str | os.PathLike[str]


class LoadedDetector:
    """A detector that is ready to use. It has no state that calls change, so threads may share it.

    predictor: detects in NumPy arrays. names: of the classes. data: the data YAML it was trained on, "" if unknown.
    image_size: long side in pixels that images are resized to. device: on which the model runs.
    """

    def __init__(self, predictor: Predictor, names: Sequence[str], *, data: str = "", urls: bool = False) -> None:
        self.predictor, self.names, self.data, self._urls = predictor, tuple(names), data, urls

    @property
    def image_size(self) -> int:
        return self.predictor.image_size

    @property
    def size_text(self) -> str:
        """The image size, and the tiles if images are cut, as text."""
        tiling = self.predictor.tiling
        return f"{self.image_size} px" + (f", {tiling}" if tiling else "")

    @property
    def device(self) -> torch.device:
        return self.predictor.backend.device

    def __call__(self, images: Any, *, channel_order: ChannelOrder | None = None) -> Any:
        """Return the `Result` of one image, or a list of them for a list of images.

        images: a path, a PIL image, a NumPy array (uint8, [H, W, 3] or grey [H, W]), a tensor (RGB, [3, H, W], uint8 or
        floating-point in [0, 1]), a list or tuple of any of these, or a tensor [B, 3, H, W]. channel_order: of NumPy
        arrays, "rgb", or "bgr" as OpenCV reads them. Raises ValueError for anything else, before any detection.
        """
        if channel_order not in (None, "rgb", "bgr"):
            raise ValueError(f"channel_order is '{channel_order}': choose 'rgb' or 'bgr'")
        inputs, single = split_inputs(images)
        read = [read_input(given, channel_order=channel_order, urls=self._urls) for given in inputs]
        found = self.predictor([image.pixels for image in read], channel_order="rgb")
        results = [Result(image.pixels, each, self.names, image.path) for image, each in zip(read, found, strict=True)]
        return results[0] if single else results

    def __repr__(self) -> str:
        names = ", ".join(map(printable, self.names[:5])) + (", ..." if len(self.names) > 5 else "")
        return f"<detector of {len(self.names)} classes ({names}), {self.image_size} px, {self.device}>"


def load(
    weights: Weights | Sequence[Weights],
    *,
    device: str = "",
    half: bool = False,
    image_size: int | Sequence[int] = (),
    confidence: float = 0.25,
    iou: float = 0.45,
    max_detections: int = 1000,
    classes: Sequence[int | str] | None = None,
    names: Sequence[str] | None = None,
    agnostic: bool = False,
    multi_label: bool = False,
    augment: bool = False,
    batch_size: int = 16,
    tile: int | None = None,
    tile_overlap: float | None = None,
    tile_whole: bool = False,
    urls: bool = False,
) -> LoadedDetector:
    """Load a checkpoint or an exported model as a detector for images of any size.

    weights: a checkpoint, an exported model, or several, which make an ensemble. device: "cpu", "mps", a GPU number, ""
    for GPU 0 or the CPU. half: compute in 16 bits where the device supports it. image_size: long side in pixels, or
    (height, width) of the canvas for all images; by default the long side that it was trained with. confidence: drop
    scores at or below it. iou: NMS threshold. max_detections: per image. classes: detect only these, by index or name.
    names: of the classes, in the order that the results count them: those of the model in another order, or as many new
    ones. agnostic: boxes of different classes suppress each other too. multi_label: a box may be detected as several
    classes, as in val.py. augment: test-time augmentation. batch_size: the most images in one forward pass. tile: cut
    larger images into tiles of this side in pixels, each resized to image_size; 0: never; by default as it was trained.
    tile_overlap: of neighbouring tiles, as a fraction of the side; by default as it was trained, or 0.2. tile_whole:
    detect in the whole image too, for objects larger than a tile. urls: allow images to be downloaded from a URL.

    Raises ValueError for a file that cannot be read, and settings out of range.
    """
    paths = [weights] if isinstance(weights, (str, os.PathLike)) else list(weights)
    if not paths:
        raise ValueError("weights is an empty list: give a checkpoint")
    chosen = pick_devices(device, RankInfo())[0]
    loaded = [load_backend(Path(path), chosen, half=half) for path in paths]
    order, names = _order_and_names(loaded[0].names, names)
    members: list[Backend] = []
    for path, model in zip(paths, loaded, strict=True):
        try:
            members.append(model.with_classes(order).backend)
        except ValueError as error:
            raise ValueError(f"{printable(path)} does not fit {printable(paths[0])}: {error}") from None
    members = [AugmentedViews(member) for member in members] if augment else members
    backend = Ensemble(members) if len(members) > 1 else members[0]
    wanted = [image_size] if isinstance(image_size, int) else image_size
    size, canvas = canvas_for(backend, wanted, loaded[0].image_size)
    settings: dict[str, Any] = {
        "image_size": size,
        "canvas": canvas,
        "confidence": confidence,
        "iou": iou,
        "max_detections": max_detections,
        "class_ids": None if classes is None else [_class_id(each, names) for each in classes],
        "agnostic": agnostic,
        "multi_label": multi_label,
        "batch_size": batch_size,
    }
    tiling = open_tiling(**loaded[0].tiles(tile, tile_overlap, tile_whole))
    predictor = TiledPredictor(backend, tiling, **settings) if tiling else Predictor(backend, **settings)
    return LoadedDetector(predictor, names, data=loaded[0].data, urls=urls)


def _order_and_names(own: Sequence[str], wanted: Sequence[str] | None) -> tuple[Sequence[str], Sequence[str]]:
    """Return the model's own names in the order of the results, and the names that the results show.

    Raises ValueError if there are more or fewer wanted names than own ones.
    """
    if wanted is None or list(wanted) == list(own):
        return own, own
    if len(wanted) != len(own):
        raise ValueError(f"{len(wanted)} class names are given, but the model has {len(own)} classes")
    return (wanted if sorted(wanted) == sorted(own) else own), wanted


def _class_id(given: int | str, names: Sequence[str]) -> int:
    """Return the index of a class given by index or name. Raises ValueError if the model does not have it."""
    if isinstance(given, str) and given in names:
        return list(names).index(given)
    try:
        return int(given)  # the predictor checks the range
    except ValueError:
        raise ValueError(f"class '{excerpt(str(given))}': the model has {', '.join(names[:20])}") from None
