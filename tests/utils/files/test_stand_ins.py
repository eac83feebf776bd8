"""Files that are in the place of others: web pages and pointers of Git LFS."""

import os

import pytest

from utils.files.stand_ins import describe_stand_in, require_no_stand_in

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 14808437\n"
PAGE = "a web page (HTML), such as one to log in or confirm on: download the file itself"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (POINTER, "a pointer of Git LFS, not the file itself: fetch it with git lfs pull"),
        (b"<!DOCTYPE html>\n<html>", PAGE),
        (b"\xef\xbb\xbf\r\n <HTML lang='en'>", PAGE),
        (b"<?xml version='1.0'?><net>", ""),  # an OpenVINO model
        (b"PK\x03\x04", ""),
        (b"", ""),
    ],
)
def test_stand_ins_are_described(tmp_path, content, what):
    (tmp_path / "a.pt").write_bytes(content)
    assert describe_stand_in(tmp_path / "a.pt") == what


def test_what_is_no_file_is_no_stand_in(tmp_path):
    assert describe_stand_in(tmp_path) == describe_stand_in(tmp_path / "absent") == ""
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert describe_stand_in(tmp_path / "pipe") == ""


def test_stand_in_is_refused_by_the_name_that_is_given(tmp_path):
    (tmp_path / "a.pt").write_bytes(POINTER)
    with pytest.raises(ValueError, match=r"^weights: is a pointer of Git LFS, "):
        require_no_stand_in(tmp_path / "a.pt", "weights")
