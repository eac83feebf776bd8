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
    """Two files as arrays. Image and class ids are positions in the sorted ids of the files:
    numbers or text.
    """

    truth: GroundTruth
    detections: Detections
    images: list[int | str]
    categories: list[int | str]

    def evaluate(self) -> CocoResult:
        """COCO's numbers of these files; the class ids of the result are positions in
        `categories`.
        """
        images, classes = np.arange(len(self.images)), np.arange(len(self.categories))
        return evaluate_boxes(self.truth, self.detections, image_ids=images, class_ids=classes)


def read_coco_results(truth_path: str | Path, detections_path: str | Path) -> CocoFiles:
    """A COCO annotation file and a COCO results list, as arrays.

    Annotations of images or categories that the file does not declare, and detections of such
    categories, are left out, as in COCOeval. An annotation of id 0 is treated like any other;
    COCOeval counts a detection that matches it as a false positive. Raises: ValueError with the
    file, the row and the key if anything is missing or malformed, or a detection is of an unknown
    image.
    """
    content = _load_json(truth_path)
    if not isinstance(content, dict):
        expected = "an object with images, annotations and categories"
        raise ValueError(f"{truth_path}: the content is {_kind(content)}, but must be {expected}.")
    images = _declared_ids(content, "images", truth_path)
    categories = _declared_ids(content, "categories", truth_path)
    annotations = _rows(content.get("annotations"), "annotations", truth_path)
    truth = _read_truth(annotations, _positions(images), _positions(categories), truth_path)
    results = _rows(_load_json(detections_path), "detections", detections_path)
    return CocoFiles(
        truth,
        _read_detections(results, _positions(images), _positions(categories), detections_path),
        images,
        categories,
    )


def _read_truth(
    rows: list[Any], images: Mapping, categories: Mapping, path: str | Path
) -> GroundTruth:
    """The annotations as arrays. Raises: ValueError if one is malformed or an id is given twice."""
    kept = []
    seen: set[int | str] = set()
    for row, where in _named(rows, "annotations", path):
        image, category = (_identifier(row, key, where) for key in ("image_id", "category_id"))
        box, area = _box(row, where), _number(_field(row, "area", where), "area", where)
        if "id" in row:
            _refuse_second(_identifier(row, "id", where), seen, where)
        if image in images and category in categories:
            kept.append(
                (images[image], categories[category], box, area, bool(row.get("iscrowd", 0)))
            )
    return GroundTruth(*_columns(kept, 5))


def _refuse_second(identifier: int | str, seen: set[int | str], where: str) -> None:
    if identifier in seen:
        raise ValueError(
            f"{where}: id {identifier!r} is given twice, but every annotation needs a unique id."
        )
    seen.add(identifier)


def _read_detections(
    rows: list[Any], images: Mapping, categories: Mapping, path: str | Path
) -> Detections:
    """The results as arrays. Raises: ValueError if one is malformed or of an image that is not
    declared.
    """
    kept = []
    for row, where in _named(rows, "detections", path):
        image, category = (_identifier(row, key, where) for key in ("image_id", "category_id"))
        box, score = _box(row, where), _number(_field(row, "score", where), "score", where)
        if image not in images:
            raise ValueError(
                f"{where}: image_id is {image!r}, but the ground truth has no such image."
            )
        if category in categories:
            kept.append((images[image], categories[category], box, score))
    return Detections(*_columns(kept, 4))


def _load_json(path: str | Path) -> Any:
    """The content of a JSON file. Raises: ValueError that names the file and what is wrong with
    it.
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
    if isinstance(content, list):
        return content
    given = "missing" if content is None else _kind(content)
    raise ValueError(f"{path}: {name} is {given}, but must be a list of objects.")


def _named(rows: list[Any], name: str, path: str | Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Each row, and its position as text for error messages. Raises: ValueError if a row is not an
    object.
    """
    for index, row in enumerate(rows):
        where = f"{path}: {name}[{index}]"
        if not isinstance(row, dict):
            raise ValueError(f"{where} is {_kind(row)}, but must be an object.")
        yield row, where


def _declared_ids(content: Mapping[str, Any], name: str, path: str | Path) -> list[int | str]:
    """The sorted, distinct ids of `images` or `categories`."""
    ids = {
        _identifier(row, "id", where)
        for row, where in _named(_rows(content.get(name), name, path), name, path)
    }
    return sorted(ids, key=lambda value: (isinstance(value, str), value))


def _positions(ids: Sequence[int | str]) -> dict[int | str, int]:
    return {value: position for position, value in enumerate(ids)}


def _field(row: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in row:
        raise ValueError(f'{where} has no "{key}", which is required.')
    return row[key]


def _identifier(row: Mapping[str, Any], key: str, where: str) -> int | str:
    value = _field(row, key, where)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # some exporters write 7.0 for 7
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{where}: {key} is {value!r:.60}, but must be a whole number or text.")
    return value


def _number(value: Any, key: str, where: str) -> float:
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    ):  # false for nan and inf
        return float(value)
    raise ValueError(f"{where}: {key} is {value!r:.60}, but must be a finite number.")


def _box(row: Mapping[str, Any], where: str) -> list[float]:
    value = _field(row, "bbox", where)
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError(f"{where}: bbox is {value!r:.60}, but must be [left, top, width, height].")
    return [_number(side, "bbox", where) for side in value]


def _columns(rows: list[tuple], width: int) -> Iterator[Any]:
    """Rows turned into columns; `width` empty ones if there are no rows."""
    return zip(*rows, strict=True) if rows else iter([()] * width)


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "text", type(None): "null"}.get(
        type(value), "a number"
    )
