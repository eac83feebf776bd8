"""The loaders of a run: labels and base images -> this process's share of the batches."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.augment import Augmentation, Planner, Reader
from data.augment.transforms import Transforms
from data.balance.draws import Draws
from data.cache import DeviceImages
from data.labels import Labels
from data.loader import Loader, Samples
from data.sampler import EvaluationSampler, Key, TrainSampler
from data.tiles import TiledLabels, TilePlanner
from utils.distributed.devices import loader_workers
from utils.distributed.memory import ring_budget
from utils.distributed.world import World
from utils.images.letterbox import CanvasShapes, Letterbox, canvas_shapes
from utils.log import Say, say_nothing

CPU = torch.device("cpu")

Images = Reader | DeviceImages  # where the base images of a split are read from

MAX_VAL_BATCH_SIZE = 32  # images; a validation batch belongs to one process


class Loaders(NamedTuple):
    """The training and validation loaders of a run."""

    train: Loader[TrainSampler]
    val: Loader[EvaluationSampler]


def build_loaders(
    labels: Mapping[str, Labels],
    images: Mapping[str, Images],
    batch_size: int,
    image_size: int,
    stride: int,
    world: World,
    augmentation: Augmentation,
    *,
    seed: int,
    rect: bool,
    mosaic_until: int,
    workers: int,
    letterbox: Letterbox,
    transforms: Transforms | None = None,
    draws: Draws | None = None,
    val_stride: int | None = None,
    say: Say = say_nothing,
) -> Loaders:
    """Return the loaders of the "train" and "val" labels.

    Args:
        labels: of both splits, by name.
        images: base images of both splits, by name.
        batch_size: the total over all processes; a validation batch has MAX_VAL_BATCH_SIZE images
            at most.
        image_size: side of the canvases in pixels, the long one if they are rectangular.
        stride: sides of rectangular canvases are multiples of it.
        world: this process and the others.
        augmentation: the strengths of the training augmentation.
        seed: of all random numbers.
        rect: as in `build_train_loader`.
        mosaic_until: as in `build_train_loader`.
        workers: max DataLoader workers per process.
        letterbox: of the validation images, as in `build_evaluation_loader`.
        transforms: as in `build_train_loader`.
        draws: as in `build_train_loader`.
        val_stride: of the validation canvases, None for `stride`.
        say: receives a log line if memory allows fewer.
    """
    workers = loader_workers(workers, batch_size // world.size, world.device, world.local_size)

    # Both loaders share the memory for prepared batches; validation batches are the smaller ones.
    budget = ring_budget(world.local_size)
    val = build_evaluation_loader(
        labels["val"],
        batch_size=min(batch_size, MAX_VAL_BATCH_SIZE),
        image_size=image_size,
        stride=val_stride or stride,
        letterbox=letterbox,
        workers=workers,
        device=world.device,
        images=images["val"],
        rank=world.rank,
        size=world.size,
        ring_bytes=budget // 2,
        say=lambda line: say(f"validation: {line}"),
    )
    train = build_train_loader(
        labels["train"],
        batch_size=batch_size,
        image_size=image_size,
        stride=stride,
        augmentation=augmentation,
        seed=seed,
        rect=rect,
        mosaic_until=mosaic_until,
        transforms=transforms,
        workers=workers,
        device=world.device,
        images=images["train"],
        rank=world.rank,
        size=world.size,
        ring_bytes=budget - val.ring_bytes,
        draws=draws,
        say=say,
    )
    return Loaders(train, val)


def build_train_loader(
    labels: Labels,
    *,
    batch_size: int,
    image_size: int,
    stride: int,
    augmentation: Augmentation,
    seed: int,
    rect: bool = False,
    mosaic_until: int = 2**31,
    transforms: Transforms | None = None,
    workers: int = 0,
    device: torch.device = CPU,
    images: Images | None = None,
    rank: int = 0,
    size: int = 1,
    ring_bytes: int | None = None,
    draws: Draws | None = None,
    say: Say = say_nothing,
) -> Loader[TrainSampler]:
    """Return the loader of this process's share of the training batches.

    Set the epoch, its first batch and the image weights on the loader's sampler.

    Args:
        labels: of images, or of tiles; then each sample is a tile, cut at a random position.
        batch_size: the total over all processes.
        image_size: side of the canvases in pixels, the long one if they are rectangular.
        stride: sides of rectangular canvases are multiples of it.
        augmentation: the strengths of the augmentation.
        seed: of all random numbers.
        rect: group samples of similar aspect ratio into batches, without mosaic, instead of square
            canvases.
        mosaic_until: the first epoch without mosaic, mixup and copy-paste.
        transforms: the user's own, applied last; tried here on canvases of extreme shapes.
        workers: number of worker processes; with 0 this process draws.
        device: where the batches go.
        images: base images, of whole images, read from their files by default.
        rank: number of this process.
        size: number of processes.
        ring_bytes: as in Loader.
        draws: how often each sample is drawn in an epoch, as one of its own and as a part of a
            mosaic or mixup; None: once.
        say: as in Loader.

    Raises ValueError as TrainSampler and `Transforms.check` do.
    """
    shapes = CanvasShapes(image_size, stride) if rect else None
    ratios = labels.sizes[:, 1] / labels.sizes[:, 0]
    if transforms is not None:
        transforms.check(_extreme_canvases(image_size, shapes, ratios))

    sampler = TrainSampler(
        ratios,
        batch_size=batch_size,
        image_size=image_size,
        seed=seed,
        rank=rank,
        size=size,
        shapes=shapes,
        mosaic_until=mosaic_until,
        draws=draws,
    )

    samples = _train_samples(
        labels, image_size, augmentation, seed, images, transforms=transforms, draws=draws
    )
    return Loader(samples, sampler, workers=workers, device=device, ring_bytes=ring_bytes, say=say)


def _extreme_canvases(
    image_size: int, shapes: CanvasShapes | None, ratios: NDArray[np.float64]
) -> list[tuple[int, int]]:
    """Return the (height, width) of the lowest and the narrowest canvas, or of the square ones."""
    if shapes is None:
        return [(image_size, image_size)]
    extremes = ratios[[ratios.argmin(), ratios.argmax()]]
    return [shapes.shape(ratio[None]) for ratio in extremes]


def _train_samples(
    labels: Labels,
    image_size: int,
    augmentation: Augmentation,
    seed: int,
    images: Images | None,
    transforms: Transforms | None = None,
    draws: Draws | None = None,
) -> Samples:
    """Return the augmented samples: of tiles if the labels are those of tiles.

    The arguments are those of `build_train_loader`.
    """
    planner: Planner
    if isinstance(labels, TiledLabels):
        planner = TilePlanner(labels, image_size, augmentation, seed, draws)
    else:
        planner = Planner(labels, image_size, augmentation, seed, draws)
    return Samples(planner, images, augment=True, transforms=transforms)


def trial_drawing(
    labels: Labels,
    images: Images,
    image_size: int,
    augmentation: Augmentation,
    *,
    rect: bool,
) -> Callable[[int], Tensor] | None:
    """Return draw(count), which draws a training batch on the device, to measure its memory.

    None if the CPU draws. The batch is uint8 [count, image_size, image_size, 3].

    Args:
        labels: of the training split.
        images: its base images.
        image_size: side of the canvases in pixels, the long one if they are rectangular.
        augmentation: the strengths of the augmentation.
        rect: whether there is no mosaic.
    """
    if not isinstance(images, DeviceImages):
        return None
    samples = _train_samples(labels, image_size, augmentation, 0, images)

    def draw(count: int) -> Tensor:
        keys = []
        for number in range(count):
            repeat, index = divmod(number, len(labels))
            key = Key(0, index, image_size, image_size, mosaic=not rect, repeat=repeat)
            keys.append(key)
        return samples.draw_on_device(keys)

    return draw


def build_evaluation_loader(
    labels: Labels,
    *,
    batch_size: int,
    image_size: int,
    stride: int,
    letterbox: Letterbox,
    canvas: tuple[int, int] | None = None,
    workers: int = 0,
    device: torch.device = CPU,
    images: Images | None = None,
    rank: int = 0,
    size: int = 1,
    ring_bytes: int | None = None,
    say: Say = say_nothing,
) -> Loader[EvaluationSampler]:
    """Return a loader of every image once, letterboxed to its own shape.

    Each process gets whole batches.

    Args:
        labels: of images, or of tiles.
        batch_size: the number of samples in each batch of a process.
        image_size: long side of the canvases in pixels, rounded up to a multiple of the stride.
        stride: sides of the canvases are multiples of it.
        letterbox: where the images lie on the canvases: a property of the model.
        canvas: the (height, width) of all batches instead, for a model that takes no other.
        workers: number of worker processes; with 0 this process draws.
        device: where the batches go.
        images: base images, read from their files by default.
        rank: number of this process.
        size: number of processes.
        ring_bytes: as in Loader.
        say: as in Loader.
    """
    shapes = canvas_shapes(image_size, stride, canvas)
    ratios = labels.sizes[:, 1] / labels.sizes[:, 0]
    sampler = EvaluationSampler(ratios, batch_size=batch_size, shapes=shapes, rank=rank, size=size)
    planner = Planner(
        labels, shapes.image_size, Augmentation(), 0, letterbox=letterbox, canvas=canvas
    )
    samples = Samples(planner, images, augment=False)
    return Loader(samples, sampler, workers=workers, device=device, ring_bytes=ring_bytes, say=say)
