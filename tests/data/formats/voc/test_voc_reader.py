"""Pascal VOC: lists of ids, folders as LabelImg writes them, boxes counted from 1, and XML that is
refused.
"""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.fetching import is_data
from data.formats import registry as formats
from data.formats.base import ImageRows, UnreadableLabelsError
from data.formats.coco_json import CocoJson
from data.formats.voc.annotation import MAX_BYTES, MAX_DEPTH
from data.formats.voc.reader import VocXml, parse_xml_file
from data.formats.yolo_txt import YoloText
from data.report import IMAGE_DROPPED, NOTE, ROW_CLIPPED, ROW_DROPPED, ROW_DUPLICATE
from data.scan import scan
from tests.data.test_labels import assert_same
from tests.support.fuzzing import assert_unchanged

NAMES = ("cat", "dog")
SIZE = (40, 20)


def object_xml(name: str, corners: str, more: str = "") -> str:
    """Return an <object>, with `corners` as four numbers: xmin ymin xmax ymax."""
    sides = zip(("xmin", "ymin", "xmax", "ymax"), corners.split(), strict=True)
    box = "".join(f"<{side}>{value}</{side}>" for side, value in sides)
    return f"<object><name>{name}</name>{more}<bndbox>{box}</bndbox></object>"


def annotation(*objects: str, size: tuple[int, int] | None = SIZE) -> str:
    """Return an annotation whose first object is in line 3."""
    declared = (
        f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
        if size
        else ""
    )
    return "<annotation>\n" + declared + "\n" + "\n".join(objects) + "\n</annotation>"


def read(text: str | bytes, size: tuple[int, int] = SIZE) -> ImageRows:
    return parse_xml_file(text.encode() if isinstance(text, str) else text, "a.xml", size, NAMES)


def draw(file: Path, size: tuple[int, int] = SIZE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(
        cv2.imencode(file.suffix, np.full((size[1], size[0], 3), 99, np.uint8))[1].tobytes()
    )


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """Return VOC2007/ImageSets/Main with train.txt and cat_train.txt, of images 000001.jpg and
    000002.png.
    """
    root = tmp_path / "VOCdevkit" / "VOC2007"
    draw(root / "JPEGImages" / "000001.jpg")
    draw(root / "JPEGImages" / "000002.png")
    draw(root / "JPEGImages" / "000003.jpg")  # of another split
    write(
        root / "Annotations" / "000001.xml",
        annotation(object_xml("dog", "1 1 40 20"), object_xml("cat", "2 3 4 5")),
    )
    write(
        root / "Annotations" / "000002.xml",
        annotation(object_xml("cat", "11 6 20 10", "<difficult>1</difficult>")),
    )
    write(root / "ImageSets" / "Main" / "train.txt", "000002\n000001\n")
    write(root / "ImageSets" / "Main" / "cat_train.txt", "000001  1\n000002 -1\n")
    return root / "ImageSets" / "Main"


# ---------------------------------------------------------------------- boxes and classes


def test_first_and_last_pixel_are_counted_from_1_and_inside_the_box() -> None:
    """A box over the whole image of 40 x 20 is 1 1 40 20; one pixel, the third of the second row,
    is 3 2 3 2.
    """
    rows = read(annotation(object_xml("cat", "1 1 40 20"), object_xml("dog", "3 2 3 2"))).rows
    assert [(row.class_index, row.box_xywh, row.area, row.crowd, row.number) for row in rows] == [
        (0, (0, 0, 40, 20), 800, False, 3),
        (1, (2, 1, 1, 1), 1, False, 4),
    ]
    assert rows[0].points is None


def test_float_coordinates_are_accepted() -> None:
    (row,) = read(annotation(object_xml("cat", "1.5 2.25 10.75 1e1"))).rows
    assert row.box_xywh == (0.5, 1.25, 10.25, 8.75)


def test_difficult_object_is_an_ignore_region() -> None:
    texts = ["", "<difficult>0</difficult>", "<difficult>1</difficult>", "<difficult/>"]
    found = read(
        annotation(*(object_xml("cat", f"{x} 1 9 9", text) for x, text in enumerate(texts, 1)))
    )
    assert [row.crowd for row in found.rows] == [False, False, True, False]


def test_parts_actions_and_other_elements_are_ignored() -> None:
    head = object_xml("head", "5 5 6 6").removeprefix("<object>").removesuffix("</object>")
    part = f"<part>{head}</part>"
    more = f"<truncated>1</truncated><pose>Left</pose><actions><jumping>1</jumping></actions>{part}"
    found = read(annotation(object_xml("cat", "1 1 4 4", more)))
    assert [row.box_xywh for row in found.rows] == [(0, 0, 4, 4)]
    assert found.problems == []


def test_class_name_may_contain_entities_of_xml_and_spaces() -> None:
    text = annotation(object_xml(" a&amp;b &#233; ", "1 1 2 2"))
    assert parse_xml_file(text.encode(), "a.xml", SIZE, ["x", "a&b é"]).rows[0].class_index == 1


def test_unknown_class_ends_the_scan_with_file_line_and_allowed_names(voc: Path) -> None:
    write(
        voc.parents[1] / "Annotations" / "000001.xml", annotation("", object_xml("cow", "1 1 2 2"))
    )
    with pytest.raises(
        ValueError, match=r"000001.xml line 4: class 'cow' is not in 'names' of .* YAML: cat, dog$"
    ):
        scan([voc / "train.txt"], NAMES)


def test_box_outside_the_image_is_clipped_and_reported() -> None:
    """Coordinates from 0 to 40, as programs write them that count from 0, begin one pixel
    outside.
    """
    found = read(annotation(object_xml("cat", "0 0 40 20"), object_xml("dog", "30 10 45 22")))
    assert [row.box_xywh for row in found.rows] == [(0, 0, 40, 20), (29, 9, 11, 11)]
    assert [tuple(problem) for problem in found.problems] == [
        (ROW_CLIPPED, "a.xml line 3", "was outside the image by 1 pixels"),
        (ROW_CLIPPED, "a.xml line 4", "was outside the image by 5 pixels"),
    ]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (object_xml("cat", "5 5 4 9"), "xmax 4 is less than xmin 5"),
        (object_xml("cat", "1 5 4 4"), "ymax 4 is less than ymin 5"),
        (object_xml("cat", "1 1 x 4"), "xmax is 'x', must be a number of pixels"),
        (object_xml("cat", "nan 1 4 4"), "xmin is 'nan', must be a number of pixels"),
        (object_xml("cat", "1 1_0 4 4"), "ymin is '1_0', must be a number of pixels"),
        (object_xml("cat", "1 1 1e9 4"), "xmax is '1e9', must be a number of pixels"),
        (object_xml("cat", "50 1 60 4"), "bndbox [50, 1, 60, 4] is outside its image of 40x20"),
        (
            object_xml("cat", "1 1 4 4", "<difficult>2</difficult>"),
            "difficult is '2', must be 0 or 1",
        ),
        (object_xml("cat", "1 1 4 4", "<name>dog</name>"), "the object has <name> twice"),
        (object_xml("", "1 1 4 4"), "the object has no <name>"),
        (
            "<object><name>cat</name><bndbox><xmin>1</xmin></bndbox></object>",
            "the object has no <ymin> in a <bndbox>",
        ),
        ("<object><name>cat</name><polygon/></object>", "the object has no <xmin> in a <bndbox>"),
    ],
)
def test_invalid_object_is_dropped_and_others_are_kept(bad: str, reason: str) -> None:
    found = read(annotation(bad, object_xml("dog", "1 1 2 2")))
    assert [row.class_index for row in found.rows] == [1]
    assert [tuple(problem) for problem in found.problems] == [(ROW_DROPPED, "a.xml line 3", reason)]


def test_same_object_twice_is_read_once() -> None:
    found = read(
        annotation(
            object_xml("cat", "1 1 4 4"), object_xml("cat", "1 1 4 4"), object_xml("dog", "1 1 4 4")
        )
    )
    assert [row.class_index for row in found.rows] == [0, 1]
    assert [tuple(problem) for problem in found.problems] == [
        (ROW_DUPLICATE, "a.xml line 4", "the same as the object in line 3")
    ]


def test_annotation_without_objects_is_background_and_without_size_has_no_declared_size() -> None:
    assert read(annotation()) == ImageRows([], [], True, SIZE)
    for size in (None, (0, 0), (40, 0)):
        assert read(annotation(size=size)) == ImageRows([], [])


# ---------------------------------------------------------------------- XML that is refused


LAUGHS = "<!DOCTYPE a [<!ENTITY a 'ha'>" + "".join(
    f"<!ENTITY a{k} '{f'&a{k - 1 or str()};' * 10}'>" for k in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not XML: no element found"),
        ("<annotation>", "line 1: not XML: no element found"),
        ("<annotation>\n<object></name></annotation>", "line 2: not XML: mismatched tag"),
        (
            "<html></html>",
            "line 1: not a Pascal VOC annotation: the root element is not <annotation>",
        ),
        (LAUGHS + "]><annotation>&a11;</annotation>", "line 1: has a DTD, which is not read"),
        (
            '\n<!DOCTYPE x [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>',
            "line 2: has a DTD",
        ),
        ('<!DOCTYPE annotation SYSTEM "http://127.0.0.1/x.dtd"><annotation/>', "line 1: has a DTD"),
        (
            '<!DOCTYPE x [<!ENTITY % y SYSTEM "file:///dev/zero"> %y;]><annotation/>',
            "line 1: has a DTD",
        ),
        ("<annotation>&x;</annotation>", "line 1: not XML: undefined entity"),
        ("<annotation>" + "<a>" * 100_000, f"line 1: nested more than {MAX_DEPTH} elements deep"),
        ("<annotation>" + " " * MAX_BYTES + "</annotation>", "has more than 4 MiB"),
    ],
)
def test_xml_is_refused_with_reason(text: str, reason: str) -> None:
    with pytest.raises(UnreadableLabelsError, match=r"^a.xml") as found:
        read(text)
    assert reason in str(found.value)


def test_utf16_and_the_declared_encoding_are_read_and_others_refused() -> None:
    text = annotation(object_xml("é", "1 1 2 2"))
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert parse_xml_file(text.encode(encoding), "a.xml", SIZE, ["é"]).rows
    declared = '<?xml version="1.0" encoding="ISO-8859-1"?>' + text
    assert parse_xml_file(declared.encode("latin-1"), "a.xml", SIZE, ["é"]).rows
    with pytest.raises(
        UnreadableLabelsError,
        match=r"^a.xml line 3: not UTF-8 text, and it declares no other encoding: save it",
    ):
        parse_xml_file(text.encode("latin-1"), "a.xml", SIZE, ["é"])


def test_a_chinese_name_in_gb2312_is_no_other_name(tmp_path: Path) -> None:
    declared = '<?xml version="1.0" encoding="gb2312"?>'
    text = annotation(object_xml("猫", "1 1 2 2"))  # its bytes are those of "è" in UTF-8
    draw(tmp_path / "a.png")
    (tmp_path / "a.xml").write_bytes((declared + text).encode("gb2312"))
    assert VocXml().class_names(tmp_path).names == ("猫",)

    draw(tmp_path / "b.png")
    (tmp_path / "b.xml").write_bytes(annotation(object_xml("狗", "1 1 2 2")).encode("gb2312"))
    with pytest.raises(ValueError, match=r"b.xml line 3: not UTF-8 text, and it declares no other"):
        VocXml().class_names(tmp_path)


# ---------------------------------------------------------------------- where the files are


def test_list_of_ids_reads_images_of_any_suffix_in_order_of_path(voc: Path) -> None:
    with assert_unchanged(voc.parents[1]):
        labels, report = scan([voc / "train.txt"], NAMES)
    images = voc.parents[1] / "JPEGImages"
    assert [labels.path(i) for i in range(2)] == [f"{images}/000001.jpg", f"{images}/000002.png"]
    assert labels.classes.tolist() == [1, 0, 0]
    assert labels.boxes_xywh.tolist() == [[0, 0, 40, 20], [1, 2, 3, 3], [10, 5, 10, 5]]
    assert labels.crowd.tolist() == [False, False, True]
    assert (report.instances, report.crowd, report.problems) == (2, 1, ())
    assert_same(labels, scan([voc / "cat_train.txt"], NAMES)[0])  # its second column is ignored


def test_several_lists_of_ids_form_one_split(voc: Path, tmp_path: Path) -> None:
    later = tmp_path / "VOCdevkit" / "VOC2012"
    draw(later / "JPEGImages" / "a b.jpg")
    write(later / "Annotations" / "a b.xml", annotation(object_xml("cat", "1 1 2 2")))
    write(later / "ImageSets" / "Main" / "trainval.txt", "a b\n")
    labels, report = scan([voc / "train.txt", later / "ImageSets" / "Main" / "trainval.txt"], NAMES)
    assert (len(labels), report.instances, report.problems) == (3, 3, ())


def test_lines_without_image_are_reported(voc: Path) -> None:
    write(voc / "train.txt", "000001\n\n../JPEGImages/000002\n000009 1\n000001\n")
    labels, report = scan([voc / "train.txt"], NAMES)
    assert len(labels) == 1
    folder = voc.parents[1] / "JPEGImages"
    assert [tuple(problem) for problem in report.problems] == [
        (
            IMAGE_DROPPED,
            f"{voc}/train.txt line 3",
            f"no image '../JPEGImages/000002' with any suffix in {folder}",
        ),
        (
            IMAGE_DROPPED,
            f"{voc}/train.txt line 4",
            f"no image '000009' with any suffix in {folder}",
        ),
        (IMAGE_DROPPED, f"{voc}/train.txt line 5", "image '000001' was already listed in line 1"),
    ]


def test_list_of_image_paths_in_imagesets_stays_a_plain_list(voc: Path) -> None:
    write(voc / "paths.txt", "../../JPEGImages/000001.jpg\n")
    write(voc / "empty.txt", "\n")
    kinds = {
        name: type(formats.format_of(voc / f"{name}.txt"))
        for name in ("train", "paths", "empty", "absent")
    }
    assert kinds == {"train": VocXml, "paths": YoloText, "empty": YoloText, "absent": YoloText}


@pytest.mark.parametrize("where", ["photos", "Annotations", "annotations"])
def test_folder_with_xml_beside_images_or_beside_folder_is_read(tmp_path: Path, where: str) -> None:
    for name in ("a", "sub/b", "c"):
        draw(tmp_path / "photos" / f"{name}.png")
    for name in ("a", "sub/b"):
        write(tmp_path / where / f"{name}.xml", annotation(object_xml("dog", "1 1 4 4")))
    write(tmp_path / "photos" / "classes.txt", "dog\n")  # of LabelImg; not the labels of an image
    labels, report = scan([tmp_path / "photos"], NAMES)
    assert (len(labels), report.instances, report.without_label_file) == (3, 2, 1)
    assert labels.boxes_xywh.tolist() == [[0, 0, 4, 4]] * 2
    first, second = map(str, report.problems)
    assert first == f"{tmp_path}/photos: files that are not images, ignored: 1 .txt"
    assert "photos/c.xml, so the image counts as background" in second


def test_split_folders_of_images_and_annotations_are_read(tmp_path: Path) -> None:
    draw(tmp_path / "images" / "train" / "a.png")
    write(tmp_path / "annotations" / "train" / "a.xml", annotation(object_xml("dog", "1 1 4 4")))
    assert len(scan([tmp_path / "images" / "train"], NAMES)[0].classes) == 1


def test_folder_with_yolo_labels_stays_yolo_and_says_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        draw(tmp_path / "images" / f"{name}.png")
        write(tmp_path / "Annotations" / f"{name}.xml", annotation(object_xml("dog", "1 1 4 4")))
    write(tmp_path / "labels" / "b.txt", "0 .5 .5 .5 .5")
    labels, report = scan([tmp_path / "images"], NAMES)
    assert labels.classes.tolist() == [0]
    first = report.problems[0]
    assert (first.kind, first.where) == (NOTE, f"{tmp_path}/images")
    xml = f"{tmp_path}/Annotations/a.xml"
    assert (
        first.reason == f"labels are read from YOLO's .txt files, not from XML files such as {xml}"
    )


def test_folder_without_any_labels_is_yolo_and_coco_json_stays_coco(tmp_path: Path) -> None:
    draw(tmp_path / "images" / "a.png")
    (tmp_path / "all.json").touch()
    (tmp_path / "empty").mkdir()
    kinds = {
        name: type(formats.format_of(tmp_path / name)) for name in ("images", "all.json", "empty")
    }
    assert kinds == {"images": YoloText, "all.json": CocoJson, "empty": YoloText}


def test_image_with_another_size_than_its_xml_says_is_left_out(voc: Path) -> None:
    draw(voc.parents[1] / "JPEGImages" / "000002.png", (20, 40))
    labels, report = scan([voc / "train.txt"], NAMES)
    assert len(labels) == 1
    (problem,) = report.problems
    assert problem.kind == IMAGE_DROPPED
    assert (
        problem.reason
        == "is 20x40 upright, but its XML says 40x20: its boxes do not fit this image"
    )


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_image_with_refused_or_unreadable_xml_is_left_out(voc: Path) -> None:
    xml = voc.parents[1] / "Annotations" / "000002.xml"
    write(xml, "<!DOCTYPE x><annotation/>")
    reason = f"{xml} line 1: has a DTD, which is not read because it can define entities"
    assert [problem.reason for problem in scan([voc / "train.txt"], NAMES)[1].problems] == [reason]
    with open(xml, "wb") as stream:
        stream.truncate(2**40)  # a file of one TiB, without taking any space
    reason = f"{xml} has more than 4 MiB"
    assert [problem.reason for problem in scan([voc / "train.txt"], NAMES)[1].problems] == [reason]
    xml.unlink()
    os.mkfifo(xml)
    reason = f"{xml} cannot be read: it is not a regular file"
    assert [problem.reason for problem in scan([voc / "train.txt"], NAMES)[1].problems] == [reason]


def test_scan_cache_detects_changed_xml_and_new_yolo_labels(voc: Path, tmp_path: Path) -> None:
    def again(source: Path, expected: str) -> int:
        labels, report = scan([source], NAMES, cache_dir=tmp_path / "cache")
        assert report.cache == expected
        return len(labels.classes)

    assert again(voc / "train.txt", "cached now") == 3
    assert again(voc / "train.txt", "from cache") == 3
    write(voc.parents[1] / "Annotations" / "000002.xml", annotation())
    assert again(voc / "train.txt", "files changed, cache rebuilt") == 2

    folder = voc.parents[1] / "JPEGImages"
    assert again(folder, "cached now") == 2
    write(folder / "000001.txt", "0 .5 .5 .5 .5")
    assert again(folder, "files changed, cache rebuilt") == 1


def test_downloads_keep_xml_files() -> None:
    assert is_data(["VOCdevkit", "VOC2007", "Annotations", "000001.xml"])
