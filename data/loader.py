"""The data loader: batches of samples as tensors on a device, drawn by this process or by
DataLoader workers.
"""

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
from data.augment.draw_device import Packed, draw_batch, pack, with_fixed_shapes
from data.augment.plan import Planner
from data.augment.records import Plan
from data.base_images import Reader, UnreadableImageError, decoded
from data.cache import DeviceImages
from data.labels import Labels
from data.sampler import EvaluationSampler, Key, TrainSampler
from utils.distributed.host_copies import Uploads, page_lock
from utils.distributed.memory import ring_budget
from utils.distributed.torch_compile import compile_or_fall_back
from utils.files.disk import format_bytes
from utils.images.letterbox import Placement
from utils.images.opencv import cv2
from utils.printable import counted
from utils.shared_memory import SharedBytes
from utils.terminal import FaultError

S = TypeVar("S", TrainSampler, EvaluationSampler)
PREFETCH_FACTOR = 2  # batches that each worker prefetches
# of the ring buffer: the batch that was returned last, and the one that is requested just before
EXTRA_PLACES = 2


def fit_workers(
    workers: int, batch_bytes: int, budget: int, say: Callable[[str], None]
) -> tuple[int, int]:
    """Return the numbers of workers, and of batches that each prefetches, whose ring buffer fits
    into `budget` bytes.

    Fewer batches are prefetched first, then there are fewer workers, none if not even three batches
    fit. Samples do not depend on these numbers. batch_bytes: of the largest batch. say: receives a
    log line if the numbers are reduced.

    >>> fit_workers(8, 100, 1000, lambda line: None)
    (8, 1)
    """
    places = budget // max(batch_bytes, 1) - EXTRA_PLACES
    if workers == 0 or workers * PREFETCH_FACTOR <= places:
        return workers, PREFETCH_FACTOR
    fewer = max(min(workers, places), 0)
    full = format_bytes((workers * PREFETCH_FACTOR + EXTRA_PLACES) * batch_bytes)
    limit = (
        f"prepared batches may take a quarter of the free memory, {format_bytes(budget)}, "
        f"not {full}"
    )
    instead = (
        f"{counted(fewer, 'worker')} with 1 batch each"
        if fewer
        else "no workers, each process draws by itself"
    )
    say(f"--workers {workers}: {limit}: {instead}")
    return fewer, 1


class Batch(NamedTuple):
    """A batch of B samples of the same shape."""

    images: Tensor  # uint8 [B, H, W, 3] RGB
    # float32 [T, 6]: image in the batch, class (-1 ignore region), x1, y1, x2, y2 in pixels
    targets: Tensor
    indices: Tensor  # int64 [B], images of the data set
    # float64 [B, 4]: scale x, scale y, shift x, shift y from source pixels (plain samples only)
    placement: Tensor

    def placement_of(self, i: int) -> Placement:
        """Return the scale and shift from source image to canvas of sample i."""
        return Placement(*self.placement[i].numpy().reshape(2, 2))


class Drawn(NamedTuple):
    """A batch as workers send it: NumPy arrays, because torch moves each tensor to shared memory
    separately.
    """

    # empty array: the pixels are in the ring buffer; Packed: the device draws them
    pixels: NDArray[np.uint8] | Packed
    shape: tuple[int, int, int, int]
    targets: NDArray[np.float32]
    indices: NDArray[np.int64]
    placement: NDArray[np.float64]


class _HostDrawer:
    """Draws the pixels of plans on the CPU, into `memory` if it is given."""

    pool = None

    def __init__(self, read: Reader) -> None:
        self._drawer = Drawer(read)

    def __call__(
        self, plans: Sequence[Plan], shape: tuple[int, ...], memory: NDArray[np.uint8] | None
    ) -> NDArray[np.uint8]:
        pixels = (
            np.empty(shape, np.uint8) if memory is None else memory[: prod(shape)].reshape(shape)
        )
        for plan, image in zip(plans, pixels, strict=True):
            self._drawer.draw(plan, image)
        return pixels if memory is None else np.empty(0, np.uint8)


class _DeviceDrawer:
    """Packs plans, so that the device draws them."""

    def __init__(self, images: DeviceImages) -> None:
        self._images = images

    @property
    def pool(self) -> Tensor | None:
        return self._images.pool

    def __call__(self, plans: Sequence[Plan], *_: object) -> Packed:
        return pack(plans, self._images.locate)


class Samples:
    """Samples of one data set by key. A sample depends only on its key, not on which process draws
    it or when.
    """

    def __init__(
        self, planner: Planner, images: Reader | DeviceImages | None = None, *, augment: bool
    ) -> None:
        """images: base images, read from their files by default; the device draws those of
        DeviceImages.

        augment: draw random plans, otherwise plain letterboxed ones.
        """
        self.planner, self.augment = planner, augment
        if isinstance(images, DeviceImages):
            self._drawer: _HostDrawer | _DeviceDrawer = _DeviceDrawer(images)
        else:
            self._drawer = _HostDrawer(
                images or decoded(planner.labels, planner.image_size, planner.tile)
            )

    @property
    def pool(self) -> Tensor | None:
        """The base images in the memory of the device that draws them; None if the CPU draws, and
        in workers.
        """
        return self._drawer.pool

    def draw(self, keys: Sequence[Key], memory: NDArray[np.uint8] | None = None) -> Drawn:
        """Return the batch of these keys, which must have one canvas size.

        memory: at least B * H * W * 3 bytes to draw the pixels into; new memory by default.
        """
        shape = (len(keys), keys[0].height, keys[0].width, 3)
        plans = [self._plan(key) for key in keys]
        return Drawn(
            self._drawer(plans, shape, memory),
            shape,
            np.concatenate([np.insert(plan.targets, 0, i, axis=1) for i, plan in enumerate(plans)]),
            np.array([self.planner.image_of(key.index) for key in keys]),
            np.stack([self._placement(key) for key in keys]),
        )

    def draw_on_device(self, keys: Sequence[Key]) -> Tensor:
        """Return the pixels of these keys, uint8 [B, H, W, 3], drawn by the device of DeviceImages.

        Raises TypeError if the CPU draws.
        """
        packed = self.draw(keys).pixels
        if not isinstance(packed, Packed) or self.pool is None:
            raise TypeError("these samples are drawn by the CPU")
        device = self.pool.device
        return draw_batch(packed.sent(lambda part: part.to(device)), self.pool)

    def _plan(self, key: Key) -> Plan:
        size = (key.height, key.width)
        if self.augment:
            return self.planner.plan(
                key.epoch, key.index, size, mosaic=key.mosaic, repeat=key.repeat
            )
        return self.planner.plain(key.index, size)

    def _placement(self, key: Key) -> NDArray[np.float64]:
        if self.augment:
            return np.full(4, np.nan)
        return np.concatenate(self.planner.placement(key.index, (key.height, key.width)))


def start_worker(closing: ctypes.c_bool, _: int) -> None:
    """Set up a worker: one OpenCV thread, signals ignored until the parent sets `closing`, exit
    with the parent.

    Launchers signal whole process groups. If that killed a worker, training would fail before it
    saved a checkpoint. But a parent that exits also sends SIGTERM to its workers and waits for
    them.
    """

    def end(*_: object) -> None:
        if closing.value:
            os._exit(0)

    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    for name in ("SIGUSR1", "SIGHUP"):  # after these, too, the parent saves a checkpoint
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.excepthook = worker_excepthook
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: BaseProcess) -> None:
    """Exit as soon as the parent process has ended for any reason, also if it was killed.

    Linux can send a signal when a parent ends. With the fork server (the default from Python 3.14
    on), that signal comes only when the server ends.
    """
    parent.join()
    os._exit(1)


def worker_excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an uncaught error, unless the parent ended while this worker sent it a batch (as a
    `sys.excepthook`).
    """
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


def explain_worker_death(text: str) -> str:
    """Return a message that replaces torch's error about a worker that died; "" for any other
    error.

    >>> explain_worker_death("DataLoader worker (pid 7) is killed by signal: Segmentation fault. ")
    'a DataLoader worker died (Segmentation fault): try --workers 0'
    >>> explain_worker_death("stack expects each tensor to be equal size")
    ''
    """
    died = re.match(r"DataLoader worker \(pid(?:.*by signal: (?P<signal>[^.]+))?", text)
    if not died:
        return ""
    crashed = died["signal"] not in (None, "Killed", "Bus error")
    why = (
        f" ({died['signal']}): try --workers 0"
        if crashed
        else ", probably out of memory: use fewer --workers"
    )
    return f"a DataLoader worker died{why}"


def _iterate(loader: "DataLoader[Any]") -> Iterator[Any]:
    """Return an iterator over the batches of a pass.

    From the first pass of any DataLoader on, torch handles SIGCHLD: when a worker dies, it raises
    an error in the main thread, wherever that is. This function wraps torch's handler, so that the
    error says what to do.
    """
    batches = iter(loader)
    number = getattr(signal, "SIGCHLD", None)
    handler = number and signal.getsignal(number)
    if number is not None and callable(handler) and not isinstance(handler, _WorkerDeathHandler):
        signal.signal(number, _WorkerDeathHandler(handler))
    return batches


@dataclass(frozen=True)
class _WorkerDeathHandler:
    """A SIGCHLD handler that explains torch's error about a worker that died."""

    handler: Callable[[int, FrameType | None], object]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.handler(number, frame)
        except RuntimeError as error:
            if not (message := explain_worker_death(str(error))):
                raise
            raise FaultError(message) from None


class Loader(Generic[S]):
    """Batches in the sampler's order, on `device`, drawn by `workers` processes, or by this one if
    0.

    The workers start with the first pass and keep running. They draw into a ring buffer in shared
    memory, because allocating memory for each batch costs as much as drawing into it. Batches are
    copied out of the ring buffer, so the caller owns them.
    """

    def __init__(
        self,
        samples: Samples,
        sampler: S,
        *,
        workers: int,
        device: torch.device,
        ring_bytes: int | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """ring_bytes: at most so many for the ring buffer; by default `ring_budget` of a single
        process.

        say: receives a log line if that is too little for all workers.
        """
        self.samples: Samples = samples
        self.sampler: S = sampler
        prefetch = PREFETCH_FACTOR
        draws_on_host = samples.pool is None
        if draws_on_host:
            budget = ring_budget() if ring_bytes is None else ring_bytes
            workers, prefetch = fit_workers(workers, sampler.largest, budget, say)
        self.workers: int = workers
        self._uploads: Uploads = Uploads(device)
        self._draw: Callable[..., Tensor] = draw_batch
        # whether all plans are brought to few shapes, for compiled drawing
        self._fix_shapes: bool = False
        self._ring: Ring | None = None
        if workers and draws_on_host:
            self._ring = Ring(workers * prefetch + EXTRA_PLACES, sampler.largest, device)
        closing = RawValue(ctypes.c_bool, False)
        # runs before this process ends its workers
        Finalize(None, setattr, (closing, "value", True), exitpriority=0)
        self._loader = DataLoader(
            _BatchDataset(samples, self._ring),
            batch_size=None,
            sampler=_NumberedBatches(
                sampler, self._uploads, self._ring.places if self._ring else 0
            ),
            num_workers=workers,
            collate_fn=_identity,
            prefetch_factor=prefetch if workers else None,
            persistent_workers=workers > 0,
            worker_init_fn=partial(start_worker, closing),
            # otherwise each pass draws from torch's global one, which checkpoints save
            generator=torch.Generator(),
        )

    @property
    def labels(self) -> Labels:
        return self.samples.planner.labels

    @property
    def ring_bytes(self) -> int:
        """The size of the ring buffer in shared memory."""
        return self._ring.nbytes if self._ring else 0

    def compile(self, say: Callable[[str], None]) -> None:
        """Have torch compile the drawing on the device, during the first batches. Pixels change by
        rounding errors.

        say: receives log lines.
        """
        self._draw = compile_or_fall_back(draw_batch, say)
        self._fix_shapes = True

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        self._uploads.wait()
        try:
            for number, drawn in enumerate(_iterate(self._loader)):
                yield self._to_batch(number, drawn)
        except UnreadableImageError as error:
            # The traceback refers to torch's frames, which would keep the workers alive.
            error.__traceback__ = None
            # A worker sends its whole traceback as the text; our message is its end.
            name = f"\n{UnreadableImageError.__module__}.{UnreadableImageError.__name__}: "
            raise UnreadableImageError(str(error).rpartition(name)[2].rstrip()) from None
        except RuntimeError as error:
            if not (message := explain_worker_death(str(error))):
                raise
            raise FaultError(message) from None

    def _to_batch(self, number: int, drawn: Drawn) -> Batch:
        # first: the host may wait for this copy
        targets = self._uploads.send(torch.from_numpy(drawn.targets))
        return Batch(
            self._images(number, drawn),
            targets,
            torch.from_numpy(drawn.indices),
            torch.from_numpy(drawn.placement),
        )

    def _images(self, number: int, drawn: Drawn) -> Tensor:
        if isinstance(drawn.pixels, Packed) and self.samples.pool is not None:
            packed = with_fixed_shapes(drawn.pixels) if self._fix_shapes else drawn.pixels
            return self._draw(packed.sent(self._uploads.send), self.samples.pool)
        if self._ring is not None:
            return self._uploads.send(
                self._ring.place(number)[: prod(drawn.shape)].view(drawn.shape), number
            )
        return self._uploads.send(torch.as_tensor(drawn.pixels))


class Ring:
    """A ring buffer in shared memory for the pixels that workers draw: batch k of a pass uses slot
    k % places.

    A DataLoader requests one more batch just before it returns one. The buffer has two slots more
    than the number of prefetched batches, so a slot is written again only after its batch and the
    next one have been returned.
    """

    def __init__(self, places: int, size: int, device: torch.device) -> None:
        self._shared = SharedBytes(places * size)
        self.places, self._size = places, size
        page_lock(self._shared.tensor, device, self)

    @property
    def nbytes(self) -> int:
        return self.places * self._size

    def place(self, number: int) -> Tensor:
        """Return the slot of a batch, uint8 [size]."""
        start = number % self.places * self._size
        return self._shared.tensor[start : start + self._size]


class _BatchDataset(Dataset[Drawn]):
    """Draws a whole batch, given its number within the pass and the keys of its samples."""

    def __init__(self, samples: Samples, ring: Ring | None) -> None:
        self.samples, self.ring = samples, ring

    def __getitem__(self, request: tuple[int, list[Key]]) -> Drawn:
        number, keys = request
        return self.samples.draw(keys, self.ring.place(number).numpy() if self.ring else None)


class _NumberedBatches(Sampler[tuple[int, list[Key]]]):
    """The batches of a pass with their numbers. Before a slot is reused, waits until its old batch
    was uploaded.
    """

    def __init__(
        self, batches: TrainSampler | EvaluationSampler, uploads: Uploads, places: int
    ) -> None:
        self.batches, self.uploads, self.places = batches, uploads, places

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[int, list[Key]]]:
        for number, keys in enumerate(self.batches):
            self.uploads.wait(number - self.places)
            yield number, keys


def _identity(drawn: Any) -> Any:
    return drawn
