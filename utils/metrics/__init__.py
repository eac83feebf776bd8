"""COCO's metrics for boxes: records, matching, the twelve numbers, curves, confusion, COCO JSON."""

from utils.metrics.coco import CocoResult, evaluate_boxes, format_summary
from utils.metrics.coco_results import coco_row, write_coco
from utils.metrics.curves import operating_curves
from utils.metrics.evaluation import Evaluation, class_table
from utils.metrics.label_files import label_rows, write_label_files
from utils.metrics.records import Detections, GroundTruth

__all__ = [
    "CocoResult",
    "Detections",
    "Evaluation",
    "GroundTruth",
    "class_table",
    "coco_row",
    "evaluate_boxes",
    "format_summary",
    "label_rows",
    "operating_curves",
    "write_coco",
    "write_label_files",
]
