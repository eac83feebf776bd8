"""Train a YOLO detector.

    # yolov5n from scratch on generated shapes
    python train.py

    # your data; --batch is the total over all processes
    python train.py --data mydata.yaml --cfg yolov5s.yaml --img 640 --batch 16

    # fine-tune
    python train.py --data mydata.yaml --weights runs/train/exp/weights/best.pt

    # continue the newest run
    python train.py --resume

    # a process for each GPU; or started by this script
    python -m torch.distributed.run --nproc_per_node 2 train.py --device 0,1
    python train.py --device 0,1 --spawn

    # one process for both GPUs: slower
    python train.py --device 0,1

Several processes give the same training as one.
"""

if __name__ == "__main__":
    from utils.startup import prepare_script

    # from here on Ctrl-C prints "interrupted" and no traceback, even during imports
    prepare_script()

import gc
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp
from utils.distributed.launch import Launch, read_launch, spawn
from utils.flags import FlagParser, check_command_line
from utils.yolov5_flags import NOT_IN_TRAIN, hints_for_train


def parse_args(arguments: Sequence[str] | None = None) -> tuple[TrainConfig, Launch]:
    parser = FlagParser(__doc__, argument_default=SUPPRESS, defaults=TrainConfig().as_dict())
    add = parser.add_argument
    add("--weights", help="checkpoint to fine-tune from; '' trains from scratch")
    add(
        "--cfg",
        help="model, for example yolov5s.yaml (default: the checkpoint's, else yolov5n.yaml)",
    )
    add("--data", help="data set YAML, as a path or a name in data/")
    add(
        "--download",
        action="store_true",
        help="download the data set, and weights of models/pretrained.yaml",
    )
    add(
        "--hyp",
        help="hyper-parameter YAML, as a path or a name in data/hyps/; auto: chosen from the data",
    )
    add("--epochs", type=int, help="passes over the training images")
    add(
        "--batch-size",
        "--batch",
        type=int,
        help="total batch size (8 in very short runs); -1: largest that fits",
    )
    add(
        "--imgsz",
        "--img",
        "--img-size",
        type=int,
        help="image size in pixels, for training and validation",
    )
    add(
        "--tile",
        type=int,
        help="train on tiles of this side, in pixels, resized to --imgsz; 0: on whole images",
    )
    add(
        "--tile-overlap",
        type=float,
        help="minimum overlap of neighboring tiles, as a fraction of their side",
    )
    add(
        "--rect",
        action="store_true",
        help="rectangular batches of images of similar shape; no mosaic",
    )
    add(
        "--resume",
        nargs="?",
        const="newest",
        help="resume a run: its folder or last.pt, or the newest run",
    )
    add(
        "--nosave",
        action="store_true",
        help="save only at the end, and on a signal such as SIGTERM",
    )
    add("--noval", action="store_true", help="validate only at the end")
    add("--val-period", type=int, help="validate every N epochs, and at the end")
    add("--noautoanchor", action="store_true", help="do not fit the anchors to the data")
    add("--noplots", action="store_true", help="draw no pictures")
    add(
        "--multi-scale",
        action="store_true",
        help="vary the image size by up to 50%% from batch to batch",
    )
    add("--single-cls", action="store_true", help="treat all classes as one class")
    add("--optimizer", help="SGD, Adam, AdamW, Muon or auto")
    add("--workers", type=int, help="max DataLoader workers per process")
    add(
        "--image-weights",
        action="store_true",
        help="sample rare classes and those with low AP more often",
    )
    add("--sync-bn", action="store_true", help="synchronize BatchNorm over all processes")
    add("--shard", action="store_true", help="experimental: shard weights and optimizer state")
    add(
        "--checkpoint-activations",
        action="store_true",
        help="activation checkpointing: less memory, slower",
    )
    add("--project", help="folder for run folders")
    add("--name", help="the run folder's name; a number is added if it is taken")
    add("--exist-ok", action="store_true", help="use an existing run folder")
    add("--cos-lr", action="store_true", help="cosine learning-rate schedule instead of linear")
    add("--label-smoothing", type=float, help="label smoothing epsilon")
    add("--patience", type=int, help="early stopping: epochs without improvement; 0: never")
    add(
        "--freeze",
        nargs="+",
        type=int,
        help="layers to freeze: N for the first N, or layer numbers",
    )
    add("--save-period", type=int, help="keep a checkpoint every N epochs; -1: none")
    add("--save-minutes", type=float, help="also save every N minutes; 0: only after epochs")
    add("--seed", type=int, help="random seed of weights, sample order and augmentation")
    add("--amp", help="precision: auto, fp32, bf16, fp16 (mixed) or fp64")
    add(
        "--compile",
        nargs="?",
        const="default",
        help="torch.compile: default, reduce-overhead, max-autotune, off",
    )
    add(
        "--close-mosaic",
        type=int,
        help="turn off mosaic, mixup and copy-paste for the last N epochs",
    )
    add(
        "--cache", nargs="?", const="ram", help="cache decoded images: auto, ram, disk, device, off"
    )
    add(
        "--cache-dir", help="folder for cached labels and images (default: the user's cache folder)"
    )
    parser.refuse(NOT_IN_TRAIN)
    parser.hint(hints_for_train(Hyp().as_dict()))
    launch, given = read_launch(parser, arguments)
    if "freeze" in given:
        given["freeze"] = tuple(given["freeze"])
    return TrainConfig(**given, given=frozenset(given)), launch


if __name__ == "__main__":
    check_command_line(parse_args)  # before the slow imports below
    gc.disable()  # garbage collection would take a fifth of the import time

import torch
from torch import Tensor

from data import Loader, build_loaders, open_dataset, trial_drawing
from data.balance import weights_after
from data.cache import open_images
from data.labels import Labels
from data.multi_scale import MultiScale
from data.sampler import TrainSampler
from data.splits import Dataset, find_data, find_hyp
from models import Detector
from models.assign.targets import pad_targets
from models.heads.registry import build_loss
from models.losses import Loss, LossGains
from models.losses.compiled import compile_loss
from models.weights.kestrel import detector_for_state
from training.batch_size.autobatch import memory_advice
from training.batch_size.global_batch import GlobalBatch
from training.batch_size.trial_step import measure_batch
from training.checkpoints.manager import CheckpointManager
from training.evaluation import evaluate_best, predict_split
from training.freezing import freeze, set_training
from training.nonfinite import (
    NonFiniteError,
    describe_skipped,
    describe_stuck,
    nan_if_nonfinite,
    refuse_mostly_skipped,
)
from training.result_pictures import draw_results
from training.run import Run, open_run
from training.start import check_model, place_model, start_model
from training.state import TrainState, build_train_state
from training.validation import EpochValidation
from utils.distributed.devices import processes_for, tuned_convolutions
from utils.distributed.host_copies import AsyncHostCopy, to_device
from utils.distributed.memory import memory_gib
from utils.distributed.modes import agree_on_precision, describe_mode
from utils.distributed.precision import weights_dtype
from utils.distributed.session import distributed_session
from utils.distributed.torch_compile import compile_model, mode_without_reuse
from utils.distributed.world import World
from utils.images.letterbox import fit_to_stride, round_up_to_stride
from utils.log import RunEnded, RunLog, RunStarted, Say
from utils.metrics.evaluation import Evaluation, class_table
from utils.plots.pictures import Pictures
from utils.printable import counted
from utils.progress import Progress
from utils.terminal import run_and_exit

FETCH_EVERY = 20  # batches between copies of the losses from a GPU to the host


def main(cfg: TrainConfig, world: World) -> Evaluation:
    """Train with the settings in cfg; return the evaluation of the best checkpoint.

    This is the complete training procedure, from top to bottom. Raises NonFiniteError, after
    everything is written, if most optimizer steps were skipped.
    """
    log = RunLog(active=world.is_main)
    run = open_run(
        cfg, world, log.say, find_hyp=find_hyp, find_data=find_data, check_model=check_model
    )
    cfg, batch = run.config, GlobalBatch(run.config.batch_size, world.size)
    torch.manual_seed(cfg.seed)  # every rank starts from the same weights

    # Data, model, loss
    data = open_dataset(cfg.data, ("train", "val"), world, log.say, **cfg.reading())
    train_labels = data.read("train", log.say)
    data.read("val", log.say)
    model, cfg = open_model(run, data, world, log.say)  # chooses "auto" settings
    batch = replace(batch, size=cfg.batch_size, nominal=run.hyp.nominal_batch)
    model.recompute = cfg.checkpoint_activations
    precision = agree_on_precision(cfg.amp, world, sharded=cfg.shard)
    place_model(model, weights_dtype(precision), world)
    frozen = freeze(model, cfg.freeze)
    image_size = fit_to_stride(cfg.imgsz, max(model.strides), log.say)
    images = open_images(
        data.labels, image_size, world, log.say, pastes=run.hyp.copy_paste > 0, **cfg.caching()
    )
    criterion = build_loss(
        model.head, LossGains(**run.hyp.loss(), label_smoothing=cfg.label_smoothing), log.say
    )
    criterion.to(weights_dtype(precision))
    if batch.size == -1:
        draw = trial_drawing(
            train_labels, images["train"], image_size, run.hyp.augmentation(), rect=cfg.rect
        )
        found = measured(
            run, batch, model, criterion, precision, train_labels, image_size, log.say, draw=draw
        )
        batch = replace(batch, size=found)
    batch = batch.limited_to(len(train_labels), log.say)
    # kept if another number of processes resumes the run
    run.config = cfg = replace(cfg, batch_size=batch.size)

    # This rank's share of each global batch, and the training state
    loaders = build_loaders(
        data.labels,
        images,
        batch.size,
        image_size,
        max(model.strides),
        world,
        run.hyp.augmentation(),
        say=log.say,
        **cfg.loading(),
    )
    set_training(model, frozen)
    state = build_train_state(
        model,
        world,
        batch,
        precision,
        criterion.terms,
        layers=list(model.layers),
        smallest_side=2 * max(model.strides),
        total=loaders.train.sampler.batches_before(cfg.epochs),
        say=log.say,
        **cfg.learning(),
        **run.hyp.learning(),
    )
    if cfg.compile != "off":
        compile_training(state, criterion, loaders.train, cfg.compile, image_size, log.say)
    run.restore(state, images=len(train_labels))
    progress = state.progress

    # The run folder: created only after all checks have passed
    run.open_folder({split: report.as_dict() for split, report in data.reports.items()}, log.say)
    log.send(RunStarted(run.folder, cfg.as_dict(), run.hyp.as_dict(), progress.rows))
    pictures = Pictures(
        run.folder, data.names, active=world.is_main and not cfg.noplots, written=log.image_written
    )
    pictures.labels(train_labels.classes, train_labels.boxes_cxcywh_norm())
    log.say(*describe_mode(world, shard=cfg.shard))
    val_images = counted(len(data.labels["val"]), f"val {data.unit}")
    log.say(
        f"{data.file}, {len(train_labels):,} train and {val_images} at {image_size} px; "
        f"{state.describe(len(loaders.train), cfg.optimizer)}; workers {loaders.train.workers}; "
        f"writing to {run.folder}"
    )
    world.wait_for_main()

    # Train. The detections of a validation are evaluated in the background while the next epoch
    # trains.
    checkpoints = CheckpointManager(
        run.folder, state, run.describe(model.table, data), **cfg.saving()
    )
    detector = partial(
        predict_split, loader=loaders.val, world=world, criterion=criterion, active=log.active
    )
    validation = EpochValidation(checkpoints, detector, log, data.names, **cfg.validating())
    with (
        checkpoints,
        memory_advice(batch.size, image_size, world.device, world.size, max(model.strides)),
    ):
        if progress.pending:
            validation.start(validation.detect())
            validation.wait()
        if run.saved:
            checkpoints.restore_best(log.say, done=progress.finished(cfg.epochs))
        while not progress.finished(cfg.epochs):
            epoch = progress.epoch
            loaders.train.sampler.set_epoch(epoch, progress.batch)
            criterion.start_epoch(epoch, cfg.epochs, closing=epoch >= cfg.epochs - cfg.close_mosaic)
            if cfg.image_weights:
                loaders.train.sampler.weights = weights_after(
                    train_labels, progress.metrics, data.names
                )
            set_training(model, frozen)
            with tuned_convolutions(one_shape=not (cfg.rect or cfg.multi_scale)):
                pace = train_one_epoch(
                    state,
                    loaders.train,
                    criterion,
                    checkpoints,
                    title=f"{epoch + 1}/{cfg.epochs}",
                    scale=MultiScale(cfg.seed, max(model.strides)) if cfg.multi_scale else None,
                    pictures=pictures if epoch == 0 else None,
                )
            validation.wait()
            state.sync_buffers()
            predictions = validation.detect() if validation.is_due(epoch) else None
            progress.end_epoch(
                pace, state.schedule.lr(loaders.train.sampler.batches_before(epoch + 1) - 1)
            )
            validation.start(predictions)
            # The next epoch waits for this evaluation if it depends on the result.
            if not predictions or cfg.image_weights or validation.decides(epoch):
                validation.wait()
            # all ranks hold the same metrics
            checkpoints.after_epoch(done=progress.finished(cfg.epochs))
            if progress.early_stopping.should_stop():
                log.say(f"early stopping: no improvement for {cfg.patience} epochs (--patience)")
        best, best_epoch = evaluate_best(checkpoints, model.table, loaders.val, active=log.active)
    log.table(class_table(best, data.names, verbose=len(data.names) <= 100))
    draw_results(pictures, best, loaders.val)
    log.send(
        RunEnded(
            run.folder,
            run.close_folder({"last": progress.metrics, "best": best.as_dict(data.names)}),
        )
    )
    log.say(
        f"best.pt is from epoch {best_epoch}: mAP50-95 {best.coco.stats['AP']:.4f}; see "
        f"{run.folder}"
    )
    steps = state.steps_between(
        [loaders.train.sampler.batches_before(epoch) for epoch in range(progress.epoch + 1)]
    )
    if skipped := state.guard.state_dict()["skipped"]:
        log.say(describe_skipped(skipped, steps))
    world.wait_for_main()
    refuse_mostly_skipped(skipped, steps, state.schedule.lr0)
    return best


def train_one_epoch(
    state: TrainState[Detector],
    loader: Loader[TrainSampler],
    criterion: Loss,
    checkpoints: CheckpointManager,
    *,
    title: str,
    scale: MultiScale | None = None,
    pictures: Pictures | None = None,
) -> str:
    """Train on one pass over loader, starting at sampler.first_batch; return the speed as text.

    Adds the losses to state.progress. scale: resizes the images. pictures: draws the first batches.
    """
    replica, sampler, world, guard = state.replica, loader.sampler, state.world, state.guard
    epoch_losses = state.progress.losses
    first_step = sampler.batches_before(sampler.epoch)
    closing = state.schedule.step_batches(
        first_step, first_step + sampler.batches_in(sampler.epoch)
    )
    bar = Progress(loader, total=len(loader), title=title, active=world.is_main)
    fetch_every = 1 if world.device.type == "cpu" else FETCH_EVERY
    # so that no step waits for the device to show its losses
    host_sums = AsyncHostCopy(world.device)
    skipped_before, searched_before = guard.skipped, guard.searched
    for number, batch in enumerate(bar, sampler.first_batch):
        step = first_step + number
        state.schedule.apply(state.optimizer, step)
        if pictures is not None:
            pictures.train_batch(number, batch.images, batch.targets)

        images = to_device(
            batch.images, world.device, replica.model.dtype
        )  # [B, 3, H, W], uint8 to [0, 1]
        targets = pad_targets(batch.targets)  # [T, 6]: image, class, x1, y1, x2, y2
        if scale is not None:
            images, targets = scale(step, images, targets)
        # ranks exchange gradients once for each optimizer step
        with replica.gradients(last=step in closing):
            with state.autocast:
                maps = replica(images)
            # {"box": ...}: this rank's share
            losses = criterion(maps, targets, checkpoints.trigger.all_reduce_sum)
            loss = criterion.weighted_sum(losses) * state.batch.loss_scale
            state.scaler.scale(loss).backward(nan_if_nonfinite(loss))
        epoch_losses.add(losses)

        if step in closing:
            state.step()  # clips the gradients; all ranks skip the step if they are not finite
            if guard.stuck:
                images_seen = world.all_gather_rows(batch.indices).tolist()
                where = f"epoch {sampler.epoch + 1}, batch {number + 1}"
                advice = checkpoints.advise_after_nonfinite_steps()
                raise NonFiniteError(
                    describe_stuck(guard, where, advice, images_seen, loader.labels.path)
                )
            checkpoints.after_step(number + 1)
        for sums in host_sums.push(epoch_losses.sums) if number % fetch_every == 0 else ():
            means = [
                f"{name} {value:.4f}" for name, value in epoch_losses.running_means(sums).items()
            ]
            trained = (number + 1 - sampler.first_batch) * sampler.batch_size
            bar.show([*means, *bar.pace_texts(trained, memory_gib(world.device))])
    state.progress.batch = sampler.batches_in(sampler.epoch)
    pace = (
        bar.pace(len(loader) * sampler.batch_size, memory_gib(world.device))
        if len(loader)
        else "already trained"
    )
    skipped = guard.state_dict()["skipped"] - skipped_before
    steps = sum(step >= first_step + sampler.first_batch for step in closing)
    of = f"of {counted(steps, 'optimizer step')}"
    searched = guard.searched - searched_before
    search = f", {searched} {of} set float16's gradient scale" if searched else ""
    return f"{pace}, {skipped} {of} skipped (not finite){search}" if skipped else pace + search


def compile_training(
    state: TrainState[Detector],
    criterion: Loss,
    loader: Loader[TrainSampler],
    mode: str,
    image_size: int,
    say: Say,
) -> None:
    """Compile the model, the loss, and the drawing of images on the device; report each to
    `say`.
    """
    example = torch.zeros(state.batch.per_process, image_size, image_size, 3, dtype=torch.uint8)
    images = to_device(example, state.world.device, state.replica.model.dtype)
    mode = mode_without_reuse(mode, state.batch.accumulate, state.world.device, say)
    say(f"--compile {mode}: compiling takes a minute or more")
    # through DistributedDataParallel, so that all-reduce overlaps backward
    forward = state.replica.without_exchange
    model, world = state.replica.model, state.world
    say(compile_model(model, mode, images, state.autocast, world, forward=forward))
    say(compile_loss(criterion, model, images, state.autocast, world))
    loader.compile(say)


def open_model(run: Run, data: Dataset, world: World, say: Say) -> tuple[Detector, TrainConfig]:
    """Return the model, without the weights of a resumed run, which `run.restore` loads, and the
    settings to use.
    """
    cfg, hyp, trained = run.config, run.hyp, None
    if run.saved:
        model = detector_for_state(
            Path(cfg.resume), run.saved.description.table, run.saved.model, load=False
        )
    else:
        model, trained = start_model(
            cfg.cfg,
            cfg.weights,
            data.names,
            anchors_per_level=round(hyp.anchors),
            box_sizes=lambda stride: data.labels["train"].box_sizes(
                round_up_to_stride(cfg.imgsz, stride)
            ),
            ratio_limit=hyp.anchor_t,
            world=world,
            say=say,
            **cfg.starting(),
        )
    return model, run.fit_to(data, trained, say)


def measured(
    run: Run,
    batch: GlobalBatch,
    model: Detector,
    criterion: Loss,
    precision: torch.dtype,
    labels: Labels,
    image_size: int,
    say: Say,
    *,
    draw: Callable[[int], Tensor] | None,
) -> int:
    """--batch-size -1: the largest batch that fits in memory, by trial steps on images of the most
    pixels and boxes.

    draw: draws a batch on the device, if the run does.
    """
    cfg, world = run.config, run.world

    def compile_mode(images: int) -> str:
        batches_per_step = replace(batch, size=images * world.size).accumulate
        return mode_without_reuse(cfg.compile, batches_per_step, world.device, lambda _: None)

    side = (
        MultiScale.largest_side(image_size, max(model.strides))
        if run.config.multi_scale
        else image_size
    )
    trial: dict[str, Any] = {
        "optimizer": run.config.optimizer,
        "lr": run.hyp.lr0,
        "momentum": run.hyp.momentum,
    }
    # a mosaic shows the boxes of four images
    trial |= {"boxes_per_image": 4 * labels.boxes_per_image(95) + 1}
    trial |= {"one_shape": not (cfg.rect or cfg.multi_scale), "draw": draw}
    trial |= {"compile_mode": compile_mode if cfg.compile != "off" else None}
    return measure_batch(
        model, criterion, precision, world, say, images=len(labels), image_size=side, **trial
    )


def run(arguments: Sequence[str] | None = None) -> None:
    with distributed_session() as connect:
        cfg, launch = parse_args(arguments)
        if launch.spawn is not None:
            spawn(__file__, arguments, processes_for(launch.device, launch.spawn))
        else:
            main(cfg, connect(launch))


if __name__ == "__main__":
    gc.enable()
    run_and_exit(run)
