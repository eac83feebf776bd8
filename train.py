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
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data import Augmentation, Loader, build_evaluation_loader, build_train_loader
from data.balance import image_weights
from data.dataset_yaml import find_yaml
from data.labels import Labels
from data.loader import Batch
from data.multi_scale import MultiScale
from data.sampler import TrainSampler, whole_strides
from data.splits import class_names, open_data, read_split
from models import Detector, build_model
from models.anchors import check_anchors
from models.losses import AnchorLoss
from models.saved import load_detector, transfer
from utils import checkpoint
from utils.autobatch import choose_batch, fill_state
from utils.config import Hyp, TrainConfig, read_hyp
from utils.devices import choose_precision, describe, loader_workers, memory_gib, pins_memory, processes_for, widened
from utils.distributed import World, together
from utils.ema import EMA, averaging
from utils.files import remove_torn_files
from utils.flags import FlagParser
from utils.launch import Launch, read_launch, spawn
from utils.log import Progress, RunLog, new_run_folder, write_json, write_yaml
from utils.optim import NOMINAL_BATCH, Schedule, build_optimizer
from utils.plateau import Plateau
from utils.replica import DistributedReplica, Replica, align
from utils.restart import MARKS, find_earlier_life
from utils.sharding import ShardedReplica
from utils.sync_bn import synchronize_batch_norm
from utils.terminal import end
from val import Evaluation, Pictures, class_table, evaluate, to_device

ROOT = Path(__file__).parent
MOST_PER_VAL_BATCH = 32  # images; a validation batch is one process's
FETCH_EVERY = 50  # batches between looks at the losses: a look makes the host wait for the device


@dataclass
class Learner:
    """All that training changes: with the epoch it is what a checkpoint must hold to go on exactly from there.

    Every process has the whole of it: each averages its own copy, which with it can then validate its share.
    """

    replica: Replica[Detector]
    ema: EMA[Detector]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.replica.state_dict(),
            "ema": self.ema.state_dict(),
            "ema_updates": self.ema.updates,
            "optimizer": self.replica.optimizer_state(self.optimizer),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.replica.load_state_dict(saved["model"])
        self.ema.model.load_state_dict(saved["ema"])
        self.ema.updates = saved["ema_updates"]
        self.replica.load_optimizer_state(self.optimizer, saved["optimizer"])
        if saved["scaler"]:  # of a run in float16; another one has nothing to scale
            self.scaler.load_state_dict(saved["scaler"])


def main(cfg: TrainConfig, world: World) -> Evaluation:
    """Train as cfg says; return the evaluation of the best checkpoint."""
    log = RunLog(active=world.is_main)
    life = find_earlier_life(Path(cfg.project), world)
    if life.done:
        log.say(f"started again by the launcher, but all is done in {life.run}")
        raise SystemExit(0)
    if life.checkpoint:
        cfg = replace(cfg, resume=life.checkpoint)
        log.say(f"started again by the launcher: going on with {cfg.resume}")
    saved = checkpoint.load(Path(cfg.resume)) if cfg.resume else {}
    if len(set(world.exchange(str([saved.get("epoch"), saved.get("results")])))) > 1:
        raise ValueError(f"{cfg.resume}: on other machines it is of another run or epoch; all must see the same file")
    if saved:
        cfg, hyp = resumed_config(cfg, saved, log), Hyp(**saved["hyp"])
        log.rows = saved["results"]
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
    for split, own in labels.items():
        world.require_alike(f"{spec.file}, {split}", own.digest())
    names = class_names(spec.names, single=cfg.single_cls)
    if saved and names != saved["names"]:
        raise ValueError(f"{cfg.resume}: it was trained on other classes than {spec.file} names")
    model = Detector(saved["table"]) if saved else make_model(cfg, hyp, labels["train"], names, world, log)
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
        "pin": pins_memory(world.device),
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
        **shared,
    )
    val_loader = build_evaluation_loader(labels["val"], batch_size=min(batch_size, MOST_PER_VAL_BATCH), **shared)
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
    decay = hyp.weight_decay * batch_size * schedule.accumulate / NOMINAL_BATCH
    optimizer = build_optimizer(model, cfg.optimizer, lr=hyp.lr0, momentum=hyp.momentum, weight_decay=decay)
    scaler = torch.amp.GradScaler(world.device.type, enabled=precision == torch.float16)
    learner = Learner(replica, ema, optimizer, scaler)
    scale = MultiScale(cfg.seed, stride) if cfg.multi_scale else None
    plateau = Plateau(cfg.patience)
    first_epoch, result, metrics = 0, None, {}
    if saved:
        learner.load_state_dict(saved)
        plateau.load_state_dict(saved["best"])
        first_epoch, metrics = saved["epoch"] + 1, saved["metrics"]

    # The run folder: made last, when nothing is left to refuse
    if world.is_main:
        resumed = run_folder(cfg.resume) if saved else life.run
        folder = Path(resumed or new_run_folder(Path(cfg.project), cfg.name, cfg.exist_ok))
    folder = Path(world.share(str(folder) if world.is_main else ""))
    weights = folder / "weights"
    pictures = Pictures(folder, names, active=world.is_main and not cfg.noplots)
    if world.is_main:
        weights.mkdir(exist_ok=True)
        remove_torn_files(folder)
        (folder / "metrics.json").unlink(missing_ok=True)  # it says that a run is done
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

    started = time.perf_counter()
    for epoch in range(first_epoch, first_epoch if saved.get("done") else cfg.epochs):
        began = time.perf_counter()
        sampler.set_epoch(epoch)
        if cfg.image_weights:
            sampler.weights = image_weights(labels["train"], len(names), ap_per_class(metrics, names))
        set_training(model, frozen)
        losses, pace = train_one_epoch(
            learner,
            train_loader,
            criterion,
            schedule,
            autocast,
            world,
            title=f"{epoch + 1}/{cfg.epochs}",
            scale=scale,
            watch=pictures.train_batch if epoch == 0 else None,
        )
        replica.align(world, synchronised=synchronised)
        align(ema.model, world, synchronised=synchronised)
        if not cfg.noval or epoch == cfg.epochs - 1:
            result = evaluate(ema.model, val_loader, world, criterion=criterion, active=log.active)
            metrics = world.share(result.as_dict(names))  # to the last bit: machines may differ in it
            plateau.update(epoch, metrics["fitness"])
        done = plateau.over(epoch) or epoch == cfg.epochs - 1  # all ranks hold the same metrics: all stop alike

        state = learner.state_dict()  # where it is sharded, all take part
        row = {"epoch": epoch + 1, "time": time.perf_counter() - began}
        row |= results_row(losses, result, lr=schedule.lr(sampler.batches_before(epoch + 1) - 1))
        log.epoch(row, folder)
        left = (time.perf_counter() - started) / (epoch + 1 - first_epoch) * (cfg.epochs - epoch - 1)
        log.say(f"{epoch_line(row, cfg.epochs)}  {pace}, {timedelta(seconds=round(left))} left")

        if world.is_main and (done or not cfg.nosave):
            about = {
                "table": model.table,
                "names": names,
                "data": str(spec.file),
                "config": cfg.as_dict(),
                "hyp": hyp.as_dict(),
                "epoch": epoch,
                "done": done,
                "best": plateau.state_dict(),
                "metrics": metrics,
                "results": log.rows,
                "versions": {"torch": torch.__version__},
            }
            state = about | state
            if plateau.best_epoch in (epoch, None) or cfg.nosave:
                checkpoint.save(weights / "best.pt", about | {"model": learner.ema.state_dict()})
            if cfg.save_period > 0 and (epoch + 1) % cfg.save_period == 0:
                checkpoint.save(weights / f"epoch{epoch + 1}.pt", state)
            checkpoint.save(weights / "last.pt", state)  # last: killed before, a run does this epoch once more
        world.wait_for_main()
        if plateau.over(epoch):
            log.say(f"stopped: no better for {cfg.patience} epochs (--patience)")
        if done:
            break

    # The number that val.py will give for best.pt
    best_model, best_epoch = Detector(model.table), -1
    if world.is_main:  # the other machines need not see the folder
        best_model, kept = load_detector(weights / "best.pt")
        best_epoch = kept["epoch"]
    best_model.to(memory_format=torch.channels_last).to(world.device)
    world.wait_for_main()
    world.spread_([*best_model.parameters(), *best_model.buffers()])
    best = evaluate(best_model, val_loader, world, title="best", active=log.active)
    log.say(class_table(best, names, verbose=len(names) <= 100))
    pictures.results(best, val_loader)
    if world.is_main:
        write_json(folder / "metrics.json", {"last": metrics, "best": best.as_dict(names)})
    log.say(f"best.pt is of epoch {best_epoch + 1}: mAP50-95 {best.coco.stats['AP']:.4f}; see {folder}")
    world.wait_for_main()
    return best


def train_one_epoch(
    learner: Learner,
    loader: Loader[TrainSampler],
    criterion: AnchorLoss,
    schedule: Schedule,
    autocast: torch.autocast,
    world: World,
    *,
    title: str,
    scale: MultiScale | None = None,
    watch: Callable[[int, Batch], None] | None = None,
) -> tuple[dict[str, float], str]:
    """One pass over loader: the mean of each loss term over all batches and ranks, and the pace in words.

    scale: changes the images' size. watch: is shown each batch with its number.
    """
    replica, optimizer, scaler, sampler = learner.replica, learner.optimizer, learner.scaler, loader.sampler
    model = replica.model
    before = sampler.batches_before(sampler.epoch)
    first = before + sampler.first_batch
    closing = schedule.closing_batches(before, before + sampler.batches_in(sampler.epoch))
    total: dict[str, Tensor] = {}
    progress = Progress(loader, total=len(loader), title=title, active=world.is_main)
    fetch_every = 1 if world.device.type == "cpu" else FETCH_EVERY
    for i, batch in enumerate(progress):
        step = first + i
        schedule.apply(optimizer, step)
        if watch is not None:
            watch(i, batch)

        images = to_device(batch.images, world.device, model.dtype)  # [B, 3, H, W], uint8 to [0, 1]
        targets = batch.targets.to(world.device, non_blocking=True)  # [T, 6]: image, class, x1, y1, x2, y2
        if scale is not None:
            images, targets = scale(step, images, targets)
        with replica.gradients(last=step in closing):  # ranks exchange gradients once for each optimizer step
            with autocast:
                maps = replica(images)
            losses = criterion(maps, targets, world.sum)  # {"box": scalar, ...}, weighted: this rank's share
            # Gradients are a sum over the images of the global batch; the mean over ranks is taken of them.
            scaler.scale(sum(losses.values()) * sampler.batch_size * world.size).backward()

        if step in closing:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            learner.ema.update(replica.state_dict())

        for name, value in losses.items():
            total[name] = total.get(name, 0) + value.detach()  # on the device: no sync per step
        if i % fetch_every == 0:
            so_far = " ".join(f"{name} {value.item() * world.size / (i + 1):.4f}" for name, value in total.items())
            progress.text(f"{so_far}, {pace_of(progress, (i + 1) * sampler.batch_size, world.device)}")
    means = {name: world.sum(value).item() / len(loader) for name, value in total.items()}
    return means, pace_of(progress, len(loader) * sampler.batch_size, world.device)


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
        targets = torch.cat([owner, owner * 0, corners, corners + side / 8], 1).to(world.device)
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
    given = load_detector(Path(cfg.weights))[0] if cfg.weights else None
    cfg_name = cfg.cfg or ("" if given else "yolov5n.yaml")
    table = given.table if given and not cfg_name else cfg_name
    model = build_model(table, len(names), anchors=round(hyp.anchors) or None)
    started = "from scratch"
    if given:
        copied, of = transfer(model, given.state_dict())
        started = f"{copied} of {of} entries from {cfg.weights}"
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


def results_row(losses: dict[str, float], result: Evaluation | None, *, lr: float) -> dict[str, float]:
    """The columns of results.csv after epoch and time; nan where nothing was validated."""
    nan = float("nan")
    metrics = {
        "metrics/precision": result.precision if result else nan,
        "metrics/recall": result.recall if result else nan,
        "metrics/mAP_0.5": result.coco.stats["AP50"] if result else nan,
        "metrics/mAP_0.5:0.95": result.coco.stats["AP"] if result else nan,
    }
    trained = {f"train/{name}_loss": value for name, value in losses.items()}
    validated = {f"val/{name}_loss": result.losses[name] if result else nan for name in losses}
    return {**trained, **metrics, **validated, "lr": lr}


def epoch_line(row: dict[str, float], epochs: int) -> str:
    """An epoch in one line of text."""
    losses = " ".join(f"{k[6:-5]} {v:.4f}" for k, v in row.items() if k.startswith("train/"))
    short = {"precision": "P", "recall": "R", "mAP_0.5": "mAP50", "mAP_0.5:0.95": "mAP50-95"}
    metrics = " ".join(f"{name} {row['metrics/' + key]:.4f}" for key, name in short.items())
    validated = row["metrics/mAP_0.5"] == row["metrics/mAP_0.5"]  # not nan
    return f"{row['epoch']:>{len(str(epochs))}}/{epochs}  {losses}  {metrics if validated else 'not validated'}"


def run_folder(resume: str) -> Path:
    """The folder of the run that a checkpoint belongs to.

    Raises ValueError if the checkpoint does not lie in a run's weights folder.
    """
    weights = Path(os.path.abspath(resume)).parent
    if weights.name != "weights":
        raise ValueError(f"{resume}: --resume goes on in the run's own folder, RUN/weights/last.pt; it lies elsewhere")
    return weights.parent


def resumed_config(cfg: TrainConfig, saved: dict[str, Any], log: RunLog) -> TrainConfig:
    """The run's own settings, with the workers of the command line.

    Raises ValueError if the checkpoint cannot be gone on with, or the run is done.
    """
    if "optimizer" not in saved:
        raise ValueError(f"{cfg.resume}: holds no training state to resume; fine-tune from it with --weights")
    default = TrainConfig().as_dict()
    unknown = ", ".join(sorted(saved["config"].keys() - default.keys()))
    if unknown:
        raise ValueError(f"{cfg.resume}: its settings ({unknown}) are unknown to this version of Kestrel")
    if saved["done"] and (run_folder(cfg.resume) / "metrics.json").exists():
        raise ValueError(f"{cfg.resume}: its run is done after {saved['epoch'] + 1} epochs; there is nothing to resume")
    ours = {"workers": cfg.workers, "resume": cfg.resume, "download": cfg.download}
    values = saved["config"] | ours | {"data": saved["data"]}
    given = {k for k, v in cfg.as_dict().items() if v != default[k]} - ours.keys() - {"project"}
    unheard = ", ".join(f"--{k.replace('_', '-')}" for k in default if k in given and cfg.as_dict()[k] != values[k])
    if unheard:
        log.say(f"--resume goes on with the run's own settings; of no effect: {unheard}")
    return TrainConfig(**values | {"freeze": tuple(values["freeze"])})


def parse_args(arguments: Sequence[str] | None = None) -> tuple[TrainConfig, Launch]:
    parser = FlagParser(__doc__)
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
    add("--nosave", action="store_true", help="write checkpoints at the end only")
    add("--noval", action="store_true", help="validate at the end only")
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
    add("--seed", type=int, help="of weights, order and augmentation")
    add("--amp", help="arithmetic: auto, fp32, bf16 or fp16")
    add("--close-mosaic", type=int, help="epochs at the end without mosaic, mixup and copy-paste")
    add("--cache-dir", help="where scans of labels are kept (default: the user's cache folder)")
    parser.without_effect("--cache", "images are not cached yet; each is read when it is needed")
    parser.not_built("--quad", "--evolve")
    parser.set_defaults(**TrainConfig().as_dict())
    launch, values = read_launch(parser, arguments)
    if values["resume"] == "newest":
        values["resume"] = str(checkpoint.newest(Path(values["project"]), "**/weights/last.pt"))
    return TrainConfig(**values | {"freeze": tuple(values["freeze"])}), launch


def run(arguments: Sequence[str] | None = None) -> None:
    with together() as connect:
        cfg, launch = parse_args(arguments)
        if launch.spawn is not None:
            spawn(__file__, arguments, processes_for(launch.device, launch.spawn))
        else:
            main(cfg, connect(launch))


if __name__ == "__main__":
    end(run)
