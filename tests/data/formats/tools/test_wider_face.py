"""WIDER FACE: faces, invalid ones, images without faces, files that are out of step."""

from pathlib import Path

import pytest

from data.formats.registry import format_of
from data.formats.tools.wider_face import WiderFace
from tests.support.tool_files import draw, read_source, reasons

FACE = "1 2 10 12 0 0 0 0 0 0"


def write(folder: Path, *lines: str) -> Path:
    file = folder / "wider_face_split" / "wider_face_train_bbx_gt.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file


def test_faces_are_read(tmp_path: Path) -> None:
    draw(tmp_path / "WIDER_train" / "images", "0--Parade/a.jpg", "0--Parade/b.jpg", "1--X/c.jpg")
    lines = ["0--Parade/a.jpg", "2", FACE, "3 4 5 6 0 0 0 1 0 0 ", "0--Parade/b.jpg", "0"]
    file = write(tmp_path, *lines, "0 0 0 0 0 0 0 0 0 0", "1--X/c.jpg", "1", "5 6 7 8")
    read = read_source(file, root=tmp_path / "WIDER_train" / "images")
    assert (read.title, read.names) == ("WIDER FACE", ("face",))
    assert read.boxes == {
        "0--Parade/a.jpg": [("face", 1, 2, 11, 14), ("face", 3, 4, 8, 10)],
        "0--Parade/b.jpg": [],
        "1--X/c.jpg": [("face", 5, 6, 12, 14)],
    }
    assert read.crowd["0--Parade/a.jpg"] == [False, True]  # the eighth value: invalid


def test_image_without_faces_may_have_no_row(tmp_path: Path) -> None:
    draw(tmp_path, "a.jpg", "b.jpg")
    for lines in (["a.jpg", "0", "b.jpg", "1", FACE], ["b.jpg", "1", FACE, "a.jpg", "0"]):
        read = read_source(write(tmp_path, *lines), root=tmp_path)
        assert read.boxes == {"a.jpg": [], "b.jpg": [("face", 1, 2, 11, 14)]}
        assert [problem for problem in read.problems if problem.kind != "note"] == []


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["a.jpg", "2", FACE, "b.jpg", "0"], "line 3: the image has 1 row, but says 2"),
        (["a.jpg", "1", FACE, "3 4 5 6", "b.jpg", "0"], "line 4: is row 2 of an image that says 1"),
        (["a.jpg", "2", FACE, "3 4 5", "b.jpg"], "line 4: '3 4 5' is not a row of whole numbers"),
        (["a.jpg", "2", FACE, "3 4 5 1e9", "b.jpg"], "line 4: '3 4 5 1e9' is not a row of whole"),
        (["a.jpg", "2", FACE, f"3 4 5 {'9' * 5000}"], "line 4: '3 4 5 99"),
        (["a.jpg", "2", FACE, "3 4 0 6", "b.jpg"], "line 4: box of 0 x 6, must have an area"),
        (["a.jpg", "2", FACE, "3 4 -5 6", "b.jpg"], "line 4: box of -5 x 6, must have an area"),
        (["a.jpg", "2", FACE, FACE, "b.jpg"], "line 4: the same as line 3"),
    ],
)
def test_rows_that_cannot_be_read_are_reported(
    tmp_path: Path, lines: list[str], problem: str
) -> None:
    draw(tmp_path, "a.jpg", "b.jpg")
    read = read_source(write(tmp_path, *lines), root=tmp_path)
    assert read.boxes["a.jpg"] == [("face", 1, 2, 11, 14)]
    found = [text for text in reasons(read.problems, tmp_path) if " line " in text]
    assert len(found) == 1
    assert found[0].startswith(f"wider_face_split/wider_face_train_bbx_gt.txt {problem}")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["1 2 3 4"], "line 1: '1 2 3 4' is not the name of an image"),
        (["a.jpg", FACE], "line 2: '1 2 10 12 0 0 0 0 0 0' is not a number of faces"),
        (["a.jpg", "", "9" * 5000], "line 3: '999"),
    ],
)
def test_file_out_of_step_is_refused_with_its_line(
    tmp_path: Path, lines: list[str], reason: str
) -> None:
    file = write(tmp_path, *lines)
    with pytest.raises(ValueError, match=r"_gt\.txt line \d") as found:
        WiderFace().images(file, ["face"])
    assert str(found.value).startswith(f"{file} {reason}")


def test_list_of_images_is_not_wider_face(tmp_path: Path) -> None:
    for lines in (["a.jpg", "b.jpg", "c.jpg"], ["a.jpg"], [], ["a.jpg", "1", "x"]):
        assert format_of(write(tmp_path, *lines)).title == "YOLO"
    assert WiderFace().read(write(tmp_path)).images == []
