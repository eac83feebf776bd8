"""Write CVAT for images 1.1: `annotations.xml`, or a file for each split.

Source: docs.cvat.ai, XML annotation format 1.1.
"""

from typing import ClassVar

from data.formats.writers.base import (
    IGNORE_REGIONS,
    ListingWriter,
    OpenFile,
    WrittenBox,
    WrittenImage,
    file_of_split,
    join,
    pixels,
)
from data.formats.writers.xml_text import attributes, element


class CvatWriter(ListingWriter):
    """Writes boxes and polygons. CVAT finds the image of a task by the name in the file."""

    title: ClassVar[str] = "CVAT XML 1.1"
    cannot_hold: ClassVar[frozenset[str]] = frozenset({IGNORE_REGIONS})
    is_xml: ClassVar[bool] = True

    def image_place(self, name: str, split: str) -> str:
        return join("images", name)

    def write(self, image: WrittenImage) -> None:
        file = self.file_of(image.split)
        width, height = image.size
        known = {"id": file.entries, "name": image.name, "width": width, "height": height}
        file.entries += 1
        file.write(f"  <image {attributes(known)}>\n")
        for box in image.boxes:
            file.write(f"    {self._shape(box)}\n")
        file.write("  </image>\n")

    def begun(self, split: str) -> OpenFile:
        file = OpenFile(self.folder / file_of_split("annotations", split, ".xml"))
        labels = "".join(f"<label>{element('name', name)}</label>" for name in self.names)
        file.write('<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n')
        file.write("  <version>1.1</version>\n")
        mode = element("mode", "annotation")
        subset = element("subset", split or "default")
        file.write(f"  <meta><task>{mode}{subset}<labels>{labels}</labels></task></meta>\n")
        return file

    def _shape(self, box: WrittenBox) -> str:
        source = "manual" if box.score is None else "auto"
        known = {"label": self.names[box.class_index], "source": source, "occluded": 0}
        if box.outline:
            points = ";".join(f"{pixels(x)},{pixels(y)}" for x, y in box.outline)
            return f"<polygon {attributes(known | {'points': points, 'z_order': 0})}/>"
        left, top, width, height = box.box_xywh
        corners = {
            "xtl": pixels(left),
            "ytl": pixels(top),
            "xbr": pixels(left + width),
            "ybr": pixels(top + height),
        }
        return f"<box {attributes(known | corners | {'z_order': 0})}/>"

    def close(self) -> None:
        for file in self.files.values():
            file.write("</annotations>\n")
            file.close()
