# PYTHON_ARGCOMPLETE_OK - argcomplete may complete the flags in a shell
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
from math import lcm
from pathlib import Path

from training.settings.config import CHOICES, LISTS, OPTIMIZER_CHOICES, TrainConfig
from training.settings.hyperparameters import Hyp
from utils.command_line.yolov5_flags import NOT_IN_TRAIN, hints_for_train
from utils.distributed import Launch, read_launch, spawn
from utils.flags import FlagParser, check_command_line
from utils.loggers.registry import LOGGERS
from utils.metrics.fitness import DEFAULT as DEFAULT_FITNESS


def parse_args(arguments: Sequence[str] | None = None) -> tuple[TrainConfig, Launch]:
    parser = FlagParser(__doc__, argument_default=SUPPRESS, defaults=TrainConfig().as_dict())
    add = parser.add_argument_group("model").add_argument
    add("--weights", help="checkpoint to fine-tune from; '' trains from scratch")
    add(
        "--cfg",
        help="model, for example yolov5s.yaml (default: the checkpoint's, else yolov5n.yaml)",
    )
    add(
        "--freeze",
        nargs="+",
        type=int,
        help="layers to freeze: N for the first N, or layer numbers",
    )
    add(
        "--add-classes",
        action="store_true",
        help="add the classes of --data to those of --weights, whose model stays as it is",
    )
    add(
        "--ignore-old",
        type=float,
        metavar="CONF",
        help="with --add-classes: do not train the new classes on background where the old model "
        "finds something with a score above CONF; 1: train on all of it",
    )
    add("--noautoanchor", action="store_true", help="do not fit the anchors to the data")

    add = parser.add_argument_group("data").add_argument
    add(
        "--data",
        nargs="+",
        help="data set: a YAML (path, or name in data/), a folder, an archive, or an annotation "
        "tool's file; several are joined",
    )
    add("--val-split", type=float, help="share of images held out where there is no val split")
    add("--group", help="regular expression: images with the same match are in one split")
    add("--strict", action="store_true", help="refuse data in which something looks wrong")
    add("--names", nargs="+", help="class names of data that have none, in order")
    add("--merge", nargs="+", help="OLD=NEW ...: rename classes, or join them with others")
    add("--classes", nargs="+", help="train only these classes, by name or number")
    add("--single-cls", action="store_true", help="treat all classes as one class")
    add(
        "--data-weights",
        nargs="+",
        type=float,
        help="how often an epoch draws the images of each --data: one number for each",
    )
    add(
        "--download",
        action="store_true",
        help="download the data set, and weights of models/pretrained.yaml",
    )
    add(
        "--cache", nargs="?", const="ram", help="cache decoded images: auto, ram, disk, device, off"
    )
    add(
        "--cache-dir", help="folder for cached labels and images (default: the user's cache folder)"
    )
    add("--workers", type=int, help="max DataLoader workers per process")

    add = parser.add_argument_group("training").add_argument
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
        "--rect",
        action="store_true",
        help="rectangular batches of images of similar shape; no mosaic",
    )
    add(
        "--multi-scale",
        action="store_true",
        help="vary the image size by up to 50%% from batch to batch",
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
    add("--seed", type=int, help="random seed of weights, sample order and augmentation")
    add(
        "--resume",
        nargs="?",
        const="newest",
        help="resume a run: its folder or last.pt, or the newest run",
    )

    add = parser.add_argument_group("recipe").add_argument
    add(
        "--hyp",
        help="hyper-parameter YAML, as a path or a name in data/hyps/; auto: chosen from the data",
    )
    add("--optimizer", help="SGD, Adam, AdamW, Muon or auto")
    add("--cos-lr", action="store_true", help="cosine learning-rate schedule instead of linear")
    add("--label-smoothing", type=float, help="label smoothing epsilon")
    add(
        "--augmentations",
        nargs=1,
        metavar="FILE",
        help="YAML file of Albumentations' transforms, applied after the augmentation of --hyp",
    )
    add(
        "--teacher",
        nargs=1,
        metavar="FILE",
        help="checkpoint of a trained, larger model to learn from, too (hyp file: distillation)",
    )
    add(
        "--close-mosaic",
        type=int,
        help="turn off mosaic, mixup and copy-paste for the last N epochs",
    )

    add = parser.add_argument_group("rare classes").add_argument
    add(
        "--image-weights",
        action="store_true",
        help="sample rare classes and those with low AP more often",
    )
    add(
        "--repeat-factor",
        type=float,
        help="draw images of classes that fewer than this share of the images have more often, "
        "such as 0.1; 0: never",
    )
    add(
        "--class-weights",
        nargs="+",
        help="weights of classes in the loss: auto (rare ones higher), a YAML of name: weight, or "
        "NAME=WEIGHT ...",
    )

    add = parser.add_argument_group("which epoch is the best").add_argument
    add(
        "--fitness",
        help="what decides which epoch is the best, for example 'AP50 + AP[person]' "
        f"(default: {DEFAULT_FITNESS})",
    )
    add("--patience", type=int, help="early stopping: epochs without improvement; 0: never")
    add("--val-period", type=int, help="validate every N epochs, and at the end")
    add("--noval", action="store_true", help="validate only at the end")

    add = parser.add_argument_group("speed and memory").add_argument
    add("--amp", help="precision: auto, fp32, bf16, fp16 (mixed) or fp64")
    add(
        "--compile",
        nargs="?",
        const="default",
        help="torch.compile: default, reduce-overhead, max-autotune, off",
    )
    add(
        "--checkpoint-activations",
        action="store_true",
        help="activation checkpointing: less memory, slower",
    )

    add = parser.add_argument_group("run folder").add_argument
    add("--project", help="folder for run folders")
    add("--name", help="the run folder's name; a number is added if it is taken")
    add("--exist-ok", action="store_true", help="use an existing run folder")
    add(
        "--nosave",
        action="store_true",
        help="save only at the end, and on a signal such as SIGTERM",
    )
    add("--save-period", type=int, help="keep a checkpoint every N epochs; -1: none")
    add("--save-minutes", type=float, help="also save every N minutes; 0: only after epochs")
    add("--noplots", action="store_true", help="draw no pictures, write no report")

    add = parser.add_argument_group("loggers").add_argument
    add(
        "--loggers",
        nargs="*",
        action="extend",
        help="the next flags by name; without a name: no logger",
    )
    for name, logger in LOGGERS.items():
        add(f"--{name}", dest="loggers", action="append_const", const=name, help=logger.help)
    add("--entity", help="account of Weights & Biases that gets the run (default: yours)")

    add = parser.add_argument_group("search for hyper-parameters").add_argument
    add(
        "--evolve",
        nargs="?",
        type=int,
        const=300,
        help="search for hyper-parameters by mutation: N trainings in all (300 without N)",
    )
    add(
        "--resume-evolve",
        "--resume_evolve",
        nargs="?",
        const="newest",
        help="continue a search of --evolve: its folder, or the newest search",
    )

    add = parser.add_argument_group("several processes").add_argument
    add("--sync-bn", action="store_true", help="synchronize BatchNorm over all processes")
    add("--shard", action="store_true", help="experimental: shard weights and optimizer state")

    parser.suggest({**CHOICES, "optimizer": OPTIMIZER_CHOICES, "loggers": tuple(LOGGERS)})
    parser.refuse(NOT_IN_TRAIN)
    parser.hint(hints_for_train(Hyp().as_dict()))
    launch, given = read_launch(parser, arguments)
    for name in LISTS:
        if name in given:
            given[name] = tuple(given[name])
    return TrainConfig(**given, given=frozenset(given)), launch


if __name__ == "__main__":
    check_command_line(parse_args)  # before the slow imports below
    gc.disable()  # garbage collection would take a fifth of the import time

import torch
from torch import Tensor

from data import (
    Choices,
    Dataset,
    Loader,
    MultiScale,
    TrainSampler,
    build_loaders,
    open_base_images,
    open_dataset,
    weights_after,
)
from models import Detector, Loss, build_loss, detector_for_state, pad_targets
from training import (
    CheckpointManager,
    EpochValidation,
    NonFiniteError,
    Run,
    RunStatus,
    SaveTrigger,
    StepReports,
    TrainingReport,
    TrainState,
    build_train_state,
    compile_loss,
    describe_skipped,
    describe_skipped_in_epoch,
    describe_stuck,
    draw_results,
    evaluate_best,
    extended_model,
    freeze,
    memory_advice,
    model_facts,
    nan_if_nonfinite,
    next_steps,
    open_distillation,
    open_run,
    place_model,
    read_teacher,
    refuse_mostly_skipped,
    set_training,
    start_model,
)
from training.search.evolve import evolve
from training.search.trial import NO_SEARCH, Trial
from training.settings.class_weights import weights_in_order
from training.settings.groups import augmentation, loss_gains, schedule
from training.settings.recipe import TrainedWeights
from utils.distributed import (
    World,
    agree_on_precision,
    compile_model,
    describe_mode,
    distributed_session,
    memory_gib,
    mode_without_reuse,
    processes_for,
    to_device,
    tuned_convolutions,
    weights_dtype,
)
from utils.files import cache_folder
from utils.images import fit_to_stride
from utils.log import EvaluationEnded, RunEnded, RunLog, RunStarted, Say
from utils.loggers.sink import open_loggers
from utils.metrics import Evaluation, class_table
from utils.plots import Pictures
from utils.printable import counted
from utils.progress_bar import ProgressBar
from utils.terminal import quiet_output, run_and_exit
from utils.threads import BackgroundTask


def main(flags: TrainConfig, world: World, trial: Trial = NO_SEARCH) -> Evaluation:
    """Train with the settings in flags; return the evaluation of the best checkpoint.

    trial: what a search for hyper-parameters asks of this training.

    Raises NonFiniteError, after everything is written, if most optimizer steps were skipped.
    """
    with RunLog(active=world.is_main) as log:
        return train(flags, world, log, trial)


def train(flags: TrainConfig, world: World, log: RunLog, trial: Trial) -> Evaluation:
    """Do what `main` does: this is the complete training procedure, from top to bottom."""
    run = open_run(flags, world, log.say, trial.hyp, in_search=bool(trial.continue_with))
    requested = run.config  # the flags, or the settings of the run that is resumed
    loggers = open_loggers(
        requested.loggers, log, account=requested.entity, named_in=run.loggers_file
    )
    log.say(*describe_mode(world, shard=requested.shard))
    torch.manual_seed(requested.seed)  # every rank starts from the same weights

    # Data: both splits are read, and kept in data.labels, before time is spent on the model
    data = open_dataset(
        requested.data,
        ("train", "val"),
        world,
        log.say,
        download=requested.download,
        single_class=requested.single_cls,
        cache_dir=requested.cache_dir,
        tile=requested.tile,
        tile_overlap=requested.tile_overlap,
        choices=Choices(
            requested.val_split,
            requested.group,
            requested.names,
            requested.merge,
            strict=requested.strict,
            weights=requested.data_weights,
        ),
    )
    data.choose_classes(requested.classes, say=log.say)
    data.prepend_classes(run.old_classes(), say=log.say)  # of the model that --add-classes extends
    train_labels = data.read("train", log.say, leave_out_emptied=True)
    data.read("val", log.say)
    data.balance(requested.repeat_factor, log.say)  # how often an epoch draws each image
    run.check_data(data, log.say)

    # Model, and the teacher that it learns from
    teacher = read_teacher(run.teacher)  # nothing without --teacher
    model, trained = open_model(run, data, teacher.stride, world, log.say)
    stride = lcm(max(model.strides), teacher.stride)
    image_size = fit_to_stride(requested.imgsz, stride, log.say)
    model.recompute = requested.checkpoint_activations  # recompute activations in backward
    precision = agree_on_precision(requested.amp, world, sharded=requested.shard)
    distillation = open_distillation(
        teacher, model, data.names, image_size, weights_dtype(precision), world, log.say
    )
    place_model(model, weights_dtype(precision), world)
    frozen = freeze(model, requested.freeze)

    # Images, cached where there is room
    images = open_base_images(
        data.labels,
        image_size,
        world,
        log.say,
        where=requested.cache,
        folder=cache_folder(requested.cache_dir),
        spills=bool(requested.cache_dir),  # what does not fit into memory may go to disk
        pastes=run.hyp.copy_paste > 0,  # a GPU cannot draw copy-paste
        transforms=run.transforms is not None,
    )

    # The final settings: from here on nothing is "auto"
    cfg, hyp, batch = run.resolve_settings(
        data,
        images["train"],
        model,
        trained,
        distillation=distillation,
        image_size=image_size,
        precision=precision,
        say=log.say,
    )

    # Loss, this rank's share of each global batch, and the training state
    class_weights = weights_in_order(cfg.class_weights, data.names)
    gains = loss_gains(hyp, cfg.label_smoothing, class_weights, cfg.ignore_old)
    criterion = build_loss(model.head, gains, log.say, auxiliary=model.auxiliary_head)
    criterion = distillation.add_to(criterion, hyp.distillation)
    criterion.to(weights_dtype(precision))
    loaders = build_loaders(
        data.labels,
        images,
        batch.size,
        image_size,
        stride,
        world,
        augmentation(hyp),
        seed=cfg.seed,
        rect=cfg.rect,
        mosaic_until=cfg.mosaic_until,
        transforms=run.transforms,
        workers=cfg.workers,
        letterbox=model.letterbox,
        draws=data.draws,
        val_stride=max(model.strides),  # as in val.py
        say=log.say,
    )
    sampler = loaders.train.sampler
    total_batches = sampler.batches_before(cfg.epochs)
    set_training(model, frozen)  # the frozen layers stay in eval mode
    state = build_train_state(
        model,
        world,
        batch,
        schedule(cfg, hyp, total_batches),
        precision=precision,
        optimizer=cfg.optimizer,
        weight_decay=hyp.weight_decay,
        loss_terms=criterion.terms,
        patience=cfg.stopping_patience,
        sync_bn=cfg.sync_bn,
        shard=cfg.shard,
        say=log.say,
    )
    if cfg.compile != "off":
        compile_training(state, criterion, loaders.train, cfg.compile, image_size, log.say)
    run.restore(state, data.draws)
    progress = state.progress

    # The run folder: created only after all checks have passed
    run.open_folder(data, log.say)
    log.attach(RunStatus(run.folder, progress))
    pictures_wanted = world.is_main and not cfg.noplots
    described = state.describe(len(loaders.train), cfg.optimizer)
    facts = model_facts(cfg, model, described, run.recipe)
    log.attach(TrainingReport(data, world, facts, log.say, active=pictures_wanted))
    log.send(
        RunStarted(
            run.folder,
            cfg.as_dict(),
            hyp.as_dict(),
            progress.results,
            step=sampler.batches_before(progress.epoch) + progress.batch,
            images=data.draws.least_per_pass,
            recorded=progress.recorded if run.saved else None,
        )
    )
    pictures = Pictures(run.folder, data.names, active=pictures_wanted, written=log.image_written)
    pictures.labels(train_labels.classes, train_labels.boxes_cxcywh_norm())
    val_images = counted(len(data.labels["val"]), f"val {data.unit}")
    log.say(
        f"{data.file}, {len(train_labels):,} train and {val_images} at {image_size} px; "
        f"{described}; workers {loaders.train.workers}; "
        f"writing to {run.folder}"
    )
    world.wait_for_main()

    # What happens beside the steps: saves at an interval and on a signal; and validation, whose
    # metrics are computed in the background while the next epoch trains
    background = BackgroundTask("evaluating detections")
    trigger = SaveTrigger(world, cfg.minutes_between_saves, background)
    checkpoints = CheckpointManager(
        run.folder,
        state,
        run.describe(model.table, data),
        trigger,
        background,
        final_only=cfg.nosave,
        period=cfg.save_period,
        loggers=loggers,
        continue_with=trial.continue_with,
    )
    validation = EpochValidation(
        state,
        loaders.val,
        criterion,
        checkpoints,
        background,
        log,
        data.names,
        unlabeled=data.unlabeled,
        fitness=run.fitness,
        epochs=cfg.epochs,
        every=cfg.validate_every,
        next_epoch_needs_it=cfg.image_weights,
        trial=trial,
    )
    # if memory runs out, the error says which flags to lower
    advice = memory_advice(
        batch.size,
        image_size,
        world.device,
        processes=world.size,
        stride=stride,
        may_recompute=cfg.may_recompute,
    )

    # Train
    with checkpoints, trigger, advice:
        validation.finish_pending()  # that of a resumed run's last epoch
        if run.saved:
            checkpoints.restore_best(log.say, done=progress.finished(cfg.epochs))

        while not progress.finished(cfg.epochs):
            epoch = progress.epoch
            sampler.set_epoch(epoch, progress.batch)
            if cfg.image_weights:  # images of rare classes, and of those with low AP, more often
                sampler.weights = weights_after(train_labels, progress.metrics, data.names)
            criterion.start_epoch(epoch, cfg.epochs, without_mosaic=epoch >= cfg.mosaic_until)
            set_training(model, frozen)
            with tuned_convolutions(cfg.one_shape):
                pace = train_one_epoch(
                    state,
                    loaders.train,
                    criterion,
                    checkpoints,
                    trigger.all_reduce_sum,
                    log,
                    title=f"{epoch + 1}/{cfg.epochs}",
                    multi_scale=MultiScale(cfg.seed, stride) if cfg.multi_scale else None,
                    pictures=pictures if epoch == 0 else None,
                )

            # while this epoch is validated, workers draw the first batches of the next one
            if epoch + 1 < cfg.epochs and not cfg.image_weights:
                sampler.set_epoch(epoch + 1)
                loaders.train.begin()

            state.sync_buffers()
            last_batch = sampler.batches_before(epoch + 1) - 1
            validation.after_epoch(pace, state.schedule.lr(last_batch))
            # all ranks hold the same metrics
            checkpoints.after_epoch(done=progress.finished(cfg.epochs))
            if progress.early_stopping.should_stop():
                log.say(f"early stopping: no improvement for {cfg.patience} epochs (--patience)")

        best, best_epoch = evaluate_best(
            checkpoints,
            model.table,
            loaders.val,
            world,
            unlabeled=data.unlabeled,
            active=log.active,
        )

    # Results
    log.table(class_table(best, data.names, verbose=len(data.names) <= 100))
    log.send(EvaluationEnded(run.folder, best, data.names, best_epoch, run.fitness))
    draw_results(pictures, best, loaders.val)
    best_metrics = {"epoch": best_epoch, **best.as_dict(data.names, run.fitness)}
    metrics = {"last": progress.metrics, "best": best_metrics}
    log.send(RunEnded(run.folder, metrics))
    best_ap = best.coco.stats["AP"]
    log.say(f"best.pt is from epoch {best_epoch}: mAP50-95 {best_ap:.4f}; see {run.folder}")

    # A run that has hardly learned has failed, and metrics.json says so
    epoch_starts = [sampler.batches_before(epoch) for epoch in range(progress.epoch + 1)]
    steps = state.steps_between(epoch_starts)
    state.guard.wait_for_flags()
    skipped = state.guard.skipped
    if skipped:
        log.say(describe_skipped(skipped, steps))
    world.wait_for_main()
    refuse_mostly_skipped(skipped, steps, state.schedule.lr0)

    run.close_folder(metrics)
    if not trial.continue_with:  # a search says what is next, and keeps the best weights only
        log.say(*next_steps(run.folder))
    world.wait_for_main()
    return best


def train_one_epoch(
    state: TrainState[Detector],
    loader: Loader[TrainSampler],
    criterion: Loss,
    checkpoints: CheckpointManager,
    all_reduce_sum: Callable[[Tensor], Tensor],
    log: RunLog,
    *,
    title: str,
    multi_scale: MultiScale | None = None,
    pictures: Pictures | None = None,
) -> str:
    """Train on one pass over loader, starting at sampler.first_batch; return the speed as text.

    Adds the losses to state.progress.

    Args:
        checkpoints: saves within the epoch, if it is due.
        all_reduce_sum: sums the loss's counts over all processes.
        log: receives the losses so far, now and then.
        title: of the progress bar.
        multi_scale: resizes the images.
        pictures: draws the first batches.
    """
    replica = state.replica
    sampler = loader.sampler
    world = state.world
    guard = state.guard
    losses_of_epoch = state.progress.losses

    # Batches are numbered over the whole run; the optimizer steps after step_batches.
    first_batch = sampler.batches_before(sampler.epoch)
    next_epoch = first_batch + sampler.batches_in(sampler.epoch)
    step_batches = state.schedule.step_batches(first_batch, next_epoch)

    # Counts of skipped steps so far, those of the search for float16's gradient scale apart.
    skipped_before = guard.skipped
    searched_before = guard.searched

    # The bar and the log show losses that were copied in the meantime, so that no step waits for
    # the device.
    bar = ProgressBar(loader, total=len(loader), title=title, active=world.is_main)
    reports = StepReports(
        losses_of_epoch, state.schedule, log, epoch=sampler.epoch, first_batch=first_batch
    )

    for number, batch in enumerate(bar, sampler.first_batch):
        batch_of_run = first_batch + number
        steps_now = batch_of_run in step_batches
        state.schedule.apply(state.optimizer, batch_of_run)
        if pictures is not None:
            pictures.train_batch(number, batch.images, batch.targets)

        # uint8 to [0, 1].  [B, 3, H, W]
        images = to_device(batch.images, world.device, replica.model.dtype)
        targets = pad_targets(batch.targets)  # [T, 6]: image, class, x1, y1, x2, y2 in pixels
        if multi_scale is not None:
            images, targets = multi_scale(batch_of_run, images, targets)

        # ranks exchange gradients once for each optimizer step
        with replica.gradients(last=steps_now):
            with state.autocast:
                criterion.begin_batch(images)  # --teacher looks at them
                maps = replica(images)
            losses = criterion(maps, targets, all_reduce_sum)  # {"box": ...}: this rank's share
            loss = criterion.weighted_sum(losses) * state.batch.loss_scale
            # 1, or nan if the loss is not finite: then all ranks detect it and skip the step
            loss_gradient = nan_if_nonfinite(loss)
            state.scaler.scale(loss).backward(loss_gradient)
        losses_of_epoch.add(losses)
        for means in reports.add(number):
            trained_images = (number + 1 - sampler.first_batch) * sampler.batch_size
            texts = [f"{name} {value:.4f}" for name, value in means.items()]
            pace_texts = bar.pace_texts(trained_images, memory_gib(world.device))
            bar.show([*texts, *pace_texts])

        if steps_now:
            state.step()  # clips the gradients; all ranks skip the step if they are not finite
            if guard.stuck:
                where = f"epoch {sampler.epoch + 1}, batch {number + 1}"
                advice = checkpoints.advise_after_nonfinite_steps()
                images_of_batch = world.all_gather_rows(batch.indices).tolist()
                raise NonFiniteError(
                    describe_stuck(guard, where, advice, images_of_batch, loader.labels.path)
                )
            checkpoints.after_step(number + 1, before_save=reports.flush)

    reports.flush()
    state.progress.batch = sampler.batches_in(sampler.epoch)

    # What the log says about the epoch, or about the part of it after a resume.
    pace = "already trained"  # resumed after the last batch
    if len(loader):
        pace = bar.pace(len(loader) * sampler.batch_size, memory_gib(world.device))
    guard.wait_for_flags()
    skipped = guard.skipped - skipped_before
    searched = guard.searched - searched_before
    resumed_at = first_batch + sampler.first_batch
    steps = sum(step_batch >= resumed_at for step_batch in step_batches)
    return pace + describe_skipped_in_epoch(skipped, searched, steps)


def compile_training(
    state: TrainState[Detector],
    criterion: Loss,
    loader: Loader[TrainSampler],
    mode: str,
    image_size: int,
    say: Say,
) -> None:
    """Compile the model, the loss, and the drawing of images on the device; report each to `say`.

    mode: of torch.compile. image_size: in pixels.
    """
    model = state.replica.model
    world = state.world
    mode = mode_without_reuse(mode, state.batch.accumulate, world.device, say)
    say(f"--compile {mode}: compiling takes a minute or more")

    example = torch.zeros(state.batch.per_process, image_size, image_size, 3, dtype=torch.uint8)
    images = to_device(example, world.device, model.dtype)
    # With DistributedDataParallel the graph is compiled in pieces, so that all-reduce overlaps
    # backward. The trial pass goes through it as a batch does, but exchanges no gradients.
    forward = state.replica.without_exchange
    say(compile_model(model, mode, images, state.autocast, world, forward=forward))
    say(compile_loss(criterion, model, images, state.autocast, world))
    loader.compile(say)


def open_model(
    run: Run, data: Dataset, stride: int, world: World, say: Say
) -> tuple[Detector, TrainedWeights | None]:
    """Return the model, and the trained weights that it starts from; None for random ones.

    The weights of a resumed run are loaded by `run.restore`, later. stride: of a teacher, which
    image sides must fit, too.
    """
    cfg = run.config
    if run.saved:
        table = run.saved.description.table
        model = detector_for_state(Path(cfg.resume), table, run.saved.model, load=False)
        return model, None

    anchors_per_level = round(run.hyp.anchors)
    if cfg.add_classes:
        return extended_model(
            cfg.weights,
            data.names,
            anchors_per_level=anchors_per_level,
            image_size=cfg.imgsz,
            say=say,
        )
    return start_model(
        cfg.cfg,
        cfg.weights,
        data.names,
        anchors_per_level=anchors_per_level,
        fit=not cfg.noautoanchor,
        box_sizes=data.labels["train"].box_sizes,
        image_size=cfg.imgsz,
        stride=stride,
        anchor_t=run.hyp.anchor_t,
        seed=cfg.seed,
        download=cfg.download,
        world=world,
        say=say,
    )


def run_script(arguments: Sequence[str] | None = None) -> None:
    """Train or search as the command line says; --spawn starts a process for each device first."""
    with distributed_session() as connect:
        flags, launch = parse_args(arguments)
        if launch.spawn is not None:
            spawn(__file__, arguments, processes_for(launch.device, launch.spawn))
            return
        with quiet_output(launch.quiet):
            if flags.evolve or flags.resume_evolve:
                evolve(flags, connect(launch), main)
            else:
                main(flags, connect(launch))


if __name__ == "__main__":
    gc.enable()
    run_and_exit(run_script)
