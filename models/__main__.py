"""Print a model's layers, parameters and GFLOPs.

    python -m models yolov5s.yaml
    python -m models yolov5s.yaml --nc 80 --img 640

The last line is that of the model that detects. If training computes an auxiliary branch, too, the
line before it counts both.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from models.build import check_shapes, count_gflops
from models.detector import Detector, count_parameters
from models.layers import LayerInfo
from models.tables.find import load_model_table
from models.tables.resolve import resolve
from models.tables.rows import without_auxiliary
from utils.flags import FlagParser
from utils.terminal import run_and_exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table. Raises ValueError for a wrong command line, or a file that is no model."""
    options = parse_args(arguments)
    table = resolve(*load_model_table(options.cfg), options.nc)
    check_shapes(table)
    with torch.device("meta"):
        model = Detector(table)
    stride = max(model.strides)
    if options.img < 1 or options.img % stride:
        raise ValueError(f"--img {options.img}: must be a multiple of the stride, {stride}")

    print(f"{'':>3} {'from':>16} {'n':>3} {'params':>10}  {'module':<13} arguments")
    for line in model.info():
        print(format_line(line))

    if model.auxiliary_head is not None:
        print(f"in training, with the auxiliary branch: {costs(table, options.img)}")
    print(costs(without_auxiliary(table), options.img))


def costs(table: Mapping[str, Any], image_size: int) -> str:
    """Return the parameters and GFLOPs of a resolved table's model as text."""
    with torch.device("meta"):
        parameters = count_parameters(Detector(table))
    gflops = count_gflops(table, image_size)
    return f"{parameters:,} parameters, {gflops:.1f} GFLOPs at {image_size}"


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options cfg, nc and img. Raises ValueError for a wrong command line."""
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("cfg", help="model name such as yolov5s.yaml, or path of a YAML file")
    add("--nc", type=int, default=80, help="number of classes")
    add("--img", "--imgsz", type=int, default=640, help="image side in pixels")
    return parser.read(arguments)


def format_line(line: LayerInfo) -> str:
    """Return one line of the layer table."""
    sources = ", ".join(map(str, line.sources))
    return (
        f"{line.row:>3} {sources:>16} {line.number:>3} {line.parameters:>10,}  "
        f"{line.module:<13} {line.args}"
    )


if __name__ == "__main__":
    run_and_exit(main)
