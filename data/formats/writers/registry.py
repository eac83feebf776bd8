"""Writers of label formats, by the name that --to and --save-labels take.

To add one, write it in a file here and add it to WRITERS.
"""

from data.formats.writers.base import LabelWriter
from data.formats.writers.coco import CocoWriter
from data.formats.writers.cvat import CvatWriter
from data.formats.writers.label_studio import LabelStudioWriter
from data.formats.writers.labelme import LabelMeWriter
from data.formats.writers.voc import VocWriter
from data.formats.writers.yolo import YoloWriter

WRITERS: dict[str, type[LabelWriter]] = {
    "yolo": YoloWriter,
    "coco": CocoWriter,
    "voc": VocWriter,
    "labelme": LabelMeWriter,
    "cvat": CvatWriter,
    "label-studio": LabelStudioWriter,
}
