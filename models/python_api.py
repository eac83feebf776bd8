"""Load a trained detector and use it from a Python program: `load("best.pt")("street.jpg")`."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.highest_score import HighestScore
from models.image_inputs import ChannelOrder, read_input, split_inputs
from models.loading import canvas_for, combine, fixed_settings_notes, join_names, load_backend
from models.predict import Predictor
from models.result import Result
from models.tiled import TiledPredictor
from utils.command_line.class_choice import class_ids
from utils.distributed.devices import pick_devices
from utils.distributed.launch import RankInfo
from utils.flags import IMAGE_SIZES, LARGEST_IMAGE, SMALLEST_IMAGE
from utils.images.detections import ImageDetections
from utils.images.letterbox import size_text
from utils.images.tiles import open_tiling
from utils.printable import counted, excerpt, printable
from utils.stopwatch import Stopwatch
from utils.threads import single_thread_after_fork

Weights = str | os.PathLike[str]


class LoadedDetector:
    """A detector that is ready to use. It has no state that calls change, so threads may share it.

    predictor: detects in NumPy arrays. names: of the classes. data: the data YAML it was trained
    on, "" if unknown.
    """

    def __init__(
        self,
        predictor: Predictor,
        names: Sequence[str],
        *,
        data: str = "",
        urls: bool = False,
        arguments: Mapping[str, Any] | None = None,
        digests: Sequence[str] = (),
    ) -> None:
        """A detector of this process.

        Args:
            predictor: runs the model.
            names: of the classes.
            data: the data YAML that the model was trained on.
            urls: allow images to be downloaded.
            arguments: of `load`, with which another process can load it again; None: none can.
            digests: of the files of weights.
        """
        self.predictor = predictor
        self.names = tuple(names)
        self.data = data
        self._backend = predictor.backend
        self._urls = urls
        self._arguments = arguments
        self._digests = tuple(digests)
        self._process = os.getpid()

    @property
    def image_size(self) -> int:
        """The long side, in pixels, that images are resized to."""
        return self.predictor.image_size

    @property
    def size_text(self) -> str:
        """The image size, and the tiles if images are cut, as text."""
        text = size_text(self.image_size, self.predictor.canvas)
        tiling = self.predictor.tiling
        return f"{text}, {tiling}" if tiling else text

    @property
    def device(self) -> torch.device:
        """The device on which the model runs."""
        return self._backend.device

    @property
    def threads(self) -> int:
        """How many threads should detect at the same time, each with its share of the cores."""
        return self._backend.threads

    @property
    def model_limit(self) -> int | None:
        """The most detections that an exported model finds in an image; None without a limit."""
        return self._backend.max_detections

    def fixed_settings_notes(self) -> list[str]:
        """Return a sentence for each setting of an exported model that changes what it finds."""
        predictor = self.predictor
        return fixed_settings_notes(
            self._backend, predictor.confidence, multi_label=predictor.multi_label
        )

    def highest_score(self) -> HighestScore:
        """Return what keeps the highest score of a run in which nothing is found."""
        predictor = self.predictor
        return HighestScore(
            predictor.confidence,
            class_ids=predictor.class_ids,
            multi_label=predictor.multi_label,
            model_confidence=self._backend.min_confidence,
        )

    def __call__(self, images: Any, *, channel_order: ChannelOrder | None = None) -> Any:
        """Return the `Result` of one image, or a list of them for a list of images.

        images: a path, a PIL image, a NumPy array (uint8, [H, W, 3] or gray [H, W]), a tensor (RGB,
        [3, H, W], uint8 or floating-point in [0, 1]), a list or tuple of any of these, or a tensor
        [B, 3, H, W]. channel_order: of NumPy arrays, "rgb", or "bgr" as OpenCV reads them. Raises
        ValueError for anything else, before any detection.
        """
        if channel_order not in (None, "rgb", "bgr"):
            raise ValueError(f"channel_order is '{channel_order}': choose 'rgb' or 'bgr'")
        self._require_usable_process()

        inputs, is_single = split_inputs(images)
        read = []
        for given in inputs:
            read.append(read_input(given, channel_order=channel_order, urls=self._urls))

        pixels = [image.pixels for image in read]
        results = []
        for image, found in zip(read, self.predictor(pixels, channel_order="rgb"), strict=True):
            results.append(Result(image.pixels, found, self.names, image.path))
        return results[0] if is_single else results

    def detect_arrays(
        self,
        images: Sequence[NDArray[np.uint8]],
        *,
        channel_order: ChannelOrder,
        watch: Stopwatch | None = None,
        highest: HighestScore | None = None,
    ) -> list[ImageDetections]:
        """Return the detections of each image, without the pixels and names of a `Result`.

        images, channel_order, watch, highest: as for `Predictor`.
        """
        return self.predictor(images, channel_order=channel_order, watch=watch, highest=highest)

    def _require_usable_process(self) -> None:
        """Raise ValueError in a forked child process that cannot use the model.

        It would fail there or wait for ever.
        """
        if os.getpid() == self._process:
            return
        on_cpu = self.device.type == "cpu"
        runtime = self._backend.breaks_after_fork if on_cpu else str(self.device)
        if not runtime:
            return
        raise ValueError(
            f"this detector was loaded before the process was forked, and {runtime} does not work "
            'in the child: start it with multiprocessing.get_context("spawn"), which may be given '
            "the detector"
        )

    def __copy__(self) -> "LoadedDetector":
        """Return the detector itself: no call changes it."""
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> "LoadedDetector":
        """Return the detector itself: no call changes it."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is pickled: the arguments of `load`, which reads the files again."""
        if self._arguments is None:
            raise TypeError("only a detector that models.load has returned can be pickled")
        return _load_again, (dict(self._arguments), self._digests)

    def __repr__(self) -> str:
        names = ", ".join(map(printable, self.names[:5]))
        if len(self.names) > 5:
            names += ", ..."
        classes = counted(len(self.names), "class")
        return f"<detector of {classes} ({names}), {self.image_size} px, {self.device}>"


def load(
    weights: Weights | Sequence[Weights],
    *,
    device: str | int | torch.device = "",
    half: bool = False,
    head: str = "",
    image_size: int | Sequence[int] = (),
    confidence: float = 0.25,
    iou: float = 0.45,
    max_detections: int = 1000,
    classes: Sequence[int | str] | None = None,
    names: Sequence[str] | Mapping[int, str] | None = None,
    agnostic: bool = False,
    multi_label: bool = False,
    augment: bool = False,
    batch_size: int = 16,
    threads: int = 1,
    tile: int | None = None,
    tile_overlap: float | None = None,
    tile_whole: bool = False,
    urls: bool = False,
) -> LoadedDetector:
    """Return the detector in a checkpoint or an exported model, for images of any size.

    It may be copied and pickled: another process loads the files again. A forked child process uses
    it with one thread, see `single_thread_after_fork`.

    Args:
        weights: a checkpoint, an exported model, or several, which make an ensemble.
        device: "cpu", "mps", a GPU number, "" for GPU 0 or the CPU.
        half: compute in 16 bits where the device supports it.
        head: "o2o" or "o2m", of a checkpoint with two heads; "" for o2o.
        image_size: long side in pixels, or (height, width) of the canvas for all images; by default
            the long side that it was trained with.
        confidence: drop scores at or below it.
        iou: NMS threshold.
        max_detections: per image.
        classes: keep only these, by name or index; digits that are a name are the name.
        names: of the classes, in the order that the results count them: those of the model in
            another order, or as many new ones.
        agnostic: boxes of different classes suppress each other too.
        multi_label: a box may be detected as several classes, as in val.py.
        augment: test-time augmentation.
        batch_size: the most images in one forward pass.
        threads: that will detect at the same time on a CPU, each with its share of the cores; for
            files that torch runs, each of them calls torch.set_num_threads.
        tile: cut larger images into tiles of this side in pixels, each resized to image_size; 0:
            never; by default as it was trained.
        tile_overlap: of neighboring tiles, as a fraction of the side; by default as it was trained,
            or 0.2.
        tile_whole: detect in the whole image too, for objects larger than a tile.
        urls: allow images to be downloaded from a URL.

    Raises ValueError for a file that cannot be read, and settings out of range.
    """
    arguments = dict(locals())  # before there are any other names
    if threads < 1:
        raise ValueError(f"threads {threads}: choose 1 or more")
    paths = [weights] if isinstance(weights, (str, os.PathLike)) else list(weights)
    if not paths:
        raise ValueError("weights is an empty list: give a checkpoint")
    single_thread_after_fork()

    # One model for each file.
    chosen_device = pick_devices(str(device), RankInfo())[0]
    sides = _sides(image_size)
    files = [Path(path) for path in paths]
    loaded = []
    for file in files:
        loaded.append(load_backend(file, chosen_device, half=half, threads=threads, head=head))
    first = loaded[0]

    # All as one backend, with the classes in the order that is wanted.
    if isinstance(names, Mapping):
        names = [names[index] for index in sorted(names)]
    order, shown_names = _order_and_names(first.names, names)
    backend = combine(files, loaded, order, printable(paths[0]), augment=augment)

    size, canvas = canvas_for(backend, sides, first.image_size)
    tiling = open_tiling(**first.tiles(tile, tile_overlap, tile_whole))
    new_predictor: Callable[..., Predictor] = Predictor
    if tiling:
        new_predictor = partial(TiledPredictor, tiling=tiling)
    predictor = new_predictor(
        backend,
        image_size=size,
        canvas=canvas,
        confidence=confidence,
        iou=iou,
        max_detections=max_detections,
        class_ids=None if classes is None else _class_ids(classes, shown_names),
        agnostic=agnostic,
        multi_label=multi_label,
        batch_size=batch_size,
    )

    arguments["weights"] = [os.path.abspath(path) for path in paths]  # for any current folder
    return LoadedDetector(
        predictor,
        shown_names,
        data=first.data,
        urls=urls,
        arguments=arguments,
        digests=[model.digest for model in loaded],
    )


def _load_again(arguments: dict[str, Any], digests: tuple[str, ...]) -> LoadedDetector:
    """Return the detector that was pickled.

    Raises ValueError if its files have changed, and as `load` does.
    """
    detector = load(**arguments)
    for path, before, now in zip(arguments["weights"], digests, detector._digests, strict=True):
        if before != now:
            raise ValueError(
                f"{printable(path)}: its weights have changed since the detector was pickled"
            )
    return detector


def _order_and_names(
    own: Sequence[str], wanted: Sequence[str] | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the model's own names in the order of the results, and the names that these show.

    Raises ValueError if there are more or fewer wanted names than own ones, or only some of them
    are the same: it would be unclear which class a new name stands for.
    """
    if wanted is None or list(wanted) == list(own):
        return own, own
    if len(wanted) != len(own):
        classes = counted(len(own), "class")
        raise ValueError(f"{len(wanted)} class names are given, but the model has {classes}")

    # The same names in another order, or all new ones.
    if sorted(wanted) == sorted(own):
        return wanted, wanted
    if set(wanted).isdisjoint(own):
        return own, wanted

    unknown = join_names(sorted(set(wanted) - set(own)))
    missing = join_names(sorted(set(own) - set(wanted)))
    raise ValueError(
        f"the model has no class {unknown}, but has {missing}: give its names in any order, or all "
        "new ones"
    )


def _class_ids(given: Sequence[int | str], names: Sequence[str]) -> list[int]:
    """Return the indices of classes that are given by name or index.

    Raises ValueError if the model does not have such a class, or one text is given.
    """
    if isinstance(given, str):
        raise ValueError(f"classes is '{excerpt(given)}': give a list of names or numbers")

    return class_ids(given, names, "the model")


def _sides(image_size: Any) -> list[int]:
    """Return the sides of an image size, none for the default.

    Raises ValueError if one is out of range.
    """
    sides = [image_size] if isinstance(image_size, Integral) else list(image_size)
    for side in sides:
        if not isinstance(side, Integral) or not SMALLEST_IMAGE <= int(side) <= LARGEST_IMAGE:
            raise ValueError(f"image size {side}: {IMAGE_SIZES}")
    return [int(side) for side in sides]
