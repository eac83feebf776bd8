"""utils/files/safe_names.py: names stay inside their folder, and are one line."""

import os
from pathlib import PurePath

import pytest

from utils.files.safe_names import safe_name


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
        (
            "ä ö\u202f圓.jpg",
            "ä ö\u202f圓.jpg",
        ),  # a narrow space, as in the names of macOS screenshots
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
