"""Files to batches: labels, augmentation plans, drawing, sampling, loading."""

import torch

from data.augment import Augmentation, Planner
from data.base_images import Reader
from data.cache import DeviceImages
from data.labels import Labels
from data.loader import Loader, Samples
from data.sampler import BatchShapes, EvaluationSampler, TrainSampler

CPU = torch.device("cpu")

__all__ = ["Augmentation", "Loader", "build_evaluation_loader", "build_train_loader"]


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
    images: Reader | DeviceImages | None = None,
    rank: int = 0,
    size: int = 1,
) -> Loader[TrainSampler]:
    """Batches to train on, this process's share. batch_size is the total over `size` processes.

    rect: batches of images of like shape, without mosaic, instead of square canvases. mosaic_until: the first epoch
    without mosaic, mixup and copy-paste. images: base images, by default from their files. The loader's sampler takes
    what changes as training goes on: the epoch, its first batch and the weights of the images. Raises ValueError as
    TrainSampler does.
    """
    ratios = labels.sizes[:, 1] / labels.sizes[:, 0]
    sampler = TrainSampler(
        ratios,
        batch_size=batch_size,
        image_size=image_size,
        seed=seed,
        rank=rank,
        size=size,
        shapes=BatchShapes(image_size, stride) if rect else None,
        mosaic_until=mosaic_until,
    )
    samples = Samples(Planner(labels, image_size, augmentation, seed), images, augment=True)
    return Loader(samples, sampler, workers=workers, device=device)


def build_evaluation_loader(
    labels: Labels,
    *,
    batch_size: int,
    image_size: int,
    stride: int,
    pad: float = 0.5,
    workers: int = 0,
    device: torch.device = CPU,
    images: Reader | DeviceImages | None = None,
    rank: int = 0,
    size: int = 1,
) -> Loader[EvaluationSampler]:
    """Every image once, letterboxed on the canvas of its own shape; this process's whole batches."""
    shapes = BatchShapes(image_size, stride, pad)
    ratios = labels.sizes[:, 1] / labels.sizes[:, 0]
    sampler = EvaluationSampler(ratios, batch_size=batch_size, shapes=shapes, rank=rank, size=size)
    samples = Samples(Planner(labels, image_size, Augmentation(), 0), images, augment=False)
    return Loader(samples, sampler, workers=workers, device=device)
