"""Train a YOLO detector.

    python train.py                                                 yolov5n from scratch on generated shapes
    python train.py --data mydata.yaml --cfg yolov5s.yaml --img 640 --batch 16 --epochs 100 --device 0
    python train.py --data mydata.yaml --weights runs/train/exp/weights/best.pt        fine-tune
    python train.py --resume                                        go on with the newest run

Read `main` from top to bottom: it is the whole story. What it names is one short file away.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data import Augmentation, Loader, build_evaluation_loader, build_train_loader, shapes
from data.dataset_yaml import DataSpec, find_yaml, read_data_yaml
from data.labels import Labels
from data.scan import scan
from models import Detector, build_model
from models.anchors import check_anchors
from models.losses import AnchorLoss
from models.saved import load_detector, transfer
from utils import checkpoint, plots
from utils.config import Hyp, TrainConfig, read_hyp
from utils.devices import choose_precision, describe, memory_gib
from utils.distributed import World, connect
from utils.ema import EMA
from utils.log import Progress, RunLog, new_run_folder, write_json, write_yaml
from utils.optim import NOMINAL_BATCH, Schedule, build_optimizer
from utils.terminal import stops_with_a_sentence
from val import Evaluation, cache_folder, class_table, evaluate, to_device, write_batches, write_pictures

ROOT = Path(__file__).parent
FETCH_EVERY = 50  # batches between looks at the losses, which make the host wait for the device


def main(cfg: TrainConfig, world: World) -> Evaluation:
    """Train as cfg says; return the evaluation of the best checkpoint."""
    saved = None
    if cfg.resume:
        last = Path(cfg.resume)
        saved = checkpoint.load(last)
        cfg = resumed_config(cfg, saved, last)
        folder = last.parent.parent
    else:
        folder = new_run_folder(Path(cfg.project), cfg.name, cfg.exist_ok)
    log = RunLog(folder, active=world.is_main)
    torch.manual_seed(cfg.seed)  # every rank starts from the same weights
    hyp = Hyp(**saved["hyp"]) if saved else read_hyp(find_yaml(cfg.hyp, ROOT / "data" / "hyps", "hyper-parameters"))

    # data
    spec, labels, val_labels = read_data(cfg, folder, log, world)
    names = spec.names[:1] if cfg.single_cls else spec.names
    batch_size = cfg.batch_size
    if batch_size > len(labels):
        batch_size = len(labels)
        log.say(f"--batch-size {cfg.batch_size} is more than the {len(labels)} training images: using {batch_size}")

    # model
    model, start = make_model(cfg, hyp, labels, names, saved, log)
    model.to(world.device, memory_format=torch.channels_last)
    frozen = freeze(model, cfg.freeze)
    ema = EMA(model)
    stride = max(model.strides)
    image_size = -(-max(cfg.imgsz, 2 * stride) // stride) * stride
    if image_size != cfg.imgsz:
        log.say(f"--imgsz {cfg.imgsz} is rounded up to {image_size}, a multiple of the model's largest stride {stride}")

    # loaders
    workers = loader_workers(cfg.workers, batch_size, world.device)
    shared = {"image_size": image_size, "stride": stride, "workers": workers, "pin": world.device.type == "cuda"}
    train_loader = build_train_loader(
        labels,
        batch_size=batch_size,
        augmentation=Augmentation(**{k: v for k, v in hyp.as_dict().items() if k in Augmentation.__annotations__}),
        seed=cfg.seed,
        rect=cfg.rect,
        mosaic_until=cfg.epochs - cfg.close_mosaic,
        rank=world.rank,
        size=world.size,
        **shared,
    )
    val_loader = build_evaluation_loader(
        val_labels, batch_size=batch_size, rank=world.rank, size=world.size, **shared
    )

    # optimization
    sampler = train_loader.sampler
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
    decay = hyp.weight_decay * batch_size * schedule.accumulate / NOMINAL_BATCH
    optimizer = build_optimizer(model, cfg.optimizer, lr=hyp.lr0, momentum=hyp.momentum, weight_decay=decay)
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
    ).to(world.device)
    precision = choose_precision(cfg.amp, world.device)
    scaler = torch.amp.GradScaler(world.device.type, enabled=precision == torch.float16)

    first_epoch, best = 0, {"fitness": -1.0, "epoch": -1}
    if saved:
        model.load_state_dict(saved["model"])
        ema.model.load_state_dict(saved["ema"])
        ema.updates = saved["ema_updates"]
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        first_epoch, best, log.rows = saved["epoch"] + 1, saved["best"], saved["results"]

    if world.is_main:
        write_yaml(folder / "args.yaml", cfg.as_dict())
        write_yaml(folder / "hyp.yaml", hyp.as_dict())
        (folder / "weights").mkdir(exist_ok=True)
        if not cfg.noplots:
            plots.plot_labels(labels.classes, normalised_boxes(labels), names, folder / "labels.png")
    log.say(start)
    log.say(
        f"{describe(world.device)}, {str(precision).removeprefix('torch.')}; {len(labels)} train, {len(val_labels)} val "
        f"images at {image_size} px; batch {batch_size} x {schedule.accumulate} to a step; {workers} loader processes; "
        f"writing to {folder}"
    )

    result = None
    for epoch in range(first_epoch, cfg.epochs):
        started = time.perf_counter()
        sampler.set_epoch(epoch)
        set_training(model, frozen)
        pictures = None if cfg.noplots or epoch > 0 or not world.is_main else folder
        losses = train_one_epoch(
            model, train_loader, criterion, optimizer, schedule, scaler, ema, world, cfg, epoch, precision, pictures, names
        )

        metrics = {}
        if not cfg.noval or epoch == cfg.epochs - 1:
            result = evaluate(ema.model, val_loader, world, criterion=criterion, active=log.active)
            log.say(class_table(result, names, verbose=False))
            metrics = {
                "metrics/precision": result.precision,
                "metrics/recall": result.recall,
                "metrics/mAP_0.5": result.coco.stats["AP50"],
                "metrics/mAP_0.5:0.95": result.coco.stats["AP"],
                **{f"val/{name}_loss": value for name, value in result.losses.items()},
            }
        row = {"epoch": epoch + 1, "time": time.perf_counter() - started}
        row |= {f"train/{name}_loss": value for name, value in losses.items()}
        row |= metrics or {key: float("nan") for key in metric_columns(losses)}
        row["lr"] = schedule.lr(sampler.batches_before(epoch + 1) - 1)
        log.epoch(row)

        improved = bool(metrics) and result is not None and result.fitness > best["fitness"]
        if improved and result is not None:
            best = {"fitness": result.fitness, "epoch": epoch}
        stale = epoch - best["epoch"] if best["epoch"] >= 0 else 0
        stopping = epoch == cfg.epochs - 1 or (0 < cfg.patience <= stale)
        if world.is_main and (not cfg.nosave or stopping):
            state = {
                "table": model.table,
                "names": list(names),
                "config": cfg.as_dict(),
                "hyp": hyp.as_dict(),
                "epoch": epoch,
                "best": best,
                "results": log.rows,
                "versions": {"torch": torch.__version__},
            }
            resumable = state | {
                "model": model.state_dict(),
                "ema": ema.model.state_dict(),
                "ema_updates": ema.updates,
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
            }
            checkpoint.save(folder / "weights" / "last.pt", resumable)
            if improved or not (folder / "weights" / "best.pt").exists():
                final = {"model": ema.model.state_dict(), "metrics": result.as_dict(names) if result else {}}
                checkpoint.save(folder / "weights" / "best.pt", state | final)
            if cfg.save_period > 0 and (epoch + 1) % cfg.save_period == 0:
                checkpoint.save(folder / "weights" / f"epoch{epoch + 1}.pt", resumable)
        if stopping and epoch < cfg.epochs - 1:
            log.say(f"no better for {stale} epochs (--patience {cfg.patience}): the best was epoch {best['epoch'] + 1}")
        if stopping:
            break

    best_model, _ = load_detector(folder / "weights" / "best.pt")
    best_model.to(world.device, memory_format=torch.channels_last)
    final_result = evaluate(best_model, val_loader, world, title="best", active=log.active)
    log.say(class_table(final_result, names, verbose=len(names) <= 100))
    if world.is_main:
        last_numbers = result.as_dict(names) if result else {}
        write_json(folder / "metrics.json", {"last": last_numbers, "best": final_result.as_dict(names)})
        if not cfg.noplots:
            plots.plot_results(folder / "results.csv", folder / "results.png")
            write_pictures(final_result, names, folder)
            write_batches(final_result, val_loader, names, folder)
    log.say(f"best: epoch {best['epoch'] + 1}, mAP50-95 {final_result.coco.stats['AP']:.4f}; written to {folder}")
    return final_result


def train_one_epoch(
    model: Detector,
    loader: Loader,
    criterion: AnchorLoss,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    scaler: torch.amp.GradScaler,
    ema: EMA,
    world: World,
    cfg: TrainConfig,
    epoch: int,
    precision: torch.dtype,
    pictures: Path | None,
    names: Sequence[str],
) -> dict[str, float]:
    """One pass over loader. Returns the mean of each loss term over all batches and ranks."""
    first = loader.sampler.batches_before(epoch)
    closing = schedule.closing_batches(first, first + len(loader))
    total: dict[str, Tensor] = {}
    progress = Progress(loader, total=len(loader), title=f"{epoch + 1}/{cfg.epochs}", active=world.is_main)
    for i, batch in enumerate(progress):
        step = first + i
        schedule.apply(optimizer, step)
        if pictures is not None and i < 3:
            plots.plot_batch(batch.images.numpy(), batch.targets.numpy(), names, pictures / f"train_batch{i}.jpg")

        images = to_device(batch.images, world.device)  # [B, 3, H, W], uint8 to [0, 1]
        targets = batch.targets.to(world.device, non_blocking=True)  # [T, 6]: image, class, x1, y1, x2, y2
        if cfg.multi_scale:
            images, targets = rescaled(images, targets, cfg.seed, step, max(model.strides))
        with torch.autocast(world.device.type, precision, enabled=precision != torch.float32):
            maps = model(images)
        losses = criterion(maps, targets, world.sum)  # {"box": scalar, ...}: this rank's share
        # Gradients are a sum over the images of the global batch; DDP would average them over ranks.
        scaler.scale(sum(losses.values()) * loader.sampler.batch_size * world.size).backward()

        if step in closing:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            ema.update(model)

        for name, value in losses.items():
            total[name] = total.get(name, torch.zeros_like(value)) + value.detach()  # on the device: no sync
        if (i + 1) % FETCH_EVERY == 0 or i + 1 == len(loader):
            means = {name: value.item() / (i + 1) for name, value in total.items()}
            seen = (i + 1) * loader.sampler.batch_size
            progress.text(
                " ".join(f"{name} {value:.4f}" for name, value in means.items())
                + f" {seen / progress.seconds:.1f} img/s wait {progress.wait_share:.0%} {memory_gib(world.device):.1f}G"
            )
    return {name: world.sum(value).item() / len(loader) for name, value in total.items()}


def read_data(cfg: TrainConfig, folder: Path, log: RunLog, world: World) -> tuple[DataSpec, Labels, Labels]:
    """The data set's description and the labels to train and to validate on; writes data_report.json."""
    file = find_yaml(cfg.data, ROOT / "data", "data set")
    spec = read_data_yaml(file)
    if file.resolve() == (ROOT / "data" / "shapes.yaml").resolve():
        shapes.generate(spec.root)
    threads = os.cpu_count() or 1
    found, reports = {}, {}
    for split in ("train", "val"):
        found[split], report = scan(
            spec.sources(split),
            spec.names,
            cache_dir=cache_folder(cfg.cache_dir),
            threads=threads,
            progress=world.is_main,
        )
        reports[split] = report.as_dict()
        log.say(f"{split}: {report.summary()}")
    if world.is_main:
        write_json(folder / "data_report.json", reports)
    if cfg.single_cls:
        found = {split: labels.with_single_class() for split, labels in found.items()}
    return spec, found["train"], found["val"]


def make_model(
    cfg: TrainConfig, hyp: Hyp, labels: Labels, names: Sequence[str], saved: dict[str, Any] | None, log: RunLog
) -> tuple[Detector, str]:
    """The model to start from, its anchors fitted to the data, and a line that says what it is."""
    if saved:
        return Detector(saved["table"]), f"going on with epoch {saved['epoch'] + 2} of {cfg.epochs}"
    given, state = None, None
    if cfg.weights:
        given, state = load_detector(Path(cfg.weights))
    cfg_name = cfg.cfg or ("" if given else "yolov5n.yaml")
    anchors = round(hyp.anchors) or None
    model = build_model(cfg_name or given.table, len(names), anchors=anchors)  # type: ignore[union-attr]
    if not cfg.noautoanchor or anchors:
        longest = labels.sizes.max(1).astype(np.float64)
        scale = np.repeat(cfg.imgsz / longest, np.diff(labels.offsets))
        sizes = labels.boxes_xywh[~labels.crowd, 2:] * scale[~labels.crowd, None]
        fitted, sentence = check_anchors(sizes, model.anchors_px.double().numpy(), hyp.anchor_t, seed=cfg.seed)
        model.set_anchors(torch.from_numpy(fitted).float())
        log.say(sentence)
    line = f"{cfg_name or cfg.weights}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(names)} classes"
    if given is None:
        return model, f"{line}, from scratch"
    copied, of = transfer(model, given.state_dict())
    return model, f"{line}, {copied} of {of} entries from {cfg.weights}"


def freeze(model: Detector, layers: Sequence[int]) -> list[nn.Module]:
    """The layers that stay as they are: the first N for one number N, else those of these numbers.

    Raises ValueError for a layer that the model does not have.
    """
    chosen = list(range(layers[0])) if len(layers) == 1 else list(layers)
    if chosen and max(chosen) >= len(model.layers):
        raise ValueError(f"--freeze {list(layers)}: the model has layers 0 to {len(model.layers) - 1}")
    frozen = [model.layers[i] for i in chosen]
    for layer in frozen:
        layer.requires_grad_(False)
    return frozen


def set_training(model: Detector, frozen: Sequence[nn.Module]) -> None:
    """Training mode; frozen layers keep their BatchNorm statistics too."""
    model.train()
    for layer in frozen:
        layer.eval()


def rescaled(images: Tensor, targets: Tensor, seed: int, step: int, stride: int) -> tuple[Tensor, Tensor]:
    """The batch at 0.5 to 1.5 times its size, keyed by (seed, step) so that every rank draws the same."""
    random = np.random.Generator(np.random.Philox(key=[seed, step]))
    size = images.shape[2]
    new = int(random.integers(max(stride, size // 2), size * 3 // 2 + stride)) // stride * stride
    if new == size:
        return images, targets
    moved = torch.cat([targets[:, :2], targets[:, 2:] * (new / size)], 1)
    return F.interpolate(images, (new, new), mode="bilinear", align_corners=False), moved


def metric_columns(losses: Sequence[str] | dict[str, float]) -> list[str]:
    """The columns of results.csv that an epoch without validation leaves empty."""
    names = ["precision", "recall", "mAP_0.5", "mAP_0.5:0.95"]
    return [f"metrics/{n}" for n in names] + [f"val/{n}_loss" for n in losses]


def normalised_boxes(labels: Labels) -> np.ndarray:
    """[N, 4] centre and size as shares of the image."""
    size = np.repeat(labels.sizes.astype(np.float64), np.diff(labels.offsets), 0)
    low, extent = labels.boxes_xywh[:, :2] / size, labels.boxes_xywh[:, 2:] / size
    return np.concatenate([low + extent / 2, extent], 1)


def loader_workers(wanted: int, batch_size: int, device: torch.device) -> int:
    """How many loader processes: all cores for a GPU; half of them when the CPU trains as well."""
    cores = os.cpu_count() or 1
    return min(wanted, batch_size, cores // 2 if device.type == "cpu" else cores)


def resumed_config(cfg: TrainConfig, saved: dict[str, Any], path: Path) -> TrainConfig:
    """The run's own settings, with the device and workers of the command line.

    Raises ValueError if the checkpoint cannot be gone on with, or the run is done.
    """
    if "optimizer" not in saved:
        raise ValueError(f"{path}: holds no training state to resume; give it to --weights to fine-tune from it")
    values = saved["config"] | {"device": cfg.device, "workers": cfg.workers, "resume": str(path)}
    if saved["epoch"] + 1 >= values["epochs"]:
        raise ValueError(f"{path}: its run ended after {values['epochs']} epochs; there is nothing to resume")
    return TrainConfig(**values | {"freeze": tuple(values["freeze"])})


def parse_args(arguments: Sequence[str] | None = None) -> TrainConfig:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", help="checkpoint to start from; '' trains from scratch")
    add("--cfg", help="model, for example yolov5s.yaml (default: the checkpoint's, else yolov5n.yaml)")
    add("--data", help="data set YAML, as a path or a name in data/")
    add("--hyp", help="hyper-parameter YAML, as a path or a name in data/hyps/")
    add("--epochs", type=int, help="passes over the training images")
    add("--batch-size", "--batch", type=int, help="images per batch, over all processes")
    add("--imgsz", "--img", "--img-size", type=int, help="training and validation size in pixels")
    add("--rect", action="store_true", help="batches of like shape instead of squares; no mosaic")
    add("--resume", nargs="?", const="newest", help="go on with a run: its last.pt, or the newest one")
    add("--nosave", action="store_true", help="write checkpoints at the end only")
    add("--noval", action="store_true", help="validate at the end only")
    add("--noautoanchor", action="store_true", help="keep the model's anchors")
    add("--noplots", action="store_true", help="draw no pictures")
    add("--device", help="cpu, mps or a GPU's number (default: the first GPU, else the CPU)")
    add("--multi-scale", action="store_true", help="change the image size by up to half from batch to batch")
    add("--single-cls", action="store_true", help="treat all classes as one")
    add("--optimizer", help="SGD, Adam or AdamW")
    add("--workers", type=int, help="most loader processes")
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
    parser.set_defaults(**TrainConfig().as_dict())
    values = vars(parser.parse_args(arguments))
    if values["resume"] == "newest":
        values["resume"] = str(checkpoint.newest(Path(values["project"]), "*/weights/last.pt"))
    return TrainConfig(**values | {"freeze": tuple(values["freeze"])})


def run() -> None:
    cfg = parse_args()
    with connect(cfg.device) as world:
        main(cfg, world)


if __name__ == "__main__":
    sys.exit(stops_with_a_sentence(run))
