"""The data doctor with a model: also labels that are missing, swapped, misplaced or not found.

    python -m training.check mydata.yaml --weights runs/train/exp/weights/best.pt

    # all places, ranked, as JSON, and a page with pictures
    python -m training.check mydata.yaml --weights best.pt --json found.json --html found.html

Everything that `python -m data.check` says is in it.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from data.check.command_line import add_flags, check_flags, choices_of, examine, show
from data.check.findings import Diagnosis
from data.splits import open_dataset
from models.loading import canvas_for, load_backend
from training.check.disagreements import check_labels, rank, rank_images
from training.check.known_classes import match_known_classes
from training.check.predictions import detect
from utils.distributed.devices import pick_devices
from utils.distributed.launch import RankInfo
from utils.distributed.world import World
from utils.flags import (
    FlagParser,
    add_tile_flags,
    check_image_size,
    check_lowest,
    check_threshold,
)
from utils.outputs.interrupts import end_on_signals
from utils.printable import printable
from utils.terminal import print_lines, run_and_exit


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the flags. Raises ValueError, in one sentence, for a command line that is wrong."""
    parser = FlagParser(__doc__)
    add_flags(parser)
    add = parser.add_argument

    add("--weights", required=True, help="checkpoint, or an exported model")
    add(
        "--imgsz",
        "--img",
        "--img-size",
        type=int,
        default=0,
        help="long side of the images in pixels (default: as trained)",
    )
    add("--batch-size", "--batch", type=int, default=32, help="images per batch")

    add("--iou-thres", "--iou", type=float, default=0.6, help="NMS IoU threshold")
    add_tile_flags(add)

    add("--device", default="", help="cpu, mps or a GPU number")
    add("--workers", type=int, default=8, help="max DataLoader workers")
    add("--half", action="store_true", help="16-bit forward pass, if the device supports it")

    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> Diagnosis:
    """Check as the command line says.

    Raises ValueError as `open_dataset`, `load_backend`, `match_known_classes` and `show` do.
    """
    args = parse_args(arguments)
    check_flags(args)
    check_own_flags(args)
    world = World(pick_devices(args.device, RankInfo())[0])

    # The model and the data, and the classes that both have.
    model = load_backend(Path(args.weights), world.device, half=args.half)
    dataset = open_dataset(
        args.data,
        (),
        world,
        print_lines,
        download=False,
        single_class=False,
        cache_dir=args.cache_dir,
        choices=choices_of(args),
        **model.tiles(args.tile, args.tile_overlap, args.tile_whole),
    )
    backend, known_classes = match_known_classes(args.weights, model, dataset)
    wanted = [args.imgsz] if args.imgsz else []
    image_size, canvas = canvas_for(backend, wanted, model.image_size)

    # Without the model, then what it finds.
    examined, diagnosis = examine(dataset, args, image_size)
    diagnosis.weights = printable(args.weights)
    compared = detect(
        backend,
        examined,
        dataset,
        world,
        known_classes=known_classes,
        image_size=image_size,
        canvas=canvas,
        batch_size=args.batch_size,
        workers=args.workers,
        iou=args.iou_thres,
    )
    ranked = rank(compared)
    diagnosis.findings += known_classes.findings() + check_labels(examined, compared, ranked)
    diagnosis.ranked_images = rank_images(compared, ranked)
    show(diagnosis, args)
    return diagnosis


def check_own_flags(args: Namespace) -> None:
    """Raise ValueError for a flag that is out of range."""
    if args.imgsz:  # 0: as trained
        check_image_size([args.imgsz])
    check_lowest("--batch-size", args.batch_size, 1)
    check_lowest("--workers", args.workers, 0)
    check_threshold("--iou-thres", args.iou_thres)


def run_script(arguments: Sequence[str] | None = None) -> None:
    """Check as the command line says, until a signal ends it: no file is left half written."""
    with end_on_signals():
        main(arguments)


if __name__ == "__main__":
    run_and_exit(run_script)
