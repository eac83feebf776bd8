"""Write Pascal VOC: an XML file for each image, and lists of the images of each split.

Pixels are counted from 1, and the last ones are inside the box. A box that does not begin or end at
a whole pixel keeps its decimal places, which labelImg and CVAT read.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from data.formats.voc.folders import BACKGROUND, LABEL_MAP
from data.formats.writers.base import (
    POLYGONS,
    SLACK,
    LabelWriter,
    WrittenBox,
    WrittenImage,
    join,
    pixels,
)
from data.formats.writers.xml_text import element

# what is counted as lost, besides polygons
NARROW = "sub-pixel box"  # becomes a pixel wide, or high
LIST = "list of classes"


class VocWriter(LabelWriter):
    """Writes `Annotations/` beside `JPEGImages/`, `ImageSets/Main/`, and CVAT's `labelmap.txt`."""

    title: ClassVar[str] = "Pascal VOC XML"
    cannot_hold: ClassVar[frozenset[str]] = frozenset({POLYGONS})
    is_xml: ClassVar[bool] = True

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder, names)
        self._stems: dict[str, list[str]] = defaultdict(list)

    def image_place(self, name: str, split: str) -> str:
        return join("JPEGImages", name)

    def write(self, image: WrittenImage) -> None:
        self._stems[image.split].append(image.stem)
        width, height = image.size
        sides = element("width", width) + element("height", height) + element("depth", 3)
        lines = [
            "<annotation>",
            f"  {element('folder', 'JPEGImages')}",
            f"  {element('filename', image.name)}",
            f"  <size>{sides}</size>",
            *[line for box in image.boxes for line in self._object(box)],
            "</annotation>",
        ]
        self.write_file(join("Annotations", f"{image.stem}.xml"), "\n".join([*lines, ""]))

    def _object(self, box: WrittenBox) -> list[str]:
        """Return the lines of an object; an ignore region is one that is difficult."""
        left, top, width, height = box.box_xywh
        if min(width, height) < 1 - SLACK:
            self.lost[NARROW] += 1

        corners = {
            "xmin": left + 1,
            "ymin": top + 1,
            # a box narrower than a pixel would end before it begins
            "xmax": max(left + width, left + 1),
            "ymax": max(top + height, top + 1),
        }
        texts = [element(name, pixels(value)) for name, value in corners.items()]

        return [
            "  <object>",
            f"    {element('name', self.names[box.class_index])}",
            f"    {element('difficult', int(box.crowd))}",
            f"    <bndbox>{''.join(texts)}</bndbox>",
            "  </object>",
        ]

    def close(self) -> None:
        for split, stems in self._stems.items():
            if split:
                text = "".join(f"{stem}\n" for stem in stems)
                self.write_file(f"ImageSets/Main/{split}.txt", text)
        # Names that the list of CVAT gives another meaning are only in the labels.
        if any(name == BACKGROUND or name.startswith("#") for name in self.names):
            self.lost[LIST] += 1
        else:
            rows = "".join(f"{name}:::\n" for name in self.names)
            self.write_file(LABEL_MAP, f"# label:color_rgb:parts:actions\n{rows}")
