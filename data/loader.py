"""The data loader: batches of samples on a device, drawn by this process or DataLoader workers."""

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from data.augment import (
    Drawer,
    Packed,
    Plan,
    Planner,
    Reader,
    draw_packed,
    pack,
    with_fixed_shapes,
)
from data.augment.transforms import Transforms, TransformsError
from data.base_images import UnreadableImageError, decoded
from data.cache import DeviceImages
from data.labels import Labels
from data.sampler import EvaluationSampler, Key, TrainSampler
from utils.distributed.host_copies import Uploads, page_lock
from utils.distributed.memory import ring_budget
from utils.distributed.torch_compile import compile_or_fall_back
from utils.files.disk import format_bytes
from utils.images.decoder_messages import discarded_messages
from utils.images.letterbox import Placement
from utils.images.opencv import cv2
from utils.log import Say, say_nothing
from utils.printable import counted
from utils.shared_memory import SharedBytes
from utils.terminal import FaultError
from utils.threads import fork_lock

S = TypeVar("S", TrainSampler, EvaluationSampler)
CLOSING_LOOK_S = 0.2  # between two looks of a worker at whether its loader has been given up
PREFETCH_FACTOR = 2  # batches that each worker prefetches
# Slots of the ring buffer besides those of prefetched batches: for the batch that was returned last
# and the one that is requested just before.
EXTRA_PLACES = 2


def fit_workers(
    workers: int, batch_bytes: int, budget: int, say: Callable[[str], None]
) -> tuple[int, int]:
    """Return how many workers there are, and how many batches each prefetches, within a budget.

    Fewer batches are prefetched first, then there are fewer workers, none if not even three batches
    fit. Samples do not depend on these numbers.

    Args:
        workers: the number that was asked for.
        batch_bytes: of the largest batch.
        budget: bytes that the ring buffer may take.
        say: receives a log line if the numbers are reduced.

    >>> fit_workers(8, 100, 1000, lambda line: None)
    (8, 1)
    """
    places = budget // max(batch_bytes, 1) - EXTRA_PLACES
    if workers == 0 or workers * PREFETCH_FACTOR <= places:
        return workers, PREFETCH_FACTOR

    fewer = max(min(workers, places), 0)
    full = format_bytes((workers * PREFETCH_FACTOR + EXTRA_PLACES) * batch_bytes)
    allowed = format_bytes(budget)
    limit = f"prepared batches may take a quarter of the free memory, {allowed}, not {full}"
    instead = "no workers, each process draws by itself"
    if fewer:
        instead = f"{counted(fewer, 'worker')} with 1 batch each"
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
    """A batch as workers send it: NumPy arrays.

    torch would move each tensor to shared memory separately.
    """

    # empty array: the pixels are in the ring buffer; Packed: the device draws them
    pixels: NDArray[np.uint8] | Packed
    shape: tuple[int, int, int, int]
    targets: NDArray[np.float32]
    indices: NDArray[np.int64]
    placement: NDArray[np.float64]


class _HostDrawer:
    """Draws the pixels of plans on the CPU, and applies own transforms to them."""

    pool = None  # as _DeviceDrawer.pool

    def __init__(self, read: Reader, transforms: Transforms | None) -> None:
        self._drawer = Drawer(read)
        self._transforms = transforms

    def __call__(
        self, plans: Sequence[Plan], shape: tuple[int, ...], memory: NDArray[np.uint8] | None
    ) -> tuple[NDArray[np.uint8], list[NDArray[np.float32]]]:
        """Return the pixels [B, H, W, 3] and the targets [T, 5] of each plan.

        The pixels are an empty array if they were drawn into `memory`.
        """
        if memory is None:
            pixels = np.empty(shape, np.uint8)
        else:
            pixels = memory[: prod(shape)].reshape(shape)

        targets = []
        for plan, image in zip(plans, pixels, strict=True):
            self._drawer.draw(plan, image)
            targets_of_plan = plan.targets
            if self._transforms is not None:
                targets_of_plan = self._transforms.apply(image, plan.targets, plan.seed)
            targets.append(targets_of_plan)
        return pixels if memory is None else np.empty(0, np.uint8), targets


class _DeviceDrawer:
    """Packs plans, so that the device draws them."""

    def __init__(self, images: DeviceImages) -> None:
        self._images = images

    @property
    def pool(self) -> Tensor | None:
        return self._images.pool

    def __call__(
        self, plans: Sequence[Plan], *_: object
    ) -> tuple[Packed, list[NDArray[np.float32]]]:
        return pack(plans, self._images.locate), [plan.targets for plan in plans]


class Samples:
    """Samples of one data set by key.

    A sample depends only on its key, not on which process draws it or when.
    """

    def __init__(
        self,
        planner: Planner,
        images: Reader | DeviceImages | None = None,
        *,
        augment: bool,
        transforms: Transforms | None = None,
    ) -> None:
        """Choose who draws: the device of `images` if they are DeviceImages, otherwise the CPU.

        Args:
            planner: plans the samples.
            images: base images, read from their files by default.
            augment: draw random plans, otherwise plain letterboxed ones.
            transforms: applied to what the CPU has drawn.
        """
        self.planner = planner
        self.augment = augment
        self._drawer: _HostDrawer | _DeviceDrawer
        if isinstance(images, DeviceImages):
            self._drawer = _DeviceDrawer(images)
        else:
            read = images or decoded(
                planner.labels, planner.image_size, planner.tile, planner.canvas
            )
            self._drawer = _HostDrawer(read, transforms)

    @property
    def pool(self) -> Tensor | None:
        """The base images in the memory of the device that draws them.

        None if the CPU draws, and in workers.
        """
        return self._drawer.pool

    def draw(self, keys: Sequence[Key], memory: NDArray[np.uint8] | None = None) -> Drawn:
        """Return the batch of these keys, which must have one canvas size.

        memory: at least B * H * W * 3 bytes to draw the pixels into; new memory by default.
        """
        shape = (len(keys), keys[0].height, keys[0].width, 3)
        plans = [self._plan(key) for key in keys]
        pixels, targets_of_plans = self._drawer(plans, shape, memory)

        # Each target gets the number of its image in the batch.  [T, 6]
        numbered = [np.insert(own, 0, i, axis=1) for i, own in enumerate(targets_of_plans)]
        targets = np.concatenate(numbered)

        indices = np.array([self.planner.image_of(key.index) for key in keys])
        placement = np.stack([self._placement(key) for key in keys])
        return Drawn(pixels, shape, targets, indices, placement)

    def draw_on_device(self, keys: Sequence[Key]) -> Tensor:
        """Return the pixels of these keys, uint8 [B, H, W, 3], drawn by the device of DeviceImages.

        Raises TypeError if the CPU draws.
        """
        packed = self.draw(keys).pixels
        if not isinstance(packed, Packed) or self.pool is None:
            raise TypeError("these samples are drawn by the CPU")

        device = self.pool.device
        on_device = packed.sent(lambda part: part.to(device))
        return draw_packed(on_device, self.pool)

    def _plan(self, key: Key) -> Plan:
        size = (key.height, key.width)
        if not self.augment:
            return self.planner.plain(key.index, size)
        return self.planner.plan(key.epoch, key.index, size, mosaic=key.mosaic, repeat=key.repeat)

    def _placement(self, key: Key) -> NDArray[np.float64]:
        """Return the row of `Batch.placement`; NaN for augmented samples, which have none."""
        if self.augment:
            return np.full(4, np.nan)
        placement = self.planner.placement(key.index, (key.height, key.width))
        return np.concatenate(placement)


def start_worker(closing: ctypes.c_bool, _: int) -> None:
    """Set up a worker: one OpenCV thread, no reaction to signals, exit with the parent.

    Signals are ignored until the parent sets `closing`. Launchers signal whole process groups. If
    that killed a worker, training would fail before it saved a checkpoint. But a parent that exits
    also sends SIGTERM to its workers and waits for them.
    """

    def end(*_: object) -> None:
        if closing.value:
            os._exit(0)

    cv2.setNumThreads(0)
    sys.excepthook = worker_excepthook

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    for name in ("SIGUSR1", "SIGHUP"):  # after these, too, the parent saves a checkpoint
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    parent = multiprocessing.parent_process()
    if parent is not None:
        ending = threading.Thread(target=_exit_with_parent, args=(parent, closing), daemon=True)
        ending.start()


def _exit_with_parent(parent: BaseProcess, closing: ctypes.c_bool) -> None:
    """Exit as soon as the parent process has ended for any reason, also if it was killed, or has
    set `closing`.

    A DataLoader that is collected as garbage cannot tell its workers to end: Python closes their
    queues first.

    Linux can send a signal when a parent ends. With the fork server (the default from Python 3.14
    on), that signal comes only when the server ends.
    """
    while parent.is_alive():
        parent.join(CLOSING_LOOK_S)
        if closing.value:
            os._exit(0)
    os._exit(1)


def worker_excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an uncaught error, unless the parent ended while this worker sent it a batch.

    It is a `sys.excepthook`.
    """
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


def explain_worker_death(text: str) -> str:
    """Return a message that replaces torch's error about a worker that died; "" for other errors.

    >>> explain_worker_death("DataLoader worker (pid 7) is killed by signal: Segmentation fault. ")
    'a DataLoader worker died (Segmentation fault): try --workers 0'
    >>> explain_worker_death("stack expects each tensor to be equal size")
    ''
    """
    died = re.match(r"DataLoader worker \(pid(?:.*by signal: (?P<signal>[^.]+))?", text)
    if not died:
        return ""
    if died["signal"] in (None, "Killed", "Bus error"):
        return "a DataLoader worker died, probably out of memory: use fewer --workers"
    return f"a DataLoader worker died ({died['signal']}): try --workers 0"


@contextmanager
def explained_worker_death() -> Iterator[None]:
    """Raise FaultError that says what to do in place of torch's error about a worker that died."""
    try:
        yield
    except RuntimeError as error:
        message = explain_worker_death(str(error))
        if not message:
            raise
        raise FaultError(message) from None


def _iterate(loader: "DataLoader[Any]") -> Iterator[Any]:
    """Return an iterator over the batches of a pass.

    From the first pass of any DataLoader on, torch handles SIGCHLD: when a worker dies, it raises
    an error in the main thread, wherever that is. This function wraps torch's handler, so that the
    error says what to do.
    """
    with fork_lock if loader.num_workers else nullcontext():  # the first pass forks the workers
        batches = iter(loader)
    number = getattr(signal, "SIGCHLD", None)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if number is None or not in_main_thread:  # Windows, or a thread, which cannot set handlers
        return batches

    handler = signal.getsignal(number)
    if callable(handler) and not isinstance(handler, _WorkerDeathHandler):
        signal.signal(number, _WorkerDeathHandler(handler))
    return batches


@dataclass(frozen=True)
class _WorkerDeathHandler:
    """A SIGCHLD handler that explains torch's error about a worker that died."""

    handler: Callable[[int, FrameType | None], object]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        with explained_worker_death():
            self.handler(number, frame)


class Loader(Generic[S]):
    """Batches in the sampler's order, on a device, drawn by worker processes or by this one.

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
        say: Say = say_nothing,
    ) -> None:
        """Prepare the workers, which start with the first pass.

        Args:
            samples: draws the batches.
            sampler: the keys of each batch.
            workers: number of worker processes; with 0 this process draws.
            device: where the batches go.
            ring_bytes: at most so many for the ring buffer; by default `ring_budget` of a single
                process.
            say: receives a log line if that is too little for all workers.
        """
        self.samples: Samples = samples
        self.sampler: S = sampler

        if workers and multiprocessing.current_process().daemon:
            say("--workers: a daemonic process cannot start workers, it draws by itself")
            workers = 0

        # The ring buffer of pixels limits the number of workers.
        prefetch = PREFETCH_FACTOR
        draws_on_host = samples.pool is None
        if draws_on_host:
            budget = ring_budget() if ring_bytes is None else ring_bytes
            workers, prefetch = fit_workers(workers, sampler.largest, budget, say)
        self.workers: int = workers

        self._uploads: Uploads = Uploads(device)
        self._draw: Callable[..., Tensor] = draw_packed
        # whether all plans are brought to few shapes, for compiled drawing
        self._fix_shapes: bool = False
        self._ring: Ring | None = None
        places = 0
        if workers and draws_on_host:
            places = workers * prefetch + EXTRA_PLACES
            self._ring = Ring(places, sampler.largest, device)

        # Set before this process ends its workers: with this object, or at its exit.
        closing = RawValue(ctypes.c_bool, False)
        Finalize(self, setattr, (closing, "value", True), exitpriority=0)

        self._loader = DataLoader(
            _BatchDataset(samples, self._ring),
            batch_size=None,
            sampler=_NumberedBatches(sampler, self._uploads, places),
            num_workers=workers,
            collate_fn=_identity,
            prefetch_factor=prefetch if workers else None,
            persistent_workers=workers > 0,
            worker_init_fn=partial(start_worker, closing),
            # otherwise each pass draws from torch's global one, which checkpoints save
            generator=torch.Generator(),
        )
        self._begun: Iterator[Drawn] | None = None  # a pass that `begin` has begun

    @property
    def labels(self) -> Labels:
        return self.samples.planner.labels

    @property
    def ring_bytes(self) -> int:
        """The size of the ring buffer in shared memory."""
        return self._ring.nbytes if self._ring else 0

    def compile(self, say: Callable[[str], None]) -> None:
        """Have torch compile the drawing on the device, during the first batches.

        Pixels change by rounding errors. say: receives log lines.
        """
        self._draw = compile_or_fall_back(draw_packed, say)
        self._fix_shapes = True

    def __len__(self) -> int:
        return len(self.sampler)

    def begin(self) -> None:
        """Let the workers draw the first batches of the next pass now, as the sampler is set.

        Otherwise they start when the loader is iterated over, which then waits for the first batch.
        Later changes of the sampler have no effect on this pass. Without workers it does nothing.
        """
        if self.workers:
            with explained_worker_death():
                self._begun = self._pass()

    def _pass(self) -> Iterator[Drawn]:
        self._uploads.wait()  # the slots of the ring buffer are free
        return _iterate(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        try:
            with explained_worker_death():
                begun = self._begun
                self._begun = None
                drawn_batches = self._pass() if begun is None else begun
                for number, drawn in enumerate(drawn_batches):
                    yield self._to_batch(number, drawn)
        except (UnreadableImageError, TransformsError) as error:
            # The traceback refers to torch's frames, which would keep the workers alive.
            error.__traceback__ = None

            # A worker sends its whole traceback as the text; our message is its end.
            kind = type(error)
            name = f"\n{kind.__module__}.{kind.__name__}: "
            message = str(error).rpartition(name)[2].rstrip()
            raise kind(message) from None

    def _to_batch(self, number: int, drawn: Drawn) -> Batch:
        """Return the batch on the device."""
        # The targets first: the host may wait for this copy.
        targets = self._uploads.send(torch.from_numpy(drawn.targets))
        images = self._images(number, drawn)
        indices = torch.from_numpy(drawn.indices)
        placement = torch.from_numpy(drawn.placement)
        return Batch(images, targets, indices, placement)

    def _images(self, number: int, drawn: Drawn) -> Tensor:
        """Return the pixels on the device: drawn there, from the ring buffer, or from `drawn`."""
        pool = self.samples.pool
        if isinstance(drawn.pixels, Packed) and pool is not None:
            packed = drawn.pixels
            if self._fix_shapes:
                packed = with_fixed_shapes(packed)
            return self._draw(packed.sent(self._uploads.send), pool)

        if self._ring is not None:
            place = self._ring.place(number)
            pixels = place[: prod(drawn.shape)].view(drawn.shape)
            return self._uploads.send(pixels, number)

        return self._uploads.send(torch.as_tensor(drawn.pixels))


class Ring:
    """A ring buffer in shared memory for the pixels that workers draw.

    Batch k of a pass uses slot k % places. A DataLoader requests one more batch just before it
    returns one. The buffer has two slots more than the number of prefetched batches, so a slot is
    written again only after its batch and the next one have been returned.
    """

    def __init__(self, places: int, size: int, device: torch.device) -> None:
        self.places = places
        self._size = size
        self._shared = SharedBytes(places * size)
        page_lock(self._shared.tensor, device, self)

    @property
    def nbytes(self) -> int:
        """The size of the whole buffer."""
        return self.places * self._size

    def place(self, number: int) -> Tensor:
        """Return the slot of a batch, uint8 [size]."""
        start = number % self.places * self._size
        return self._shared.tensor[start : start + self._size]


class _BatchDataset(Dataset[Drawn]):
    """Draws a whole batch, given its number within the pass and the keys of its samples."""

    def __init__(self, samples: Samples, ring: Ring | None) -> None:
        self.samples = samples
        self.ring = ring

    def __getitem__(self, request: tuple[int, list[Key]]) -> Drawn:
        number, keys = request
        memory = self.ring.place(number).numpy() if self.ring else None
        if get_worker_info() is None:
            return self.samples.draw(keys, memory)

        # The scan has reported what decoders print, with the file that it is about.
        with discarded_messages():
            return self.samples.draw(keys, memory)


class _NumberedBatches(Sampler[tuple[int, list[Key]]]):
    """The batches of a pass with their numbers.

    Before a slot is reused, waits until its old batch was uploaded.
    """

    def __init__(
        self, batches: TrainSampler | EvaluationSampler, uploads: Uploads, places: int
    ) -> None:
        self.batches = batches
        self.uploads = uploads
        self.places = places

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[int, list[Key]]]:
        for number, keys in enumerate(self.batches):
            self.uploads.wait(number - self.places)
            yield number, keys


def _identity(drawn: Any) -> Any:
    return drawn
