"""COCO's twelve numbers of two files.

python -m utils.metrics GT.json DT.json [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence

from utils.metrics.coco import format_summary
from utils.metrics.coco_json import read_coco_results
from utils.printable import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Print COCO's twelve numbers of two files; return 0, or 2 if a file cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m utils.metrics", description="COCO's twelve numbers for boxes."
    )
    parser.add_argument("truth", metavar="GT.json", help="COCO annotation file")
    parser.add_argument("detections", metavar="DT.json", help="COCO results list")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        stats = read_coco_results(options.truth, options.detections).evaluate().stats
    except ValueError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    write: Callable[[Mapping[str, float]], str] = json.dumps if options.json else format_summary
    print(write(stats))
    return 0


if __name__ == "__main__":
    sys.exit(main())
