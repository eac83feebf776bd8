"""A model's detections on a split, gathered from all processes, and their metrics."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data import Loader
from data.labels import Labels
from data.sampler import EvaluationSampler
from data.tiles.labels import TiledLabels
from models import Detector
from models.assign.targets import pad_targets
from models.backends import Backend
from models.backends.in_torch import TorchBackend
from models.losses import Loss
from models.predict import detections_in_images
from models.tiled import merge_rows
from models.weights.kestrel import load_detector
from training.checkpoints.manager import CheckpointManager
from training.checkpoints.preemption import InterruptedRunError
from utils.distributed.devices import wait_for
from utils.distributed.host_copies import to_device
from utils.distributed.world import World
from utils.metrics.coco import evaluate_boxes
from utils.metrics.curves import operating_curves
from utils.metrics.evaluation import Evaluation
from utils.metrics.records import Detections
from utils.progress import Progress

PARTS = ("model", "postprocess")  # of the time for an image


@dataclass(frozen=True)
class SplitPredictions:
    """A model's detections on all images of a split, the same on all ranks."""

    labels: Labels
    detections: Detections
    losses: dict[str, float]
    milliseconds: dict[str, float]  # per image

    def evaluate(self) -> Evaluation:
        """Return the metrics of these detections."""
        truth = self.labels.ground_truth()
        class_ids = np.arange(len(self.labels.category_ids))
        ids = {"image_ids": self.labels.image_ids, "class_ids": class_ids}
        return Evaluation(
            images=len(self.labels),
            coco=evaluate_boxes(truth, self.detections, **ids),
            curves=operating_curves(truth, self.detections, **ids),
            truth=truth,
            detections=self.detections,
            losses=self.losses,
            milliseconds=self.milliseconds,
        )


@torch.inference_mode()
def predict_split(
    model: Detector | Backend,
    loader: Loader[EvaluationSampler],
    world: World,
    *,
    criterion: Loss | None = None,
    confidence: float = 0.001,
    iou: float = 0.6,
    max_detections: int = 300,
    title: str = "val",
    active: bool = True,
    interrupted: Callable[[], bool] | None = None,
) -> SplitPredictions:
    """Return the detections of `model` on every image of `loader`, from all processes.

    If it loads tiles, the detections of the tiles are merged.

    Args:
        criterion: also compute the losses, of a model that is not exported or combined.
        confidence: lowest score of a detection.
        iou: NMS IoU threshold, unless the model has its own.
        max_detections: kept per image, over all classes.
        title, active: of the progress bar, and whether it is shown.
        interrupted: asked before each batch.

    Raises InterruptedRunError, on all processes, if `interrupted` becomes true on one of them.
    """
    backend = model if isinstance(model, Backend) else TorchBackend(model)
    terms = criterion.terms if criterion else ()
    rows = [np.zeros((0, 7))]
    clock: list[list[float]] = []  # a row per batch: images, seconds of the model, of the rest
    losses = [torch.zeros(0, len(terms), device=world.device)]
    sizes = [torch.zeros(0, 2, dtype=torch.float64)]  # a row per batch: its number, images

    batches = Progress(loader, total=len(loader), title=title, active=active)
    for number, batch in zip(loader.sampler.numbers, batches, strict=True):
        if interrupted is not None and interrupted():
            break

        started = time.perf_counter()
        images = to_device(batch.images, world.device, backend.dtype)
        predicted = backend.predict(images, confidence)
        wait_for(world.device)
        forward_done = time.perf_counter()

        if criterion is not None:
            batch_losses = criterion(predicted.raw, pad_targets(batch.targets))
            # The host reads them at the end.
            losses.append(torch.stack([batch_losses[name] for name in terms])[None])
            sizes.append(torch.tensor([[number, len(images)]], dtype=torch.float64))

        in_images = detections_in_images(
            predicted.boxes_xyxy,
            predicted.scores,
            [batch.placement_of(i) for i in range(len(images))],
            loader.labels.sizes[batch.indices.numpy()].tolist(),
            confidence=confidence,
            iou=backend.nms_iou(iou),
            max_detections=max_detections,
        )
        for index, found in zip(batch.indices.tolist(), in_images, strict=True):
            rows.append(found.rows(index))
        clock.append([len(images), forward_done - started, time.perf_counter() - forward_done])

    if interrupted is not None:
        own = torch.tensor([interrupted()])
        if world.all_gather_rows(own).any():
            raise InterruptedRunError

    gathered = world.all_gather_rows(torch.from_numpy(np.concatenate(rows))).numpy()
    if isinstance(loader.labels, TiledLabels):
        limits: dict[str, Any] = {"iou": iou, "max_detections": max_detections}
        gathered = merge_rows(gathered, world, **loader.labels.layout(), **limits)

    means = _mean_losses(torch.cat(losses), torch.cat(sizes), len(loader.labels), world)
    milliseconds = _times_per_image(clock, batches.waited, len(loader.labels), world)
    return SplitPredictions(
        loader.labels.whole,
        _as_detections(gathered, loader.labels.whole),
        dict(zip(terms, means, strict=True)),
        milliseconds,
    )


def _mean_losses(losses: Tensor, sizes: Tensor, images: int, world: World) -> list[float]:
    """Return the mean of each term over all images of the split.

    losses: a row of terms per batch. sizes: [batches, 2], number and images of each batch. The
    batches are added in the order of their numbers, the same for any number of ranks.
    """
    numbers, images_in = sizes.split(1, 1)
    sums_of_own = losses.cpu().double() * images_in
    by_batch = world.all_gather_rows(torch.cat([numbers, sums_of_own], 1))
    in_order = by_batch[by_batch[:, 0].argsort(), 1:]
    total = sum(in_order, torch.zeros(losses.shape[1]))
    means: list[float] = (total / images).tolist()
    return means


def _times_per_image(
    clock: list[list[float]], waited: float, images: int, world: World
) -> dict[str, float]:
    """Return milliseconds per image: loading, and the PARTS. waited: seconds for data."""
    warm = torch.tensor(clock[1:] or clock, dtype=torch.float64).view(-1, 3)  # without the first
    timed, *seconds = world.all_gather_rows(warm).sum(0).tolist()
    waited_by_all = world.all_gather_rows(torch.tensor([[waited]])).sum().item()

    milliseconds = {"load": waited_by_all / images * 1000}
    for part, part_seconds in zip(PARTS, seconds, strict=True):
        milliseconds[part] = 1000 * part_seconds / timed
    return milliseconds


def evaluate_split(
    model: Detector | Backend, loader: Loader[EvaluationSampler], world: World, **options: Any
) -> Evaluation:
    """Return the metrics of `model` on all images of `loader`. options: of `predict_split`."""
    return predict_split(model, loader, world, **options).evaluate()


def _as_detections(rows: NDArray[np.float64], labels: Labels) -> Detections:
    """Return detections sorted by image id, in one order for any number of processes."""
    image_ids = labels.image_ids[rows[:, 0].astype(np.int64)]
    order = np.argsort(image_ids, kind="stable")
    rows = rows[order]
    return Detections(image_ids[order], rows[:, 1].astype(np.int64), rows[:, 2:6], rows[:, 6])


def evaluate_best(
    checkpoints: CheckpointManager,
    table: dict[str, Any],
    loader: Loader[EvaluationSampler],
    world: World,
    *,
    active: bool,
) -> tuple[Evaluation, int]:
    """Return the evaluation of best.pt, the same as by val.py, and its epoch, counted from 1.

    table: of the model. active: whether a progress bar is shown.
    """
    model = Detector(table)
    epoch = 0
    if world.is_main:  # other machines may have no access to the folder
        model, saved = load_detector(checkpoints.best)
        epoch = saved["epoch"]
    model.to(memory_format=torch.channels_last).to(world.device)
    world.wait_for_main()
    world.broadcast_([*model.parameters(), *model.buffers()])

    with checkpoints.interruptible(saved=True) as interrupted:
        result = evaluate_split(
            model, loader, world, title="best", active=active, interrupted=interrupted
        )
    return result, epoch
