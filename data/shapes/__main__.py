"""Draw the demonstration data set.

python -m data.shapes [--root DIR] [--seed N] [--train N] [--val N] [--size PX]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from data.shapes.generate import DEFAULT_ROOT, generate


def main(arguments: list[str] | None = None) -> int:
    """Draw the data set with the settings of the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m data.shapes", description="Draw the data set of generated shapes."
    )
    parser.add_argument(
        "--root", type=Path, default=DEFAULT_ROOT, help="folder to write the data set to"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--train", type=int, default=1000, help="number of training images")
    parser.add_argument("--val", type=int, default=200, help="number of validation images")
    parser.add_argument("--size", type=int, default=320, help="side of the images in pixels")
    flags = parser.parse_args(arguments)

    try:
        root = generate(
            flags.root, train=flags.train, val=flags.val, size=flags.size, seed=flags.seed
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2

    print(
        f"{root}: {flags.train} training and {flags.val} validation images. Use it with --data "
        f"{root / 'shapes.yaml'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
