"""Damaged videos, intact videos with a wrong frame count, and containers that are recognized by
their first bytes.
"""

import os
import random
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.sources import open_source
from data.sources.containers import HEAD_BYTES, VIDEO_SUFFIXES, container_of, is_cut_off
from data.sources.video import Reading, video_length
from tests.support.clips import write_clip, write_noise
from tests.support.own_process import run_program

ROOT = Path(__file__).parents[3]


def read(path: Path, frame_step: int = 1) -> tuple[list[int | None], list[str], int]:
    """The numbers of the frames, what was said without the folder, and the number of frames left
    out.
    """
    said: list[str] = []
    source = open_source(str(path), say=said.append, frame_step=frame_step)
    numbers = [frame.number for frame in source]
    return numbers, [text.removeprefix(f"{path.parent}/") for text in said], source.skipped


@pytest.fixture
def avi(tmp_path: Path) -> Path:
    return write_noise(tmp_path / "clip.avi", 60)


@pytest.mark.parametrize(
    ("suffix", "fourcc"), [(".avi", "MJPG"), (".mkv", "MJPG"), (".mkv", "mp4v")]
)
def test_truncated_video_gives_its_frames_and_is_reported(tmp_path, suffix, fourcc):
    path = write_noise(tmp_path / f"clip{suffix}", 60, fourcc=fourcc)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    numbers, said, skipped = read(path)
    assert numbers == list(range(1, len(numbers) + 1))
    assert 10 < len(numbers) < 50
    assert said == [f"clip{suffix}: {len(numbers)} of 60 frames were read; the rest is damaged"]
    assert skipped == 60 - len(numbers)
    assert read(path, frame_step=7)[1:] == (said, skipped)


def test_video_with_its_index_at_the_end_cannot_be_opened_if_truncated(tmp_path):
    path = write_clip(tmp_path / "a.mp4", 20)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(
        ValueError, match=r"a\.mp4 is damaged, truncated or not a video that OpenCV can decode$"
    ):
        read(path)
    assert video_length(str(path), 1) == 0


def test_video_with_damage_in_the_middle_gives_the_frames_before_and_after(tmp_path):
    """The index at the end says where each frame is, so frame 60 is still found."""
    path = write_noise(tmp_path / "clip.mp4", 60)
    data = bytearray(path.read_bytes())
    a, b = len(data) // 3, len(data) // 2
    data[a:b] = bytes(b - a)
    path.write_bytes(data)
    numbers, said, skipped = read(path)
    assert numbers[:10] == list(range(1, 11))
    assert numbers[-10:] == list(range(51, 61))
    assert 5 < skipped == 60 - len(numbers)
    assert said == [f"clip.mp4: {len(numbers)} of 60 frames were read; the rest is damaged"]


def test_video_whose_end_was_never_written_may_be_damaged(avi):
    """The file has its length, but the second half is zeros, as after a power failure."""
    data = avi.read_bytes()
    avi.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    numbers, said, skipped = read(avi)
    text = (
        f"{len(numbers)} of 60 frames were read; the rest is damaged, or the frame count in "
        "the file is wrong"
    )
    assert said == [f"clip.avi: {text}"]
    assert skipped == 60 - len(numbers) > 20


def with_frame_count(avi: Path, count: int) -> Path:
    """Change the number of frames in both headers of an AVI file, and leave its frames as they
    are.
    """
    data = bytearray(avi.read_bytes())
    main, stream = data.index(b"avih") + 8, data.index(b"strh") + 8
    data[main + 16 : main + 20] = data[stream + 32 : stream + 36] = struct.pack("<I", count)
    avi.write_bytes(data)
    return avi


@pytest.mark.parametrize("count", [0, 57, 59, 61, 63])
def test_wrong_frame_count_of_an_intact_video_is_not_reported(avi, count):
    numbers, said, skipped = read(with_frame_count(avi, count))
    assert (said, skipped) == ([], 0)
    assert len(numbers) >= min(60, count or 60)


def test_reading_tells_damage_from_wrong_counts():
    """60 frames at 30 per second last 2 s; the last one starts at 1967 ms."""
    end = 1967.0
    assert Reading(60, 30, read=60, last_ms=end).shortfall(is_cut=False) == ""
    assert (
        Reading(60, 30, read=60, last_ms=end).shortfall(is_cut=True) == ""
    )  # only the index was lost
    assert Reading(63, 30, read=60, last_ms=end).shortfall(is_cut=False) == ""  # 3 too many
    assert (
        Reading(90, 45, read=60, last_ms=end).shortfall(is_cut=False) == ""
    )  # variable frame rate: it ended in time
    assert Reading(0, 30, read=60, last_ms=end).shortfall(is_cut=False) == ""  # unknown
    assert (
        Reading(0, 30, read=60).shortfall(is_cut=True)
        == "60 frames were read; the end of the file is missing"
    )
    assert (
        Reading(61, 30, read=60).shortfall(is_cut=True)
        == "60 of 61 frames were read; the rest is damaged"
    )
    lost = Reading(60, 30, read=59, failed=1, last_ms=end)
    assert lost.shortfall(is_cut=False) == "59 of 60 frames were read; the rest is damaged"
    assert (
        Reading(0, 30, read=59, failed=2)
        .shortfall(is_cut=False)
        .startswith("59 of 61 frames were read; the rest")
    )
    early = Reading(120, 30, read=37, last_ms=1200.0).shortfall(is_cut=False)
    assert early == (
        "37 of 120 frames were read; the rest is damaged, or the frame count in the file is wrong"
    )


@pytest.mark.parametrize("seed", range(30))
def test_random_damage_never_crashes_or_hangs(tmp_path, seed):
    generator = random.Random(seed)
    name, fourcc = generator.choice(
        [("a.avi", "MJPG"), ("a.mp4", "mp4v"), ("a.mkv", "mp4v"), ("a.wmv", "WMV2")]
    )
    data = bytearray(write_noise(tmp_path / name, 12, fourcc=fourcc).read_bytes())
    for _ in range(generator.choice([1, 10, 100])):
        data[generator.randrange(len(data))] = generator.randrange(256)
    if generator.random() < 0.3:
        del data[generator.randrange(len(data)) :]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "intact.png").write_bytes(
        cv2.imencode(".png", np.zeros((2, 2, 3), np.uint8))[1].tobytes()
    )
    said: list[str] = []
    *numbers, _ = [frame.number for frame in open_source(str(tmp_path), say=said.append)]
    assert numbers == sorted(set(numbers))
    assert len(said) <= 1
    assert all(text.startswith(f"{tmp_path / name}") for text in said)


def test_video_without_frames_is_an_error(avi):
    data = avi.read_bytes()
    start = data.index(b"movi")
    avi.write_bytes(data[: start + 4] + bytes(len(data) - start - 4))
    with pytest.raises(ValueError, match=r"clip\.avi (has no frame|is damaged)"):
        read(avi)


SILENCE = """
import sys
from data.sources import open_source
source = open_source(sys.argv[1], say=print)
source.total, [frame.number for frame in source]
"""


def test_nothing_is_printed_on_stderr(tmp_path):
    """FFmpeg prints a line for each damaged frame, if it is not told otherwise before the first
    video.
    """
    for name, fourcc in (("a.avi", "MJPG"), ("b.mp4", "mp4v"), ("c.mkv", "mp4v")):
        data = bytearray(write_noise(tmp_path / name, 30, fourcc=fourcc).read_bytes())
        data[len(data) // 3 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 3)
        (tmp_path / name).write_bytes(data)
        (tmp_path / f"cut_{name}").write_bytes(data[: len(data) // 3])
    (tmp_path / "x.jpg").write_bytes(b"\xff\xd8\xff\xdb")
    done = run_program(SILENCE, tmp_path, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") >= 4


def test_environment_is_as_before(avi, monkeypatch):
    monkeypatch.setenv("OPENCV_FFMPEG_CAPTURE_OPTIONS", "rtsp_transport;udp")
    before = dict(os.environ)
    read(avi)
    assert dict(os.environ) == before
    monkeypatch.delenv("OPENCV_FFMPEG_CAPTURE_OPTIONS")
    before = dict(os.environ)
    read(avi)
    assert dict(os.environ) == before


# ---------------------------------------------------------------------- containers


@pytest.mark.parametrize(
    ("name", "fourcc", "container"),
    [
        ("a.mp4", "mp4v", "mov"),
        ("a.mov", "mp4v", "mov"),
        ("a.m4v", "mp4v", "mov"),
        ("a.3gp", "mp4v", "mov"),
        ("a.avi", "MJPG", "avi"),
        ("a.mkv", "mp4v", "matroska"),
        ("a.webm", "VP80", "matroska"),
        ("a.flv", "FLV1", "flv"),
        ("a.wmv", "WMV2", "asf"),
        ("a.asf", "WMV2", "asf"),
        ("a.ts", "mpg1", "mpegts"),
        ("a.m2ts", "mpg1", "mpegts"),
        ("a.mpg", "mpg1", "mpeg"),
        ("a.vob", "mpg1", "mpeg"),
    ],
)
def test_container_is_recognized_and_its_length_is_right(tmp_path, name, fourcc, container):
    path = write_noise(tmp_path / name, 30, fourcc=fourcc)
    assert path.suffix in VIDEO_SUFFIXES
    assert container_of(path.read_bytes()[:HEAD_BYTES]) == container
    assert not is_cut_off(path, container)
    assert len(read(path)[0]) == 30
    path.write_bytes(path.read_bytes()[:-100])
    if container in ("mov", "avi", "matroska"):
        assert is_cut_off(path, container)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"RIFF",
        b"G" * 10,
        b"\xff\xd8\xff\xe0",
        b"\x89PNG",
        b"#EXTM3U\n",
        b"ffconcat version 1.0\n",
        b"v=0\r\n",
    ]
    + [b"<?xml", b"RIFF\0\0\0\0WAVEfmt ", b"\0\0\0\x20abcd", b"[playlist]", b"http://a/b"],
)
def test_other_files_are_no_container(head):
    assert container_of(head) is None


def test_unstated_lengths_are_not_taken_for_damage(tmp_path):
    """A recorder that was killed, or that writes to a pipe, leaves these lengths open."""
    (tmp_path / "a.avi").write_bytes(b"RIFF\xff\xff\xff\xffAVI ")
    (tmp_path / "a.mkv").write_bytes(b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01" + b"\xff" * 7)
    (tmp_path / "a.mp4").write_bytes(b"\0\0\0\x08ftyp\0\0\0\0mdat")
    assert not is_cut_off(tmp_path / "a.avi", "avi")
    assert not is_cut_off(tmp_path / "a.mkv", "matroska")
    assert not is_cut_off(tmp_path / "a.mp4", "mov")
    for name, container in (("a.avi", "avi"), ("a.mkv", "matroska"), ("a.mp4", "mov")):
        (tmp_path / name).write_bytes(b"")
        assert not is_cut_off(tmp_path / name, container)
