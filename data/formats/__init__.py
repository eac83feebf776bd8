"""Label formats of data sets. To add one: a reader in a file here, and a line in FORMATS."""

from pathlib import Path

from data.formats.coco_json import CocoJson
from data.formats.protocol import LabelFormat
from data.formats.yolo_txt import YoloText

FORMATS: tuple[LabelFormat, ...] = (  # the first that accepts a source reads it
    CocoJson(),
    YoloText(),  # accepts everything, and says what is wrong with what it cannot read
)


def format_of(source: Path) -> LabelFormat:
    """The reader of a source."""
    return next(reader for reader in FORMATS if reader.accepts(source))
