"""Print a model's layers, parameters and GFLOPs:

python -m models yolov5s.yaml [--nc 80] [--img 640].

The last line is that of the model that detects. If training computes an auxiliary branch, too, the
line before it counts both.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from models.build import check_shapes, count_gflops
from models.detector import Detector, count_parameters
from models.layers import LayerInfo
from models.tables.find import load_model_table
from models.tables.resolve import resolve
from models.tables.rows import without_auxiliary
from utils.printable import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and return 0, or an error on stderr and return 2."""
    options = parse_arguments(arguments)
    try:
        table = resolve(*load_model_table(options.cfg), options.nc)
        check_shapes(table)
        with torch.device("meta"):
            model = Detector(table)
        if options.img < 1 or options.img % max(model.strides):
            raise ValueError(
                f"--img {options.img}: must be a multiple of the stride, {max(model.strides)}"
            )
    except (ValueError, OSError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 2

    print(f"{'':>3} {'from':>16} {'n':>3} {'params':>10}  {'module':<13} arguments")
    for line in model.info():
        print(format_line(line))

    if model.auxiliary_head is not None:
        print(f"in training, with the auxiliary branch: {costs(table, options.img)}")
    print(costs(without_auxiliary(table), options.img))
    return 0


def costs(table: Mapping[str, Any], image_size: int) -> str:
    """Return the parameters and GFLOPs of a resolved table's model as text."""
    with torch.device("meta"):
        parameters = count_parameters(Detector(table))
    gflops = count_gflops(table, image_size)
    return f"{parameters:,} parameters, {gflops:.1f} GFLOPs at {image_size}"


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options cfg, nc and img."""
    parser = argparse.ArgumentParser(prog="python -m models", description=__doc__)
    parser.add_argument("cfg", help="model name such as yolov5s.yaml, or path of a YAML file")
    parser.add_argument("--nc", type=int, default=80, help="number of classes")
    parser.add_argument("--img", "--imgsz", type=int, default=640, help="image side in pixels")
    return parser.parse_args(arguments)


def format_line(line: LayerInfo) -> str:
    """Return one line of the layer table."""
    sources = ", ".join(map(str, line.sources))
    return (
        f"{line.row:>3} {sources:>16} {line.number:>3} {line.parameters:>10,}  "
        f"{line.module:<13} {line.args}"
    )


if __name__ == "__main__":
    sys.exit(main())
