"""Write Label Studio's tasks, and the labeling configuration that goes with them.

Values are percentages of the image. Detections become predictions, which a person accepts or
corrects; labels become annotations. The images are served from local files, whose folder
LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT names.

Source: labelstud.io/guide/tasks, /guide/predictions and /guide/storage (local storage).
"""

import json
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import quote

from data.formats.writers.base import (
    IGNORE_REGIONS,
    ListingWriter,
    OpenFile,
    WrittenBox,
    WrittenImage,
    file_of_split,
    rounded,
)
from data.formats.writers.xml_text import attributes

PERCENT_DIGITS = 7
MODEL = "kestrel"  # the model version of predictions


class LabelStudioWriter(ListingWriter):
    """Writes `tasks.json`, or a file for each split, and `labeling_config.xml`."""

    title: ClassVar[str] = "Label Studio JSON"
    cannot_hold: ClassVar[frozenset[str]] = frozenset({IGNORE_REGIONS})
    has_any_name: ClassVar[bool] = True
    is_xml: ClassVar[bool] = True

    def begun(self, split: str) -> OpenFile:
        file = OpenFile(self.folder / file_of_split("tasks", split, ".json"))
        file.write("[")
        return file

    def write(self, image: WrittenImage) -> None:
        regions = [self._region(box, number, image) for number, box in enumerate(image.boxes)]
        place = quote(self.image_place(image.name, image.split))
        task: dict[str, object] = {"data": {"image": f"/data/local-files/?d={place}"}}
        if image.is_detected:
            scores = [box.score or 0.0 for box in image.boxes]
            mean = round(sum(scores) / max(1, len(scores)), 4)
            task["predictions"] = [{"model_version": MODEL, "score": mean, "result": regions}]
        else:
            task["annotations"] = [{"result": regions}]
        self.file_of(image.split).add(json.dumps(task))

    def _region(self, box: WrittenBox, number: int, image: WrittenImage) -> dict[str, object]:
        width, height = image.size
        name = self.names[box.class_index]

        if box.outline:
            kind = "polygonlabels"
            points = [_percent((x, y), image.size) for x, y in box.outline]
            value: dict[str, object] = {"points": points, "polygonlabels": [name]}
        else:
            kind = "rectanglelabels"
            left, top, box_width, box_height = box.box_xywh
            x, y = _percent((left, top), image.size)
            percent_width, percent_height = _percent((box_width, box_height), image.size)
            value = {"x": x, "y": y, "width": percent_width, "height": percent_height}
            value |= {"rotation": 0, "rectanglelabels": [name]}

        region: dict[str, object] = {
            "id": f"r{number}",
            "type": kind,
            "from_name": kind.removesuffix("labels"),
            "to_name": "image",
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "value": value,
        }

        if box.score is not None:
            region["score"] = round(box.score, 6)
        return region

    def close(self) -> None:
        for file in self.files.values():
            file.write("\n]\n")
            file.close()

        labels = "".join(f"    <Label {attributes({'value': name})}/>\n" for name in self.names)
        controls = ""
        for kind in ("Rectangle", "Polygon"):
            control = attributes({"name": kind.lower(), "toName": "image"})
            controls += f"  <{kind}Labels {control}>\n{labels}  </{kind}Labels>\n"
        image = '  <Image name="image" value="$image"/>\n'
        self.write_file("labeling_config.xml", f"<View>\n{image}{controls}</View>\n")


def _percent(values: Sequence[float], size: tuple[int, int]) -> list[float]:
    """Return x and y as percentages of the image's width and height.

    >>> _percent((10, 10), (100, 50))
    [10.0, 20.0]
    """
    x, y = values
    width, height = size
    return rounded([100 * x / width, 100 * y / height], PERCENT_DIGITS)
