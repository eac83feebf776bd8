"""Write a data set in the format of another program.

    # for YOLOv5, from what an annotation tool wrote
    python -m data.convert export.zip yolo/ --to yolo

    # for a tool, images as links
    python -m data.convert data.yaml corrections/ --to cvat --images link

SOURCE is what train.py takes as --data. Its splits stay; images are held out only if --val-split
says so.
"""

import itertools
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from data import Choices, Dataset, open_data, open_dataset
from data.convert.conversion import COPY, IMAGES, Converted, convert
from data.dataset_yaml import DataSpec
from data.formats.annotations import OUTLINES
from data.formats.writers import WRITERS
from data.labels import Labels
from data.layouts import is_other_path
from data.layouts.archives import is_archive
from utils.distributed.world import World
from utils.files.folders import require_writable
from utils.flags import FlagParser
from utils.outputs.interrupts import end_on_signals
from utils.printable import counted
from utils.terminal import run_and_exit


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the flags. Raises ValueError, in one sentence, for a command line that is wrong."""
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("source", nargs="+", metavar="SOURCE", help="data sets, as train.py takes them as --data")
    add("out", metavar="OUT", type=Path, help="folder that is written")
    add("--to", required=True, choices=list(WRITERS), help="format")
    add(
        "--images",
        choices=list(IMAGES),
        default=COPY,
        help="copy the image files, make hard links to them, or write labels only",
    )
    add("--val-split", type=float, default=0.0, help="share of images held out if there is no val")
    add("--group", default="", help="as train.py, for --val-split")
    add("--names", nargs="+", default=[], help="class names of data that have none, in order")
    add("--merge", nargs="+", default=[], help="OLD=NEW ...: rename classes, or join them")
    add("--cache-dir", default="", help="folder for unpacked archives and cached labels")
    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> Converted:
    """Convert as the command line says. Raises ValueError as `open_dataset` and `convert` do."""
    args = parse_args(arguments)
    if not 0 <= args.val_split < 1:
        raise ValueError(f"--val-split {args.val_split:g}: choose 0 (none) to less than 1")
    choices = Choices(args.val_split, args.group, tuple(args.names), tuple(args.merge))
    if not args.out.is_dir():
        require_writable(args.out, "OUT")
    refuse_inside(args.out, args.source)
    wanted = ["val"] if args.val_split else []
    spec = open_data(*args.source, splits=wanted, choices=choices, cache_dir=args.cache_dir)
    refuse_inside(args.out, folders_of(spec))
    labels_of, dataset = read_splits(args.source, spec, choices, args.cache_dir)
    result = convert(labels_of, dataset.names, WRITERS[args.to], args.out, images=args.images)

    what = f"{counted(result.images, 'image')}, {counted(result.boxes, 'box')}"
    if not result.is_new:
        print(f"{args.out} has all of it already: {what}")
        return result
    print(f"{args.out}: {WRITERS[args.to].title}, {what}")
    for kind, count in boxes_only(dataset).items():
        print(f"written as its box only: {counted(count, kind)}")
    for kind, count in result.lost.items():
        print(f"not in this format: {counted(count, kind)}")
    if result.copied:
        print("images were copied: OUT is on another disk, or one without hard links")
    return result


def refuse_inside(out: Path, source: Sequence[str]) -> None:
    """Raise ValueError if OUT is in a folder that is read: its images would become images of it.

    A tool's file finds images in its folder; a YAML and an archive do not.
    """
    target = Path(os.path.realpath(out))
    for name in source:
        folder = Path(os.path.realpath(name))
        if is_other_path(name) and not folder.is_dir() and not is_archive(folder):
            folder = folder.parent
        if folder.is_dir() and folder in (target, *target.parents):
            raise ValueError(f"{out} is in {name}, which is read: choose a folder outside of it")


def folders_of(spec: DataSpec) -> list[str]:
    """Return the folders in which the images of a data set are looked for."""
    paths = itertools.chain(*spec.splits.values())
    return [str(path) for path in paths if path.is_dir()]


def read_splits(
    source: Sequence[str], spec: DataSpec, choices: Choices, cache_dir: str
) -> tuple[dict[str, Labels], Dataset]:
    """Return the labels of all splits of a data set, and the data set.

    A data set without splits has one that is called "".
    """
    present = list(spec.splits)
    dataset = open_dataset(
        source,
        present,
        World(torch.device("cpu")),
        print,
        download=False,
        single_class=False,
        cache_dir=cache_dir,
        choices=choices,
    )
    labels_of = {}
    for split in present:
        labels_of[split] = dataset.read(split, print, require_labels=False)
    if present == ["train"] and spec.is_written:
        labels_of = {"": labels_of["train"]}
    return labels_of, dataset


def boxes_only(dataset: Dataset) -> Counter[str]:
    """Return the number of objects whose outline is not kept, by its shape."""
    counts: Counter[str] = Counter()
    for report in dataset.reports.values():
        for shape, count in report.converted:
            if shape not in OUTLINES:
                counts[shape] += count
    return counts


def run_script(arguments: Sequence[str] | None = None) -> None:
    """Convert as the command line says, until a signal ends it: then nothing is left behind."""
    with end_on_signals():
        main(arguments)


if __name__ == "__main__":
    run_and_exit(run_script)
