"""The loaders of a run: labels and base images -> this process's share of the batches."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from data.augment import Augmentation, Planner, Reader
from data.cache import DeviceImages
from data.labels import Labels
from data.loader import Loader, Samples
from data.sampler import EvaluationSampler, Key, TrainSampler
from data.tiles import TiledLabels, TilePlanner
from utils.distributed.devices import loader_workers
from utils.distributed.memory import ring_budget
from utils.distributed.world import World
from utils.images.letterbox import CanvasShapes, canvas_shapes

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
    say: Callable[[str], None] = lambda _: None,
) -> Loaders:
    """Return the loaders of the "train" and "val" labels.

    batch_size is the total over all processes.

    workers: max DataLoader workers per process. say: receives a log line if memory allows fewer.
    The other arguments are those of `build_train_loader`.
    """
    workers = loader_workers(workers, batch_size // world.size, world.device, world.local_size)
    shared: dict[str, Any] = {"image_size": image_size, "stride": stride, "workers": workers}
    shared |= {"device": world.device, "rank": world.rank, "size": world.size}

    # Both loaders share the memory for prepared batches; validation batches are the smaller ones.
    budget = ring_budget(world.local_size)
    val = build_evaluation_loader(
        labels["val"],
        batch_size=min(batch_size, MAX_VAL_BATCH_SIZE),
        images=images["val"],
        ring_bytes=budget // 2,
        say=lambda line: say(f"validation: {line}"),
        **shared,
    )
    train = build_train_loader(
        labels["train"],
        batch_size=batch_size,
        augmentation=augmentation,
        seed=seed,
        rect=rect,
        mosaic_until=mosaic_until,
        images=images["train"],
        ring_bytes=budget - val.ring_bytes,
        say=say,
        **shared,
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
    workers: int = 0,
    device: torch.device = CPU,
    images: Images | None = None,
    rank: int = 0,
    size: int = 1,
    ring_bytes: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Loader[TrainSampler]:
    """Return the loader of this process's share of the training batches.

    batch_size is the total over all processes.

    labels: of images, or of tiles; then each sample is a tile, cut at a random position. rect:
    group samples of similar aspect ratio into batches, without mosaic, instead of square canvases.
    mosaic_until: the first epoch without mosaic, mixup and copy-paste. images: base images, of
    whole images, read from their files by default. ring_bytes, say: as Loader. Set the epoch, its
    first batch and the image weights on the loader's sampler. Raises ValueError as TrainSampler
    does.
    """
    ratios = labels.sizes[:, 1] / labels.sizes[:, 0]
    sampler = TrainSampler(
        ratios,
        batch_size=batch_size,
        image_size=image_size,
        seed=seed,
        rank=rank,
        size=size,
        shapes=CanvasShapes(image_size, stride) if rect else None,
        mosaic_until=mosaic_until,
    )
    samples = _train_samples(labels, image_size, augmentation, seed, images)
    return Loader(samples, sampler, workers=workers, device=device, ring_bytes=ring_bytes, say=say)


def _train_samples(
    labels: Labels,
    image_size: int,
    augmentation: Augmentation,
    seed: int,
    images: Images | None,
) -> Samples:
    planner = (
        TilePlanner(labels, image_size, augmentation, seed)
        if isinstance(labels, TiledLabels)
        else Planner(labels, image_size, augmentation, seed)
    )
    return Samples(planner, images, augment=True)


def trial_drawing(
    labels: Labels,
    images: Images,
    image_size: int,
    augmentation: Augmentation,
    *,
    rect: bool,
) -> Callable[[int], Tensor] | None:
    """Return draw(count), which draws a training batch on the device, to measure its memory.

    It is None if the CPU draws.

    The batch is uint8 [count, image_size, image_size, 3]. The arguments are those of
    `build_loaders`.
    """
    if not isinstance(images, DeviceImages):
        return None
    samples = _train_samples(labels, image_size, augmentation, 0, images)

    def draw(count: int) -> Tensor:
        keys = [
            Key(
                0,
                number % len(labels),
                image_size,
                image_size,
                mosaic=not rect,
                repeat=number // len(labels),
            )
            for number in range(count)
        ]
        return samples.draw_on_device(keys)

    return draw


def build_evaluation_loader(
    labels: Labels,
    *,
    batch_size: int,
    image_size: int,
    stride: int,
    canvas: tuple[int, int] | None = None,
    workers: int = 0,
    device: torch.device = CPU,
    images: Images | None = None,
    rank: int = 0,
    size: int = 1,
    ring_bytes: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Loader[EvaluationSampler]:
    """Return a loader of every image once, letterboxed to its own shape.

    Each process gets whole batches.

    canvas: the (height, width) of all batches instead, for a model that takes no other. ring_bytes,
    say: as Loader.
    """
    shapes = canvas_shapes(image_size, stride, canvas)
    ratios = labels.sizes[:, 1] / labels.sizes[:, 0]
    sampler = EvaluationSampler(ratios, batch_size=batch_size, shapes=shapes, rank=rank, size=size)
    samples = Samples(Planner(labels, shapes.image_size, Augmentation(), 0), images, augment=False)
    return Loader(samples, sampler, workers=workers, device=device, ring_bytes=ring_bytes, say=say)
