"""Write COCO JSON: `annotations/instances_train.json`, a file for each split.

Source: cocodataset.org/#format-data, object detection.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from data.formats.writers.base import ListingWriter, OpenFile, WrittenImage, file_of_split


class CocoWriter(ListingWriter):
    """Writes the boxes, polygons and ignore regions of images in `images/train/`, bit for bit."""

    title: ClassVar[str] = "COCO JSON"
    has_both: ClassVar[bool] = True
    has_any_name: ClassVar[bool] = True

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder, names)
        self._images: dict[str, list[str]] = defaultdict(list)  # as JSON

    def begun(self, split: str) -> OpenFile:
        place = file_of_split("instances", split, ".json")
        file = OpenFile(self.folder / "annotations" / place)
        file.write('{"annotations": [')
        return file

    def write(self, image: WrittenImage) -> None:
        file = self.file_of(image.split)
        listed = self._images[image.split]

        width, height = image.size
        image_id = len(listed) + 1
        entry = {"id": image_id, "file_name": image.name, "width": width, "height": height}
        listed.append(json.dumps(entry))
        for box in image.boxes:
            annotation: dict[str, object] = {
                "id": file.entries + 1,
                "image_id": image_id,
                "category_id": box.class_index + 1,
                "bbox": list(box.box_xywh),
                "area": box.area,
                "iscrowd": int(box.crowd),
                "segmentation": [],
            }
            if box.outline:
                corners = [value for point in box.outline for value in point]
                annotation["segmentation"] = [corners]
            if box.score is not None:
                annotation["score"] = box.score
            file.add(json.dumps(annotation))

    def close(self) -> None:
        categories = [
            json.dumps({"id": number, "name": name, "supercategory": ""})
            for number, name in enumerate(self.names, 1)
        ]
        for split, file in self.files.items():
            file.write("\n],\n")
            file.write(f'"images": [\n{_lines(self._images[split])}\n],\n')
            file.write(f'"categories": [\n{_lines(categories)}\n]}}\n')
            file.close()


def _lines(entries: list[str]) -> str:
    return ",\n".join(entries)
