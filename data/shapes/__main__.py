"""Draw the demonstration data set of generated shapes.

python -m data.shapes
python -m data.shapes --root shapes --train 100 --val 20 --size 128
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from data.shapes.generate import DEFAULT_ROOT, generate
from utils.flags import FlagParser
from utils.terminal import print_lines, run_and_exit


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the flags. Raises ValueError, in one sentence, for a command line that is wrong."""
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--root", type=Path, default=DEFAULT_ROOT, help="folder to write the data set to")
    add("--seed", type=int, default=0, help="random seed")
    add("--train", type=int, default=1000, help="number of training images")
    add("--val", type=int, default=200, help="number of validation images")
    add("--size", type=int, default=320, help="side of the images in pixels")
    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the data set as the command line says. Raises ValueError as `generate` does."""
    flags = parse_args(arguments)
    root = generate(flags.root, train=flags.train, val=flags.val, size=flags.size, seed=flags.seed)
    print_lines(
        f"{root}: {flags.train} training and {flags.val} validation images. Use it with --data "
        f"{root / 'shapes.yaml'}"
    )


if __name__ == "__main__":
    run_and_exit(main)
