"""CSV files with boxes: their headers and shapes, numbered classes, lists of classes, bad rows."""

from pathlib import Path

import pytest

from data.formats.registry import format_of
from data.formats.tools.csv_boxes import CsvBoxes
from data.report import ROW_CLIPPED, ROW_DROPPED
from tests.support.tool_files import draw, read_source, reasons

BOX = (1, 2, 11, 14)


@pytest.mark.parametrize(
    "text",
    [
        "filename,width,height,class,xmin,ymin,xmax,ymax\na.png,40,20,cat,1,2,11,14",
        '"image","xmin","ymin","xmax","ymax","label"\n"a.png",1.0,2,11.0,1.4e1,"cat"',
        "image_name,label_name,x1,y1,w,h\na.png,cat,1,2,10,12",
        'image_id,width,height,bbox,class\na,40,20,"[1, 2, 10, 12]",cat',
        'image_id,bbox,label\na,"1 2 10 12",cat',
        "image;class;left;top;right;bottom\r\na.png;cat;1;2;11;14\r\n",
        "frame\txmin\txmax\tymin\tymax\tclass_name\tclass_id\na.png\t1\t11\t2\t14\tcat\t3",
        "name,x1,x2,y1,y2,classname\na.png,1,11,2,14,cat",
        ",img_path,x,y,width,height,category\n0,images/a.png,1,2,10,12,cat",
        "image_id,class_name,class_id,x_min,y_min,x_max,y_max\na,cat,7,1,2,11,14",
        "\ufeffFilename, Class, XMin, YMin, XMax, YMax\na.png, cat, 1, 2, 11, 14",
        "a.png,1,2,11,14,cat",
        "a.png,cat,1,2,11,14",
        "path/to/a.png,1,2,11,14,cat\r",
        # as Excel saves it
        "sep=;\r\nfilename;class;xmin;ymin;xmax;ymax\r\na.png;cat;1;2;11;14\r\n",
        "SEP=,\nfilename,class,xmin,ymin,xmax,ymax\na.png,cat,1,2,11,14",
        "filename;class;xmin;ymin;xmax;ymax\na.png;cat;1,0;2;11,00;14,0",
        "a.png;1,0;2,0;11,0;14,0;cat",
        "filename;class;xmin;ymin;xmax;ymax\na.png;cat;0,025;0,1;0,275;0,7",
        "\n ,,\n\nfilename,class,xmin,ymin,xmax,ymax\na.png,cat,1,2,11,14",
        # fractions: 1 / 40, 11 / 40, 2 / 20, 14 / 20
        "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf"
        "\na,xclick,cat,1,0.025,0.275,0.1,0.7,0,0,0",
        "filename,xmin,ymin,xmax,ymax,class\na.png,0.025,0.1,0.275,0.7,cat",
    ],
)
def test_headers_and_shapes(tmp_path: Path, text: str) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "x.csv").write_bytes(text.encode())
    read = read_source(tmp_path / "x.csv")
    assert (read.title, read.names) == ("CSV with a box in each row", ("cat",))
    assert read.boxes == {"a.png": [("cat", *BOX)]}
    assert not [problem for problem in read.problems if problem.kind != "note"]


def test_text_in_utf_16_is_read(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    text = "filename\tclass\txmin\tymin\txmax\tymax\r\na.png\t猫\t1,0\t2\t11\t14\r\n"
    for encoding in ("utf-16-le", "utf-16-be"):
        (tmp_path / "x.csv").write_bytes(f"\ufeff{text}".encode(encoding))
        assert read_source(tmp_path / "x.csv").boxes == {"a.png": [("猫", *BOX)]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a.png,cat,1,2,11,14\na.png,cat,'1,2',3,4,5", "line 2: ''1' is not a number"),
        ('a.png,cat,1,2,11,14\na.png,cat,"1,5",2,11,14', "line 2: '1,5' is not a number"),
        ("sep=;\n\na.png;cat;1;2;11;14\na.png;cat;1.000,5;2;9;9", "line 4: '1.000,5' is not a"),
    ],
)
def test_other_numbers_are_reported_with_their_line(tmp_path: Path, text: str, reason: str) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "x.csv").write_text(text)
    read = read_source(tmp_path / "x.csv")
    assert read.boxes == {"a.png": [("cat", *BOX)]}
    (problem,) = reasons(read.problems, tmp_path)
    assert problem.startswith(f"x.csv {reason}")


def test_rows_of_an_image_may_be_anywhere_and_empty_boxes_are_background(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png", "c.png")
    rows = "a.png,1,2,11,14,dog\n\nb.png,,,,,\nc.png,1,2,3,4,cat\na.png,5,6,7,8,cat\n"
    (tmp_path / "x.csv").write_text(rows)
    assert read_source(tmp_path / "x.csv").boxes == {
        "a.png": [("dog", *BOX), ("cat", 5, 6, 7, 8)],
        "b.png": [],
        "c.png": [("cat", 1, 2, 3, 4)],
    }


def test_file_with_a_header_only_has_no_images(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("filename,xmin,ymin,xmax,ymax,class\n")
    read = read_source(tmp_path / "x.csv")
    assert (read.boxes, read.problems, read.names) == ({}, [], ())
    (tmp_path / "x.csv").write_text("")
    assert not CsvBoxes().accepts(tmp_path / "x.csv")
    assert CsvBoxes().read(tmp_path / "x.csv").images == []


def test_a_box_without_a_class_is_an_object(tmp_path: Path) -> None:
    draw(tmp_path, "a.jpg")
    (tmp_path / "train.csv").write_text('image_id,width,height,bbox\na,40,20,"[1, 2, 10, 12]"\n')
    read = read_source(tmp_path / "train.csv")
    assert (read.names, read.boxes) == (("object",), {"a.jpg": [("object", *BOX)]})


# ---------------------------------------------------------------------- classes


def test_numbers_are_classes_in_the_order_of_names(tmp_path: Path) -> None:
    """pandas writes 1.0 in a column that has empty values, too."""
    draw(tmp_path, "a.png")
    (tmp_path / "x.csv").write_text("a.png,1,2,11,14,1.0\na.png,1,2,3,4,0\na.png,,,,,\n")
    boxes = [BOX, (1, 2, 3, 4)]
    for names, expected in ((None, ["1", "0"]), (["cat", "dog"], ["dog", "cat"])):
        read = read_source(tmp_path / "x.csv", names)
        found = [(name, *box) for name, box in zip(expected, boxes, strict=True)]
        assert read.boxes == {"a.png": found}
    with pytest.raises(ValueError, match=r"x\.csv line 1: class 1, but names has 1 class \(0-0\)$"):
        read_source(tmp_path / "x.csv", ["cat"])


@pytest.mark.parametrize("name", ["_classes.csv", "classes.csv"])
def test_list_of_keras_retinanet_gives_the_order(tmp_path: Path, name: str) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "x.csv").write_text("a.png,1,2,11,14,cat\n")
    (tmp_path / name).write_text("dog,1\ncat,2\ncow,0\n")
    read = read_source(tmp_path / "x.csv")
    assert (read.names, read.boxes) == (("cow", "dog", "cat"), {"a.png": [("cat", *BOX)]})
    for other in ("", "dog,1\ncat,1\n", "dog,1\n", "filename,cat\na.png,1\n", "a,9999999999\n"):
        (tmp_path / name).write_text(other)
        assert read_source(tmp_path / "x.csv").names == ("cat",)
    (tmp_path / name).write_bytes(b"dog,0\n\xff,1\n")
    with pytest.raises(ValueError, match=rf"{name} line 2: not UTF-8 text: save it as UTF-8$"):
        read_source(tmp_path / "x.csv")


def test_open_images_names_and_groups(tmp_path: Path) -> None:
    draw(tmp_path, "a.jpg", "b.jpg")
    header = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsGroupOf\n"
    rows = "a,x,/m/01,1,0.1,0.5,0.25,0.75,0,1\nb,x,/m/02,1,0,1,0,1,0,0\nb,x,/m/9,1,0,1,0,1,0,-1\n"
    (tmp_path / "train-annotations-bbox.csv").write_text(header + rows)
    (tmp_path / "class-descriptions-boxable.csv").write_text("/m/01,Tree\n/m/02,Cat\n")
    read = read_source(tmp_path / "train-annotations-bbox.csv")
    assert read.names == ("/m/9", "Cat", "Tree")
    # 0.1 * 40 = 4 to 0.5 * 40 = 20; 0.25 * 20 = 5 to 0.75 * 20 = 15
    assert read.boxes == {
        "a.jpg": [("Tree", 4, 5, 20, 15)],
        "b.jpg": [("Cat", 0, 0, 40, 20), ("/m/9", 0, 0, 40, 20)],
    }
    assert read.crowd == {"a.jpg": [True], "b.jpg": [False, False]}
    (tmp_path / "class-descriptions-boxable.csv").write_text("LabelName,DisplayName\n/m/9,Dog\n")
    assert read_source(tmp_path / "train-annotations-bbox.csv").names == ("/m/01", "/m/02", "Dog")


# ---------------------------------------------------------------------- bad rows


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a.png,1,2,11,x,cat", "'x' is not a number"),
        ("a.png,1,2,11,nan,cat", "'nan' is not a number"),
        ("a.png,1,2,11,1_4,cat", "'1_4' is not a number"),
        ("a.png,1,2,11,,cat", "'' is not a number"),
        ("a.png,1,2,٣,4,cat", "'٣' is not a number"),
        ("a.png,1,2,1e999,14,cat", "coordinate inf is not a finite number of pixels"),
        ("a.png,1,2,99999999,14,cat", "coordinate 1e+08 is not a finite number of pixels"),
        ("a.png,11,2,1,14,cat", "box 11, 2, 1, 14 ends before it begins"),
        ("a.png,1,2,1,14,cat", "box of 0 x 12, must have an area"),
        ("a.png,1,2,11", "has 4 values, must have more than 4"),
        ("a.png,1,2,11,14", "has 5 values, must have more than 5"),
        ("a.png,1,2,11,14,", "the row has no class"),
        (",1,2,11,14,cat", "the row names no image"),
        ("a.png,100,2,110,14,cat", "box [100, 2, 110, 14] is outside its image of 40x20"),
    ],
)
def test_bad_row_is_dropped_and_others_are_kept(tmp_path: Path, row: str, reason: str) -> None:
    draw(tmp_path, "a.png")
    header = "filename,xmin,ymin,xmax,ymax,class\n"
    (tmp_path / "x.csv").write_text(f"{header}{row}\na.png,1,2,11,14,cat\n", encoding="utf-8")
    read = read_source(tmp_path / "x.csv")
    assert read.boxes == {"a.png": [("cat", *BOX)]}
    assert [problem.kind for problem in read.problems] == [ROW_DROPPED]
    assert reasons(read.problems, tmp_path) == [f"x.csv line 2: {reason}"]


@pytest.mark.parametrize(
    "box", ["[1, 2, 3]", "[1, 2, 3, 4, 5]", "[1, 2, nan, 4]", "x", "[1,2,-3,4]"]
)
def test_bad_list_of_a_box_is_reported(tmp_path: Path, box: str) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "x.csv").write_text(
        f'image_id,bbox\na.png,"{box}"\na.png,"[1,2,10,12]"\na.png,[]\n'
    )
    read = read_source(tmp_path / "x.csv")
    assert read.boxes == {"a.png": [("object", *BOX)]}
    (reason,) = reasons(read.problems, tmp_path)
    where, _, reason = reason.partition(": ")
    assert where == "x.csv line 2"
    assert reason in (f"box '{box}' must be four numbers", "box of -3 x 4, must have an area")


def test_fractions_are_recognized_although_a_row_is_wrong(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    rows = ["0.025,0.1,0.275,0.7", "0.5,0.5,1.02,0.75", "0.5,0.5,300,0.75"]
    text = "".join(f"a.png,{row},cat\n" for row in [*rows, "0.1,0.1,0.2,0.2", "0,0,1,1"])
    (tmp_path / "x.csv").write_text(text)
    read = read_source(tmp_path / "x.csv")
    assert read.boxes["a.png"][:2] == [("cat", *BOX), ("cat", 20, 10, 40, 15)]
    assert [problem.kind for problem in read.problems] == [ROW_CLIPPED] * 2


def test_whole_numbers_are_pixels(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    (tmp_path / "x.csv").write_text("a.png,0,0,1,1,cat\n")
    assert read_source(tmp_path / "x.csv").boxes == {"a.png": [("cat", 0, 0, 1, 1)]}


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "a,b,c\n1,2,3\n",
        "filename,cat,dog\na.png,0,1\n",  # classes of whole images
        "ImageID,Source,LabelName,Confidence\na,verification,/m/0,1\n",
        "1.jpg,0,1,1,1\n",
        "images/a.png\n",
        "0 0.5 0.5 0.1 0.1\n",
    ],
)
def test_other_text_is_not_a_csv_with_boxes(tmp_path: Path, text: str) -> None:
    for suffix in ("csv", "txt"):
        (tmp_path / f"x.{suffix}").write_text(text)
        assert format_of(tmp_path / f"x.{suffix}").title == "YOLO"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a.png,1,2,3,4,cat\n\xff\n", "line 2: not UTF-8 text"),
        (b"a.png,1,2,3,4,cat\na,\0\n", "line 2: contains NUL"),
        ("a.png,1,2,3,4,cat\n".encode("utf-16-le"), "line 1: not UTF-8 text, but UTF-16: save"),
        ("a.png,1,2,3,4,cat\n".encode("utf-16")[:-1], "line 1: not UTF-16-LE text: save it as"),
        (b'a.png,1,2,3,4,"' + b"x" * 200_000 + b'"\n', "line 1: field larger than field limit"),
    ],
)
def test_file_that_cannot_be_read_is_named_with_its_line(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.csv line \d") as found:
        CsvBoxes().images(tmp_path / "x.csv", [])
    assert str(found.value).startswith(f"{tmp_path}/x.csv {reason}")


def test_line_ends_of_each_kind_are_counted(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    for end in ("\n", "\r\n", "\r"):
        rows = ["a.png,1,2,11,14,cat", "", '"a.png",x,2,3,4,"c\ncat"', "a.png,y,2,3,4,cat"]
        (tmp_path / "x.csv").write_bytes(end.join(rows).encode())
        found = reasons(read_source(tmp_path / "x.csv").problems, tmp_path)
        assert found == ["x.csv line 4: 'x' is not a number", "x.csv line 5: 'y' is not a number"]
