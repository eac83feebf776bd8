# PYTHON_ARGCOMPLETE_OK - argcomplete may complete the flags in a shell
"""Validate a detector: COCO mAP of a checkpoint on a split of a data set.

    # the newest best.pt on the data it was trained on
    python val.py

    # a checkpoint on a data set
    python val.py --weights best.pt --data mydata.yaml --img 640

    # an ensemble, test-time augmentation, COCO results
    python val.py --weights a.pt b.pt --augment --save-json

    # milliseconds per image
    python val.py --task speed

    # each process takes its share of the images
    python -m torch.distributed.run --nproc_per_node 2 val.py

The metrics are computed as COCO's own code does.
"""

if __name__ == "__main__":
    from utils.startup import prepare_script

    # from here on Ctrl-C prints "interrupted" and no traceback, even during imports
    prepare_script()

import gc
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.command_line.yolov5_flags import HINTS, NOT_IN_VAL
from utils.distributed import Launch, read_launch, spawn
from utils.flags import (
    FlagParser,
    add_tile_flags,
    check_command_line,
    check_image_size,
    check_lowest,
    check_threshold,
)
from utils.loggers.registry import LOGGERS


def parse_args(arguments: Sequence[str] | None = None) -> tuple[Namespace, Launch]:
    parser = FlagParser(__doc__)
    add = parser.add_argument_group("model").add_argument
    add(
        "--weights",
        nargs="+",
        default=[],
        help="checkpoints, several make an ensemble (default: the newest best.pt)",
    )
    add(
        "--head",
        default="",
        help="o2o or o2m, of a model with two heads (default: o2o, which needs no NMS)",
    )
    add("--half", action="store_true", help="16-bit forward pass, if the device supports it")
    add("--augment", action="store_true", help="test-time augmentation: three scales, one mirrored")

    add = parser.add_argument_group("data").add_argument
    add(
        "--data",
        nargs="+",
        default=[],
        help="data set: a YAML, a folder, an archive, or an annotation tool's file (default: the "
        "one the checkpoint was trained on)",
    )
    add(
        "--task",
        default="val",
        choices=["train", "val", "test", "speed"],
        help="split to evaluate, or speed on val",
    )
    add(
        "--val-split",
        type=float,
        default=0.2,
        help="as train.py, for data without a val split; all images: 0 and --task train",
    )
    add("--group", default="", help="as train.py, for data without a val split")
    add("--strict", action="store_true", help="refuse data in which something looks wrong")
    add("--names", nargs="+", default=[], help="class names of data that have none, in order")
    add("--merge", nargs="+", default=[], help="as train.py: OLD=NEW ...")
    add(
        "--classes",
        nargs="+",
        default=[],
        help="metrics of these classes only, by name or number (default: as trained)",
    )
    add("--single-cls", action="store_true", help="treat all classes as one class")
    add(
        "--download",
        action="store_true",
        help="download the data set, and weights of models/pretrained.yaml",
    )
    add(
        "--cache-dir",
        default="",
        help="folder for cached labels (default: the user's cache folder)",
    )
    add("--workers", type=int, default=8, help="max DataLoader workers per process")

    add = parser.add_argument_group("images").add_argument
    add("--batch-size", "--batch", type=int, default=32, help="images per batch")
    add(
        "--imgsz",
        "--img",
        "--img-size",
        type=int,
        nargs="+",
        metavar="PX",
        default=[],
        help="long side, or height width, in pixels (default: the long side as trained)",
    )
    add(
        "--square",
        action="store_true",
        help="the same square canvas for all images, as --imgsz PX PX",
    )
    add_tile_flags(add)

    add = parser.add_argument_group("detections").add_argument
    add(
        "--conf-thres",
        "--conf",
        type=float,
        help="confidence threshold (default: 0.001; with --task speed 0.25, as detect.py)",
    )
    add(
        "--iou-thres",
        "--iou",
        type=float,
        help="NMS IoU threshold (default: 0.6; with --task speed 0.45, as detect.py)",
    )
    add("--max-det", type=int, default=300, help="max detections per image")

    add = parser.add_argument_group("results").add_argument
    add("--verbose", action="store_true", help="print a line for each class")
    add("--save-txt", action="store_true", help="save detections as YOLO label files")
    add("--save-conf", action="store_true", help="add scores to the label files")
    add(
        "--save-json",
        action="store_true",
        help="write predictions.json and its ground_truth.json (YOLO labels: ids from 1), "
        "score both with pycocotools",
    )
    add("--project", default="runs/val", help="folder for run folders")
    add("--name", default="exp", help="the run folder's name")
    add("--exist-ok", action="store_true", help="use an existing run folder")

    add = parser.add_argument_group("loggers").add_argument
    for name, logger in LOGGERS.items():
        help_text = logger.help.replace("log to", "log the result to")
        add(f"--{name}", dest="loggers", action="append_const", const=name, help=help_text)

    parser.refuse(NOT_IN_VAL)
    parser.hint(HINTS)
    launch, values = read_launch(parser, arguments)
    args = Namespace(**values)
    confidence, iou = (0.25, 0.45) if args.task == "speed" else (0.001, 0.6)
    if args.conf_thres is None:
        args.conf_thres = confidence
    if args.iou_thres is None:
        args.iou_thres = iou
    return args, launch


def check_flags(args: Namespace) -> None:
    """Raise ValueError for a flag that is out of range."""
    check_lowest("--batch-size", args.batch_size, 1)
    check_lowest("--max-det", args.max_det, 1)
    check_lowest("--workers", args.workers, 0)
    check_image_size(args.imgsz)
    if args.square and len(args.imgsz) > 1:
        given = " ".join(map(str, args.imgsz))
        raise ValueError(f"--square: --imgsz {given} names the canvas already; leave out --square")
    check_threshold("--conf-thres", args.conf_thres)
    check_threshold("--iou-thres", args.iou_thres)
    if args.save_conf and not args.save_txt:
        raise ValueError("--save-conf adds the confidences to the files of --save-txt: give both")

    if not 0 <= args.val_split < 1:
        raise ValueError(f"--val-split {args.val_split:g}: choose 0 (none) to less than 1")


if __name__ == "__main__":
    check_command_line(parse_args)  # before the slow imports below
    gc.disable()  # garbage collection would take a fifth of the import time


from data import Choices, Dataset, Labels, build_evaluation_loader, open_dataset
from models.backends import Backend
from models.backends.combined import MergedClasses
from models.loading import (
    LoadedModel,
    canvas_for,
    combine,
    fixed_settings_notes,
    load_backend,
)
from models.weights.kestrel import fetch_detector
from training import (
    choose_evaluated_classes,
    draw_results,
    evaluate_split,
    write_validation_report,
)
from training.settings.config import PER_MACHINE
from utils.distributed import (
    World,
    describe,
    distributed_session,
    loader_workers,
    processes_for,
    ring_budget,
)
from utils.files import checkpoint_file, new_run_folder
from utils.files.folders import require_writable
from utils.files.writers import write_json
from utils.images.letterbox import size_text
from utils.log import EvaluationEnded, RunEnded, RunLog, RunStarted, Say
from utils.loggers.sink import open_loggers
from utils.loggers.terminal_lines import TerminalSink
from utils.metrics import (
    Evaluation,
    class_table,
    format_summary,
    write_coco,
    write_label_files,
)
from utils.metrics.fitness import DEFAULT, Fitness, parse_fitness
from utils.plots import Pictures
from utils.printable import counted
from utils.terminal import quiet_output, run_and_exit


def main(args: Namespace, world: World) -> Evaluation:
    """Evaluate with the flags in args, write the run folder, and return the evaluation.

    Raises ValueError for a flag that is out of range, and where open_dataset, Dataset.read and
    load_detector do.
    """
    with RunLog(active=world.is_main, sinks=[TerminalSink()]) as log:
        return evaluate(args, world, log)


def evaluate(args: Namespace, world: World, log: RunLog) -> Evaluation:
    """Do what `main` does, from top to bottom."""
    check_flags(args)
    same_everywhere = {name: value for name, value in vars(args).items() if name not in PER_MACHINE}
    world.require_same("the command line", same_everywhere)
    open_loggers(args.loggers or (), log)
    if world.is_main:
        require_writable(Path(args.project), "--project")

    # The models, several of which make an ensemble, and the data set: by default the one that the
    # first model was trained on
    paths = args.weights or [str(checkpoint_file.newest(Path("runs"), "**/weights/best.pt"))]
    members = load_members(paths, world, args)
    first = members[0]
    data = args.data or [first.data]
    if not data[0]:
        raise ValueError(
            f"{paths[0]}: does not name the data set that it was trained on; give --data"
        )
    split = "val" if args.task == "speed" else args.task
    tiles = first.tiles(args.tile, args.tile_overlap, args.tile_whole)
    dataset = open_dataset(
        data,
        (split,),
        world,
        log.say,
        download=args.download,
        single_class=args.single_cls or first.single_class,
        cache_dir=args.cache_dir,
        choices=Choices(
            args.val_split, args.group, tuple(args.names), tuple(args.merge), strict=args.strict
        ),
        **tiles,
    )
    choose_evaluated_classes(dataset, paths[0], first, args.classes, say=log.say)
    backend, class_ids = combine_members(paths, members, dataset, args.augment)
    if note := absent_classes_note(first, dataset):
        log.say(note)
    log.say(*fixed_settings_notes(backend, args.conf_thres, multi_label=True))
    labels = dataset.read(split, log.say)
    if note := crowded_images_note(labels.whole, args.max_det):
        log.say(note)

    # The run folder, created by rank 0
    created = ""
    if world.is_main:
        created = str(new_run_folder(Path(args.project), args.name, args.exist_ok))
    folder = Path(world.broadcast_object(created))
    if world.devices:
        log.say(
            f"one process uses one device, {world.device}; --spawn starts a process for each device"
        )

    # This rank's share of the images, letterboxed: all to one canvas, or each batch to its own
    image_size, canvas = choose_canvas(backend, first.image_size, args)
    loader = build_evaluation_loader(
        labels,
        batch_size=args.batch_size,
        image_size=image_size,
        stride=backend.stride,
        letterbox=backend.letterbox,
        canvas=canvas,
        workers=loader_workers(args.workers, args.batch_size, world.device, world.local_size),
        device=world.device,
        rank=world.rank,
        size=world.size,
        ring_bytes=ring_budget(world.local_size),
        say=log.say,
    )
    log.send(RunStarted(folder, config=vars(args), hyp={}, rows=[]))
    device = describe(world.device)
    size = size_text(image_size, canvas)
    log.say(f"{', '.join(paths)} on {' '.join(data)}, {split} split, {size}, {device}")

    # Evaluate
    result = evaluate_split(
        backend,
        loader,
        world,
        confidence=args.conf_thres,
        iou=args.iou_thres,
        max_detections=args.max_det,
        class_ids=class_ids,
        unlabeled=dataset.unlabeled,
        active=world.is_main,
    )

    # Results
    every_class = args.verbose or len(dataset.names) <= 20
    log.table(class_table(result, dataset.names, verbose=every_class))
    log.table(format_summary(result.coco.stats))
    log.say(f"{result.describe_times()} per {dataset.unit}, in batches of {args.batch_size}")
    fitness = fitness_of(first, paths[0], dataset.names, log.say)
    metrics = result.as_dict(dataset.names, fitness)
    log.send(EvaluationEnded(folder, result, dataset.names, fitness=fitness))
    pictures = Pictures(folder, dataset.names, active=world.is_main, written=log.image_written)
    draw_results(pictures, result, loader)
    if world.is_main:
        pycocotools_summary = write_outputs(
            args, folder, result, metrics, labels.whole, dataset.names
        )
        if pycocotools_summary:
            log.table(pycocotools_summary)
        write_validation_report(
            folder,
            result,
            dataset,
            split,
            world,
            weights=", ".join(paths),
            flags=vars(args),
            defaults=vars(parse_args([])[0]),
            say=log.say,
        )
    log.send(RunEnded(folder, metrics))
    log.say(f"results written to {folder}")
    world.wait_for_main()
    return result


def load_members(paths: Sequence[str], world: World, args: Namespace) -> list[LoadedModel]:
    """Return the model of each file.

    Raises ValueError if the processes read different weights.
    """
    if args.download:
        for path in paths:
            fetch_detector(path)
    members = []
    for path in paths:
        model = load_backend(Path(path), world.device, half=args.half, head=args.head)
        members.append(model)
    for path, model in zip(paths, members, strict=True):
        world.require_same(path, f"{model.digest} {model.backend.precision}")
    return members


def absent_classes_note(model: LoadedModel, dataset: Dataset) -> str:
    """Return a sentence if the data do not have all classes of the model; "" if they do."""
    absent = set(model.names).difference(dataset.names, dataset.spec.names)
    if not absent or dataset.single_class:
        return ""
    classes = counted(len(absent), "class")
    return f"{dataset.file} does not have {classes} of the model, not evaluated"


def combine_members(
    paths: Sequence[str], members: Sequence[LoadedModel], dataset: Dataset, augment: bool
) -> tuple[Backend, Sequence[int] | None]:
    """Return one backend of all models, and which of its classes the data have; None: all.

    augment: whether to use test-time augmentation. Raises ValueError, with the file's path, if a
    model lacks classes of the data set.
    """
    first = members[0]
    names, class_ids = dataset.required_classes(first.names, merged=first.single_class)
    all_names = dataset.spec.names
    file = str(dataset.file)
    try:
        combined = combine(paths, members, names, file, augment=augment, among=all_names)
    except ValueError as error:
        advice = class_flags(first, dataset)
        if not advice:
            raise
        raise ValueError(f"{error}; {advice}") from None
    if dataset.single_class:
        combined = MergedClasses(combined)
    return combined, class_ids


def class_flags(model: LoadedModel, dataset: Dataset) -> str:
    """Return which flag would make the data's classes those of a model; "" if there is none."""
    if dataset.chosen is None and set(model.names) < set(dataset.spec.names):
        return f"to use these of the data: --classes {shlex.join(model.names)}"

    # Classes that are called by their numbers: their names were a flag of the training.
    numbered = all(name.isdecimal() for name in dataset.names)
    if numbered and len(dataset.names) <= len(model.names):
        return f"give the names: --names {shlex.join(model.names)}"
    return ""


def choose_canvas(
    backend: Backend, trained_size: int, args: Namespace
) -> tuple[int, tuple[int, int] | None]:
    """Return the long side of the images in pixels, and (height, width) if all have the same.

    trained_size: the long side that the model was trained with. Raises ValueError as `canvas_for`.
    """
    wanted = args.imgsz  # a long side, height and width, or nothing
    if args.square:
        [side] = args.imgsz or [trained_size]
        wanted = [side, side]
    return canvas_for(backend, wanted, trained_size)


def fitness_of(model: LoadedModel, path: str, names: Sequence[str], say: Say) -> Fitness:
    """Return the fitness that the model was trained with, an expression over metrics.

    It is the default one, and a line is logged, if it is over classes that are not in `names`.
    """
    try:
        fitness = parse_fitness(model.fitness)
        fitness.require_classes(names)
    except ValueError as error:
        say(f"{path}: {error}; the fitness in metrics.json is the default one, {DEFAULT}")
        return parse_fitness(DEFAULT)
    return fitness


def crowded_images_note(labels: Labels, max_detections: int) -> str:
    """Return a sentence if images have more objects than detections are kept, else "".

    Some objects must be missed then.
    """
    objects = labels.objects_per_image()
    crowded = int((objects > max_detections).sum())
    if not crowded:
        return ""
    return (
        f"--max-det {max_detections}: {counted(crowded, 'image')} with more objects than that, up "
        f"to {objects.max()}, so that some are missed in any case; choose a larger --max-det"
    )


def write_outputs(
    args: Namespace,
    folder: Path,
    result: Evaluation,
    metrics: dict[str, Any],
    labels: Labels,
    names: Sequence[str],
) -> str:
    """Write metrics.json and the files of --save-txt and --save-json.

    Returns pycocotools' summary of the latter, or "".

    Args:
        args: the flags.
        folder: of the run.
        result: of the evaluation.
        metrics: the content of metrics.json, but for the errors by kind.
        labels: of the split.
        names: of the classes.
    """
    paths = [labels.path(index) for index in range(len(labels))]
    errors = {"errors": result.error_kinds.as_dict()}
    write_json(folder / "metrics.json", metrics | errors)

    if args.save_txt:
        write_label_files(
            folder / "labels",
            result.detections,
            paths,
            labels.image_ids,
            labels.sizes,
            scores=args.save_conf,
        )

    if not args.save_json:
        return ""
    return write_coco(
        folder,
        result.truth,
        result.detections,
        result.coco.stats,
        image_ids=labels.image_ids,
        sizes=labels.sizes,
        paths=paths,
        names=names,
        category_ids=labels.category_ids,
    )


def run_script(arguments: Sequence[str] | None = None) -> None:
    """Validate as the command line says; --spawn starts a process for each device first."""
    with distributed_session() as connect:
        args, launch = parse_args(arguments)
        if launch.spawn is not None:
            spawn(__file__, arguments, processes_for(launch.device, launch.spawn))
        else:
            with quiet_output(launch.quiet):
                main(args, connect(launch))


if __name__ == "__main__":
    gc.enable()
    run_and_exit(run_script)
