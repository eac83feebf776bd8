"""Names of frames: unique, and inside their folder."""

import os
from pathlib import PurePath

import pytest

from data.sources.names import FrameNames, path_below, safe_name


def test_names_are_numbered_in_order_and_stay_the_same():
    names = FrameNames()
    given = [names.name(f"/{folder}/a.jpg", "a.jpg") for folder in "xyz"]
    assert given == ["a.jpg", "a-2.jpg", "a-3.jpg"]
    assert [names.name(f"/{folder}/a.jpg", "a.jpg") for folder in "xyz"] == given
    assert names.name("/q/a-2.jpg", "a-2.jpg") == "a-2-2.jpg"
    assert names.name("/q/sub/a.jpg", "sub/a.jpg") == "sub/a.jpg"


def test_names_differ_in_more_than_case():
    names = FrameNames()
    wanted = ["a.jpg", "a.png", "A.jpg", "a.mp4", "a-2.jpg", "b.tar.gz", "ß.jpg", "SS.jpg"]
    given = [names.name(f"/{number}", name) for number, name in enumerate(wanted)]
    assert given == ["a.jpg", "a.png", "A-2.jpg", "a.mp4", "a-2-2.jpg", "b.tar.gz", "ß.jpg", "SS-2.jpg"]


def test_many_equal_names_take_no_quadratic_time():
    names = FrameNames()
    assert len({names.name(f"/{number}/frame.jpg", "frame.jpg") for number in range(20_000)}) == 20_000


@pytest.mark.parametrize(
    ("wanted", "safe"),
    [
        ("a.jpg", "a.jpg"),
        ("../../etc/passwd", "_/_/etc/passwd"),
        ("/etc/passwd", "etc/passwd"),
        ("//a//b.jpg", "a/b.jpg"),
        ("..\\..\\a.jpg", ".._.._a.jpg"),
        ("C:\\a.jpg", "C:_a.jpg"),
        ("a\0b\nc\x1b[31m.jpg", "a_b_c_[31m.jpg"),
        ("a\u2028b.jpg", "a_b.jpg"),
        (os.fsdecode(b"\xff.jpg"), "_.jpg"),
        ("ä ö\u202f圓.jpg", "ä ö\u202f圓.jpg"),  # a narrow space, as in the names of macOS screenshots
        ("", "_"),
        (".", "_"),
        ("..", "_"),
        ("a/. ./b", "a/_/b"),
        ("/", "_"),
    ],
)
def test_names_never_leave_their_folder(wanted, safe):
    assert safe_name(wanted) == safe
    path = PurePath("runs", safe_name(wanted))
    assert ".." not in path.parts
    assert os.path.normpath(path).startswith("runs" + os.sep)


def test_path_below_a_folder():
    assert path_below(os.path.join("/a", "b", "c d.jpg"), "/a") == "b/c d.jpg"
    assert path_below("/a/b.jpg", "/") == "a/b.jpg"
