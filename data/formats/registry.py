"""The label formats, in the order in which they are tried.

To add one, write a reader in a file here and add it to FORMATS.
"""

from pathlib import Path

from data.formats.base import LabelFormat
from data.formats.coco_json import CocoJson
from data.formats.visdrone import VisDrone
from data.formats.voc_xml import VocXml
from data.formats.yolo_txt import YoloText

FORMATS: tuple[LabelFormat, ...] = (  # the first that accepts a source reads it
    CocoJson(),
    VocXml(),
    VisDrone(),
    YoloText(),  # accepts everything, and raises an error for what it cannot read
)


def format_of(source: Path) -> LabelFormat:
    """Return the reader of a source, an absolute path."""
    return next(reader for reader in FORMATS if reader.accepts(source))
