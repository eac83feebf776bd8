"""Write LabelMe: a JSON file beside each image, with shapes in pixels."""

import json
from typing import ClassVar

from data.formats.writers.base import (
    IGNORE_REGIONS,
    LabelWriter,
    WrittenBox,
    WrittenImage,
    join,
    rounded,
)


class LabelMeWriter(LabelWriter):
    """Writes `x.json` beside `x.jpg`, in a folder for each split, and labels.txt with the classes.

    The score is the description.
    """

    title: ClassVar[str] = "LabelMe JSON"
    cannot_hold: ClassVar[frozenset[str]] = frozenset({IGNORE_REGIONS})

    def image_place(self, name: str, split: str) -> str:
        return join(split, name)

    def write(self, image: WrittenImage) -> None:
        width, height = image.size
        document: dict[str, object] = {
            "version": "5.4.1",
            "flags": {},
            "shapes": [self._shape(box) for box in image.boxes],
            "imagePath": image.name.rpartition("/")[2],
            "imageData": None,
            "imageHeight": height,
            "imageWidth": width,
        }
        text = json.dumps(document, indent=1, ensure_ascii=False)
        self.write_file(join(image.split, f"{image.stem}.json"), f"{text}\n")

    def close(self) -> None:
        self.write_file("labels.txt", "".join(f"{name}\n" for name in self.names))

    def _shape(self, box: WrittenBox) -> dict[str, object]:
        left, top, width, height = box.box_xywh
        points = list(box.outline) or [(left, top), (left + width, top + height)]
        return {
            "label": self.names[box.class_index],
            "points": [rounded(point) for point in points],
            "group_id": None,
            "description": "" if box.score is None else f"score {box.score:.2f}",
            "shape_type": "polygon" if box.outline else "rectangle",
            "flags": {},
        }
