"""CVAT's XML: each shape, a box that is rotated, tracks of a video, skeletons, hostile files."""

from pathlib import Path
from typing import Any

import pytest

from data.formats.registry import format_of
from data.formats.tools.cvat import Cvat
from data.report import IMAGE_DROPPED
from data.scan import scan
from tests.support.tool_files import Read, draw, read_source, reasons

META = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
<version>1.1</version>
<meta><task><labels>
<label><name>dog</name><color>#fa3253</color><type>any</type><attributes><attribute>
<name>age</name><values>a
b</values></attribute></attributes></label>
<label><name>cat</name><type>skeleton</type><attributes/><svg>&lt;line&gt;</svg></label>
<label><name>nose</name><type>points</type><parent>cat</parent></label>
</labels><original_size><width>40</width><height>20</height></original_size></task></meta>
"""
LINE = 11  # of the first element after META


def write(folder: Path, *elements: str) -> Path:
    (folder / "annotations.xml").write_text(META + "\n".join(elements) + "\n</annotations>\n")
    return folder / "annotations.xml"


def image(*shapes: str, name: str = "a.png", more: str = "") -> str:
    start = f'<image id="0" name="{name}" width="40" height="20" {more}>'
    return "\n".join([start, *shapes, "</image>"])


def read_shapes(folder: Path, *shapes: str) -> Read:
    """Return what is read of an image with these shapes, in lines from LINE + 1 on."""
    draw(folder, "a.png")
    return read_source(write(folder, image(*shapes)))


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ('<box label="cat" xtl="1.5" ytl="2" xbr="11" ybr="14" rotation="0.0"/>', (1.5, 2, 11, 14)),
        # 10 x 4 around 10, 10, a quarter turn: 4 x 10
        ('<box label="cat" xtl="5" ytl="8" xbr="15" ybr="12" rotation="90"/>', (8, 5, 12, 15)),
        # By 30 degrees: its half width is 5 cos 30 + 2 sin 30 = 4.330 + 1 = 5.330, its half height
        # 5 sin 30 + 2 cos 30 = 2.5 + 1.732 = 4.232
        (
            '<box label="cat" xtl="5" ytl="8" xbr="15" ybr="12" rotation="30"/>',
            (4.670, 5.768, 15.330, 14.232),
        ),
        (
            '<box label="cat" xtl="5" ytl="8" xbr="15" ybr="12" rotation="330"/>',
            (4.670, 5.768, 15.330, 14.232),
        ),
        ('<polygon label="cat" points="1.0,9.0;5,3;7,8"/>', (1, 3, 7, 9)),
        ('<polyline label="cat" points="1.0,9.0;5,3"/>', (1, 3, 5, 9)),
        ('<points label="cat" points="1.0,9.0;5,3"/>', (1, 3, 5, 9)),
        ('<ellipse label="cat" cx="10" cy="9" rx="5" ry="2"/>', (5, 7, 15, 11)),
        ('<ellipse label="cat" cx="10" cy="9" rx="5" ry="2" rotation="90"/>', (8, 4, 12, 14)),
        ('<mask label="cat" rle="3,2,1" left="3" top="4" width="5" height="6"/>', (3, 4, 8, 10)),
        (
            '<cuboid label="cat" xtl1="1" ytl1="3" xbl1="1" ybl1="9" xtr1="5" ytr1="3" xbr1="5"'
            ' ybr1="9" xtl2="3" ytl2="2" xbl2="3" ybl2="8" xtr2="8" ytr2="2" xbr2="8" ybr2="8"/>',
            (1, 2, 8, 9),
        ),
        (
            '<skeleton label="cat" z_order="0"><points label="nose" outside="0" points="1,9"/>'
            '<points label="ear" outside="0" points="5,3"/>'
            '<points label="tail" outside="1" points="30,19"/></skeleton>',
            (1, 3, 5, 9),
        ),
    ],
)
def test_shapes_become_boxes(tmp_path: Path, shape: str, box: tuple[float, ...]) -> None:
    read = read_shapes(tmp_path, shape)
    assert (read.title, read.names, read.problems) == ("CVAT XML 1.1", ("dog", "cat"), [])
    ((name, *corners),) = read.boxes["a.png"]
    assert name == "cat"
    assert corners == pytest.approx(box, abs=0.006)


def test_tags_and_attributes_are_no_objects_and_images_may_have_none(tmp_path: Path) -> None:
    tag = '<tag label="dog"><attribute name="age">a</attribute></tag>'
    box = (
        '<box label="dog" xtl="1" ytl="2" xbr="3" ybr="4"><attribute name="age">b</attribute></box>'
    )
    outside = '<skeleton label="cat"><points label="nose" outside="1" points="1,9"/></skeleton>'
    assert read_shapes(tmp_path, tag, box, outside).boxes == {"a.png": [("dog", 1, 2, 3, 4)]}
    read = read_shapes(tmp_path)
    assert (read.boxes, read.problems) == ({"a.png": []}, [])
    assert read_source(write(tmp_path)).boxes == {}


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ('<box label="cat" ytl="2" xbr="3" ybr="4"/>', "xtl is '', must be a number"),
        ('<box label="cat" xtl="1,5" ytl="2" xbr="3" ybr="4"/>', "xtl is '1,5', must be a number"),
        ('<box label="cat" xtl="nan" ytl="2" xbr="3" ybr="4"/>', "coordinate nan is not a finite"),
        (
            '<box label="cat" xtl="1" ytl="2" xbr="1e9" ybr="4"/>',
            "coordinate 1e+09 is not a finite",
        ),
        ('<box xtl="1" ytl="2" xbr="3" ybr="4"/>', "the box has no label"),
        (
            '<box label="cat" xtl="1" ytl="2" xbr="3" ybr="4" rotation="x"/>',
            "rotation is 'x', must",
        ),
        ('<box label="cat" xtl="1" ytl="2" xbr="3" ybr="4" rotation="inf"/>', "coordinate nan is"),
        ('<box label="cat" xtl="1" ytl="2" xbr="1" ybr="4"/>', "box of 0 x 2, must have an area"),
        ('<polygon label="cat" points=""/>', "points is '', must be a number"),
        ('<polygon label="cat" points="1,2;3"/>', "points is '', must be a number"),
        ('<points label="cat" points="1,2"/>', "a set of keypoints with 1 point has no area"),
        ('<sphere label="cat"/>', "a sphere is not read, only box, polygon, polyline, points,"),
        ('<skeleton label="cat"><points points="1,2"/></skeleton>', "a set of keypoints with 1"),
        ('<skeleton label="cat"><points points="x,2"/></skeleton>', "points is 'x', must be a"),
        ('<skeleton><points points="1,2"/></skeleton>', "the set of keypoints has no label"),
    ],
)
def test_bad_shapes_are_reported_and_others_kept(tmp_path: Path, shape: str, reason: str) -> None:
    read = read_shapes(tmp_path, shape, '<box label="dog" xtl="1" ytl="2" xbr="3" ybr="4"/>')
    assert read.boxes == {"a.png": [("dog", 1, 2, 3, 4)]}
    (problem,) = reasons(read.problems, tmp_path)
    assert problem.startswith(f"annotations.xml line {LINE + 1}: {reason}")


# ---------------------------------------------------------------------- tracks


def track(label: str, *shapes: str, more: str = "") -> str:
    return "\n".join([f'<track id="0" label="{label}" {more}>', *shapes, "</track>"])


def box_at(frame: Any, left: int, outside: int = 0) -> str:
    corners = f'xtl="{left}" ytl="2" xbr="{left + 5}" ybr="9"'
    return f'<box frame="{frame}" outside="{outside}" occluded="0" keyframe="1" {corners}/>'


def test_tracks_are_objects_of_the_frames_they_are_in(tmp_path: Path) -> None:
    frames = [f"images/frame_{number:06d}.PNG" for number in (0, 3, 6)]
    draw(tmp_path, *frames)
    dog = track("dog", box_at(0, 1), box_at(3, 2), box_at(6, 3, outside=1))
    joints = '<points outside="0" points="1,3"/><points outside="0" points="8,9"/>'
    cat = track(
        "cat",
        f'<skeleton frame="3" keyframe="1">{joints}</skeleton>',
        '<box frame="0" outside="0" xtl="5" ytl="8" xbr="15" ybr="12" rotation="90"/>',
    )
    read = read_source(write(tmp_path, dog, cat))
    assert read.boxes == {
        frames[0]: [("dog", 1, 2, 6, 9), ("cat", 8, 5, 12, 15)],
        frames[1]: [("dog", 2, 2, 7, 9), ("cat", 1, 3, 8, 9)],
        frames[2]: [],
    }
    assert [problem.kind for problem in read.problems] == ["note"]


def test_frames_of_several_tasks_are_apart(tmp_path: Path) -> None:
    draw(tmp_path, "images/Train/frame_000000.png", "images/Val/frame_000000.png")
    tracks = [
        track("dog", box_at(0, left), more=f'task_id="{task}" subset="{subset}"')
        for left, task, subset in ((1, 7, "Train"), (2, 8, "Val"))
    ]
    assert read_source(write(tmp_path, *tracks)).boxes == {
        "images/Train/frame_000000.png": [("dog", 1, 2, 6, 9)],
        "images/Val/frame_000000.png": [("dog", 2, 2, 7, 9)],
    }


@pytest.mark.parametrize("frame", ["", "-1", "1.5", "x", "9" * 5000, "٣"])
def test_bad_frames_are_reported(tmp_path: Path, frame: str) -> None:
    draw(tmp_path, "frame_000002.png")
    skeleton = f'<skeleton frame="{frame}"><points points="1,2"/><points points="3,4"/></skeleton>'
    text = track("dog", box_at(frame, 1), skeleton, box_at(2, 1))
    (tmp_path / "annotations.xml").write_text(f"{META}{text}</annotations>", encoding="utf-8")
    read = read_source(tmp_path / "annotations.xml")
    assert read.boxes == {"frame_000002.png": [("dog", 1, 2, 6, 9)]}
    found = [text for text in reasons(read.problems, tmp_path) if "frame is" in text]
    assert len(found) == 2
    assert found[0].startswith(f"annotations.xml line {LINE + 1}: frame is '")


# ---------------------------------------------------------------------- images, files


def test_subset_tells_images_of_one_name_apart(tmp_path: Path) -> None:
    draw(tmp_path, "images/Train/a.png", "images/Val/a.png")
    box = '<box label="dog" xtl="1" ytl="2" xbr="3" ybr="4"/>'
    images = [image(box, more='subset="Val"'), image(more='subset="Train"')]
    read = read_source(write(tmp_path, *images))
    assert read.boxes == {"images/Train/a.png": [], "images/Val/a.png": [("dog", 1, 2, 3, 4)]}


def test_image_of_another_size_is_left_out(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", size=(20, 40))
    draw(tmp_path, "b.png")
    box = '<box label="dog" xtl="1" ytl="2" xbr="3" ybr="4"/>'
    labels, report = scan([write(tmp_path, image(box), image(box, name="b.png"))], ["dog", "cat"])
    assert len(labels) == 1
    assert [problem.kind for problem in report.problems] == [IMAGE_DROPPED]


def test_image_without_a_name_and_sizes_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "annotations.xml"
    file.write_text(f'<annotations><image/><image name="a" width="{"9" * 5000}" height="x"/>')
    with pytest.raises(ValueError, match=r"annotations\.xml line 1: not XML: no element found$"):
        Cvat().read(file)
    file.write_text(file.read_text() + "</annotations>")
    contents = Cvat().read(file)
    assert contents.names is None
    assert [(found.name, found.declared_size) for found in contents.images] == [
        ("", None),
        ("a", None),
    ]


def test_hostile_xml_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "annotations.xml"
    for text, reason in (
        ('<!DOCTYPE x [<!ENTITY a "b">]>\n<annotations>&a;</annotations>', "has a DTD"),
        ("<annotations>" + "<a>" * 99, "nested more than 32 elements deep"),
        ("<annotations>\xff", "not UTF-8 text, and it declares no other encoding"),
    ):
        file.write_bytes(text.encode("latin-1"))
        assert format_of(file).title == "CVAT XML 1.1"
        with pytest.raises(ValueError, match=r"annotations\.xml line 1: ") as found:
            Cvat().images(file, [])
        assert reason in str(found.value)
    file.write_text("<annotation><object/></annotation>")
    assert format_of(file).title == "YOLO"
