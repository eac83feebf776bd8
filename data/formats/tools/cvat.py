"""CVAT for images 1.1 and CVAT for video 1.1: one `annotations.xml`.

Boxes, polygons, masks, skeletons; tracks of a video export, whose images are the frames.
Source: docs.cvat.ai, XML annotation format 1.1.
"""

import re
from collections import defaultdict
from math import radians
from pathlib import Path
from typing import ClassVar, NamedTuple

from data.formats.annotations import (
    BOX,
    CUBOID,
    ELLIPSE,
    KEYPOINTS,
    MASK,
    POLYGON,
    ROTATED_BOX,
    AnnotatedImage,
    Annotation,
    AnnotationFile,
)
from data.formats.listing_reader import ListingReader
from data.formats.text.xml_stream import Attributes, read_xml
from data.formats.tools.fields import Objects, size_of
from data.formats.tools.outlines import Point, ellipse_points, rotated_box_points
from data.labels import BadRowError
from data.report import ROW_DROPPED, Problem
from utils.printable import excerpt, printable

OUTLINED = ("polygon", "polyline")
SHAPES = ("box", *OUTLINED, "points", "ellipse", "cuboid", "mask")
SKELETON = "skeleton"  # its points are elements inside it
OTHERS = ("tag", "attribute")  # elements of an image or a track that are no objects
CORNERS = tuple(
    f"{side}{face}" for face in "12" for side in ("tl", "bl", "tr", "br")
)  # of a cuboid
FRAME = "frame_{:06d}"  # the name of an image of a video
NUMBER = re.compile(r"[0-9]{1,9}")


class VideoFrame(NamedTuple):
    """A frame of a video. An export of a project has those of several tasks."""

    task: str
    split: str
    number: int


class Cvat(ListingReader):
    """Reads `annotations.xml`."""

    title: ClassVar[str] = "CVAT XML 1.1"
    suffixes: ClassVar[frozenset[str]] = frozenset({".xml"})

    def begins_with(self, start: bytes) -> bool:
        return re.search(rb"<annotations[\s>]", start) is not None

    def read(self, file: Path) -> AnnotationFile:
        collector = _Collector(file)
        read_xml(file, collector.start, collector.end)
        names = tuple(dict.fromkeys(collector.names)) or None
        return AnnotationFile(collector.all_images(), names, collector.problems)


class _Collector:
    """The images and the labels that were read so far."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.names: list[str] = []
        self.label: dict[str, str] = {}  # what was read of a label in the list of labels
        self.problems: list[Problem] = []  # that are not of an image
        self.images: list[AnnotatedImage] = []
        self.objects = Objects()  # of the last image, or of the last frame
        self.frames: dict[VideoFrame, Objects] = defaultdict(Objects)
        self.track: Attributes = {}  # the track that is read
        self.name = ""  # the class of the object that is read
        self.skeleton: list[Point] = []  # the points of the skeleton that is read
        self.sizes: dict[str, set[str]] = defaultdict(set)  # of the videos: width, height

    def start(self, path: tuple[str, ...], attributes: Attributes, line: int) -> None:
        if path == ("annotations", "image"):
            self.add_image(attributes, line)
        elif path == ("annotations", "track"):
            self.track = attributes
        elif path[:2] in (("annotations", "image"), ("annotations", "track")):
            if len(path) == 3 and path[2] not in OTHERS:
                self.add_element(path[1], path[2], attributes, line)
            elif path[2:] == (SKELETON, "points"):
                self.add_joint(attributes, line)

    def end(self, path: tuple[str, ...], text: str, line: int) -> None:
        if path[2:] == (SKELETON,):
            self.end_skeleton(line)
        elif path[1:2] != ("meta",):
            return
        elif path[-2] == "label":
            self.label[path[-1]] = text
        elif path[-1] == "label":
            # A label with a parent is a point of a skeleton.
            if self.label.get("name") and not self.label.get("parent"):
                self.names.append(self.label["name"])
            self.label = {}
        elif path[-2] == "original_size":
            self.sizes[path[-1]].add(text)

    def add_image(self, attributes: Attributes, line: int) -> None:
        self.objects = objects = Objects()
        size = _size(attributes.get("width"), attributes.get("height"))
        name = attributes.get("name", "")
        split = attributes.get("subset", "")
        image = AnnotatedImage(name, objects.annotations, objects.problems, size)
        self.images.append(image._replace(number=line, split=split))

    def add_element(self, parent: str, shape: str, attributes: Attributes, line: int) -> None:
        """Add a shape of an image, or of a track unless it is outside the image then."""
        owner = attributes
        if parent == "track":
            owner = self.track
            frame = attributes.get("frame", "")
            if not NUMBER.fullmatch(frame):
                where = f"{printable(self.file)} line {line}"
                reason = f"frame is '{excerpt(frame)}', must be a number"
                self.problems.append(Problem(ROW_DROPPED, where, reason))
                self.objects = Objects()  # for the points of a skeleton
                return
            task = self.track.get("task_id", "")
            split = self.track.get("subset", "")
            self.objects = self.frames[VideoFrame(task, split, int(frame))]

        self.name = owner.get("label", "")
        self.skeleton = []
        if shape == SKELETON or attributes.get("outside") == "1":
            return
        try:
            points, kind = _outline(shape, attributes)
            self.add(points, kind, line)
        except BadRowError as error:
            self.objects.drop(self.file, line, error)

    def add_joint(self, attributes: Attributes, line: int) -> None:
        """Add a point of a skeleton, unless it is outside the image."""
        if attributes.get("outside") == "1":
            return
        try:
            self.skeleton += _pairs(attributes)
        except BadRowError as error:
            self.objects.drop(self.file, line, error)

    def end_skeleton(self, line: int) -> None:
        if not self.skeleton:
            return  # all of its points are outside
        try:
            self.add(self.skeleton, KEYPOINTS, line)
        except BadRowError as error:
            self.objects.drop(self.file, line, error)

    def add(self, points: list[Point], kind: str, line: int) -> None:
        """Add an object of the last class. Raises BadRowError if that is empty."""
        if not self.name:
            raise BadRowError(f"the {kind} has no label")
        self.objects.annotations.append(Annotation(self.name, points, line, kind))

    def all_images(self) -> list[AnnotatedImage]:
        """Return the images of the file, and the frames of its tracks."""
        sides = [self.sizes["width"], self.sizes["height"]]
        size = None
        if all(len(side) == 1 for side in sides):  # several videos may have several sizes
            size = _size(*(next(iter(side)) for side in sides))

        images = list(self.images)
        for frame in sorted(self.frames):
            name = FRAME.format(frame.number)
            where = f"frame {frame.number}"
            if frame.task:
                where = f"task {excerpt(frame.task)} {where}"
            objects = self.frames[frame]
            image = AnnotatedImage(name, objects.annotations, objects.problems, size)
            images.append(image._replace(number=where, split=frame.split))
        return images


def _size(width: str | None, height: str | None) -> tuple[int, int] | None:
    sides = [side for side in (width, height) if side and NUMBER.fullmatch(side)]
    return size_of(int(sides[0]), int(sides[1])) if len(sides) == 2 else None


def _outline(shape: str, attributes: Attributes) -> tuple[list[Point], str]:
    """Return the points of a shape in pixels, and its kind. Raises BadRowError."""
    (degrees,) = _numbers({"rotation": "0", **attributes}, "rotation")
    angle = radians(degrees % 360)

    if shape == "box":
        x1, y1, x2, y2 = _numbers(attributes, "xtl", "ytl", "xbr", "ybr")
        if not angle:
            return [(x1, y1), (x2, y2)], BOX

        center = ((x1 + x2) / 2, (y1 + y2) / 2)
        return rotated_box_points(x1, y1, x2 - x1, y2 - y1, center, angle), ROTATED_BOX

    if shape == "ellipse":
        center_x, center_y, radius_x, radius_y = _numbers(attributes, "cx", "cy", "rx", "ry")
        return ellipse_points((center_x, center_y), radius_x, radius_y, angle), ELLIPSE

    if shape == "mask":
        left, top, width, height = _numbers(attributes, "left", "top", "width", "height")
        return [(left, top), (left + width, top + height)], MASK

    if shape == "cuboid":
        pairs = [_numbers(attributes, f"x{corner}", f"y{corner}") for corner in CORNERS]
        return [(x, y) for x, y in pairs], CUBOID

    if shape in OUTLINED:
        return _pairs(attributes), POLYGON
    if shape == "points":
        return _pairs(attributes), KEYPOINTS

    raise BadRowError(f"a {excerpt(shape)} is not read, only {', '.join((*SHAPES, SKELETON))}")


def _pairs(attributes: Attributes) -> list[Point]:
    """Return the points in an attribute `x,y;x,y;...`. Raises BadRowError."""
    points = []
    for pair in attributes.get("points", "").split(";"):
        x, _, y = pair.partition(",")
        points.append((_number(x, "points"), _number(y, "points")))
    return points


def _numbers(attributes: Attributes, *names: str) -> list[float]:
    return [_number(attributes.get(name, ""), name) for name in names]


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadRowError(f"{name} is '{excerpt(text)}', must be a number") from None
