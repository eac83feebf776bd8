"""A new label format, rows in a file `.boxes`, added by a reader and one entry in FORMATS."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import train
from data.dataset_yaml import read_data_yaml
from data.formats import registry as formats
from data.formats.base import ClassNames, ImageRows, ListedImage, SourceImages
from data.formats.coco_json import CocoJson
from data.formats.yolo_txt import YoloText
from data.labels import LabelRow
from data.report import ROW_DROPPED, Problem
from data.scan import scan
from tests.data.test_labels import assert_same
from tests.support.tiny_data import draw_tiny_data
from utils.distributed.world import World
from utils.files import checkpoint_file

CPU = World(torch.device("cpu"))


class BoxRows:
    """Reads rows of `file,class,x1,y1,x2,y2`: files relative to the list, classes by name, corners
    in pixels.
    """

    lists_images = True
    title = "rows of boxes"
    suffixes = frozenset({".boxes"})

    def accepts(self, source: Path) -> bool:
        return source.suffix == ".boxes"

    def class_names(self, source: Path) -> ClassNames:
        with open(source, newline="") as file:
            return ClassNames(tuple(sorted({row[1] for row in csv.reader(file)})))

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        rows: dict[str, list[LabelRow]] = {}
        problems = []
        with open(source, newline="") as file:
            for line, (name, kind, *corners) in enumerate(csv.reader(file), 1):
                image_rows = rows.setdefault(str(source.parent / name), [])
                x1, y1, x2, y2 = map(float, corners)
                if kind in names:
                    box = (x1, y1, x2 - x1, y2 - y1)
                    image_rows.append(
                        LabelRow(names.index(kind), box, box[2] * box[3], False, None, line)
                    )
                else:
                    problems.append(
                        Problem(ROW_DROPPED, f"{source} line {line}", f"no class {kind}")
                    )
        images = [
            ListedImage(path, str(source), rows=image_rows) for path, image_rows in rows.items()
        ]
        return SourceImages(images, problems)

    def rows(self, image: ListedImage, size: tuple[int, int], _: int) -> ImageRows:
        return ImageRows([row for row in image.rows if row.box_xywh[0] < size[0]], [])


@pytest.fixture
def _row_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FORMATS", (BoxRows(), *formats.FORMATS))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the YAML of the tiny data set, with its labels also in boxes.boxes."""
    file = draw_tiny_data(tmp_path / "set")
    spec = read_data_yaml(file)
    labels, _ = scan(spec.sources("train"), spec.names)
    with open(file.parent / "boxes.boxes", "w", newline="") as target:
        writer = csv.writer(target)
        for i in range(len(labels)):
            rows = labels.rows(i)
            for kind, (x, y, w, h) in zip(
                labels.classes[rows], labels.boxes_xywh[rows].tolist(), strict=True
            ):
                writer.writerow(
                    [f"images/{Path(labels.path(i)).name}", spec.names[kind], x, y, x + w, y + h]
                )
    return file


def test_first_accepting_format_is_used() -> None:
    kinds = {
        name: type(formats.format_of(Path(name)))
        for name in ("/a/b.json", "/a/B.JSON", "/a/b.txt", "/a", "/c.boxes")
    }
    assert kinds == {
        "/a/b.json": CocoJson,
        "/a/B.JSON": CocoJson,
        "/a/b.txt": YoloText,
        "/a": YoloText,
        "/c.boxes": YoloText,
    }


def test_folder_with_json_suffix_is_not_a_coco_json(tmp_path: Path) -> None:
    (tmp_path / "set.json").mkdir()
    assert isinstance(formats.format_of(tmp_path / "set.json"), YoloText)


def test_unregistered_format_is_rejected(data: Path) -> None:
    with pytest.raises(ValueError, match=r"boxes.boxes is not a folder, a .txt list or an image"):
        scan([data.parent / "boxes.boxes"], ["disc", "square", "bar"])


@pytest.mark.usefixtures("_row_format")
def test_scan_of_new_format_equals_yolo_txt(data: Path) -> None:
    spec = read_data_yaml(data)
    text, _ = scan(spec.sources("train"), spec.names)
    boxes, report = scan([data.parent / "boxes.boxes"], spec.names)
    assert [text.path(i) for i in range(8)] == [boxes.path(i) for i in range(8)]
    assert boxes.boxes_xywh == pytest.approx(text.boxes_xywh, abs=1e-9)
    for name in ("classes", "offsets", "sizes", "image_ids", "category_ids", "crowd"):
        assert getattr(boxes, name).tolist() == getattr(text, name).tolist()
    assert (report.images, report.instances, report.without_label_file, report.problems) == (
        8,
        20,
        0,
        (),
    )


@pytest.mark.usefixtures("_row_format")
def test_problems_and_duplicate_images_of_new_format_are_reported(data: Path) -> None:
    file = data.parent / "boxes.boxes"
    with open(file, "a") as target:
        target.write("images/0.png,cat,1,1,9,9\n")
    labels, report = scan([file, data.parent / "images"], ["disc", "square", "bar"])
    assert (len(labels), report.instances) == (8, 20)
    first, *others = map(str, report.problems)
    assert first == f"{file} line 21: no class cat"
    assert len(others) == 8  # all of them were found in the folder
    assert others[0] == (
        f"{file} image 0: {data.parent}/images/0.png was already listed, in this or another source"
    )


@pytest.mark.usefixtures("_row_format")
def test_scan_cache_detects_changes_of_new_format(data: Path, tmp_path: Path) -> None:
    file, names = data.parent / "boxes.boxes", ["disc", "square", "bar"]

    def again(expected: str) -> int:
        labels, report = scan([file], names, cache_dir=tmp_path / "cache")
        assert_same(labels, scan([file], names)[0])
        assert report.cache == expected
        return len(labels.classes)

    assert again("cached now") == 20
    assert again("from cache") == 20
    with open(file, "a") as target:
        target.write("images/0.png,disc,1,1,9,9\n")
    assert again("files changed, cache rebuilt") == 21
    (data.parent / "images" / "0.png").unlink()
    assert again("files changed, cache rebuilt") == 18  # image 0 had two boxes and the new one
    assert again("from cache") == 18


@pytest.mark.slow
@pytest.mark.usefixtures("_row_format")
def test_new_format_can_be_trained_on(data: Path, tiny_model: str, tmp_path: Path) -> None:
    yaml = data.with_name("rows.yaml")
    yaml.write_text("path: .\ntrain: boxes.boxes\nval: boxes.boxes\nnames: [disc, square, bar]\n")
    flags = [
        "--device",
        "cpu",
        "--amp",
        "fp32",
        "--cfg",
        tiny_model,
        "--imgsz",
        "64",
        "--batch-size",
        "4",
    ]
    places = [
        "--project",
        str(tmp_path / "runs"),
        "--cache-dir",
        str(tmp_path / "cache"),
        "--workers",
        "0",
    ]
    found = train.main(
        train.parse_args([*flags, *places, "--noplots", "--epochs", "1", "--data", str(yaml)])[0],
        CPU,
    )
    assert (found.images, len(found.truth.areas)) == (8, 20)
    saved = checkpoint_file.load(tmp_path / "runs" / "exp" / "weights" / "best.pt")
    assert saved["names"] == ["disc", "square", "bar"]
