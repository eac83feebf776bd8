# ruff: noqa: F401 - the imports are for type checkers
"""COCO's metrics for boxes: records, matching, the twelve numbers, curves, confusion, COCO JSON.

Also errors by kind, calibration of confidence and AP against box size. The names are imported when
they are first used: the command line needs `fitness` only.
"""

from typing import TYPE_CHECKING

from utils.lazy_listing import lazy_listing

if TYPE_CHECKING:
    from utils.metrics.box_sizes import SizeBin, size_bins
    from utils.metrics.calibration import Calibration, calibration_bins
    from utils.metrics.coco import CocoResult, evaluate_boxes, format_summary
    from utils.metrics.coco_results import coco_row, write_coco
    from utils.metrics.curves import operating_curves
    from utils.metrics.errors import ErrorKinds, ErrorPicture, error_kinds, worst_pictures
    from utils.metrics.evaluation import Evaluation, class_rows, class_table
    from utils.metrics.label_files import label_rows, write_label_files
    from utils.metrics.records import Detections, GroundTruth

__all__, __getattr__ = lazy_listing(
    __name__,
    {
        "box_sizes": ["SizeBin", "size_bins"],
        "calibration": ["Calibration", "calibration_bins"],
        "coco": ["CocoResult", "evaluate_boxes", "format_summary"],
        "coco_results": ["coco_row", "write_coco"],
        "curves": ["operating_curves"],
        "errors": ["ErrorKinds", "ErrorPicture", "error_kinds", "worst_pictures"],
        "evaluation": ["Evaluation", "class_rows", "class_table"],
        "label_files": ["label_rows", "write_label_files"],
        "records": ["Detections", "GroundTruth"],
    },
)
