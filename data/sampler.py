"""Samplers: which samples make up which batch.

For training, one stream of samples is cut into full batches for all processes. The stream is the
training images in a new random order for each pass, one pass after another. Batch k consists of
samples k * B to (k + 1) * B of the stream, so every batch is full, no image is repeated to fill one
and none is left out: the images left over at the end of an epoch start the next epoch. A process
takes every `size`-th sample of a batch. Images with a factor (data/balance/draws.py) are in a pass
as often as it says, so that passes are longer. With image weights, the samples of an epoch are
drawn with replacement instead, the same on every process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DistributedSampler

from data.augment.plan import generator_for
from data.balance.draws import Draws
from utils.images.letterbox import CanvasShapes

# Used in place of a sample's index, so that each has its own random numbers.
ORDER, SHUFFLE, DRAWS, COUNTS = 2**40 - 1, 2**40 - 2, 2**40 - 3, 2**40 - 4


@dataclass(frozen=True)
class Key:
    """Everything that a sample depends on, besides the seed and the data set."""

    epoch: int  # the pass over the images that the sample belongs to
    index: int
    height: int  # of the canvas
    width: int
    mosaic: bool  # whether the sample may contain other images
    repeat: int = 0  # how often the epoch has drawn the image before


class TrainSampler(DistributedSampler):  # type: ignore[type-arg]
    """This process's share of each batch of an epoch, as lists of keys.

    `first_batch`: the number, within its epoch, of the batch at which an iteration starts.
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
        shapes: CanvasShapes | None = None,
        mosaic_until: int = 2**31,
        draws: Draws | None = None,
    ) -> None:
        """Check the batch size.

        Args:
            ratios: height / width of every image, [N].
            batch_size: samples in a batch of all processes together.
            image_size: side of square canvases, in pixels.
            seed: of the order of the images and of their samples.
            rank: number of this process.
            size: number of processes.
            shapes: None for square canvases, otherwise batches of images with similar ratios,
                without mosaic.
            mosaic_until: the first epoch without mosaic, mixup and copy-paste.
            draws: how often each image is in a pass; None: once.

        Raises ValueError if the batch size is larger than the number of images in a pass or not a
        multiple of the processes.
        """
        self.draws = draws or Draws.once(len(ratios))
        most = self.draws.least_per_pass
        if not 1 <= batch_size <= most:
            raise ValueError(
                f"batch size {batch_size}: choose 1 to {most}, the number of training images"
            )
        if batch_size % size:
            raise ValueError(f"batch size {batch_size}: choose a multiple of the {size} processes")
        super().__init__(ratios, num_replicas=size, rank=rank, shuffle=True, seed=seed)  # type: ignore[arg-type]
        self.ratios = ratios
        self.batch_size = batch_size
        self.image_size = image_size
        self.shapes = shapes
        self.mosaic_until = mosaic_until
        self.first_batch = 0
        self._per_process = batch_size // size
        self._weights: NDArray[np.float64] | None = None

    @property
    def largest(self) -> int:
        """The maximum number of bytes of the pixels of this process's share of a batch."""
        square = (self.image_size, self.image_size)
        height, width = self.shapes.largest if self.shapes else square
        return self._per_process * height * width * 3

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """The relative probability of drawing each image, [N]; None: every image once per pass.

        An epoch has the same number of batches with weights, drawn with replacement, each weight
        times the image's factor of `draws`. The other images of a mosaic are still chosen by the
        factors alone. The setter raises ValueError unless all weights are finite, none is negative,
        and at least one is positive.
        """
        return self._weights

    @weights.setter
    def weights(self, weights: NDArray[np.float64] | None) -> None:
        self._weights = None if weights is None else checked_weights(weights, len(self.ratios))

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Select the epoch to iterate over, starting at its batch `first_batch`.

        Skipped images are not read. Raises ValueError if the epoch has fewer batches.
        """
        count = self.batches_in(epoch)
        if not 0 <= first_batch <= count:
            raise ValueError(
                f"first batch {first_batch}: epoch {epoch} has {count} batches, choose 0 to {count}"
            )
        super().set_epoch(epoch)
        self.first_batch = first_batch

    def batches_before(self, epoch: int) -> int:
        """Return the number of batches in all epochs before `epoch`."""
        return self.draws.before(epoch) // self.batch_size

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches in the whole `epoch`."""
        return self.batches_before(epoch + 1) - self.batches_before(epoch)

    def __len__(self) -> int:
        """Return the number of batches from `first_batch` to the end of the epoch."""
        return self.batches_in(self.epoch) - self.first_batch

    def __iter__(self) -> Iterator[list[Key]]:  # type: ignore[override]
        mosaic = self.shapes is None and self.epoch < self.mosaic_until
        for batch in self._batches()[self.first_batch :]:
            height = width = self.image_size
            if self.shapes is not None:
                # The canvas holds all images of the batch, also those of other processes.
                height, width = self.shapes.shape(self.ratios[batch[:, 1]])

            share = batch[self.rank :: self.num_replicas].tolist()
            keys = []
            for epoch, index, repeat in share:
                keys.append(Key(epoch, index, height, width, mosaic, repeat))
            yield keys

    def _batches(self) -> NDArray[np.int32]:
        """Return all batches of the epoch, of all processes: [K, B, 3] epoch, index, repeat."""
        first = self.batches_before(self.epoch) * self.batch_size
        count = self.batches_in(self.epoch) * self.batch_size

        if self.weights is None:
            stream = self._stream(first, first + count)
        else:
            stream = self._drawn(self.weights, count)

        if self.shapes is None:
            return stream.reshape(-1, self.batch_size, 3)
        return self._by_ratio(stream)

    def _stream(self, first: int, last: int) -> NDArray[np.int32]:
        """Return samples `first` to `last` of the infinite stream, [last - first, 3].

        Columns: epoch, index, repeat.
        """
        first_pass = self.draws.pass_of(first)
        end_pass = self.draws.pass_of(last - 1) + 1

        # Of each pass only what is needed, so that two are never held as a whole.
        parts = []
        for number in range(first_pass, end_pass):
            start = self.draws.before(number)
            part = self._pass(number)[max(first - start, 0) : last - start]
            parts.append(part.copy())
        return np.concatenate(parts)

    def _pass(self, number: int) -> NDArray[np.int32]:
        """Return the samples of a pass in its own order, [K, 3] epoch, index, repeat."""
        counts = self.draws.counts(number, generator_for(self.seed, number, COUNTS))
        drawn = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        order = generator_for(self.seed, number, ORDER).permutation(len(drawn))
        shuffled = drawn[order]
        del drawn, order  # a pass may have a hundred million samples

        repeat = repeats(shuffled) if counts.max() > 1 else 0
        return _rows(number, shuffled, repeat)

    def _drawn(self, weights: NDArray[np.float64], count: int) -> NDArray[np.int32]:
        """Return `count` samples of images drawn by weight: [count, 3] epoch, index, repeat."""
        # Weights of at most 1: no sum overflows, and no point is rounded up to the total.
        weights = weights * self.draws.factors
        cumulative = np.cumsum(weights / weights.max())
        points = generator_for(self.seed, self.epoch, DRAWS).random(count) * cumulative[-1]
        drawn = np.searchsorted(cumulative, points, side="right").astype(np.int32)
        return _rows(self.epoch, drawn, repeats(drawn))

    def _by_ratio(self, stream: NDArray[np.int32]) -> NDArray[np.int32]:
        """Group samples of similar aspect ratio into batches, in random order: [K, B, 3]."""
        ratios = self.ratios[stream[:, 1]]
        by_ratio = stream[np.argsort(ratios, kind="stable")]
        batches = by_ratio.reshape(-1, self.batch_size, 3)

        shuffled = generator_for(self.seed, self.epoch, SHUFFLE).permutation(len(batches))
        return batches[shuffled]


def _rows(
    epoch: int, indices: NDArray[np.int32], repeat: NDArray[np.int32] | int
) -> NDArray[np.int32]:
    """Return samples as rows of epoch, index, repeat: [N, 3]."""
    rows = np.empty((len(indices), 3), np.int32)
    rows[:, 0] = epoch
    rows[:, 1] = indices
    rows[:, 2] = repeat
    return rows


def repeats(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return how often each value occurred earlier in the array, [N].

    >>> repeats(np.array([5, 3, 5, 5, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(values, kind="stable")  # equal values are adjacent, earlier ones first
    grouped = values[order]
    place = np.arange(len(values), dtype=np.int32)
    is_first = np.diff(grouped, prepend=grouped[:1] - 1) != 0
    start_of_group = np.maximum.accumulate(np.where(is_first, place, 0))

    before = np.empty_like(place)
    before[order] = place - start_of_group
    return before


def checked_weights(weights: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return a copy of the weights of `count` images.

    Raises ValueError as the setter of TrainSampler.weights does.
    """
    copy = np.array(weights, np.float64)
    if copy.shape != (count,):
        raise ValueError(
            f"image weights have shape {copy.shape}: give one for each of the {count} training "
            "images"
        )

    valid = np.isfinite(copy) & (copy >= 0)
    if not valid.all() or not copy.any():
        given = f"{copy.min():g} to {copy.max():g}"
        raise ValueError(
            f"image weights are {given}: they must be finite and at least 0, and not all 0"
        )
    return copy


class EvaluationSampler:
    """Every image once, in batches of one shape; a process takes every `size`-th batch.

    No batch is padded. An image's canvas is the smallest that holds it, whatever other images are
    in its batch, so its detections depend neither on the batch size nor on the number of processes.
    `numbers`: the numbers of this process's batches among those of all processes. `largest`: bytes
    of the largest batch of any process.
    """

    def __init__(
        self,
        ratios: NDArray[np.float64],
        *,
        batch_size: int,
        shapes: CanvasShapes,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        """Cut the batches of this process.

        Args:
            ratios: height / width of every image, [N].
            batch_size: the number of images in each batch.
            shapes: the canvas of each ratio.
            rank: number of this process.
            size: number of processes.
        """
        canvas_of = {ratio: shapes.shape(np.array([ratio])) for ratio in np.unique(ratios).tolist()}

        # By ratio, so images of one shape are adjacent. Each run of them is cut into batches.
        by_ratio = np.argsort(ratios, kind="stable").tolist()
        batches = []
        for shape, run in groupby(by_ratio, lambda i: canvas_of[ratios[i]]):
            images = list(run)
            for start in range(0, len(images), batch_size):
                batches.append((images[start : start + batch_size], shape))

        self.rank = rank
        self.size = size
        self.numbers = range(rank, len(batches), size)
        self.batches = [batches[number] for number in self.numbers]
        batch_bytes = [len(images) * height * width * 3 for images, (height, width) in batches]
        self.largest = max(batch_bytes, default=0)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Key]]:
        for batch, (height, width) in self.batches:
            yield [Key(0, index, height, width, False) for index in batch]
