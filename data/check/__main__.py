"""The data doctor: say what is wrong with a data set, before an hour is spent on it.

    # what train.py takes as --data; nothing in it is changed
    python -m data.check mydata.yaml

    # all places as JSON, and a page with pictures
    python -m data.check export.zip --json found.json --html found.html

    # in a script: exit code 2 if there is an error or a warning
    python -m data.check mydata.yaml --strict

`python -m training.check` asks a model, too.
"""

from argparse import Namespace
from collections.abc import Sequence

import torch

from data.check.command_line import (
    add_flags,
    check_flags,
    choices_of,
    examine,
    show,
)
from data.check.findings import Diagnosis
from data.splits import open_dataset
from utils.distributed.world import World
from utils.flags import FlagParser, check_image_size
from utils.outputs.interrupts import end_on_signals
from utils.terminal import print_lines, run_and_exit

DEFAULT_IMG = 640


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the flags. Raises ValueError, in one sentence, for a command line that is wrong."""
    parser = FlagParser(__doc__)
    add_flags(parser)
    parser.add_argument(
        "--imgsz",
        "--img",
        "--img-size",
        type=int,
        default=DEFAULT_IMG,
        help="long side of the images in training, in pixels",
    )
    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> Diagnosis:
    """Check as the command line says. Raises ValueError as `open_dataset` and `show` do."""
    args = parse_args(arguments)
    check_image_size([args.imgsz])
    check_flags(args)
    dataset = open_dataset(
        args.data,
        (),
        World(torch.device("cpu")),
        print_lines,
        download=False,
        single_class=False,
        cache_dir=args.cache_dir,
        choices=choices_of(args),
    )
    _, diagnosis = examine(dataset, args, args.imgsz)
    show(diagnosis, args)
    return diagnosis


def run_script(arguments: Sequence[str] | None = None) -> None:
    """Check as the command line says, until a signal ends it: no file is left half written."""
    with end_on_signals():
        main(arguments)


if __name__ == "__main__":
    run_and_exit(run_script)
