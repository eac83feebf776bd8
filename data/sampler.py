"""Which samples make up which batch. One stream of samples is cut into whole batches, whatever the number of processes.

The stream is the training images in a new random order for each pass, one pass after another. Batch k holds places
k * B to (k + 1) * B of it, so every batch is full, no image is repeated to fill one and none is left out: what an epoch
cannot fill a batch with opens the next epoch. A process takes every `size`-th sample of a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DistributedSampler

from data.augment import generator_for

ORDER, SHUFFLE = 2**40 - 1, 2**40 - 2  # stand where a sample has its index: random numbers of their own


@dataclass(frozen=True)
class Key:
    """What a sample depends on, beside the seed and the data set."""

    epoch: int  # the pass over the images that the sample belongs to
    index: int
    height: int  # of the canvas
    width: int
    mosaic: bool  # whether other images may join


def whole_strides(size: int, stride: int) -> int:
    """The least multiple of the stride that is no less than `size` and two strides, the least that a model can take.

    >>> whole_strides(33, 32), whole_strides(100, 32), whole_strides(64, 64)
    (64, 128, 128)
    """
    return max(-(-size // stride), 2) * stride


@dataclass(frozen=True)
class BatchShapes:
    """Canvas shapes for upright rectangles: long side `image_size`, the short one as the batch needs."""

    image_size: int
    stride: int
    pad: float = 0.0  # strides added before rounding up

    def shape(self, ratios: NDArray[np.float64]) -> tuple[int, int]:
        """(height, width) that holds images of these height / width ratios, multiples of the stride.

        >>> BatchShapes(320, 32).shape(np.array([0.75, 0.7]))
        (256, 320)
        """
        low, high = float(ratios.min()), float(ratios.max())
        tall, wide = (high, 1.0) if high < 1 else (1.0, 1 / low) if low > 1 else (1.0, 1.0)
        sides = np.array([tall, wide]) * self.image_size / self.stride
        height, width = (max(1, int(np.ceil(s - 1e-9 + self.pad))) * self.stride for s in sides)
        return height, width


class TrainSampler(DistributedSampler):  # type: ignore[type-arg]
    """This process's share of each batch of an epoch, as lists of keys.

    ratios: height / width of every image, [N]. shapes: None for square canvases, else batches of like images, without
    mosaic. mosaic_until: the first epoch without mosaic, mixup and copy-paste.
    Raises ValueError if a batch holds more images than there are, or cannot be shared out evenly.
    """

    def __init__(
        self,
        ratios: NDArray[np.float64],
        *,
        batch_size: int,
        image_size: int,
        seed: int,
        rank: int = 0,
        size: int = 1,
        shapes: BatchShapes | None = None,
        mosaic_until: int = 2**31,
    ) -> None:
        if batch_size < 1 or batch_size % size:
            raise ValueError(f"batch size {batch_size} is not a multiple of the {size} processes")
        if batch_size > len(ratios):
            raise ValueError(f"batch size {batch_size} is larger than the {len(ratios)} training images")
        super().__init__(ratios, num_replicas=size, rank=rank, shuffle=True, seed=seed)  # type: ignore[arg-type]
        self.ratios, self.batch_size, self.image_size = ratios, batch_size, image_size
        self.shapes, self.mosaic_until = shapes, mosaic_until

    def batches_before(self, epoch: int) -> int:
        """How many batches the epochs before `epoch` hold."""
        return epoch * len(self.ratios) // self.batch_size

    def __len__(self) -> int:
        return self.batches_before(self.epoch + 1) - self.batches_before(self.epoch)

    def __iter__(self) -> Iterator[list[Key]]:  # type: ignore[override]
        first = self.batches_before(self.epoch) * self.batch_size
        stream = self._stream(first, first + len(self) * self.batch_size)
        batches = stream.reshape(-1, self.batch_size, 2) if self.shapes is None else self._alike(stream)
        mosaic = self.shapes is None and self.epoch < self.mosaic_until
        for batch in batches:
            square = (self.image_size, self.image_size)
            height, width = square if self.shapes is None else self.shapes.shape(self.ratios[batch[:, 1]])
            yield [Key(int(e), int(i), height, width, mosaic) for e, i in batch[self.rank :: self.num_replicas]]

    def _stream(self, first: int, last: int) -> NDArray[np.int64]:
        """Places `first` to `last` of the endless stream: [last - first, 2] epoch, index."""
        count = len(self.ratios)
        passes = range(first // count, -(-last // count))
        orders = [
            np.stack([np.full(count, p), generator_for(self.seed, p, ORDER).permutation(count)], 1) for p in passes
        ]
        start = passes.start * count
        return np.concatenate(orders)[first - start : last - start]

    def _alike(self, stream: NDArray[np.int64]) -> NDArray[np.int64]:
        """Batches of images of like shape, in random order: [K, B, 2]."""
        ordered = stream[np.argsort(self.ratios[stream[:, 1]], kind="stable")]
        batches = ordered.reshape(-1, self.batch_size, 2)
        return batches[generator_for(self.seed, self.epoch, SHUFFLE).permutation(len(batches))]


class EvaluationSampler:
    """Every image once, in batches of like shape; a process takes every `size`-th whole batch, so nothing is padded."""

    def __init__(
        self, ratios: NDArray[np.float64], *, batch_size: int, shapes: BatchShapes, rank: int = 0, size: int = 1
    ) -> None:
        order = np.argsort(ratios, kind="stable")
        batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        self.batches = [(batch, shapes.shape(ratios[batch])) for batch in batches[rank::size]]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Key]]:
        for batch, (height, width) in self.batches:
            yield [Key(0, int(i), height, width, False) for i in batch]
