"""DOTA's rows: oriented boxes in pixels, which folders are read so, rows that cannot be read."""

from pathlib import Path

import pytest

from data.formats.registry import format_of
from tests.support.tool_files import draw, read_source, reasons

ROW = "1 2 11 2 11 14 1 14 small plane 0"


def write(folder: Path, text: str, labels: str = "labelTxt") -> Path:
    """Write an image and its label file; return the folder of the images."""
    draw(folder / "images", "a.png")
    (folder / labels).mkdir(exist_ok=True)
    (folder / labels / "a.txt").write_text(text, encoding="utf-8")
    return folder / "images"


@pytest.mark.parametrize(
    ("row", "name", "box"),
    [
        (ROW, "small plane", (1, 2, 11, 14)),
        ("6.0 1.0 11.0 6.0 6.0 11.0 1.0 6.0 ship 1", "ship", (1, 1, 11, 11)),
        ("1 2 11 2 11 14 1 14 ship", "ship", (1, 2, 11, 14)),
        ("1 2 11 2 11 14 1 14 7 0", "7", (1, 2, 11, 14)),
        ("1\t2\t11\t2\t11\t14\t1\t14\tcat-2\t0", "cat-2", (1, 2, 11, 14)),
    ],
)
def test_rows_become_upright_boxes(tmp_path: Path, row: str, name: str, box: tuple[int]) -> None:
    text = f"\ufeffimagesource:GoogleEarth\ngsd:0.14\n\n{row}\r\n"
    read = read_source(write(tmp_path, text))
    assert (read.title, read.names, read.problems) == ("DOTA, oriented boxes", (name,), [])
    assert read.boxes == {"a.png": [(name, *box)]}


def test_label_files_may_be_beside_the_images(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "a.txt").write_text(ROW)
    assert read_source(tmp_path).boxes == {"a.png": [("small plane", 1, 2, 11, 14)]}


def test_first_label_files_may_have_no_objects(tmp_path: Path) -> None:
    write(tmp_path, "imagesource:GoogleEarth\ngsd:0.14\n")
    draw(tmp_path / "images", "b.png", "c.png")
    (tmp_path / "labelTxt" / "b.txt").touch()
    (tmp_path / "labelTxt" / "c.txt").write_text(ROW)
    assert read_source(tmp_path / "images").boxes == {
        "a.png": [],
        "b.png": [],
        "c.png": [("small plane", 1, 2, 11, 14)],
    }


@pytest.mark.parametrize(
    "row",
    [
        "0 0.5 0.5 0.1 0.1",
        "0 0.1 0.1 0.2 0.1 0.2 0.2 0.1 0.2",
        "0 0.1 0.1 0.2 0.1 0.2 0.2 0.1 0.2 0.3 0.3",
        "0 0.5 0.5 0.1 0.1 0.4 0.4 2 0.6 0.6 2",
        "",
    ],
)
def test_rows_of_yolo_are_not_dotas(tmp_path: Path, row: str) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "a.txt").write_text(row)
    assert format_of(tmp_path).title == "YOLO"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1 2 3", "'1 2 3' is not a row x1 y1 ... x4 y4 class difficulty"),
        ("1 2 11 2 11 14 1 nan ship 0", "'1 2 11 2 11 14 1 nan ship 0' is not a row"),
        ("1 2 11 2 11 14 1 14", "'1 2 11 2 11 14 1 14' is not a row"),
        ("1 2 11 2 11 14 1 1e99 ship 0", "coordinate 1e+99 is not a finite number of pixels"),
        ("1 2 1 2 1 14 1 14 ship 0", "rotated box of 0 x 12, must have an area"),
        ("x" + " " * 100_000 + "y", "'x" + 59 * " " + "...' is not a row"),
        ("1 2 11 2 11 14 1 14 ship" + " " * 100_000 + "0" * 5000 + "x", "class 'ship 0000"),
    ],
)
def test_bad_rows_are_reported(tmp_path: Path, row: str, reason: str) -> None:
    folder = write(tmp_path, f"{ROW}\n{row}\n")
    if reason.startswith("class"):
        with pytest.raises(ValueError, match=rf"a\.txt line 2: {reason}"):
            read_source(folder, ["small plane"])
        return
    read = read_source(folder, ["small plane", "ship"])
    assert read.boxes == {"a.png": [("small plane", 1, 2, 11, 14)]}
    (problem,) = reasons(read.problems, tmp_path)
    assert problem.startswith(f"labelTxt/a.txt line 2: {reason}")


def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, ROW)
    rows = "1 1 5 1 5 5 1 5 猫 0\n1 1 5 1 5 5 1 5 狗 0\n"
    (tmp_path / "labelTxt" / "a.txt").write_bytes(rows.encode("gb2312"))
    with pytest.raises(ValueError, match=r"txt line 2: not UTF-8 text: save it as UTF-8$"):
        read_source(folder)
