"""A model's detections on a split, gathered from all processes, and their metrics."""

import time
from collections.abc import Callable, Sequence
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
from models.tables.entries import without_distillation
from models.tiled import merge_rows
from models.weights.kestrel import load_detector
from training.checkpoints.manager import CheckpointManager
from training.checkpoints.preemption import InterruptedRunError
from utils.distributed.devices import wait_for
from utils.distributed.host_copies import to_device
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.metrics.coco import evaluate_boxes
from utils.metrics.curves import operating_curves
from utils.metrics.evaluation import Evaluation
from utils.metrics.records import Detections
from utils.progress_bar import ProgressBar

TIMED_PARTS = ("model", "postprocess")  # of the time for an image, besides loading


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
        image_ids = self.labels.image_ids
        class_ids = np.arange(len(self.labels.category_ids))
        coco = evaluate_boxes(truth, self.detections, image_ids=image_ids, class_ids=class_ids)
        curves = operating_curves(truth, self.detections, image_ids=image_ids, class_ids=class_ids)
        return Evaluation(
            images=len(self.labels),
            coco=coco,
            curves=curves,
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
    class_ids: Sequence[int] | None = None,
    unlabeled: int = 0,
    title: str = "val",
    active: bool = True,
    interrupted: Callable[[], bool] | None = None,
) -> SplitPredictions:
    """Return the detections of `model` on every image of `loader`, from all processes.

    If the loader loads tiles, their detections are merged to those of whole images.

    Args:
        criterion: also compute its losses; not for an exported model, or for several.
        confidence: lowest score of a detection.
        iou: NMS IoU threshold, unless the model has its own.
        max_detections: how many to keep per image, over all classes.
        class_ids: the model's classes that are those of the labels, ascending; None: all. The
            others are detected as well, and then removed, so that the AP of a class is the same.
        unlabeled: how many of the first classes have no labels in these data, though there may be
            objects. Their detections are removed as well.
        title: of the progress bar.
        active: whether the bar is shown.
        interrupted: called before each batch; whether to stop.

    Raises InterruptedRunError, on all processes, if `interrupted` becomes true on one of them.
    """
    backend = model if isinstance(model, Backend) else TorchBackend(model)
    terms = criterion.validation_terms if criterion else ()

    # Each starts with no rows, for a process without images.
    rows = [np.zeros((0, 7))]  # a row per detection: see ImageDetections.rows
    clock: list[list[float]] = []  # a row per batch: images, seconds of the model, of the rest
    losses = [torch.zeros(0, len(terms), device=world.device)]  # a row per batch
    sizes = [torch.zeros(0, 2, dtype=torch.float64)]  # a row per batch: its number, images

    batches = ProgressBar(loader, total=len(loader), title=title, active=active)
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

        placements = [batch.placement_of(i) for i in range(len(images))]
        image_sizes = loader.labels.sizes[batch.indices.numpy()].tolist()
        by_image = detections_in_images(
            predicted.boxes_xyxy,
            predicted.scores,
            placements,
            image_sizes,
            confidence=confidence,
            iou=backend.nms_iou(iou),
            max_detections=max_detections,
        )
        for index, detections in zip(batch.indices.tolist(), by_image, strict=True):
            rows.append(detections.rows(index))
        clock.append([len(images), forward_done - started, time.perf_counter() - forward_done])

    # All processes stop if one was interrupted.
    if interrupted is not None:
        own = torch.tensor([interrupted()])
        if world.all_gather_rows(own).any():
            raise InterruptedRunError

    # From all processes: the detections, the mean losses, and the times.
    gathered = world.all_gather_rows(torch.from_numpy(np.concatenate(rows))).numpy()
    if isinstance(loader.labels, TiledLabels):
        layout = loader.labels.layout()
        gathered = merge_rows(gathered, world, **layout, iou=iou, max_detections=max_detections)
    labeled = gathered[gathered[:, 1] >= unlabeled]
    means = _mean_losses(torch.cat(losses), torch.cat(sizes), len(loader.labels), world)
    milliseconds = _times_per_image(clock, batches.waited, len(loader.labels), world)
    return SplitPredictions(
        loader.labels.whole,
        _as_detections(_of_classes(labeled, class_ids), loader.labels.whole),
        dict(zip(terms, means, strict=True)),
        milliseconds,
    )


def _mean_losses(losses: Tensor, sizes: Tensor, images: int, world: World) -> list[float]:
    """Return the mean of each term over all images of the split.

    losses: a row of terms per batch. sizes: [batches, 2], number and images of each batch. images:
    of the split.
    """
    numbers, images_in = sizes.split(1, 1)  # [batches, 1] each
    own_sums = losses.cpu().double() * images_in
    by_batch = world.all_gather_rows(torch.cat([numbers, own_sums], 1))

    # Added one by one in the order of the batches, so that any number of ranks has the same bits.
    in_order = by_batch[by_batch[:, 0].argsort(), 1:]
    total = sum(in_order, torch.zeros(losses.shape[1]))
    means: list[float] = (total / images).tolist()
    return means


def _times_per_image(
    clock: list[list[float]], waited: float, images: int, world: World
) -> dict[str, float]:
    """Return milliseconds per image for loading and each of TIMED_PARTS, over all processes.

    clock: a row per batch: number of images, seconds of each part. waited: seconds of this process
    for data. images: of the split.
    """
    # The first batch of a process also loads kernels; it counts only if it is the only one.
    warm = torch.tensor(clock[1:] or clock, dtype=torch.float64).view(-1, 3)
    timed_images, *seconds = world.all_gather_rows(warm).sum(0).tolist()
    waited_by_all = world.all_gather_rows(torch.tensor([[waited]])).sum().item()

    milliseconds = {"load": waited_by_all / images * 1000}
    for part, part_seconds in zip(TIMED_PARTS, seconds, strict=True):
        milliseconds[part] = 1000 * part_seconds / timed_images
    return milliseconds


def evaluate_split(
    model: Detector | Backend, loader: Loader[EvaluationSampler], world: World, **options: Any
) -> Evaluation:
    """Return the metrics of `model` on all images of `loader`. options: of `predict_split`."""
    return predict_split(model, loader, world, **options).evaluate()


def _of_classes(rows: NDArray[np.float64], class_ids: Sequence[int] | None) -> NDArray[np.float64]:
    """Return the rows of these classes, which become 0, 1, ...; all rows for None.

    rows: [D, 7], see ImageDetections.rows. class_ids: ascending.
    """
    if class_ids is None:
        return rows
    chosen = rows[np.isin(rows[:, 1], class_ids)]
    chosen[:, 1] = np.searchsorted(class_ids, chosen[:, 1])
    return chosen


def _as_detections(rows: NDArray[np.float64], labels: Labels) -> Detections:
    """Return detections sorted by image id, in one order for any number of processes.

    rows: [D, 7], see ImageDetections.rows. labels: of whole images.
    """
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
    unlabeled: int = 0,
    active: bool,
) -> tuple[Evaluation, int]:
    """Return the evaluation of best.pt, the same as by val.py, and its epoch, counted from 1.

    table: the model's. unlabeled: as for `predict_split`. active: whether a progress bar is shown.
    """
    # Rank 0 reads the weights, and the others receive them: other machines may have no access to
    # the folder.
    epoch = 0
    if world.is_main:
        model, saved = load_detector(checkpoints.best)
        epoch = checkpoint_file.epoch_of(saved)
    else:
        model = Detector(without_distillation(table))
    model.to(memory_format=torch.channels_last).to(world.device)
    world.wait_for_main()
    world.broadcast_([*model.parameters(), *model.buffers()])

    with checkpoints.interruptible(saved=True) as interrupted:
        result = evaluate_split(
            model,
            loader,
            world,
            unlabeled=unlabeled,
            title="best",
            active=active,
            interrupted=interrupted,
        )
    return result, epoch
