"""Paths on standard input: each is used when it arrives."""

import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import cv2
import pytest

from data.sources import open_source
from tests.support.clips import frame_number, gray, write_clip

WAIT_S = 5.0


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, int]]:
    """The read end of a pipe as text, and the descriptor of its write end, closed by the test."""
    read_end, write_end = os.pipe()
    with open(read_end, encoding="utf-8") as stream:
        yield stream, write_end


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in (1, 2, 3)]
    for number, path in enumerate(paths, 1):
        cv2.imwrite(str(path), gray(number))
    return paths


def test_each_path_is_used_before_the_next_one_arrives(pipe, images):
    stream, write_end = pipe
    source = open_source("-", say=print, stdin=stream)
    assert source.total is None
    frames = iter(source)
    for number, path in enumerate(images, 1):
        os.write(write_end, f"{path}\n".encode())
        assert frame_number(next(frames).image) == number  # waits forever if it needs another line
    os.close(write_end)
    assert list(frames) == []


def test_line_that_arrives_in_pieces_is_one_path(pipe, images):
    stream, write_end = pipe
    frames = iter(open_source("-", say=print, stdin=stream))

    def produce() -> None:
        for byte in f"{images[0]}\r\n{images[1]}".encode():  # the last line has no end
            os.write(write_end, bytes([byte]))
            time.sleep(0.0005)
        os.close(write_end)

    producer = threading.Thread(target=produce)
    producer.start()
    assert [frame.name for frame in frames] == ["1.png", "2.png"]
    producer.join()


def test_close_ends_waiting_for_a_line(pipe):
    stream, write_end = pipe
    source = open_source("-", say=print, stdin=stream)
    found: list[object] = []
    consumer = threading.Thread(target=lambda: found.extend(source))
    consumer.start()
    time.sleep(0.05)
    started = time.monotonic()
    source.close()
    consumer.join(WAIT_S)
    assert not consumer.is_alive()
    assert time.monotonic() - started < 1.0
    assert found == []
    os.close(write_end)


def test_odd_lines_are_reported_with_their_number(tmp_path, images):
    write_clip(tmp_path / "sub" / "1.mp4", 2)
    (tmp_path / "broken.jpg").write_bytes(b"?")
    lines = [
        "",
        f"  {images[0]}  ",
        str(tmp_path / "none.jpg"),
        "a.txt",
        str(tmp_path),
        str(tmp_path / "broken.jpg"),
    ]
    lines += [str(tmp_path / "sub" / "1.mp4"), str(images[0]), "x" * 500]
    said: list[str] = []
    source = open_source("-", say=said.append, stdin=io.StringIO("\n".join(lines)))
    assert [(frame.name, frame.number) for frame in source] == [
        ("1.png", None),
        ("1.mp4", 1),
        ("1.mp4", 2),
        ("1.png", None),  # the same file has the same name
    ]
    assert source.skipped == len(said) == 5
    assert said[0] == f"standard input line 3: '{tmp_path}/none.jpg' does not exist; it is skipped"
    assert (
        said[1]
        == "standard input line 4: 'a.txt' is not the path of an image or video file; it is skipped"
    )
    assert said[3] == (
        f"{tmp_path}/broken.jpg is damaged, truncated or not an image that OpenCV can "
        "decode; it is skipped"
    )
    assert len(said[4]) < 300


@pytest.mark.parametrize("name", ["ä b.png", " x.png", "[1].png", os.fsdecode(b"\xff.png")])
def test_odd_names_arrive_unchanged(pipe, images, name):
    if os.name != "posix":
        pytest.skip("names with any byte")
    stream, write_end = pipe
    path = os.path.join(images[0].parent, name)
    os.rename(images[0], path)
    os.write(write_end, os.fsencode(path) + b"\n")
    os.close(write_end)
    (frame,) = open_source("-", say=print, stdin=stream)
    assert frame.path == path


@pytest.mark.parametrize("text", ["", "\n\n", "none.jpg\n"])
def test_input_without_a_file_is_an_error(text):
    with pytest.raises(ValueError, match=r"^standard input: no image or video could be read$"):
        list(open_source("-", say=lambda _: None, stdin=io.StringIO(text)))


def test_closed_input_is_an_error(monkeypatch):
    stream = io.StringIO()
    stream.close()
    with pytest.raises(
        ValueError, match=r"^--source - reads paths from standard input, but it is closed$"
    ):
        open_source("-", say=print, stdin=stream)
    monkeypatch.setattr("sys.stdin", None)  # as with pythonw, or with the shell's <&-
    with pytest.raises(ValueError, match="but it is closed"):
        open_source("-", say=print)


def test_endless_line_does_not_fill_the_memory(pipe):
    stream, write_end = pipe
    said: list[str] = []
    source = open_source("-", say=said.append, stdin=stream)

    def produce() -> None:
        for _ in range(10):
            os.write(write_end, b"x" * 2**16)
        os.close(write_end)

    producer = threading.Thread(target=produce)
    producer.start()
    with pytest.raises(ValueError, match="no image or video"):
        list(source)
    producer.join()
    assert 3 < len(said) < 20
