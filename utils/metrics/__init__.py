"""COCO's metrics for boxes: records, matching, the twelve numbers, curves, confusion, COCO JSON.

Also errors by kind, calibration of confidence and AP against box size.
"""

from utils.metrics.box_sizes import SizeBin, size_bins
from utils.metrics.calibration import Calibration, calibration_bins
from utils.metrics.coco import CocoResult, evaluate_boxes, format_summary
from utils.metrics.coco_results import coco_row, write_coco
from utils.metrics.curves import operating_curves
from utils.metrics.errors import ErrorKinds, ErrorPicture, error_kinds, worst_pictures
from utils.metrics.evaluation import Evaluation, class_rows, class_table
from utils.metrics.label_files import label_rows, write_label_files
from utils.metrics.records import Detections, GroundTruth

__all__ = [
    "Calibration",
    "CocoResult",
    "Detections",
    "ErrorKinds",
    "ErrorPicture",
    "Evaluation",
    "GroundTruth",
    "SizeBin",
    "calibration_bins",
    "class_rows",
    "class_table",
    "coco_row",
    "error_kinds",
    "evaluate_boxes",
    "format_summary",
    "label_rows",
    "operating_curves",
    "size_bins",
    "worst_pictures",
    "write_coco",
    "write_label_files",
]
