"""Measure a detector: COCO's mAP of a checkpoint on a data set's val or test split.

    python val.py                                                  the newest best.pt on the data it was trained on
    python val.py --weights runs/train/exp/weights/best.pt --data mydata.yaml --img 640
    python val.py --weights a.pt b.pt --augment --save-json        an ensemble, test-time augmentation, COCO results
    python val.py --task speed                                     milliseconds per image
    python -m torch.distributed.run --nproc_per_node 2 val.py      each process takes its share of the images

`evaluate` is the one that train.py calls after each epoch. The numbers are COCO's own arithmetic (utils/metrics.py).
"""

import gc
import os
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.flags import FlagParser, answer_help
from utils.launch import Launch, read_launch, spawn


def parse_args(arguments: Sequence[str] | None = None) -> tuple[Namespace, Launch]:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--weights", nargs="+", default=[], help="checkpoints, several make an ensemble (default: the newest best.pt)")
    add("--data", default="", help="data YAML (default: the one the checkpoint was trained on)")
    add("--download", action="store_true", help="fetch the data set if it is not there, from where its YAML says")
    add("--batch-size", "--batch", type=int, default=32, help="images per batch")
    add("--imgsz", "--img", "--img-size", type=int, default=0, help="long side in pixels (default: as trained)")
    add("--conf-thres", "--conf", type=float, default=0.001, help="lowest score that counts")
    add("--iou-thres", "--iou", type=float, default=0.6, help="IoU above which of two boxes the surer one stays")
    add("--max-det", type=int, default=300, help="most detections per image")
    add("--task", default="val", choices=["train", "val", "test", "speed"], help="the split, or speed on val")
    add("--workers", type=int, default=8, help="most loader processes")
    add("--single-cls", action="store_true", help="treat all classes as one")
    add("--augment", action="store_true", help="test-time augmentation: three scales, one mirrored")
    add("--verbose", action="store_true", help="a line for each class")
    add("--save-txt", action="store_true", help="write labels/*.txt")
    add("--save-conf", action="store_true", help="with the score in them")
    add("--save-json", action="store_true", help="write COCO JSON and let pycocotools score it too")
    add("--project", default="runs/val", help="where run folders go")
    add("--name", default="exp", help="the run folder's name")
    add("--exist-ok", action="store_true", help="write into an existing folder")
    add("--half", action="store_true", help="16-bit forward pass, as the device can")
    add("--cache-dir", default="", help="where scans of labels are kept (default: the user's cache folder)")
    parser.not_built("--dnn", "--save-hybrid")
    launch, values = read_launch(parser, arguments)
    return Namespace(**values), launch


def check_flags(args: Namespace) -> None:
    """Raises ValueError for a flag out of range."""
    wholes = (("--batch-size", args.batch_size, 1), ("--max-det", args.max_det, 1), ("--workers", args.workers, 0))
    for flag, value, low in wholes:
        if value < low:
            raise ValueError(f"{flag} {value}: choose {low} or more")
    if args.imgsz and not 32 <= args.imgsz <= 8192:
        raise ValueError(f"--imgsz {args.imgsz}: choose 32 to 8192 pixels")
    for flag, share in (("--conf-thres", args.conf_thres), ("--iou-thres", args.iou_thres)):
        if not 0 <= share <= 1:
            raise ValueError(f"{flag} {share}: a threshold lies between 0 and 1")


if __name__ == "__main__":
    answer_help(parse_args)  # before the imports below take their seconds,
    gc.disable()  # a fifth of which would go into looking for garbage

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data import Loader, build_evaluation_loader
from data.labels import Labels
from data.loader import Batch
from data.sampler import EvaluationSampler, whole_strides
from data.splits import class_names, open_data, read_split
from models import Detector
from models.assign import filled_up
from models.losses import AnchorLoss
from models.nms import suppress
from models.predict import Predict, ensemble, one_class, plain, with_views
from models.saved import digest, load_detector, reorder_classes
from utils import checkpoint
from utils.coco_files import check_with_pycocotools, coco_ground_truth, coco_results
from utils.config import PLACES
from utils.curves import OperatingCurves, confusion_matrix, operating_curves
from utils.devices import choose_precision, describe, loader_workers, processes_for, wait_for
from utils.distributed import World, together
from utils.log import Progress, RunLog, new_run_folder, write_json, write_text
from utils.metrics import CocoResult, Detections, GroundTruth, evaluate_boxes, format_summary
from utils.printable import shown
from utils.save_points import InterruptedRunError
from utils.terminal import end

SHOWN_CONFIDENCE = 0.25  # of the detections drawn in pictures


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation of so many images found. All ranks hold the same."""

    images: int
    coco: CocoResult
    curves: OperatingCurves
    truth: GroundTruth
    detections: Detections
    losses: dict[str, float] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)  # per image

    @property
    def precision(self) -> float:
        """Mean over classes at the confidence of the best mean F1, IoU 0.5."""
        return float(self.curves.mean(self.curves.precision_at_best))

    @property
    def recall(self) -> float:
        return float(self.curves.mean(self.curves.recall_at_best))

    @property
    def fitness(self) -> float:
        """What "best" means: 0.1 AP50 + 0.9 AP, in [0, 1]."""
        return 0.1 * max(self.coco.stats["AP50"], 0.0) + 0.9 * max(self.coco.stats["AP"], 0.0)

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """COCO's 12 numbers, precision, recall and fitness, and the numbers of each class by name."""
        rows = self.coco.per_class
        per_class = {name: rows[k] for k, name in enumerate(names) if k in rows}
        operating = {"precision": self.precision, "recall": self.recall, "fitness": self.fitness}
        return {**self.coco.stats, **operating, "per_class": per_class}


@dataclass(frozen=True)
class Found:
    """What a model has detected on all images of a split. All ranks hold the same."""

    labels: Labels
    detections: Detections
    losses: dict[str, float]
    milliseconds: dict[str, float]  # per image

    def judged(self) -> Evaluation:
        """What it is worth."""
        truth = ground_truth(self.labels)
        ids = {"image_ids": self.labels.image_ids, "class_ids": np.arange(len(self.labels.category_ids))}
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
def detect(
    model: Detector,
    loader: Loader[EvaluationSampler],
    world: World,
    *,
    precision: torch.dtype = torch.float32,
    criterion: AnchorLoss | None = None,
    predict: Predict | None = None,
    confidence: float = 0.001,
    iou: float = 0.6,
    max_detections: int = 300,
    title: str = "val",
    active: bool = True,
    interrupted: Callable[[], bool] | None = None,
) -> Found:
    """Detections of `model` on every image of `loader`, those of all processes.

    precision: of the forward pass; boxes and scores are always formed in float32. criterion: adds the losses. predict:
    stands in for the plain forward pass and decoding. max_detections: kept per image, of all classes together.
    Raises InterruptedRunError, on all processes, if `interrupted` becomes true on one of them.
    """
    model.eval()
    found = [np.zeros((0, 7))]
    clock = {"load": 0.0, "model": 0.0, "nms": 0.0}
    terms = criterion.terms if criterion else ()
    losses: list[list[float]] = []  # a row for each batch: its number, its terms times its images
    batches = Progress(loader, total=len(loader), title=title, active=active)
    for number, batch in zip(loader.sampler.numbers, batches, strict=True):
        if interrupted is not None and interrupted():
            break
        started = time.perf_counter()
        images = to_device(batch.images, world.device, model.dtype)
        with torch.autocast(world.device.type, precision, enabled=precision != torch.float32):
            maps = [] if predict else model(images)
            boxes, scores = predict(images) if predict else model.decode(maps)
        wait_for(world.device)
        modelled = time.perf_counter()
        if criterion is not None:
            of_batch = criterion(maps, filled_up(batch.targets))
            row = [of_batch[name].item() * len(images) for name in terms]
            losses.append([number, *row])
        kept = suppress(boxes, scores, confidence=confidence, iou=iou, max_detections=max_detections)
        found += [_in_source(k, batch, i, loader.labels) for i, k in enumerate(kept)]
        clock["model"] += modelled - started
        clock["nms"] += time.perf_counter() - modelled
    clock["load"] = batches.waited
    if interrupted is not None and world.gather(torch.tensor([interrupted()])).any():
        raise InterruptedRunError

    detections = _as_detections(world.gather(torch.from_numpy(np.concatenate(found))).numpy(), loader.labels)
    by_batch = world.gather(torch.tensor(losses, dtype=torch.float64).view(-1, 1 + len(terms)))
    sums = sum(by_batch[by_batch[:, 0].argsort(), 1:], torch.zeros(len(terms)))  # in one order for any number of ranks
    seconds = world.gather(torch.tensor([list(clock.values())])).sum(0)
    return Found(
        loader.labels,
        detections,
        dict(zip(terms, (sums / len(loader.labels)).tolist(), strict=True)),
        dict(zip(clock, (seconds / len(loader.labels) * 1000).tolist(), strict=True)),
    )


def evaluate(model: Detector, loader: Loader[EvaluationSampler], world: World, **how: Any) -> Evaluation:
    """Detections of `model` on every image of `loader`, and what they are worth. how: as `detect` takes it."""
    return detect(model, loader, world, **how).judged()


def to_device(images: Tensor, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 [B, H, W, 3] to [B, 3, H, W] in [0, 1], channels last in memory."""
    return images.to(device, non_blocking=True).permute(0, 3, 1, 2).to(dtype).div_(255)


def _in_source(kept: Tensor, batch: Batch, i: int, labels: Labels) -> NDArray[np.float64]:
    """[D, 7]: image position, class, x, y, w, h in source pixels, score; boxes end at the image's border."""
    rows = kept.double().cpu().numpy()
    index = int(batch.indices[i])
    place = batch.placement[i].numpy()  # scale x, scale y, shift x, shift y
    size = labels.sizes[index].astype(np.float64)
    low = ((rows[:, :2] - place[2:]) / place[:2]).clip(0, size)
    high = ((rows[:, 2:4] - place[2:]) / place[:2]).clip(0, size)
    return np.concatenate([np.full((len(rows), 1), index), rows[:, 5:], low, high - low, rows[:, 4:5]], 1)


def _as_detections(rows: NDArray[np.float64], labels: Labels) -> Detections:
    """In the order of the images' ids, so that ties fall alike however the images were shared out."""
    image_ids = labels.image_ids[rows[:, 0].astype(np.int64)]
    order = np.argsort(image_ids, kind="stable")
    rows = rows[order]
    return Detections(image_ids[order], rows[:, 1].astype(np.int64), rows[:, 2:6], rows[:, 6])


def ground_truth(labels: Labels) -> GroundTruth:
    """The labels as the evaluator takes them."""
    image_ids = np.repeat(labels.image_ids, np.diff(labels.offsets))
    return GroundTruth(image_ids, labels.classes.astype(np.int64), labels.boxes_xywh, labels.areas, labels.crowd)


# ---------------------------------------------------------------------- what is written


class Pictures:
    """The pictures of a run folder. Draws nothing unless active.

    Those of training are drawn aside, in a thread, since other processes would wait for this one's next step. There
    matplotlib is loaded too, which takes longer than building a model. Loader processes that are forked meanwhile have
    it half loaded, which is nothing to them: they import nothing of it.
    """

    def __init__(self, folder: Path, names: Sequence[str], *, active: bool = True) -> None:
        self.folder, self.names, self.active = folder, names, active
        self._aside = ThreadPoolExecutor(1, "pictures")  # starts no thread before it is given something
        self._drawn: list[Future[None]] = []

    def labels(self, labels: Labels) -> None:
        """labels.png: what there is to learn from."""
        if self.active:
            self._drawn.append(self._aside.submit(self._labels, labels))

    def train_batch(self, number: int, batch: Batch) -> None:
        """train_batch0.jpg to train_batch2.jpg: what the model sees. Raises what a picture before has failed over."""
        for drawing in filter(Future.done, self._drawn):
            drawing.result()
        if self.active and number < 3:
            images, targets = batch.images.cpu().numpy().copy(), batch.targets.cpu().numpy().copy()
            self._drawn.append(self._aside.submit(self._batch, f"train_batch{number}.jpg", images, targets))

    def results(self, found: Evaluation, loader: Loader[EvaluationSampler]) -> None:
        """results.png where there is a results.csv, curves, confusion matrix and validation batches."""
        if not self.active:
            return
        from utils import plots

        for drawing in self._drawn:
            drawing.result()
        if (self.folder / "results.csv").exists():
            plots.plot_results(self.folder / "results.csv", self.folder / "results.png")
        c = found.curves
        curves = (c.confidence, c.precision, c.recall, c.f1, c.pr_recall, c.pr_precision)
        plots.plot_curves(*curves, self.names, self.folder, c.best_confidence)
        matrix = confusion_matrix(found.truth, found.detections, class_ids=c.class_ids)
        plots.plot_confusion(matrix, self.names, self.folder / "confusion_matrix.png")
        for number, batch in zip(range(3), loader, strict=False):
            self._val_batch(number, batch, found.detections, loader.labels)

    def _val_batch(self, number: int, batch: Batch, found: Detections, labels: Labels) -> None:
        """val_batchN_labels.jpg and val_batchN_pred.jpg: the truth, and detections of at least SHOWN_CONFIDENCE."""
        rows = []
        for i, index in enumerate(batch.indices.tolist()):
            chosen = (found.image_ids == labels.image_ids[index]) & (found.scores >= SHOWN_CONFIDENCE)
            scale, shift = batch.placement[i].numpy().reshape(2, 2)
            low, size = found.boxes_xywh[chosen, :2] * scale + shift, found.boxes_xywh[chosen, 2:] * scale
            head = np.stack([np.full(chosen.sum(), i), found.class_ids[chosen]], 1)
            rows.append(np.concatenate([head, low, low + size, found.scores[chosen, None]], 1))
        predicted, images = np.concatenate(rows), batch.images.cpu().numpy()
        titles = [Path(labels.path(i)).name for i in batch.indices.tolist()]
        self._batch(f"val_batch{number}_labels.jpg", images, batch.targets.cpu().numpy(), titles=titles)
        guess = f"val_batch{number}_pred.jpg"
        self._batch(guess, images, predicted[:, :6], scores=predicted[:, 6], titles=titles)

    def _labels(self, labels: Labels) -> None:
        from utils import plots

        size = np.tile(np.repeat(labels.sizes, np.diff(labels.offsets), 0), 2)
        boxes = labels.boxes_xywh / size
        boxes[:, :2] += boxes[:, 2:] / 2  # corner to centre
        plots.plot_labels(labels.classes, boxes, self.names, self.folder / "labels.png")

    def _batch(self, file: str, images: NDArray[np.uint8], targets: NDArray[Any], **more: Any) -> None:
        from utils import plots

        plots.plot_batch(images, targets, self.names, self.folder / file, **more)


def class_table(evaluation: Evaluation, names: Sequence[str], *, verbose: bool) -> str:
    """A line for all classes, and one for each if verbose: images, instances, P, R, mAP50, mAP50-95.

    A class's images are those that show it; all images count those that show nothing too.
    """
    names = [shown(name) for name in names]
    coco, curves = evaluation.coco, evaluation.curves
    width = max(12, *(len(n) for n in names)) if verbose else 12
    lines = [f"{'class':>{width}} {'images':>8} {'instances':>10} {'P':>8} {'R':>8} {'mAP50':>8} {'mAP50-95':>9}"]

    def line(name: str, images: int, instances: int, *values: float) -> str:
        cells = " ".join(f"{'-' if v < 0 else f'{v:.4f}':>8}" for v in values)
        return f"{name:>{width}} {images:>8} {instances:>10} {cells}"

    total, stats = int(coco.instances.sum()), coco.stats
    overall = evaluation.precision, evaluation.recall, stats["AP50"], stats["AP"]
    lines.append(line("all", evaluation.images, total, *overall))
    for k, row in coco.per_class.items() if verbose and len(names) > 1 else ():
        position = int(np.flatnonzero(curves.class_ids == k)[0])
        at_best = curves.precision_at_best[position], curves.recall_at_best[position]
        lines.append(line(names[k], int(row["images"]), int(row["instances"]), *at_best, row["AP50"], row["AP"]))
    return "\n".join(lines)


def write_txt(evaluation: Evaluation, labels: Labels, folder: Path, *, scores: bool) -> None:
    """A file per image with `class cx cy w h [score]`, in [0, 1], in folders as the images lie in theirs."""
    d = evaluation.detections
    paths = [Path(labels.path(i)) for i in range(len(labels))]
    root = os.path.commonpath([path.parent for path in paths])
    taken = Counter(path.with_suffix("") for path in paths)  # a.jpg and a.png are two files, a.jpg.txt and a.png.txt
    for path, image_id, size in zip(paths, labels.image_ids, labels.sizes.astype(np.float64), strict=True):
        rows = np.flatnonzero(d.image_ids == image_id)
        corners, extents = d.boxes_xywh[rows, :2], d.boxes_xywh[rows, 2:]
        columns = np.concatenate([(corners + extents / 2) / size, extents / size, d.scores[rows, None]], 1)
        columns = columns if scores else columns[:, :4]
        lines = [f"{d.class_ids[r]} {' '.join(f'{v:.6g}' for v in c)}\n" for r, c in zip(rows, columns, strict=True)]
        stem = path if taken[path.with_suffix("")] > 1 else path.with_suffix("")
        file = folder / f"{stem.relative_to(root)}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, "".join(lines))


def write_coco(evaluation: Evaluation, labels: Labels, names: Sequence[str], folder: Path) -> str:
    """predictions.json and ground_truth.json as COCO has them, and what pycocotools itself makes of the two."""
    truth, found = folder / "ground_truth.json", folder / "predictions.json"
    paths = [labels.path(i) for i in range(len(labels))]
    write_json(
        truth, coco_ground_truth(evaluation.truth, labels.image_ids, labels.sizes, paths, names, labels.category_ids)
    )
    write_json(found, coco_results(evaluation.detections, labels.category_ids))
    return check_with_pycocotools(truth, found, evaluation.coco.stats)


# ---------------------------------------------------------------------- the run


def main(args: Namespace, world: World) -> Evaluation:
    """Evaluate as the flags say; write the run folder; return what was found.

    Raises ValueError for a flag out of range, and as read_data_yaml, scan and load_detector do.
    """
    check_flags(args)
    world.require_alike("the command line", {k: v for k, v in vars(args).items() if k not in PLACES})
    started_as = args.weights or [str(checkpoint.newest(Path("runs"), "**/weights/best.pt"))]
    loaded = [load_detector(Path(path)) for path in started_as]
    model, saved = loaded[0]
    for path, (other, _) in zip(started_as, loaded, strict=True):
        world.require_alike(path, digest(other))

    config = saved.get("config", {})
    data = args.data or saved.get("data", "")
    if not data:
        raise ValueError(f"{started_as[0]}: does not say what it was trained on; give --data")
    with world.one_per_machine_first():  # the others find what it has fetched
        spec = open_data(data, download=args.download)
    single = args.single_cls or config.get("single_cls", False)
    names = class_names(spec.names, single=single)
    for path, (other, state) in zip(started_as, loaded, strict=True):
        try:
            reorder_classes(other, state["names"], state["names"] if single else names)
        except ValueError as error:
            raise ValueError(f"{path} does not fit {spec.file}: {error}") from None
        other.to(memory_format=torch.channels_last).to(world.device).fuse()
    split = "val" if args.task == "speed" else args.task
    with world.one_per_machine_first():
        labels, report = read_split(spec, split, single=single, cache_dir=args.cache_dir, progress=world.is_main)
    world.require_alike(f"{spec.file}, {split}", labels.digest())

    made = str(new_run_folder(Path(args.project), args.name, args.exist_ok)) if world.is_main else ""
    folder = Path(world.share(made))
    log = RunLog(active=world.is_main)
    if world.devices:
        log.say(f"one process measures on one device, {world.device}; --spawn starts one for each")
    stride = max(max(m.strides) for m, _ in loaded)
    size = whole_strides(args.imgsz or config.get("imgsz", 640), stride)
    loader = build_evaluation_loader(
        labels,
        batch_size=args.batch_size,
        image_size=size,
        stride=stride,
        workers=loader_workers(args.workers, args.batch_size, world.device, world.local_size),
        device=world.device,
        rank=world.rank,
        size=world.size,
    )
    log.say(f"{', '.join(started_as)} on {data} ({split}: {report.summary()}), {size} px, {describe(world.device)}")
    predict = ensemble([(with_views if args.augment else plain)(member) for member, _ in loaded])
    speed = args.task == "speed"
    precision = choose_precision("auto" if args.half else "fp32", world.device)
    world.require_alike("--half", str(precision))
    result = evaluate(
        model,
        loader,
        world,
        precision=precision,
        predict=one_class(predict) if single else predict,
        confidence=0.25 if speed else args.conf_thres,
        iou=0.45 if speed else args.iou_thres,
        max_detections=args.max_det,
        active=world.is_main,
    )
    log.table(class_table(result, names, verbose=args.verbose or len(names) <= 20))
    log.table(format_summary(result.coco.stats))
    times = ", ".join(f"{part} {value:.2f} ms" for part, value in result.milliseconds.items())
    log.say(f"{times} per image, in batches of {args.batch_size}")
    Pictures(folder, names, active=world.is_main).results(result, loader)
    if world.is_main:
        write_json(folder / "metrics.json", result.as_dict(names))
        if args.save_txt:
            write_txt(result, labels, folder / "labels", scores=args.save_conf)
        if args.save_json:
            log.table(write_coco(result, labels, names, folder))
    log.say(f"written to {folder}")
    world.wait_for_main()
    return result


def run(arguments: Sequence[str] | None = None) -> None:
    with together() as connect:
        args, launch = parse_args(arguments)
        if launch.spawn is not None:
            spawn(__file__, arguments, processes_for(launch.device, launch.spawn))
        else:
            main(args, connect(launch))


if __name__ == "__main__":
    gc.enable()
    end(run)
