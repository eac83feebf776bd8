"""The label formats, in the order in which they are tried.

To add one, write a reader in a file here and add it to FORMATS.
"""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from data.formats.base import LabelFormat
from data.formats.coco_json import CocoJson
from data.formats.file_reader import own_label_files
from data.formats.tools.createml import CreateMl
from data.formats.tools.csv_boxes import CsvBoxes
from data.formats.tools.cvat import Cvat
from data.formats.tools.dota import Dota
from data.formats.tools.label_studio import LabelStudio
from data.formats.tools.labelme import LabelMe
from data.formats.tools.supervisely import Supervisely
from data.formats.tools.via import ViaCsv, ViaJson
from data.formats.tools.vott import Vott
from data.formats.tools.wider_face import WiderFace
from data.formats.visdrone import VisDrone
from data.formats.voc.folders import xml_of_image
from data.formats.voc.reader import VocXml
from data.formats.yolo_txt import YoloText
from data.images import walk_images

SAMPLED_IMAGES = 200  # of a folder whose label files are looked for
COCO_JSON = CocoJson()
YOLO_TEXT = YoloText()
LABEL_ME = LabelMe()
SUPERVISELY = Supervisely()
NEIGHBOR_READERS = (LABEL_ME, SUPERVISELY)  # which look in folders beside that of the images
FORMATS: tuple[LabelFormat, ...] = (  # the first that accepts a source reads it
    # Files that list images. COCO last of the JSON files: it accepts all of them.
    CreateMl(),
    LabelStudio(),
    ViaJson(),
    Vott(),
    COCO_JSON,
    Cvat(),
    ViaCsv(),
    CsvBoxes(),
    WiderFace(),
    # Folders with a label file for each image
    Dota(),
    LABEL_ME,
    SUPERVISELY,
    VocXml(),
    VisDrone(),
    YOLO_TEXT,  # accepts everything, and raises an error for what it cannot read
)


def label_files_of(folder: Path) -> Iterator[str]:
    """Iterate over the label files of the first images in a folder, wherever a format has them."""
    for image in islice(walk_images(folder), SAMPLED_IMAGES):
        neighbors = [reader.path_in_neighbor(image) for reader in NEIGHBOR_READERS]
        for file in (*own_label_files(image), xml_of_image(str(folder), image), *neighbors):
            if os.path.isfile(file):
                yield file


def format_of(source: Path) -> LabelFormat:
    """Return the reader of a source, an absolute path."""
    return next(reader for reader in FORMATS if reader.accepts(source))
