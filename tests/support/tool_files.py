"""Files of annotation tools in tests: tiny images beside them, and what is read of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from data.formats.base import ListedImage, SourceImages
from data.formats.registry import format_of
from data.report import Problem

SIZE = (40, 20)  # width and height of the images
Box = tuple[str, float, float, float, float]


class Read(NamedTuple):
    """What is read of a source."""

    boxes: dict[str, list[Box]]  # class and corners, by the name of the image in its folder
    problems: list[Problem]
    names: tuple[str, ...]
    title: str  # of the format
    crowd: dict[str, list[bool]]


def draw(folder: Path, *names: str, size: tuple[int, int] = SIZE) -> None:
    """Write an image for each name, a path relative to the folder."""
    width, height = size
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((height, width, 3), 99, np.uint8)
        file.write_bytes(cv2.imencode(file.suffix, pixels)[1].tobytes())


def write_json(file: Path, document: Any) -> Path:
    """Write a JSON file, and return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def read_source(
    source: Path,
    names: Sequence[str] | None = None,
    size: tuple[int, int] = SIZE,
    root: Path | None = None,
) -> Read:
    """Return what a source says of its images, all of one size.

    names: the class names; None: as the source names them. root: of the names of images; None: the
    folder of the source.
    """
    reader = format_of(source)
    found = reader.class_names(source).names if names is None else tuple(names)
    contents = reader.images(source, found)
    folder = root or (source if source.is_dir() else source.parent)
    boxes: dict[str, list[Box]] = {}
    crowd: dict[str, list[bool]] = {}
    problems = all_problems(contents)
    for image in contents.images:
        read = reader.rows(image, size, found)
        problems += read.problems
        name = str(Path(image.path).relative_to(folder))
        crowd[name] = [row.crowd for row in read.rows]
        boxes[name] = []
        for row in read.rows:
            x, y, w, h = (round(value, 3) for value in row.box_xywh)
            boxes[name].append((found[row.class_index], x, y, round(x + w, 3), round(y + h, 3)))
    return Read(boxes, problems, found, reader.title, crowd)


def all_problems(contents: SourceImages) -> list[Problem]:
    """Return the problems of a source and of its images, before these are opened."""
    of_images = [problem for image in contents.images for problem in image.problems]
    return [*contents.problems, *of_images]


def only_image(contents: SourceImages) -> ListedImage:
    """Return the only image of a source."""
    (image,) = contents.images
    return image


def reasons(problems: Sequence[Problem], folder: Path) -> list[str]:
    """Return problems as they are printed, with paths relative to a folder."""
    return [str(problem).replace(f"{folder}/", "") for problem in problems]
