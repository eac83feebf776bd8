"""Batches of samples, from files to tensors."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing.sharedctypes import RawValue
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data.augment import Planner, Tile
from data.draw import draw, resized
from data.images import read_image
from data.labels import Labels
from data.sampler import EvaluationSampler, Key, TrainSampler
from utils.opencv import cv2
from utils.printable import shown

S = TypeVar("S", TrainSampler, EvaluationSampler)


class Batch(NamedTuple):
    """B samples of one shape."""

    images: Tensor  # uint8 [B, H, W, 3] RGB
    targets: Tensor  # float32 [T, 6]: image in the batch, class (-1 ignore region), x1, y1, x2, y2 in pixels
    indices: Tensor  # int64 [B], images of the data set
    placement: Tensor  # float64 [B, 4]: scale x, scale y, shift x, shift y from source pixels (plain samples only)


class Samples(Dataset[Batch]):
    """Samples of one data set by key. A sample depends on its key alone, not on who draws it or when."""

    def __init__(self, planner: Planner, *, augment: bool) -> None:
        """augment: random plans, else plain ones."""
        self.planner, self.augment = planner, augment

    def __len__(self) -> int:
        return len(self.planner.labels)

    def base_image(self, index: int) -> NDArray[np.uint8]:
        """The image with its long side at the training size, uint8 [h, w, 3] BGR.

        Raises ValueError if it is not the one any more that its boxes were read for.
        """
        labels = self.planner.labels
        image = read_image(labels.path(index))
        size, known = (image.shape[1], image.shape[0]), tuple(labels.sizes[index].tolist())
        if size != known:
            was = f"{known[0]} x {known[1]} pixels, now it has {size[0]} x {size[1]}"
            raise ValueError(f"{shown(labels.path(index))}: has changed since its labels were read: it had {was}")
        return resized(image, *self.planner.base_size(index))

    def __getitem__(self, key: Key) -> Batch:
        size = (key.height, key.width)
        if self.augment:
            plan = self.planner.plan(key.epoch, key.index, size, mosaic=key.mosaic, repeat=key.repeat)
            placement = np.full(4, np.nan)
        else:
            plan = self.planner.plain(key.index, size)
            placement = self._placement(plan.layers[0].tiles[0])
        return Batch(
            torch.from_numpy(draw(plan, self.base_image)),
            torch.from_numpy(np.insert(plan.targets, 0, 0, axis=1)),
            torch.tensor(key.index),
            torch.from_numpy(placement),
        )

    def _placement(self, tile: Tile) -> NDArray[np.float64]:
        scale = self.planner.base_scale(tile.index) * tile.matrix.diagonal()[:2]
        return np.concatenate([scale, tile.matrix[:2, 2]])


def collate(samples: list[Batch]) -> Batch:
    """One batch of single samples, targets numbered by their image."""
    targets = torch.cat([s.targets for s in samples])
    counts = torch.tensor([len(s.targets) for s in samples])
    targets[:, 0] = torch.arange(len(samples)).repeat_interleave(counts)
    images, _, indices, placement = zip(*samples, strict=True)
    return Batch(torch.stack(images), targets, torch.stack(indices), torch.stack(placement))


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
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def quiet_about_parent(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an uncaught error, unless it is that the parent went away while a batch was handed over."""
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


class Loader(Generic[S]):
    """Batches in the sampler's order, from `workers` processes, or from this one if 0."""

    def __init__(self, samples: Samples, sampler: S, *, workers: int, pin: bool) -> None:
        self.samples = samples
        self.sampler: S = sampler
        closing = RawValue(ctypes.c_bool, False)
        Finalize(None, setattr, (closing, "value", True), exitpriority=0)  # runs before this process ends its children
        self._loader = DataLoader(
            samples,
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=collate,
            pin_memory=pin,
            persistent_workers=workers > 0,
            worker_init_fn=partial(start_worker, closing),
            generator=torch.Generator(),  # else each pass would draw from torch's global one, which the training saves
        )

    @property
    def labels(self) -> Labels:
        return self.samples.planner.labels

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        try:
            yield from self._loader
        except ValueError as error:  # a loader process sends its whole traceback as the text; the last line is ours
            raise ValueError(str(error).rpartition("\nValueError: ")[2].rstrip()) from None
