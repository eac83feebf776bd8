"""COCO's twelve numbers for boxes, of two files.

python -m utils.metrics ground_truth.json predictions.json
"""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence

from utils.flags import FlagParser
from utils.metrics.coco import format_summary
from utils.metrics.coco_json import read_coco_results
from utils.terminal import run_and_exit


def parse_args(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the flags. Raises ValueError, in one sentence, for a command line that is wrong."""
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("truth", metavar="GT.json", help="COCO annotation file")
    add("detections", metavar="DT.json", help="COCO results list")
    add("--json", action="store_true", help="print one JSON object")
    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print COCO's twelve numbers of two files. Raises ValueError if a file cannot be used."""
    options = parse_args(arguments)
    stats = read_coco_results(options.truth, options.detections).evaluate().stats
    write: Callable[[Mapping[str, float]], str] = json.dumps if options.json else format_summary
    print(write(stats))


if __name__ == "__main__":
    run_and_exit(main)
