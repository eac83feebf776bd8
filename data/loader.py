"""Batches of samples, from files to tensors."""

import ctypes
import signal
import sys
from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data.augment import Planner, base_size
from data.draw import draw, resized
from data.images import read_image
from data.labels import Labels
from data.sampler import EvaluationSampler, Key, TrainSampler


class Batch(NamedTuple):
    """B samples of one shape."""

    images: Tensor  # uint8 [B, H, W, 3] RGB
    targets: Tensor  # float32 [T, 6]: image in the batch, class (-1 ignore region), x1, y1, x2, y2 in pixels
    indices: Tensor  # int64 [B], images of the data set
    placement: Tensor  # float64 [B, 4]: scale x, scale y, shift x, shift y from source pixels (plain samples only)


class Samples(Dataset[Batch]):
    """Samples of one data set by key. A sample depends on its key alone, not on who draws it or when."""

    def __init__(self, planner: Planner, *, augment: bool, mosaic_until: int = 0) -> None:
        """augment: random plans, else plain ones. mosaic_until: the first epoch without mosaic, mixup and copy-paste."""
        self.planner, self.augment, self.mosaic_until = planner, augment, mosaic_until

    def __len__(self) -> int:
        return len(self.planner.labels)

    def base_image(self, index: int) -> NDArray[np.uint8]:
        """The image with its long side at the training size, uint8 [h, w, 3] BGR."""
        labels = self.planner.labels
        width, height = (int(v) for v in labels.sizes[index])
        return resized(read_image(labels.path(index)), *base_size(width, height, self.planner.image_size))

    def __getitem__(self, key: Key) -> Batch:
        epoch, index, height, width = key
        size = (height, width)
        if self.augment:
            square = height == width == self.planner.image_size
            plan = self.planner.plan(epoch, index, size, mosaic=square and epoch < self.mosaic_until)
        else:
            plan = self.planner.plain(index, size)
        image = draw(plan, self.base_image)
        targets = np.concatenate([np.zeros((len(plan.targets), 1), np.float32), plan.targets], 1)
        return Batch(
            torch.from_numpy(image),
            torch.from_numpy(targets),
            torch.tensor(index),
            torch.from_numpy(self._placement(index, plan.layers[0].tiles[0].matrix) if not self.augment else np.ones(4)),
        )

    def _placement(self, index: int, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        source = self.planner.labels.sizes[index].astype(np.float64)
        base = np.array(base_size(int(source[0]), int(source[1]), self.planner.image_size))
        return np.concatenate([np.diag(matrix)[:2] * base / source, matrix[:2, 2]])


def collate(samples: list[Batch]) -> Batch:
    """One batch of single samples, targets numbered by their image."""
    targets = torch.cat([s.targets for s in samples])
    counts = torch.tensor([len(s.targets) for s in samples])
    targets[:, 0] = torch.arange(len(samples)).repeat_interleave(counts)
    images = torch.stack([s.images for s in samples])
    return Batch(images, targets, torch.stack([s.indices for s in samples]), torch.stack([s.placement for s in samples]))


def start_worker(_: int) -> None:
    """Prepare a loader process: one thread, no signals of its own, and no life after its parent.

    Launchers signal whole process groups; a worker that died of it would take the checkpoint down with it.
    """
    cv2.setNumThreads(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


class Loader:
    """Batches in the sampler's order, from `workers` processes, or from this one if 0."""

    def __init__(self, samples: Samples, sampler: TrainSampler | EvaluationSampler, *, workers: int, pin: bool) -> None:
        self.samples, self.sampler = samples, sampler
        self._loader = DataLoader(
            samples,
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=collate,
            pin_memory=pin,
            persistent_workers=workers > 0,
            worker_init_fn=start_worker,
        )

    @property
    def labels(self) -> Labels:
        return self.samples.planner.labels

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)
