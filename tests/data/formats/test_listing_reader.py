"""Files that list images: those that are not found, or found twice, and 100,000 of them."""

import json
import sys
import time
from pathlib import Path

import pytest

from data.formats.registry import format_of
from data.formats.tools.csv_boxes import CsvBoxes
from data.formats.tools.cvat import Cvat
from data.report import IMAGE_DROPPED, IMAGES_NOT_FOUND, NOTE
from data.scan import scan
from tests.support.tool_files import draw, read_source, reasons

HEADER = "filename,xmin,ymin,xmax,ymax,class\n"


def test_images_that_are_not_found_are_reported_with_their_line(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    rows = "a.png,1,2,3,4,cat\nb.png,1,2,3,4,cat\nb.png,1,2,3,4,cow\nc.png,,,,,\n"
    (tmp_path / "x.csv").write_text(HEADER + rows)
    read = read_source(tmp_path / "x.csv", ["cat"])  # classes of absent images do not count
    assert read.boxes == {"a.png": [("cat", 1, 2, 3, 4)]}
    assert {problem.kind for problem in read.problems} == {IMAGE_DROPPED}
    assert reasons(read.problems, tmp_path) == [
        "x.csv line 3: no image 'b.png' in this folder",
        "x.csv line 5: no image 'c.png' in this folder",
    ]


def test_no_image_found_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    file = tmp_path / "set" / "x.csv"
    file.write_text(HEADER + "a\tb.png,1,2,3,4,cat\nb.png,1,2,3,4,cat\n")
    read = read_source(file)
    assert [problem.kind for problem in read.problems] == [IMAGES_NOT_FOUND]
    assert reasons(read.problems, tmp_path / "set") == [
        "x.csv: 2 images, none found in this folder or beside it, such as 'a\\tb.png', 'b.png'"
    ]


def test_image_that_is_listed_twice_or_ambiguous_is_left_out(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "p/b.png", "q/b.png")
    rows = "a.png,1,2,3,4,cat\nold/a.png,1,2,3,4,cat\nb.png,1,2,3,4,cat\nq/b.png,5,6,7,8,cat\n"
    (tmp_path / "x.csv").write_text(HEADER + rows)
    read = read_source(tmp_path / "x.csv")
    assert read.boxes == {"a.png": [("cat", 1, 2, 3, 4)], "q/b.png": [("cat", 5, 6, 7, 8)]}
    assert reasons(read.problems, tmp_path) == [
        "x.csv line 4: 'b.png' fits both p/b.png and q/b.png",
        "x.csv line 3: no image 'old/a.png' in this folder",
        "x.csv: 1 image name found without their folders",
    ]
    kinds = [problem.kind for problem in read.problems]
    assert kinds == [IMAGE_DROPPED, IMAGE_DROPPED, NOTE]

    (tmp_path / "x.csv").write_text(HEADER + "a.png,1,2,3,4,cat\nA.png,5,6,7,8,cat\n")
    read = read_source(tmp_path / "x.csv")
    assert read.boxes == {"a.png": [("cat", 1, 2, 3, 4)]}
    reason = reasons(read.problems, tmp_path)[0]
    assert reason == "x.csv line 3: 'A.png' is the image of line 2, which counts"


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("images", "missing", "present"),
    [
        (["images/val/1.png", "images/train/2.png"], "train/1.png", "val/1.png"),
        (["images/video1/1.png"], "video2/1.png", "video1/1.png"),
        (["images/val/1.png"], "train/1.png", ""),
        (["images/1.png"], "C:\\train\\1.png", "C:/val/1.png"),
    ],
)
def test_image_does_not_take_the_place_of_one_that_is_missing(
    tmp_path: Path, images: list[str], missing: str, present: str, order: int
) -> None:
    """Splits and videos number their images, so the names of many are equal but for folders."""
    draw(tmp_path, *images)
    box_of = {missing: (1, 1, 5, 5), present: (2, 2, 9, 9)}
    names = [name for name in (missing, present) if name][::order]
    (tmp_path / "boxes").mkdir()
    rows = [",".join(map(str, (name, *box_of[name], "cat"))) for name in names]
    (tmp_path / "boxes" / "x.csv").write_text(HEADER + "\n".join(rows))
    is_found = present and "C:" not in present
    expected = [(str(tmp_path / images[0]), [[2, 2, 7, 7]])] if is_found else []
    assert rows_of(tmp_path / "boxes" / "x.csv") == expected

    coco: dict[str, list[dict[str, object]]] = {"images": [], "annotations": []}
    coco["categories"] = [{"id": 1, "name": "cat"}]
    for number, name in enumerate(names):
        x1, y1, x2, y2 = box_of[name]
        coco["images"].append({"id": number, "file_name": name, "width": 40, "height": 20})
        box = [x1, y1, x2 - x1, y2 - y1]
        coco["annotations"].append({"image_id": number, "category_id": 1, "bbox": box})
    (tmp_path / "boxes" / "x.json").write_text(json.dumps(coco))
    assert rows_of(tmp_path / "boxes" / "x.json") == expected


def rows_of(source: Path) -> list[tuple[str, list[list[float]]]]:
    """The path and the boxes of each image of a source that exists."""
    found = []
    for image in format_of(source).images(source, ["cat"]).images:
        if Path(image.path).is_file():
            found.append((image.path, [list(row.box_xywh) for row in image.rows]))
    return found


def test_images_of_another_split_than_the_files_are_not_its_own(tmp_path: Path) -> None:
    draw(tmp_path, "images/train/2.png", "images/val/1.png")
    rows = "1.png,1,1,5,5,cat\n2.png,1,1,5,5,cat\n"
    (tmp_path / "boxes").mkdir()
    for name, found in (
        ("train", ["2.png"]),
        ("trainval", ["1.png", "2.png"]),
        ("x", ["1.png", "2.png"]),
    ):
        file = tmp_path / "boxes" / f"{name}.csv"
        file.write_text(HEADER + rows)
        assert [Path(path).name for path, _ in rows_of(file)] == found

    # A list that divides the images of one folder, whatever it is called.
    file = tmp_path / "boxes" / "test.csv"
    file.write_text(HEADER + rows)
    assert len(rows_of(file)) == 2


def test_rules_are_said_once(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png", "c.png")
    rows = "".join(f"D:\\x\\{name}.PNG,1,2,3,4,cat\n" for name in "abc")
    (tmp_path / "x.csv").write_text(HEADER + rows)
    assert reasons(read_source(tmp_path / "x.csv").problems, tmp_path) == [
        "x.csv: 3 image names found without their folders",
        "x.csv: 3 image names found with other capital letters",
    ]


def test_image_of_another_size_is_left_out_and_rows_without_use_count(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png", "c.png")
    header = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
    rows = ["a.png,40,20,cat,1,1,9,9", "b.png,20,40,cat,1,1,9,9", "c.png,40,20,cat,1,1,x,9"]
    (tmp_path / "x.csv").write_text(header + "\n".join(rows))
    labels, report = scan([tmp_path / "x.csv"], ["cat"])
    assert labels.boxes_xywh.tolist() == [[1, 1, 8, 8]]
    assert report.unreadable == (f"{tmp_path}/b.png",)
    assert report.no_usable_row == (f"{tmp_path}/c.png",)
    found = reasons(report.problems, tmp_path)
    assert found[0] == "x.csv line 4: 'x' is not a number"
    assert found[1].startswith("b.png: is 40x20 upright, but ")


def test_unknown_class_ends_the_scan_with_file_and_line(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "x.csv").write_text(HEADER + "a.png,1,2,3,4,cat\na.png,5,6,7,8,cow\n")
    expected = r"/x\.csv line 3: class 'cow' is not in 'names' of the data YAML: cat, dog$"
    with pytest.raises(ValueError, match=expected):
        scan([tmp_path / "x.csv"], ["cat", "dog"])


def test_absent_file_has_no_reader_of_a_tool(tmp_path: Path) -> None:
    assert not CsvBoxes().accepts(tmp_path / "x.csv")
    (tmp_path / "x.csv").mkdir()
    assert not CsvBoxes().accepts(tmp_path / "x.csv")
    assert format_of(tmp_path / "x.csv").title == "YOLO"


IMAGES = 100_000
MAX_GROWTH = 500 << 20  # bytes: 5 KiB for each image


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "xml"])
def test_100_000_images_are_read_in_bounded_memory(tmp_path: Path, suffix: str) -> None:
    """Their objects are kept: 0.5 KiB each. The images do not exist, so their folder is read."""
    resource = pytest.importorskip("resource")
    (tmp_path / "set").mkdir()
    file = tmp_path / "set" / f"x.{suffix}"
    with open(file, "w") as stream:
        if suffix == "csv":
            stream.write(HEADER)
            for number in range(IMAGES):
                stream.write(f"images/{number}.png,{number % 9},2,30,14,cat\n")
        else:
            stream.write("<annotations>\n")
            for number in range(IMAGES):
                stream.write(f'<image id="{number}" name="images/{number}.png">\n')
                box = f'xtl="{number % 9}" ytl="2" xbr="30" ybr="14"'
                stream.write(f'<box label="cat" {box} occluded="0" source="manual"/>\n')
                stream.write("</image>\n")
            stream.write("</annotations>\n")

    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    reader = CsvBoxes() if suffix == "csv" else Cvat()
    contents = reader.images(file, ["cat"])
    assert contents.images == []
    (problem,) = contents.problems
    assert problem.reason.startswith("100,000 images, none found")
    assert time.process_time() - start < 30
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * unit < MAX_GROWTH


def test_numbers_of_classes_are_those_of_the_tools_list(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "classes.csv").write_text("dog,0\ncat,1\n")
    (tmp_path / "x.csv").write_text(HEADER + "a.png,1,2,3,4,1\n")
    assert read_source(tmp_path / "x.csv", ["dog", "cat"]).boxes == {"a.png": [("cat", 1, 2, 3, 4)]}
    with pytest.raises(ValueError, match="line 2: class 1 is a number, and the tool lists the"):
        read_source(tmp_path / "x.csv", ["cat", "dog"])
    (tmp_path / "x.csv").write_text(HEADER + "a.png,1,2,3,4,cat\n")
    assert read_source(tmp_path / "x.csv", ["cat", "dog"]).boxes == {"a.png": [("cat", 1, 2, 3, 4)]}
