"""Label Studio: JSON of tasks, whole or JSON-min; values are percentages of the image.

Source: labelstud.io/guide/export (Raw JSON format of completed tasks; units of image annotations).
"""

from collections.abc import Iterable, Mapping
from math import radians
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from data.formats.annotations import (
    BOX,
    ELLIPSE,
    MASK,
    POLYGON,
    ROTATED_BOX,
    AnnotatedImage,
    Annotation,
    AnnotationFile,
)
from data.formats.json_files import brief, read_json
from data.formats.listing_reader import ListingReader
from data.formats.tools.fields import (
    in_list,
    is_number,
    list_of,
    numbers_of,
    object_of,
    points_of,
    read_images,
    read_objects,
    size_of,
    texts_of,
    with_objects,
)
from data.formats.tools.outlines import Point, box_points, ellipse_points, rotated_box_points
from data.formats.tools.painted_masks import brush_box
from data.labels import BadRowError
from data.report import NOTE, Problem
from utils.images.decode import is_image_name
from utils.printable import counted, excerpt, printable

LABELS = ("rectanglelabels", "polygonlabels", "ellipselabels", "brushlabels", "keypointlabels")
LABEL_KEYS = (*LABELS, "labels")
FULL_KEYS = ("annotations", "completions")  # of a task; the second in old exports
TASK_KEYS = (*FULL_KEYS, "predictions", "data")  # JSON-min has none of these
CANCELLED = ("was_cancelled", "skipped")  # the second in old exports
IMAGE_KEYS = ("image", "img", "url", "captioning", "$undefined$")  # usual names in the data
SHAPE_TYPES = ("rectangle", "polygon", "ellipse", "brush", "keypoint")  # regions without a label


class Regions(NamedTuple):
    """The regions of a task that count, and where they are."""

    entries: list[Any]
    place: str
    annotations: int  # of the task, without cancelled ones; 1 in JSON-min


class LabelStudio(ListingReader):
    """Reads exports as JSON and JSON-min."""

    title: ClassVar[str] = "Label Studio JSON"
    suffixes: ClassVar[frozenset[str]] = frozenset({".json"})

    def begins_with(self, start: bytes) -> bool:
        is_list = start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        words = (b'"result"', b'"original_width"', b'"annotation_id"', b'"annotations"', b'labels"')
        return is_list and any(word in start for word in words)

    def read(self, file: Path) -> AnnotationFile:
        unlabeled: list[str] = []  # tasks without an annotation
        several: list[str] = []  # tasks with more than one

        def read(entry: Any, place: str) -> AnnotatedImage:
            task = object_of(entry, "the task")
            regions = _regions(task, place)
            if not regions.annotations:
                unlabeled.append(place)
            elif regions.annotations > 1:
                several.append(place)
            size = _declared_size(regions.entries)
            image = AnnotatedImage(_image_name(task), declared_size=size, normalized=True)
            labeled = _labeled_ids(regions.entries)

            def read_region(entry: Any, place: str) -> list[Annotation]:
                return _annotations(entry, place, labeled)

            return with_objects(
                image, read_objects(regions.entries, read_region, file, regions.place)
            )

        images, problems = read_images(in_list(read_json(file)), read, file)
        left_out = set(unlabeled)
        chosen = [image for image in images if image.number not in left_out]
        reason = "without an annotation or skipped, whose images are left out"
        problems += _note(unlabeled, reason, file)
        reason = "with several annotations, of which the ground truth counts, or else the first"
        problems += _note(several, reason, file)
        return AnnotationFile(chosen, problems=problems)


def _note(places: list[str], reason: str, file: Path) -> list[Problem]:
    """Return a note about tasks; none if there are none."""
    if not places:
        return []
    tasks = counted(len(places), "task")
    return [Problem(NOTE, f"{printable(file)} {places[0]}", f"{tasks} {reason}")]


def _image_name(task: Mapping[str, Any]) -> str:
    """Return the name of a task's image: the only value that is one, or `file_upload`.

    Of several values, that with a usual key. Raises BadRowError if there is none.
    """
    data = object_of(task.get("data", task), "'data'")
    texts = {key: value for key, value in data.items() if isinstance(value, str) and value}
    names = {key: value for key, value in texts.items() if _may_be_image(value)}
    if len(names) == 1:
        return next(iter(names.values()))

    usual = [key for key in IMAGE_KEYS if key in (names or texts)]
    if usual:
        return texts[usual[0]]
    upload = task.get("file_upload")
    if isinstance(upload, str) and upload:
        return upload
    raise BadRowError(f"the data name {counted(len(names), 'image')}, must name one")


def _may_be_image(text: str) -> bool:
    """Whether a value is the path or the address of an image.

    >>> _may_be_image("/data/local-files/?d=a/x.jpg"), _may_be_image("s3://b/x.PNG?v=1")
    (True, True)
    """
    return is_image_name(text) or is_image_name(text.partition("?")[0])


def _regions(task: Mapping[str, Any], where: str) -> Regions:
    """Return the regions of a task: of its annotation, or JSON-min's.

    Cancelled annotations do not count, nor do predictions. JSON-min has the regions as values of
    the task, in lists. Raises BadRowError.
    """
    if not any(key in task for key in TASK_KEYS):
        entries = []
        keys = []
        for key, value in task.items():
            items = value if isinstance(value, list) else []
            found = [item for item in items if isinstance(item, dict)]
            entries += found
            if found:
                keys.append(excerpt(key))
        return Regions(entries, f"{where}.{'+'.join(keys)}", 1)

    usable = []
    for key in FULL_KEYS:
        for index, annotation in enumerate(list_of(task.get(key, []), f"'{key}'")):
            fields = object_of(annotation, f"{key}[{index}]")
            if not any(fields.get(cancelled) for cancelled in CANCELLED):
                usable.append((fields, f"{key}[{index}].result"))
    if not usable:
        return Regions([], where, 0)

    true = [entry for entry in usable if entry[0].get("ground_truth")]
    fields, place = (true or usable)[0]
    return Regions(list_of(fields.get("result", []), place), f"{where}.{place}", len(usable))


def _labeled_ids(regions: Iterable[Any]) -> set[str]:
    """Return the ids of the regions that have labels."""
    found = set()
    for region in regions:
        if not isinstance(region, dict):
            continue
        value = region.get("value", region)
        if isinstance(value, dict) and any(value.get(key) for key in LABEL_KEYS):
            found.add(str(region.get("id")))
    return found


def _declared_size(regions: Iterable[Any]) -> tuple[int, int] | None:
    """Return the size of the image that the regions name, None if they name none."""
    for region in regions:
        if isinstance(region, dict):
            size = size_of(region.get("original_width"), region.get("original_height"))
            if size is not None:
                return size
    return None


def _annotations(entry: Any, place: str, labeled: set[str]) -> list[Annotation]:
    """Return the objects of a region: one for each of its labels.

    labeled: the ids of regions with labels. With <Rectangle> and <Labels>, a region is there twice:
    as a shape, and with its labels.
    """
    region = object_of(entry, "the region")
    value = object_of(region.get("value", region), "'value'")
    keys = [key for key in LABEL_KEYS if key in value]
    is_shape = region.get("type") in SHAPE_TYPES
    if is_shape and not keys and str(region.get("id")) not in labeled:
        raise BadRowError("the region has no label")
    if not keys or "from_id" in region:
        return []  # such as a choice for the whole image, a text, a relation of two regions

    filled = [key for key in keys if value[key]]
    labels = texts_of(value, (filled or keys)[0])
    points, shape = _outline(value, region)
    return [Annotation(label, points, place, shape) for label in labels]


def _outline(value: Mapping[str, Any], region: Mapping[str, Any]) -> tuple[list[Point], str]:
    """Return the points of a region in fractions of the image, and its shape."""
    size = _declared_size([region])
    if "rle" in value:
        return _painted(value["rle"], size), MASK
    if "points" in value:
        return [(x / 100, y / 100) for x, y in points_of(value["points"], "'points'")], POLYGON
    if "keypointlabels" in value or region.get("type") in ("keypoint", "keypointlabels"):
        raise BadRowError("a keypoint has no area")

    degrees = value.get("rotation", 0)
    if not is_number(degrees):
        raise BadRowError(f"'rotation' is {brief(degrees)}, must be a number of degrees")
    if degrees % 360 and size is None:
        raise BadRowError("a rotated region needs original_width and original_height")
    pixels = size or (100, 100)  # without a turn, any size gives the same fractions
    points, shape = _in_pixels(value, radians(degrees % 360), pixels)
    return [(x / pixels[0], y / pixels[1]) for x, y in points], shape


def _painted(rle: Any, size: tuple[int, int] | None) -> list[Point]:
    """Return two corners, in fractions, of what a brush has painted. Raises BadRowError."""
    values = list_of(rle, "'rle'")
    if not all(isinstance(value, int) and 0 <= value < 256 for value in values):
        raise BadRowError(f"'rle' is {brief(values)}, must be bytes")
    if size is None:
        raise BadRowError("a painted region needs original_width and original_height")
    left, top, right, bottom = brush_box(values, size)
    return [(left / size[0], top / size[1]), (right / size[0], bottom / size[1])]


def _in_pixels(
    value: Mapping[str, Any], angle: float, size: tuple[int, int]
) -> tuple[list[Point], str]:
    """Return the points of a box or an ellipse in pixels, and its shape: a turn is one of pixels.

    angle: in radians; a box turns around its upper left corner. size: of the image.
    """
    x_scale = size[0] / 100
    y_scale = size[1] / 100
    if "radiusX" in value:
        x, y, radius_x, radius_y = numbers_of(value, "x", "y", "radiusX", "radiusY")
        center = (x * x_scale, y * y_scale)
        return ellipse_points(center, radius_x * x_scale, radius_y * y_scale, angle), ELLIPSE

    left, top, width, height = numbers_of(value, "x", "y", "width", "height")
    box = (left * x_scale, top * y_scale, width * x_scale, height * y_scale)
    if not angle:
        return box_points(*box), BOX
    return rotated_box_points(*box, center=box[:2], angle=angle), ROTATED_BOX
