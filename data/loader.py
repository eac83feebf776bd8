"""Batches of samples, from files to tensors."""

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawValue
from multiprocessing.util import Finalize
from types import FrameType, TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from data.augment.draw import Drawer
from data.augment.draw_device import Packed, draw_batch, pack
from data.augment.plan import Planner
from data.augment.records import Plan
from data.base_images import DecodedImages, Reader
from data.cache import DeviceImages
from data.labels import Labels
from data.sampler import EvaluationSampler, Key, TrainSampler
from utils.distributed.host_copies import Uploads, page_lock
from utils.distributed.torch_compile import compile_or_fall_back
from utils.letterbox import Placement
from utils.opencv import cv2
from utils.shared_memory import SharedBytes
from utils.terminal import FaultError

S = TypeVar("S", TrainSampler, EvaluationSampler)
AHEAD = 2  # batches that each loader process has been asked for


class Batch(NamedTuple):
    """B samples of one shape."""

    images: Tensor  # uint8 [B, H, W, 3] RGB
    targets: Tensor  # float32 [T, 6]: image in the batch, class (-1 ignore region), x1, y1, x2, y2 in pixels
    indices: Tensor  # int64 [B], images of the data set
    placement: Tensor  # float64 [B, 4]: scale x, scale y, shift x, shift y from source pixels (plain samples only)

    def placement_of(self, i: int) -> Placement:
        """Where the source image of sample i lies on the canvas."""
        return Placement(*self.placement[i].numpy().reshape(2, 2))


class Drawn(NamedTuple):
    """A Batch between processes: as arrays, which travel as they are, where each tensor would be shared by itself."""

    pixels: NDArray[np.uint8] | Packed  # empty: they are in the ring; Packed: the device draws them
    shape: tuple[int, int, int, int]
    targets: NDArray[np.float32]
    indices: NDArray[np.int64]
    placement: NDArray[np.float64]


class _OnHost:
    """Draws the pixels of plans, into `memory` if it is given."""

    pool = None

    def __init__(self, read: Reader) -> None:
        self._drawer = Drawer(read)

    def __call__(
        self, plans: Sequence[Plan], shape: tuple[int, ...], memory: NDArray[np.uint8] | None
    ) -> NDArray[np.uint8]:
        pixels = np.empty(shape, np.uint8) if memory is None else memory[: prod(shape)].reshape(shape)
        for plan, image in zip(plans, pixels, strict=True):
            self._drawer.draw(plan, image)
        return pixels if memory is None else np.empty(0, np.uint8)


class _OnDevice:
    """Leaves the drawing to the device."""

    def __init__(self, images: DeviceImages) -> None:
        self._images = images

    @property
    def pool(self) -> Tensor | None:
        return self._images.pool

    def __call__(self, plans: Sequence[Plan], *_: object) -> Packed:
        return pack(plans, self._images.locate)


class Samples:
    """Samples of one data set by key. A sample depends on its key alone, not on who draws it or when."""

    def __init__(self, planner: Planner, images: Reader | DeviceImages | None = None, *, augment: bool) -> None:
        """images: base images, by default from their files; those of a device are drawn there.

        augment: random plans, else plain ones.
        """
        self.planner, self.augment = planner, augment
        if isinstance(images, DeviceImages):
            self._canvases: _OnHost | _OnDevice = _OnDevice(images)
        else:
            self._canvases = _OnHost(images or DecodedImages(planner.labels, planner.image_size))

    @property
    def pool(self) -> Tensor | None:
        """The base images on the device that draws them; None where the host draws, and in loader processes."""
        return self._canvases.pool

    def draw(self, keys: Sequence[Key], memory: NDArray[np.uint8] | None = None) -> Drawn:
        """The batch of these keys, all of one canvas, its pixels in `memory` (B * H * W * 3 bytes or more) if given."""
        shape = (len(keys), keys[0].height, keys[0].width, 3)
        plans = [self._plan(key) for key in keys]
        return Drawn(
            self._canvases(plans, shape, memory),
            shape,
            np.concatenate([np.insert(plan.targets, 0, i, axis=1) for i, plan in enumerate(plans)]),
            np.array([key.index for key in keys]),
            np.stack([self._placement(key) for key in keys]),
        )

    def _plan(self, key: Key) -> Plan:
        size = (key.height, key.width)
        if self.augment:
            return self.planner.plan(key.epoch, key.index, size, mosaic=key.mosaic, repeat=key.repeat)
        return self.planner.plain(key.index, size)

    def _placement(self, key: Key) -> NDArray[np.float64]:
        if self.augment:
            return np.full(4, np.nan)
        return np.concatenate(self.planner.placement(key.index, (key.height, key.width)))


def start_worker(closing: ctypes.c_bool, _: int) -> None:
    """Prepare a loader process: one thread, deaf to signals until the parent is `closing`, and no life after it.

    Launchers signal whole process groups; a worker that died of it would take the checkpoint down with it. But a parent
    that ends signals its workers too, and waits for them.
    """

    def end(*_: object) -> None:
        if closing.value:
            os._exit(0)

    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    if hasattr(signal, "SIGUSR1"):  # the other word for a machine that is about to be taken away
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.excepthook = quiet_about_parent
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    """End this process when its parent has ended, however: it may have been killed.

    Linux can send a signal then, but to children of the fork server (Python 3.14's way) only when that one ends.
    """
    parent.join()
    os._exit(1)


def quiet_about_parent(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an uncaught error, unless it is that the parent went away while a batch was handed over."""
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


def describe_death(text: str) -> str:
    """A sentence in place of torch's error for a loader process that died; "" for any other error.

    >>> describe_death("DataLoader worker (pid 7) is killed by signal: Segmentation fault. ")
    'a data loader process died (Segmentation fault): try --workers 0; --resume continues a training'
    >>> describe_death("stack expects each tensor to be equal size")
    ''
    """
    died = re.match(r"DataLoader worker \(pid(?:.*by signal: (?P<signal>[^.]+))?", text)
    if not died:
        return ""
    crashed = died["signal"] not in (None, "Killed", "Bus error")
    why = f" ({died['signal']}): try --workers 0" if crashed else ", probably out of memory: use fewer --workers"
    return f"a data loader process died{why}; --resume continues a training"


def _iterate(loader: "DataLoader[Any]") -> Iterator[Any]:
    """The batches of a pass.

    torch handles SIGCHLD from the first pass of any DataLoader on: it raises an error wherever the main thread is when
    a worker dies. Its handler is wrapped, so that the error says what to do.
    """
    batches = iter(loader)
    number = getattr(signal, "SIGCHLD", None)
    handler = number and signal.getsignal(number)
    if number is not None and callable(handler) and not isinstance(handler, _DeathReport):
        signal.signal(number, _DeathReport(handler))
    return batches


@dataclass(frozen=True)
class _DeathReport:
    """A handler of SIGCHLD that explains torch's error about a worker that died."""

    handler: Callable[[int, FrameType | None], object]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.handler(number, frame)
        except RuntimeError as error:
            if not (sentence := describe_death(str(error))):
                raise
            raise FaultError(sentence) from None


class Loader(Generic[S]):
    """Batches in the sampler's order, on `device`, from `workers` processes, or from this one if 0.

    The processes start with the first pass and stay. They draw into memory that is used over and over: a new piece for
    each batch would cost as much as what is drawn there. What is handed over is copied from it, and the caller's own.
    """

    def __init__(self, samples: Samples, sampler: S, *, workers: int, device: torch.device) -> None:
        self.samples: Samples = samples
        self.sampler: S = sampler
        self.workers: int = workers
        self._uploads: Uploads = Uploads(device)
        self._draw: Callable[..., Tensor] = draw_batch
        self._ring: Ring | None = (
            Ring(workers * AHEAD + 2, sampler.largest, device) if workers and samples.pool is None else None
        )
        closing = RawValue(ctypes.c_bool, False)
        Finalize(None, setattr, (closing, "value", True), exitpriority=0)  # runs before this process ends its children
        self._loader = DataLoader(
            _Orders(samples, self._ring),
            batch_size=None,
            sampler=_Numbered(sampler, self._uploads, self._ring.places if self._ring else 0),
            num_workers=workers,
            collate_fn=_as_it_is,
            prefetch_factor=AHEAD if workers else None,
            persistent_workers=workers > 0,
            worker_init_fn=partial(start_worker, closing),
            generator=torch.Generator(),  # else each pass would draw from torch's global one, which the training saves
        )

    @property
    def labels(self) -> Labels:
        return self.samples.planner.labels

    def compile(self, say: Callable[[str], None]) -> None:
        """Have torch compile what draws on the device, with the first batches. Pixels change by rounding."""
        self._draw = compile_or_fall_back(draw_batch, say)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        self._uploads.wait()
        try:
            for number, drawn in enumerate(_iterate(self._loader)):
                yield self._delivered(number, drawn)
        except ValueError as error:  # a loader process sends its whole traceback as the text; the last line is ours
            error.__traceback__ = None  # it would keep the processes alive, by way of torch's frames
            raise ValueError(str(error).rpartition("\nValueError: ")[2].rstrip()) from None
        except RuntimeError as error:
            if not (sentence := describe_death(str(error))):
                raise
            raise FaultError(sentence) from None

    def _delivered(self, number: int, drawn: Drawn) -> Batch:
        targets = self._uploads.send(torch.from_numpy(drawn.targets))  # first: the host may wait until they are there
        return Batch(
            self._images(number, drawn),
            targets,
            torch.from_numpy(drawn.indices),
            torch.from_numpy(drawn.placement),
        )

    def _images(self, number: int, drawn: Drawn) -> Tensor:
        if isinstance(drawn.pixels, Packed) and self.samples.pool is not None:
            return self._draw(drawn.pixels.sent(self._uploads.send), self.samples.pool)
        if self._ring is not None:
            return self._uploads.send(self._ring.place(number)[: prod(drawn.shape)].view(drawn.shape), number)
        return self._uploads.send(torch.as_tensor(drawn.pixels))


class Ring:
    """Memory for the pixels of batches on their way from loader processes: batch k of a pass lies in place k % places.

    A DataLoader asks for one more batch just before it hands one over. With as many places as batches are asked for and
    two more, a place is free again when its batch has been handed over and so has the next one.
    """

    def __init__(self, places: int, size: int, device: torch.device) -> None:
        self._shared = SharedBytes(places * size)
        self.places, self._size = places, size
        page_lock(self._shared.tensor, device, self)

    def place(self, number: int) -> Tensor:
        """The memory of a batch, uint8 [size]."""
        start = number % self.places * self._size
        return self._shared.tensor[start : start + self._size]


class _Orders(Dataset[Drawn]):
    """What loader processes draw, by the number of a batch in its pass and the keys of its samples."""

    def __init__(self, samples: Samples, ring: Ring | None) -> None:
        self.samples, self.ring = samples, ring

    def __getitem__(self, order: tuple[int, list[Key]]) -> Drawn:
        number, keys = order
        return self.samples.draw(keys, self.ring.place(number).numpy() if self.ring else None)


class _Numbered(Sampler[tuple[int, list[Key]]]):
    """The batches of a pass with their numbers, each asked for when the batch in its place has left the memory."""

    def __init__(self, batches: TrainSampler | EvaluationSampler, uploads: Uploads, places: int) -> None:
        self.batches, self.uploads, self.places = batches, uploads, places

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[int, list[Key]]]:
        for number, keys in enumerate(self.batches):
            self.uploads.wait(number - self.places)
            yield number, keys


def _as_it_is(drawn: Any) -> Any:
    return drawn
