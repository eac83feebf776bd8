"""Train a YOLO detector.

    python train.py                                                 yolov5n from scratch on generated shapes
    python train.py --data mydata.yaml --cfg yolov5s.yaml --img 640 --batch 16 --epochs 100 --device 0
    python train.py --data mydata.yaml --weights runs/train/exp/weights/best.pt        fine-tune
    python train.py --resume                                        go on with the newest run
    python -m torch.distributed.run --nproc_per_node 2 train.py --device 0,1        a process for each GPU
    python train.py --device 0,1 --spawn                            the same, started from here
    python train.py --device 0,1                                    one process for both GPUs: slower

`--batch-size` is the total over all processes, which train like one. Read `main` from top to bottom: it is the
whole story. What it names is one short file away.
"""

import copy
import gc
import time
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from utils.config import Hyp, TrainConfig, read_hyp
from utils.flags import FlagParser, answer_help
from utils.launch import Launch, read_launch, spawn


def parse_args(arguments: Sequence[str] | None = None) -> tuple[TrainConfig, Launch]:
    parser = FlagParser(__doc__, argument_default=SUPPRESS)  # to tell what was given from what was not
    add = parser.add_argument
    add("--weights", help="checkpoint to start from; '' trains from scratch")
    add("--cfg", help="model, for example yolov5s.yaml (default: the checkpoint's, else yolov5n.yaml)")
    add("--data", help="data set YAML, as a path or a name in data/")
    add("--download", action="store_true", help="fetch the data set if it is not there, from where its YAML says")
    add("--hyp", help="hyper-parameter YAML, as a path or a name in data/hyps/")
    add("--epochs", type=int, help="passes over the training images")
    add("--batch-size", "--batch", type=int, help="images per batch, over all processes; -1: what memory holds")
    add("--imgsz", "--img", "--img-size", type=int, help="training and validation size in pixels")
    add("--rect", action="store_true", help="batches of like shape instead of squares; no mosaic")
    add("--resume", nargs="?", const="newest", help="go on with a run: its last.pt, or the newest one")
    add("--nosave", action="store_true", help="write checkpoints at the end only, and where a signal asks for it")
    add("--noval", action="store_true", help="validate at the end only")
    add("--val-period", type=int, help="validate every so many epochs, and at the end")
    add("--noautoanchor", action="store_true", help="keep the model's anchors")
    add("--noplots", action="store_true", help="draw no pictures")
    add("--multi-scale", action="store_true", help="change the image size by up to half from batch to batch")
    add("--single-cls", action="store_true", help="treat all classes as one")
    add("--optimizer", help="SGD, Adam or AdamW")
    add("--workers", type=int, help="most loader processes, for each training process")
    add("--image-weights", action="store_true", help="draw images of rare and badly found classes more often")
    add("--sync-bn", action="store_true", help="BatchNorm over the batch of all processes")
    add("--shard", action="store_true", help="experimental: weights and optimizer in slices, one for each process")
    add("--checkpoint-activations", action="store_true", help="keep fewer activations, compute them again: less memory")
    add("--project", help="where run folders go")
    add("--name", help="the run folder's name; a number is added if it is taken")
    add("--exist-ok", action="store_true", help="write into an existing folder")
    add("--cos-lr", action="store_true", help="cosine instead of linear learning rate")
    add("--label-smoothing", type=float, help="epsilon")
    add("--patience", type=int, help="epochs without improvement before stopping; 0 never stops")
    add("--freeze", nargs="+", type=int, help="N: the first N layers; several numbers: those layers")
    add("--save-period", type=int, help="keep a checkpoint every so many epochs")
    add("--save-minutes", type=float, help="save in the midst of an epoch too, every so many minutes; 0: after epochs")
    add("--seed", type=int, help="of weights, order and augmentation")
    add("--amp", help="arithmetic: auto, fp32, bf16 or fp16")
    add("--compile", nargs="?", const="default", help="torch.compile: default, reduce-overhead, max-autotune or off")
    add("--close-mosaic", type=int, help="epochs at the end without mosaic, mixup and copy-paste")
    add("--cache", nargs="?", const="ram", help="decode images once: ram, disk, device, off; auto: ram for few")
    add("--cache-dir", help="where scans of labels and decoded images are kept (default: the user's cache folder)")
    parser.not_built("--quad", "--evolve")
    launch, given = read_launch(parser, arguments)
    if "freeze" in given:
        given["freeze"] = tuple(given["freeze"])
    return TrainConfig(**given, given=frozenset(given)), launch


if __name__ == "__main__":
    answer_help(parse_args)  # before the imports below take their seconds,
    gc.disable()  # a fifth of which would go into looking for garbage

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from data import Augmentation, Loader, build_evaluation_loader, build_train_loader
from data.balance import image_weights
from data.cache import open_images
from data.dataset_yaml import find_yaml
from data.labels import Labels
from data.loader import Batch
from data.multi_scale import MultiScale
from data.sampler import EvaluationSampler, TrainSampler, whole_strides
from data.splits import cache_folder, class_names, find_data, open_data, read_split
from models import Detector, build_model
from models.anchors import check_anchors
from models.assign import filled_up
from models.losses import AnchorLoss
from models.saved import fitting_detector, load_detector, transfer
from utils import checkpoint
from utils.aside import Aside
from utils.autobatch import choose_batch, fill_state, memory_advice
from utils.compiled import compile_model
from utils.devices import (
    Later,
    choose_precision,
    describe,
    loader_workers,
    memory_gib,
    processes_for,
    tuned_convolutions,
    widened,
)
from utils.disk import hold_alone
from utils.distributed import World, together
from utils.ema import EMA, averaging
from utils.files import remove_torn_files
from utils.finite import FiniteSteps, spreading
from utils.keeper import PREEMPTED, Keeper
from utils.log import Progress, RunLog, new_run_folder, write_json, write_yaml
from utils.optim import NOMINAL_BATCH, Schedule, build_optimizer
from utils.printable import shown
from utils.replica import DistributedReplica, Replica, align, running_statistics
from utils.restart import MARKS, find_earlier_life
from utils.resume import damaged_if_it_fails, find_last, moved_batch, plateau_of, resumed_config, run_folder
from utils.run_state import Course, Learner, LossTally
from utils.save_points import SavePoints
from utils.sharding import ShardedReplica
from utils.sync_bn import synchronize_batch_norm
from utils.terminal import FaultError, end
from val import Evaluation, Found, Pictures, class_table, detect, evaluate, to_device

MOST_NAMED = 16  # files in an error's text
ROOT = Path(__file__).parent
MOST_PER_VAL_BATCH = 32  # images; a validation batch is one process's
FETCH_EVERY = 20  # batches between looks at the losses of a GPU


def main(cfg: TrainConfig, world: World) -> Evaluation:
    """Train as cfg says; return the evaluation of the best checkpoint."""
    log = RunLog(active=world.is_main)
    life = find_earlier_life(Path(cfg.project), world)
    if life.done:
        log.say(f"started again by the launcher, but all is done in {life.run}")
        raise SystemExit(0)
    if life.checkpoint:
        cfg = replace(cfg, resume=life.checkpoint)
        log.say("started again by the launcher")
    elif cfg.resume:
        cfg = replace(cfg, resume=find_last(cfg.resume, Path(cfg.project)))
    saved = checkpoint.load(Path(cfg.resume)) if cfg.resume else {}
    if len(set(world.exchange(str([saved.get(part) for part in ("epoch", "batch", "results")])))) > 1:
        raise ValueError(f"{cfg.resume}: on other machines it is of another run or epoch; all must see the same file")
    if saved:
        if "data" in cfg.given:
            cfg = replace(cfg, data=str(find_data(cfg.data)))
        cfg, changes = resumed_config(cfg, saved)
        with damaged_if_it_fails(cfg.resume):
            hyp = Hyp(**saved["hyp"])
        for line in (f"going on with {cfg.resume}", *changes):
            log.say(line)
    else:
        hyp = read_hyp(find_yaml(cfg.hyp, ROOT / "data" / "hyps", "hyper-parameters"))
    check_batch(cfg.batch_size, world)
    world.require_alike("the command line", cfg.training() | hyp.as_dict())
    torch.manual_seed(cfg.seed)  # every rank starts from the same weights

    # Data, model, loss
    labels, reports = {}, {}
    with world.one_per_machine_first():  # the others find what it has fetched, and what it has read in the cache
        spec = open_data(cfg.data, download=cfg.download)
        for split in ("train", "val"):
            labels[split], reports[split] = read_split(
                spec, split, single=cfg.single_cls, cache_dir=cfg.cache_dir, progress=world.is_main
            )
            log.say(f"{split}: {reports[split].summary()}")
    digests = {split: own.digest() for split, own in labels.items()}
    for split, digest in digests.items():
        world.require_alike(f"{spec.file}, {split}", digest)
    names = class_names(spec.names, single=cfg.single_cls)
    if saved and names != saved["names"]:
        raise ValueError(f"{cfg.resume}: it was trained on other classes than {spec.file} names")
    if saved and digests["train"] != saved["images"]:
        log.say(f"{spec.file}: since {cfg.resume} was written the training images or their labels have changed")
    if saved:
        model = fitting_detector(Path(cfg.resume), saved["table"], saved["model"])
    else:
        model = make_model(cfg, hyp, labels["train"], names, world, log)
    model.recompute = cfg.checkpoint_activations
    precision = choose_precision(cfg.amp, world.device)
    world.require_alike(f"--amp {cfg.amp}", str(precision))
    if cfg.shard and precision == torch.float16:
        raise ValueError("--shard: this GPU trains in float16, which needs whole gradients; choose --amp fp32")
    model.to(widened(precision)).to(memory_format=torch.channels_last).to(world.device)
    world.require_alike("the model", {k: v for k, v in model.table.items() if k not in ("source", "anchors")})
    world.spread_([*model.parameters(), *model.buffers()])
    frozen = freeze(model, cfg.freeze)
    stride = max(model.strides)
    image_size = whole_strides(cfg.imgsz, stride)
    if image_size != cfg.imgsz:
        log.say(f"--imgsz {cfg.imgsz} is rounded up to {image_size}, a multiple of the model's largest stride {stride}")
    if cfg.cache == "device" and hyp.copy_paste:
        raise ValueError("--cache device: GPUs draw no copy-paste (copy_paste in --hyp); choose --cache ram")
    images = open_images(  # before the batch takes what memory is left
        labels,
        image_size,
        where=cfg.cache,
        folder=cache_folder(cfg.cache_dir),
        spills=bool(cfg.cache_dir),
        world=world,
        say=log.say,
    )
    criterion = AnchorLoss(
        model.anchors_px,
        model.strides,
        model.num_classes,
        box_gain=hyp.box,
        obj_gain=hyp.obj,
        cls_gain=hyp.cls,
        obj_pos_weight=hyp.obj_pw,
        cls_pos_weight=hyp.cls_pw,
        ratio_limit=hyp.anchor_t,
        label_smoothing=cfg.label_smoothing,
        focal_gamma=hyp.fl_gamma,
    )
    criterion.to(widened(precision))
    autocast = torch.autocast(world.device.type, precision, enabled=precision.itemsize == 2)
    if cfg.batch_size == -1:
        batch_size, sentence = choose_batch(
            trial_step(model, criterion, autocast, cfg, hyp, world, labels["train"], image_size),
            lambda number: min(world.exchange(number)),
            device=world.device,
            images=len(labels["train"]),
            shares=max(world.size, len(world.devices)),
            local_processes=world.local_size,
        )
        log.say(sentence)
    else:
        batch_size = whole_batch(cfg.batch_size, len(labels["train"]), world, log)
    cfg = replace(cfg, batch_size=batch_size)  # resumed by another number of processes, the run keeps it
    synchronised = cfg.sync_bn or cfg.shard
    if synchronised:
        synchronize_batch_norm(model, world.device.type)
    if cfg.shard and world.size == 1:
        log.say("--shard: there is one process, which has nobody to share with")
    if synchronised and world.devices:
        log.say("--sync-bn: DataParallel normalises on each GPU by itself all the same")

    # Loaders: this rank's share of each global batch
    shared: dict[str, Any] = {
        "image_size": image_size,
        "stride": stride,
        "workers": loader_workers(cfg.workers, batch_size // world.size, world.device, world.local_size),
        "device": world.device,
        "rank": world.rank,
        "size": world.size,
    }
    augmentation = Augmentation(**{field.name: getattr(hyp, field.name) for field in fields(Augmentation)})
    mosaic_until = cfg.epochs - cfg.close_mosaic
    train_loader = build_train_loader(
        labels["train"],
        batch_size=batch_size,
        augmentation=augmentation,
        seed=cfg.seed,
        rect=cfg.rect,
        mosaic_until=mosaic_until,
        images=images["train"],
        **shared,
    )
    val_loader = build_evaluation_loader(
        labels["val"], batch_size=min(batch_size, MOST_PER_VAL_BATCH), images=images["val"], **shared
    )
    sampler = train_loader.sampler

    # Optimization
    schedule = Schedule(
        total=sampler.batches_before(cfg.epochs),
        epochs=cfg.epochs,
        batch_size=batch_size,
        lr0=hyp.lr0,
        lrf=hyp.lrf,
        cosine=cfg.cos_lr,
        momentum=hyp.momentum,
        warmup_epochs=hyp.warmup_epochs,
        warmup_momentum=hyp.warmup_momentum,
        warmup_bias_lr=hyp.warmup_bias_lr,
    )
    ema = EMA(model, *averaging(schedule.total // schedule.accumulate))
    replica = build_replica(model, world, shard=cfg.shard, accumulates=schedule.accumulate > 1)
    set_training(model, frozen)
    replica.rehearse(torch.zeros(1, 3, 2 * stride, 2 * stride, dtype=widened(precision), device=world.device))
    if cfg.compile != "off":
        pixels = torch.zeros(batch_size // world.size, image_size, image_size, 3, dtype=torch.uint8)
        like = to_device(pixels, world.device, model.dtype)
        log.say(f"--compile {cfg.compile}: it takes a minute or more")
        log.say(compile_model(model, cfg.compile, like, autocast, world))
        train_loader.compile(log.say)
    decay = hyp.weight_decay * batch_size * schedule.accumulate / NOMINAL_BATCH
    optimizer = build_optimizer(model, cfg.optimizer, lr=hyp.lr0, momentum=hyp.momentum, weight_decay=decay)
    scaler = torch.amp.GradScaler(world.device.type, enabled=precision == torch.float16)
    steps = FiniteSteps(optimizer, running_statistics(model), world.device, searching=scaler.is_enabled())
    learner = Learner(replica, ema, optimizer, scaler, steps, world)
    scale = MultiScale(cfg.seed, stride) if cfg.multi_scale else None
    course = Course(plateau_of(cfg), LossTally(criterion.terms, world, widened(precision)))
    if saved:
        with damaged_if_it_fails(cfg.resume):
            learner.load_state_dict(saved)
            course.load_state_dict(saved)
            sizes = {"before": saved["config"]["batch_size"], "now": batch_size}
            course.batch = moved_batch(course.batch, epoch=course.epoch, images=len(labels["train"]), **sizes)

    # The run folder: made last, when nothing is left to refuse
    if world.is_main:
        resumed = run_folder(cfg.resume) if saved else life.run
        folder = Path(resumed or new_run_folder(Path(cfg.project), cfg.name, cfg.exist_ok))
    folder = Path(world.share(str(folder) if world.is_main else ""))
    pictures = Pictures(folder, names, active=world.is_main and not cfg.noplots)
    held = hold_alone(folder) if world.is_main else None
    if world.is_main:
        (folder / "weights").mkdir(exist_ok=True)
        remove_torn_files(folder)
        for finished in ("metrics.json", PREEMPTED):  # they say how a run has ended
            (folder / finished).unlink(missing_ok=True)
        log.results(course.rows, folder)
        write_yaml(folder / "args.yaml", cfg.as_dict())
        write_yaml(folder / "hyp.yaml", hyp.as_dict())
        write_json(folder / "data_report.json", {split: report.as_dict() for split, report in reports.items()})
        if any(life.marks):
            write_json(folder / MARKS, life.marks)
    pictures.labels(labels["train"])
    each = f" ({batch_size // world.size} in each of {world.size} processes)" if world.size > 1 else ""
    if cfg.shard and world.size > 1:
        log.say("experimental: weights, gradients and the optimizer's state are sharded over the processes")
    if world.devices:
        log.say(f"DataParallel over {len(world.devices)} GPUs; a process for each is faster: --spawn, or torchrun")
    log.say(
        f"{spec.file}, {len(labels['train'])} train and {len(labels['val'])} val images at {image_size} px; "
        f"{describe(world.device)}, {str(precision).removeprefix('torch.')}; batch {batch_size}{each}, "
        f"{min(schedule.accumulate, len(train_loader))} batches to an optimizer step, learning rate {hyp.lr0:g}; "
        f"{shared['workers']} loader processes; writing to {folder}"
    )
    world.wait_for_main()

    about = {
        "table": model.table,
        "names": names,
        "data": str(spec.file),
        "images": digests["train"],
        "config": cfg.as_dict(),
        "hyp": hyp.as_dict(),
        "versions": {"torch": torch.__version__},
    }
    aside = Aside("scoring detections")
    with (
        SavePoints(world, 0 if cfg.nosave else cfg.save_minutes, aside) as points,
        memory_advice(batch_size, image_size, world.device, world.size, stride),
    ):
        keeper = Keeper(folder, learner, course, points, about, sparing=cfg.nosave, period=cfg.save_period)
        started, first_epoch = time.perf_counter(), course.epoch

        def validate() -> Found:
            how: dict[str, Any] = {"criterion": criterion, "active": log.active, "interrupted": points.asked}
            with keeper.interruptible():
                return detect(ema.model, val_loader, world, **how)

        def close_epoch(result: Evaluation | None) -> None:
            """Take in what was found of the last epoch; the next one may have begun."""
            if result:
                course.metrics = world.agree(result.as_dict(names))  # to the last bit: machines may differ in it
                course.plateau.update(course.epoch - 1, course.metrics["fitness"])
            pace, row = course.close(lambda losses: results_row(losses, result))
            log.results(course.rows, folder)
            left = ""  # not known after an epoch that an earlier life trained
            if trained := course.epoch - first_epoch:
                each = (time.perf_counter() - started) / trained
                left = f", {timedelta(seconds=round(each * (cfg.epochs - course.epoch)))} left"
            log.say(f"{epoch_line(row, cfg.epochs)}  {pace}{left}")
            keeper.settled()

        if course.open:
            aside.start(validate().judged, close_epoch)
            aside.settle()
        if saved and (sentence := keeper.go_on(done=course.over(cfg.epochs))):
            log.say(sentence)
        while not course.over(cfg.epochs):
            epoch = course.epoch
            sampler.set_epoch(epoch, course.batch)
            if cfg.image_weights:
                sampler.weights = image_weights(labels["train"], len(names), ap_per_class(course.metrics, names))
            set_training(model, frozen)
            with tuned_convolutions(one_shape=not (cfg.rect or cfg.multi_scale)):
                pace = train_one_epoch(
                    learner,
                    train_loader,
                    criterion,
                    schedule,
                    autocast,
                    keeper,
                    title=f"{epoch + 1}/{cfg.epochs}",
                    scale=scale,
                    watch=pictures.train_batch if epoch == 0 else None,
                )
            aside.settle()
            replica.align(world, synchronised=synchronised)
            align(ema.model, world, synchronised=synchronised)
            steps.begin()
            last = epoch == cfg.epochs - 1
            found = validate() if last or not (cfg.noval or (epoch + 1) % cfg.val_period) else None
            course.next_epoch(pace, schedule.lr(sampler.batches_before(epoch + 1) - 1))
            aside.start(found.judged if found else lambda: None, close_epoch)
            # Where what is found decides what comes next, the next epoch waits for it.
            if last or not found or cfg.image_weights or course.plateau.at_stake(epoch):
                aside.settle()
            keeper.end_of_epoch(done=course.over(cfg.epochs))  # all ranks hold the same metrics: all stop alike
            if course.plateau.over():
                log.say(f"stopped: no better for {cfg.patience} epochs (--patience)")
        best, best_epoch = measure_best(keeper, model.table, val_loader, active=log.active)
    log.table(class_table(best, names, verbose=len(names) <= 100))
    pictures.results(best, val_loader)
    if world.is_main:
        write_json(folder / "metrics.json", {"last": course.metrics, "best": best.as_dict(names)})
    log.say(f"best.pt is of epoch {best_epoch}: mAP50-95 {best.coco.stats['AP']:.4f}; see {folder}")
    if held:
        held.let_go()
    world.wait_for_main()
    return best


def train_one_epoch(
    learner: Learner[Detector],
    loader: Loader[TrainSampler],
    criterion: AnchorLoss,
    schedule: Schedule,
    autocast: torch.autocast,
    keeper: Keeper,
    *,
    title: str,
    scale: MultiScale | None = None,
    watch: Callable[[int, Batch], None] | None = None,
) -> str:
    """One pass over loader, from the sampler's first batch on: the pace in words. The losses go to the keeper's course.

    scale: changes the images' size. watch: is shown each batch with its number.
    """
    replica, sampler, world, tally = learner.replica, loader.sampler, learner.world, keeper.course.tally
    model = replica.model
    before = sampler.batches_before(sampler.epoch)
    closing = schedule.closing_batches(before, before + sampler.batches_in(sampler.epoch))
    progress = Progress(loader, total=len(loader), title=title, active=world.is_main)
    fetch_every = 1 if world.device.type == "cpu" else FETCH_EVERY
    sums_later = Later(world.device)  # no step waits for the device, not even for what is shown of it
    skipped = learner.steps.skipped
    for number, batch in enumerate(progress, sampler.first_batch):
        step = before + number
        schedule.apply(learner.optimizer, step)
        if watch is not None:
            watch(number, batch)

        images = to_device(batch.images, world.device, model.dtype)  # [B, 3, H, W], uint8 to [0, 1]
        targets = filled_up(batch.targets)  # [T, 6]: image, class, x1, y1, x2, y2
        if scale is not None:
            images, targets = scale(step, images, targets)
        with replica.gradients(last=step in closing):  # ranks exchange gradients once for each optimizer step
            with autocast:
                maps = replica(images)
            losses = criterion(maps, targets, keeper.points.sum)  # {"box": scalar, ...}, weighted: this rank's share
            # Gradients are a sum over the images of the global batch; the mean over ranks is taken of them.
            loss = sum(losses.values()) * sampler.batch_size * world.size
            learner.scaler.scale(loss).backward(spreading(loss))
        tally.add(losses)

        if step in closing:
            learner.step()  # clipped; where the gradients are not finite, skipped by all ranks
            if learner.steps.stuck:
                raise FaultError(no_numbers(keeper, loader, batch, number))
            keeper.between_steps(number + 1)
        for sums in sums_later.pass_on(tally.sums) if number % fetch_every == 0 else ():
            so_far = " ".join(f"{name} {value:.4f}" for name, value in tally.so_far(sums).items())
            trained = (number + 1 - sampler.first_batch) * sampler.batch_size
            progress.text(f"{so_far}, {pace_of(progress, trained, world.device)}")
    keeper.course.batch = sampler.batches_in(sampler.epoch)
    pace = pace_of(progress, len(loader) * sampler.batch_size, world.device) if len(loader) else "trained before"
    lost = learner.steps.state_dict()["skipped"] - skipped
    taken = sum(step >= before + sampler.first_batch for step in closing)
    return f"{pace}, {lost} of {taken} steps skipped: not finite" if lost else pace


def measure_best(
    keeper: Keeper, table: dict[str, Any], loader: Loader[EvaluationSampler], *, active: bool
) -> tuple[Evaluation, int]:
    """What val.py will find for best.pt, and the epoch that it is of, counted from 1."""
    model, epoch, world = Detector(table), 0, keeper.world
    if world.is_main:  # the other machines need not see the folder
        model, kept = load_detector(keeper.best)
        epoch = kept["epoch"]
    model.to(memory_format=torch.channels_last).to(world.device)
    world.wait_for_main()
    world.spread_([*model.parameters(), *model.buffers()])
    with keeper.interruptible(saved=True):
        found = evaluate(model, loader, world, title="best", active=active, interrupted=keeper.points.asked)
    return found, epoch


def no_numbers(keeper: Keeper, loader: Loader[TrainSampler], batch: Batch, number: int) -> str:
    """What to say where training cannot go on: with the images of the last batch, of all processes."""
    learner, epoch = keeper.learner, loader.sampler.epoch
    seen = learner.world.gather(batch.indices).tolist()
    files = ", ".join(shown(loader.labels.path(index)) for index in seen[:MOST_NAMED])
    more = f" and {len(seen) - MOST_NAMED} more" if len(seen) > MOST_NAMED else ""
    return (
        f"loss or gradient was not finite in {learner.steps.in_a_row} optimizer steps in a row, up to epoch "
        f"{epoch + 1}, batch {number + 1}; nothing of them is in the weights or in last.pt. Begin another run with "
        f"--weights {keeper.last}, a lower lr0 in --hyp, or --amp fp32. The last batch: images {seen} ({files}{more})"
    )


def pace_of(progress: Progress[Batch], images: int, device: torch.device) -> str:
    """Images per second, the share of the time that went into waiting for data, and memory, in words."""
    speed, memory = images / progress.seconds, memory_gib(device)
    return f"{speed:.1f} img/s, {progress.wait_share:.0%} waiting for data, {memory:.1f} GiB"


def build_replica(model: Detector, world: World, *, shard: bool, accumulates: bool) -> Replica[Detector]:
    """The model as the run's mode calls it. accumulates: whether an optimizer step may take several batches."""
    if world.size == 1:
        return Replica(model, world)
    return ShardedReplica(model, world, list(model.layers)) if shard else DistributedReplica(model, world, accumulates)


def check_batch(batch_size: int, world: World) -> None:
    """Raises ValueError for a total batch that cannot be shared out evenly."""
    if batch_size % world.size and batch_size > 0:
        raise ValueError(
            f"--batch-size {batch_size} is the total over all processes: choose a multiple of WORLD_SIZE, {world.size}"
        )


def whole_batch(batch_size: int, images: int, world: World, log: RunLog) -> int:
    """The batch size; where there are fewer images, the largest divisor of it that they fill.

    A divisor, so that it does not depend on the number of processes. Raises ValueError if they cannot share it evenly.
    """
    most = max(size for size in range(1, min(batch_size, images) + 1) if batch_size % size == 0)
    if most % world.size:
        raise ValueError(f"{images} training images, in batches of {most}, cannot be shared by {world.size} processes")
    if most < batch_size:
        log.say(f"--batch-size {batch_size} is more than the {images} training images: using {most}")
    return most


def trial_step(
    model: Detector,
    criterion: AnchorLoss,
    autocast: torch.autocast,
    cfg: TrainConfig,
    hyp: Hyp,
    world: World,
    labels: Labels,
    image_size: int,
) -> Callable[[int], None]:
    """A training step of so many made-up images for each device, as memory-hungry as a run's can get, on copies."""
    replica = Replica(copy.deepcopy(model).train(), world)
    ema = EMA(replica.model)
    optimizer = build_optimizer(replica.model, cfg.optimizer, lr=hyp.lr0, momentum=hyp.momentum, weight_decay=0)
    fill_state(optimizer)
    side = whole_strides(round(image_size * (MultiScale.LARGEST if cfg.multi_scale else 1)), max(model.strides))
    crowd = 4 * int(np.percentile(np.diff(labels.offsets), 95)) + 1  # a mosaic shows the boxes of four images
    devices = max(len(world.devices), 1)

    def step(images: int) -> None:
        random = torch.Generator().manual_seed(0)
        owner = torch.arange(images * devices).repeat_interleave(crowd)[:, None]
        corners = torch.rand(len(owner), 2, generator=random) * side * 0.8
        targets = filled_up(torch.cat([owner, owner * 0, corners, corners + side / 8], 1).to(world.device))
        pixels = torch.zeros(images * devices, side, side, 3, dtype=torch.uint8)
        with autocast:
            maps = replica(to_device(pixels, world.device, model.dtype))
        sum(criterion(maps, targets).values()).backward()
        nn.utils.clip_grad_norm_(replica.model.parameters(), max_norm=10.0)
        optimizer.step()
        ema.update(replica.state_dict())

    return step


def make_model(cfg: TrainConfig, hyp: Hyp, labels: Labels, names: Sequence[str], world: World, log: RunLog) -> Detector:
    """The model to start from, its anchors fitted to the data where its own do not reach the boxes."""
    given, about = load_detector(Path(cfg.weights)) if cfg.weights else (None, {})
    cfg_name = cfg.cfg or ("" if given else "yolov5n.yaml")
    table = given.table if given and not cfg_name else cfg_name
    model = build_model(table, len(names), anchors=round(hyp.anchors) or None)
    started = "from scratch"
    if given:
        copied, of, known = transfer(model, names, given, about["names"])
        started = f"{copied} of {of} entries from {cfg.weights}, which knows {known} of the classes"
    size = sum(p.numel() for p in model.parameters())
    log.say(f"{cfg_name or cfg.weights}: {size:,} parameters, {len(names)} classes, {started}")
    if hyp.anchors or not cfg.noautoanchor:
        sizes, own = box_sizes(labels, whole_strides(cfg.imgsz, max(model.strides))), model.anchors_px.double().numpy()
        anchors, sentence = check_anchors(sizes, own, hyp.anchor_t, seed=cfg.seed, placeholders=hyp.anchors > 0)
        model.set_anchors(torch.tensor(world.share(anchors.tolist())))  # to the last bit
        log.say(sentence)
    return model


def ap_per_class(metrics: dict[str, Any], names: Sequence[str]) -> NDArray[np.float64]:
    """[C] the AP of each class at the last validation; 0 before the first, and for a class that was not there."""
    per_class = metrics.get("per_class", {})
    return np.array([max(per_class.get(name, {}).get("AP", 0.0), 0.0) for name in names])


def box_sizes(labels: Labels, image_size: int) -> NDArray[np.float64]:
    """[N, 2] widths and heights in pixels of images whose long side is image_size, ignore regions left out."""
    scale = np.repeat(image_size / labels.sizes.max(1), np.diff(labels.offsets))
    return (labels.boxes_xywh[:, 2:] * scale[:, None])[~labels.crowd]


def freeze(model: Detector, layers: Sequence[int]) -> list[nn.Module]:
    """The layers that stay as they are: the first N for one number N, else those of these numbers.

    Raises ValueError for a layer that the model does not have, and if nothing is left to train.
    """
    chosen = list(range(layers[0])) if len(layers) == 1 else list(layers)
    if chosen and max(chosen) >= len(model.layers):
        raise ValueError(f"--freeze {list(layers)}: the model has layers 0 to {len(model.layers) - 1}")
    frozen = [model.layers[i] for i in chosen]
    for layer in frozen:
        layer.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"--freeze {list(layers)}: no parameter is left to train")
    return frozen


def set_training(model: Detector, frozen: Sequence[nn.Module]) -> None:
    """Training mode; frozen layers keep their BatchNorm statistics too."""
    model.train()
    for layer in frozen:
        layer.eval()


def results_row(losses: dict[str, float], result: Evaluation | None) -> dict[str, float]:
    """The columns of results.csv between time and lr; nan where nothing was validated."""
    nan = float("nan")
    metrics = {
        "metrics/precision": result.precision if result else nan,
        "metrics/recall": result.recall if result else nan,
        "metrics/mAP_0.5": result.coco.stats["AP50"] if result else nan,
        "metrics/mAP_0.5:0.95": result.coco.stats["AP"] if result else nan,
    }
    trained = {f"train/{name}_loss": value for name, value in losses.items()}
    validated = {f"val/{name}_loss": result.losses[name] if result else nan for name in losses}
    return {**trained, **metrics, **validated}


def epoch_line(row: dict[str, float], epochs: int) -> str:
    """An epoch in one line of text."""
    losses = " ".join(f"{k[6:-5]} {v:.4f}" for k, v in row.items() if k.startswith("train/"))
    short = {"precision": "P", "recall": "R", "mAP_0.5": "mAP50", "mAP_0.5:0.95": "mAP50-95"}
    metrics = " ".join(f"{name} {row['metrics/' + key]:.4f}" for key, name in short.items())
    validated = row["metrics/mAP_0.5"] == row["metrics/mAP_0.5"]  # not nan
    return f"{row['epoch']:>{len(str(epochs))}}/{epochs}  {losses}  {metrics if validated else 'not validated'}"


def run(arguments: Sequence[str] | None = None) -> None:
    with together() as connect:
        cfg, launch = parse_args(arguments)
        if launch.spawn is not None:
            spawn(__file__, arguments, processes_for(launch.device, launch.spawn))
        else:
            main(cfg, connect(launch))


if __name__ == "__main__":
    gc.enable()
    end(run)
