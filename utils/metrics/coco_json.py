"""COCO's annotation and result files, read into arrays."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from utils.metrics.coco import CocoResult, evaluate_boxes
from utils.metrics.records import Detections, GroundTruth


class CocoFiles(NamedTuple):
    """An annotation file and a results file as arrays.

    Image and class ids are positions in `images` and `categories`, the sorted ids of the files,
    which are numbers or text.
    """

    truth: GroundTruth
    detections: Detections
    images: list[int | str]
    categories: list[int | str]

    def evaluate(self) -> CocoResult:
        """Return COCO's numbers of these files; its class ids are positions in `categories`."""
        images = np.arange(len(self.images))
        classes = np.arange(len(self.categories))
        return evaluate_boxes(self.truth, self.detections, image_ids=images, class_ids=classes)


def read_coco_results(truth_path: str | Path, detections_path: str | Path) -> CocoFiles:
    """Return a COCO annotation file and a COCO results list, as arrays.

    Annotations of images or categories that the file does not declare, and detections of such
    categories, are left out, as in COCOeval. An annotation of id 0 is treated like any other;
    COCOeval counts a detection that matches it as a false positive.

    Raises: ValueError with the file, the row and the key if anything is missing or malformed, or a
    detection is of an unknown image.
    """
    content = _load_json(truth_path)
    if not isinstance(content, dict):
        expected = "an object with images, annotations and categories"
        raise ValueError(f"{truth_path}: the content is {_kind(content)}, but must be {expected}.")

    images = _declared_ids(content, "images", truth_path)
    categories = _declared_ids(content, "categories", truth_path)
    image_positions = _positions(images)
    category_positions = _positions(categories)

    annotations = _rows(content.get("annotations"), "annotations", truth_path)
    truth = _read_truth(annotations, image_positions, category_positions, truth_path)

    results = _rows(_load_json(detections_path), "detections", detections_path)
    detections = _read_detections(results, image_positions, category_positions, detections_path)
    return CocoFiles(truth, detections, images, categories)


def _read_truth(
    rows: list[Any], images: Mapping, categories: Mapping, path: str | Path
) -> GroundTruth:
    """Return the annotations as arrays.

    Raises: ValueError if one is malformed or an id is given twice.
    """
    kept = []
    seen: set[int | str] = set()
    for row, where in _named(rows, "annotations", path):
        image = _identifier(row, "image_id", where)
        category = _identifier(row, "category_id", where)
        box = _box(row, where)
        area = _number(_field(row, "area", where), "area", where)
        if "id" in row:
            _refuse_second(_identifier(row, "id", where), seen, where)

        if image in images and category in categories:
            is_crowd = bool(row.get("iscrowd", 0))
            kept.append((images[image], categories[category], box, area, is_crowd))
    return GroundTruth(*_columns(kept, 5))


def _refuse_second(identifier: int | str, seen: set[int | str], where: str) -> None:
    """Add an id to those seen. Raises: ValueError if it is among them."""
    if identifier in seen:
        raise ValueError(
            f"{where}: id {identifier!r} is given twice, but every annotation needs a unique id."
        )
    seen.add(identifier)


def _read_detections(
    rows: list[Any], images: Mapping, categories: Mapping, path: str | Path
) -> Detections:
    """Return the results as arrays.

    Raises: ValueError if one is malformed or of an unknown image.
    """
    kept = []
    for row, where in _named(rows, "detections", path):
        image = _identifier(row, "image_id", where)
        category = _identifier(row, "category_id", where)
        box = _box(row, where)
        score = _number(_field(row, "score", where), "score", where)

        if image not in images:
            raise ValueError(
                f"{where}: image_id is {image!r}, but the ground truth has no such image."
            )
        if category in categories:
            kept.append((images[image], categories[category], box, score))
    return Detections(*_columns(kept, 4))


def _load_json(path: str | Path) -> Any:
    """Return the content of a JSON file.

    Raises: ValueError that names the file and what is wrong.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: the file cannot be read ({error.strerror}).") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} line {error.lineno}: this is not JSON ({error.msg}).") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: this is not JSON ({type(error).__name__}).") from error


def _rows(content: Any, name: str, path: str | Path) -> list[Any]:
    """Return the content if it is a list. Raises: ValueError if not."""
    if isinstance(content, list):
        return content
    given = "missing" if content is None else _kind(content)
    raise ValueError(f"{path}: {name} is {given}, but must be a list of objects.")


def _named(rows: list[Any], name: str, path: str | Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each row, and its position as text for error messages.

    Raises: ValueError if a row is not an object.
    """
    for index, row in enumerate(rows):
        where = f"{path}: {name}[{index}]"
        if not isinstance(row, dict):
            raise ValueError(f"{where} is {_kind(row)}, but must be an object.")
        yield row, where


def _declared_ids(content: Mapping[str, Any], name: str, path: str | Path) -> list[int | str]:
    """Return the sorted, distinct ids of `images` or `categories`."""
    rows = _rows(content.get(name), name, path)
    ids = {_identifier(row, "id", where) for row, where in _named(rows, name, path)}
    # numbers before text, as the two cannot be compared
    return sorted(ids, key=lambda value: (isinstance(value, str), value))


def _positions(ids: Sequence[int | str]) -> dict[int | str, int]:
    """Return the position of each id."""
    return {value: position for position, value in enumerate(ids)}


def _field(row: Mapping[str, Any], key: str, where: str) -> Any:
    """Return the value of a key. Raises: ValueError if it is missing."""
    if key not in row:
        raise ValueError(f'{where} has no "{key}", which is required.')
    return row[key]


def _identifier(row: Mapping[str, Any], key: str, where: str) -> int | str:
    """Return the id under a key. Raises: ValueError if it is neither a whole number nor text."""
    value = _field(row, key, where)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # some exporters write 7.0 for 7
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{where}: {key} is {value!r:.60}, but must be a whole number or text.")
    return value


def _number(value: Any, key: str, where: str) -> float:
    """Return the value as a float. Raises: ValueError if it is not a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and abs(value) <= sys.float_info.max:  # false for nan and inf
        return float(value)
    raise ValueError(f"{where}: {key} is {value!r:.60}, but must be a finite number.")


def _box(row: Mapping[str, Any], where: str) -> list[float]:
    """Return the box of a row, xywh. Raises: ValueError if it is missing or malformed."""
    value = _field(row, "bbox", where)
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError(f"{where}: bbox is {value!r:.60}, but must be [left, top, width, height].")
    return [_number(side, "bbox", where) for side in value]


def _columns(rows: list[tuple], width: int) -> Iterator[Any]:
    """Return rows turned into columns; `width` empty ones if there are no rows."""
    if not rows:
        return iter([()] * width)
    return zip(*rows, strict=True)


def _kind(value: Any) -> str:
    """Return what a value of a JSON file is called in error messages."""
    kinds = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    return kinds.get(type(value), "a number")
