"""Files that a download or a clone leaves in place of the wanted one: web pages, LFS pointers."""

from contextlib import suppress
from pathlib import Path

START_BYTES = 512  # blanks may be in front of a page's first element
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
PAGE_STARTS = (b"<!doctype html", b"<html", b"<head")


def describe_stand_in(path: Path) -> str:
    """Return what a file is, and how to get the wanted one; "" if it is no known stand-in.

    Also "" if it cannot be read.
    """
    start = b""
    with suppress(OSError):
        # a pipe would block
        if path.is_file():
            with open(path, "rb") as file:
                start = file.read(START_BYTES)

    if start.startswith(LFS_POINTER):
        return "a pointer of Git LFS, not the file itself: fetch it with git lfs pull"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith(PAGE_STARTS):
        return "a web page (HTML), such as one to log in or confirm on: download the file itself"
    return ""


def require_no_stand_in(path: Path, name: str) -> None:
    """Raise ValueError if a file is a known stand-in. name: of the file, as errors show it."""
    stand_in = describe_stand_in(path)
    if stand_in:
        raise ValueError(f"{name}: is {stand_in}")
