"""data/sanity/box_units.py: boxes in another unit or form than their format has."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.sanity.box_units import unit_warning
from data.scan import scan
from tests.support.data_sets import opened

WIDTH, HEIGHT = 200, 100
IMAGES = 40  # with a box each
SIZES = np.full((400, 2), (WIDTH, HEIGHT), np.float64)


def drawn_boxes(count: int = 400) -> np.ndarray:
    """Return left, top, width, height of boxes inside of images, [count, 4]."""
    generator = np.random.default_rng(0)
    size = generator.uniform(0.05, 0.4, (count, 2))
    start = generator.uniform(0, 1, (count, 2)) * (1 - size)
    return np.hstack([start, size]) * (WIDTH, HEIGHT, WIDTH, HEIGHT)


def forms() -> dict[str, np.ndarray]:
    """Return the four numbers of each box in each form."""
    boxes = drawn_boxes()
    start, size = boxes[:, :2], boxes[:, 2:]
    return {
        "left, top, width, height": boxes,
        "center and size": np.hstack([start + size / 2, size]),
        "corners": np.hstack([start, start + size]),
    }


def read_as(form: str, values: np.ndarray) -> np.ndarray:
    """Return the corners that a reader of a form makes of four numbers."""
    first, last = values[:, :2], values[:, 2:]
    if form == "left, top, width, height":
        return np.hstack([first, first + last])
    if form == "center and size":
        return np.hstack([first - last / 2, first + last / 2])
    return values


@pytest.mark.parametrize("expected", forms())
@pytest.mark.parametrize("written", forms())
def test_the_form_of_the_rows_is_named(written, expected):
    said = unit_warning(read_as(expected, forms()[written]), SIZES)
    if written == expected:
        assert said == ""
    else:
        assert f"; none would if rows were {written} in place of {expected}; look at some" in said


def test_fractions_are_noticed():
    corners = read_as("corners", forms()["corners"]) / (WIDTH, HEIGHT, WIDTH, HEIGHT)
    assert unit_warning(corners, SIZES).startswith("400 boxes of 400 lie in the first pixel of")
    some_in_pixels = np.concatenate([corners[:350], read_as("corners", forms()["corners"])[350:]])
    assert unit_warning(some_in_pixels, SIZES) == ""


LARGE = np.full((400, 2), (640, 480), np.float64)


def test_percentages_are_noticed():
    boxes = forms()["corners"] / (WIDTH, HEIGHT, WIDTH, HEIGHT) * 100
    said = unit_warning(boxes, LARGE)
    assert said.startswith(
        "all 400 boxes lie in the first 100 pixels of their image, and fill them"
    )
    assert unit_warning(boxes, SIZES) == ""  # images are hardly larger
    assert unit_warning(boxes[:9], LARGE[:9]) == ""
    in_one_corner = boxes * 0.8
    assert unit_warning(in_one_corner, LARGE) == ""
    with_one_beyond = np.vstack([boxes[1:], [[90, 90, 300, 200]]])
    assert unit_warning(with_one_beyond, LARGE) == ""


@pytest.mark.parametrize("side", ["left", "top", "right", "bottom"])
def test_objects_that_one_side_of_the_image_cuts_are_right(side):
    """Their whole boxes are drawn, as of people behind the lower edge."""
    boxes = forms()["corners"].copy()
    axis = int(side in ("top", "bottom"))
    edge = 0 if side in ("left", "top") else (WIDTH, HEIGHT)[axis]
    shift = edge - (boxes[:, axis] + boxes[:, 2 + axis]) / 2
    boxes[:, axis] += shift
    boxes[:, 2 + axis] += shift

    other = 1 - axis  # in the middle, so that boxes read in another form are inside
    for column in (other, 2 + other):
        boxes[:, column] = 0.4 * (WIDTH, HEIGHT)[other] + 0.2 * boxes[:, column]
    assert unit_warning(boxes, SIZES) == ""


def test_careless_boxes_are_what_they_are():
    """Every tenth box reaches out of its image by up to a tenth, as video tracks do."""
    corners = forms()["corners"]
    moves = np.random.default_rng(1).uniform(-0.1, 0.1, (400, 2)) * (WIDTH, HEIGHT)
    size = corners[:, 2:] - corners[:, :2]
    borders = np.where(moves < 0, 0, (WIDTH, HEIGHT) - size)
    outside = np.hstack([borders + moves, borders + moves + size])
    corners[::10] = outside[::10]
    assert unit_warning(corners, SIZES) == ""


def test_few_boxes_say_nothing():
    wrong = read_as("center and size", forms()["corners"])
    assert unit_warning(wrong[:2], SIZES[:2]) == ""
    assert unit_warning(np.zeros((0, 4)), np.zeros((0, 2))) == ""


def test_huge_values_say_nothing():
    assert unit_warning(np.full((5, 4), 3e38), SIZES[:5]) == ""


# Each reader


def images(folder: Path) -> list[str]:
    """Draw images; return their names."""
    folder.mkdir(parents=True)
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    for number in range(IMAGES):
        pixels[:] = number
        cv2.imwrite(str(folder / f"{number}.png"), pixels)
    return [f"{number}.png" for number in range(IMAGES)]


def yolo(root: Path, rows: np.ndarray) -> Path:
    for number, name in enumerate(images(root)):
        values = rows[number] / (WIDTH, HEIGHT, WIDTH, HEIGHT)
        text = f"0 {' '.join(f'{value:.6f}' for value in values)}\n"
        (root / name).with_suffix(".txt").write_text(text)
    return root


def coco(root: Path, rows: np.ndarray) -> Path:
    names = images(root)
    document = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
        "annotations": [
            {"id": number, "image_id": number, "category_id": 1, "bbox": rows[number].tolist()}
            for number in range(len(names))
        ],
        "categories": [{"id": 1, "name": "cat"}],
    }
    file = root / "boxes.json"
    file.write_text(json.dumps(document))
    return file


def voc(root: Path, rows: np.ndarray) -> Path:
    for number, name in enumerate(images(root)):
        pairs = zip(("xmin", "ymin", "xmax", "ymax"), rows[number], strict=True)
        box = "".join(f"<{tag}>{value:.4f}</{tag}>" for tag, value in pairs)
        text = f"<annotation><object><name>cat</name><bndbox>{box}</bndbox></object></annotation>"
        (root / name).with_suffix(".xml").write_text(text)
    return root


def csv(header: str, row: str):
    def write(root: Path, rows: np.ndarray) -> Path:
        lines = [header]
        for number, name in enumerate(images(root)):
            lines.append(row.format(name, *rows[number].round(4).tolist()))
        file = root / "boxes.csv"
        file.write_text("\n".join(lines))
        return file

    return write


def create_ml(root: Path, rows: np.ndarray) -> Path:
    entries = []
    for number, name in enumerate(images(root)):
        box = dict(zip(("x", "y", "width", "height"), rows[number].tolist(), strict=True))
        entries.append({"image": name, "annotations": [{"label": "cat", "coordinates": box}]})
    file = root / "boxes.json"
    file.write_text(json.dumps(entries))
    return file


def via(root: Path, rows: np.ndarray) -> Path:
    entries = {}
    for number, name in enumerate(images(root)):
        box = dict(zip(("x", "y", "width", "height"), rows[number].tolist(), strict=True))
        region = {"shape_attributes": {"name": "rect", **box}, "region_attributes": {"a": "cat"}}
        entries[name] = {"filename": name, "size": 1, "regions": [region], "file_attributes": {}}
    file = root / "boxes.json"
    file.write_text(json.dumps(entries))
    return file


def label_studio(root: Path, rows: np.ndarray) -> Path:
    tasks = []
    for number, name in enumerate(images(root)):
        values = (rows[number] / (WIDTH, HEIGHT, WIDTH, HEIGHT) * 100).tolist()
        box = dict(zip(("x", "y", "width", "height"), values, strict=True))
        value = {**box, "rectanglelabels": ["cat"]}
        region = {"id": "a", "type": "rectanglelabels", "value": value}
        tasks.append({"data": {"image": name}, "annotations": [{"result": [region]}]})
    file = root / "boxes.json"
    file.write_text(json.dumps(tasks))
    return file


def label_me(root: Path, rows: np.ndarray) -> Path:
    for number, name in enumerate(images(root)):
        points = rows[number].reshape(2, 2).tolist()
        shape = {"label": "cat", "shape_type": "rectangle", "points": points}
        document = {"shapes": [shape], "imagePath": name}
        (root / name).with_suffix(".json").write_text(json.dumps(document))
    return root


def visdrone(root: Path, rows: np.ndarray) -> Path:
    for name, values in zip(images(root / "images"), rows.round().astype(int), strict=False):
        (root / "annotations").mkdir(exist_ok=True)
        text = ",".join(map(str, [*values.tolist(), 1, 1, 0, 0]))
        (root / "annotations" / name).with_suffix(".txt").write_text(text)
    return root / "images"


CORNERS_CSV = csv("filename,class,xmin,ymin,xmax,ymax", "{},cat,{},{},{},{}")
BOX_CSV = csv("image_id,label,bbox", '{},cat,"[{}, {}, {}, {}]"')
READERS = {
    "YOLO": (yolo, "center and size"),
    "COCO": (coco, "left, top, width, height"),
    "VOC": (voc, "corners"),
    "CSV": (CORNERS_CSV, "corners"),
    "CSV with bbox": (BOX_CSV, "left, top, width, height"),
    "CreateML": (create_ml, "center and size"),
    "VIA": (via, "left, top, width, height"),
    "Label Studio": (label_studio, "left, top, width, height"),
    "VisDrone": (visdrone, "left, top, width, height"),
}


def warnings_of(source: Path) -> tuple[str, ...]:
    names = ["cat", *"bcdefghij"]
    _, report = scan([source], names)
    return report.source_warnings


@pytest.mark.parametrize("written", forms())
@pytest.mark.parametrize("reader", READERS)
def test_another_form_is_noticed_by_each_reader(tmp_path, reader, written):
    write, expected = READERS[reader]
    source = write(tmp_path / "set", forms()[written])
    found = warnings_of(source)
    if written == expected:
        assert found == ()
    else:
        (said,) = found
        assert said.startswith(f"{source}: ")
        assert f" would if rows were {written} in place of {expected}" in said


@pytest.mark.parametrize("write", [coco, voc, create_ml, via, label_studio, label_me])
def test_fractions_are_noticed_by_each_reader(tmp_path, write):
    form = "corners" if write in (voc, label_me) else "left, top, width, height"
    fractions = forms()[form] / (WIDTH, HEIGHT, WIDTH, HEIGHT)
    (said,) = warnings_of(write(tmp_path / "set", fractions))
    assert f"{IMAGES} boxes of {IMAGES} lie in the first pixel of their image" in said


def test_corners_of_labelme_may_be_in_any_order(tmp_path):
    reversed_corners = forms()["corners"][:, [2, 3, 0, 1]]
    assert warnings_of(label_me(tmp_path / "set", reversed_corners)) == ()


def test_a_warning_is_said_from_the_cache_and_refused_by_strict(tmp_path):
    source = coco(tmp_path / "set", forms()["corners"])
    for _ in range(2):
        dataset = opened(source, cache=tmp_path / "cache", val_split=0.1)
        (warning,) = dataset.reports["train"].warnings()
        assert "corners in place of left, top, width, height" in warning
    with pytest.raises(ValueError, match=r"^--strict: 'train' of .*: .* if rows were corners"):
        opened(source, cache=tmp_path / "cache", val_split=0.1, strict=True)


def test_the_form_is_named_where_no_box_can_be_used(tmp_path):
    """Width and height in place of corners: all boxes end before they begin."""
    boxes = forms()["left, top, width, height"]
    reversed_if_corners = boxes[(boxes[:, 2:] < boxes[:, :2]).any(1)]
    source = voc(tmp_path / "set", reversed_if_corners)
    with pytest.raises(ValueError, match=r"none of 40 images can be used; .* in place of corners;"):
        scan([source], ["cat"])
