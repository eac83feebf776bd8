"""Intact videos of unusual kinds: edit lists, uneven frame rates, unknown codecs, cover pictures of
recordings.
"""

import struct
from pathlib import Path

import cv2
import pytest

from data.sources import open_source
from data.sources.containers import presented_ms
from data.sources.video import Reading
from tests.support.clips import gray, write_clip, write_noise


def read(path: Path) -> tuple[list[int | None], list[str], int]:
    """The numbers of the frames, what was said without the folder, and the number of frames left
    out.
    """
    said: list[str] = []
    source = open_source(str(path), say=said.append)
    numbers = [frame.number for frame in source]
    return numbers, [text.removeprefix(f"{path.parent}/") for text in said], source.skipped


def with_edit_list(path: Path, first: int, frames: int) -> Path:
    """Make a .mp4 of OpenCV, of `frames` frames at 30 per second, start playing at frame `first`,
    from 0.
    """
    data = bytearray(path.read_bytes())
    movie, track, edits = (data.index(kind) + 4 for kind in (b"mvhd", b"tkhd", b"elst"))
    media = data.index(b"mdhd") + 4
    ticks_per_s = int.from_bytes(data[media + 12 : media + 16], "big")
    movie_scale = int.from_bytes(data[movie + 12 : movie + 16], "big")
    duration = struct.pack(">I", (frames - first) * movie_scale // 30)
    data[movie + 16 : movie + 20] = duration
    data[track + 20 : track + 24] = duration
    data[edits + 8 : edits + 12] = duration
    data[edits + 12 : edits + 16] = struct.pack(">I", first * ticks_per_s // 30)
    path.write_bytes(data)
    return path


def test_frames_that_an_edit_list_leaves_out_are_not_missing(tmp_path):
    """The header counts 100 frames, of which the list plays the last 40, at 30 per second:
    1.333 s.
    """
    path = with_edit_list(write_noise(tmp_path / "a.mp4", 100, fourcc="mp4v"), 60, 100)
    assert presented_ms(path, "mov") == 1333
    numbers, said, skipped = read(path)
    assert len(numbers) < 50
    assert (said, skipped) == ([], 0)


def test_edit_list_does_not_hide_damage():
    """The header counts 100 frames at 25 per second, the file plays 2 s of them, and the last one
    read is at 0.8 s.
    """
    reading = Reading(100, 25, read=20, last_ms=800, presented_ms=2000)
    assert reading.shortfall(is_cut=False).startswith(
        "20 of 100 frames were read; the rest is damaged, or"
    )
    assert Reading(100, 25, read=50, last_ms=1960, presented_ms=2000).shortfall(is_cut=False) == ""
    longer_sound = Reading(100, 25, read=100, last_ms=3960, presented_ms=60_000)
    assert longer_sound.shortfall(is_cut=False) == ""


def box(kind: bytes, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I", 8 + len(content)) + kind + content


def test_duration_is_read_from_the_movie_header(tmp_path):
    start = box(b"ftyp", b"isom", bytes(4))
    short = box(b"mvhd", bytes(12), struct.pack(">II", 600, 900), bytes(80))  # 900 / 600 s
    long = box(b"mvhd", b"\1", bytes(19), struct.pack(">IQ", 1000, 5_000_000_000), bytes(80))
    unknown = box(b"mvhd", bytes(12), struct.pack(">II", 600, 0xFFFFFFFF), bytes(80))
    for content, expected in (
        (start + box(b"moov", short), 1500.0),
        (start + box(b"free", bytes(9)) + box(b"moov", box(b"udta"), long), 5e9),
        (start + box(b"moov", unknown), None),
        (start + box(b"moov", box(b"mvhd", bytes(12), struct.pack(">II", 0, 900))), None),
        (start + box(b"moov"), None),
        (start, None),
        (b"", None),
    ):
        (tmp_path / "a.mp4").write_bytes(content)
        assert presented_ms(tmp_path / "a.mp4", "mov") == expected
    assert presented_ms(tmp_path / "a.mp4", "avi") is None


def test_uneven_frame_rate_is_reported(tmp_path):
    """30 frames of 20 ms and 5 of 1 s: 35 frames in 5.6 s, 6.25 per second.

    Frame 31 comes after 30 x 20 = 600 ms; at an even rate it would come after 30 / 6.25 = 4.8 s.
    """
    image = pytest.importorskip("PIL.Image")
    first, *rest = (image.fromarray(gray(1 + number % 25)) for number in range(35))
    first.save(
        tmp_path / "a.gif",
        save_all=True,
        append_images=rest,
        duration=[20] * 30 + [1000] * 5,
        loop=0,
    )
    numbers, said, skipped = read(tmp_path / "a.gif")
    assert (numbers, skipped) == (list(range(1, 36)), 0)
    rate = cv2.VideoCapture(str(tmp_path / "a.gif")).get(cv2.CAP_PROP_FPS)
    assert rate == pytest.approx(6.25)
    timing = (
        "its frames do not come at an even rate of 6.25 per second; an annotated video "
        "shows them so, up to 4.2 s"
    )
    assert said == [f"a.gif: {timing} from their time"]


def timing_of(times_ms: list[float], fps: float) -> str:
    reading = Reading(len(times_ms), fps)
    for time_ms in times_ms:
        reading.add_frame(time_ms)
    return reading.timing()


def test_small_deviations_of_times_are_not_reported():
    even = [40.0 * number for number in range(200)]
    assert timing_of(even, 25) == ""
    assert (
        timing_of([time + 30 * (number % 3) for number, time in enumerate(even)], 25) == ""
    )  # of a phone
    assert (
        timing_of([time + 5000 for time in even], 25) == ""
    )  # the recording was cut out of a longer one
    assert timing_of(even + even, 25) == ""  # two recordings joined, each with its own times
    assert timing_of([0.0] * 200, 25) == ""  # times are unknown
    there_and_back = [1000.0 * number for number in (0, 3, 1, 2, 4, 7, 5, 6, 8, 11, 9, 10)]
    assert timing_of(there_and_back, 1) == ""  # B-frames, in the order of the file


def test_wrong_frame_rates_are_reported():
    """100 frames that are 40 ms apart, stated as 50 per second: frame 100 comes at 3960 ms instead
    of 1980.
    """
    text = timing_of([40.0 * number for number in range(100)], 50)
    assert text.startswith("its frames do not come at an even rate of 50 per second; ")
    assert text.endswith("up to 2.0 s from their time")


def test_codec_without_decoder_is_named(tmp_path):
    """The frames are called AV1, and are not."""
    path = write_clip(tmp_path / "a.mp4", 5)
    path.write_bytes(path.read_bytes().replace(b"mp4v", b"av01").replace(b"esds", b"free"))
    with pytest.raises(
        ValueError,
        match=r"a\.mp4 has no frame that OpenCV can decode; its codec is AV1 \(AV01\), which",
    ):
        read(path)


def recording_with_cover(seconds: int = 2) -> bytes:
    """Return an .mp4 without video that has a JPEG as its cover picture."""
    picture = cv2.imencode(".jpg", gray(5))[1].tobytes()
    cover = box(b"covr", box(b"data", struct.pack(">II", 13, 0), picture))  # 13: JPEG
    handler = box(b"hdlr", bytes(8), b"mdirappl", bytes(9))
    header = box(b"mvhd", bytes(12), struct.pack(">II", 1000, 1000 * seconds), bytes(80))
    movie = box(b"moov", header, box(b"udta", box(b"meta", bytes(4), handler, box(b"ilst", cover))))
    return box(b"ftyp", b"isom", bytes(4), b"isommp42") + movie + box(b"mdat", bytes(16))


def test_cover_picture_of_a_sound_recording_is_no_video(tmp_path):
    (tmp_path / "song.mp4").write_bytes(recording_with_cover())
    with pytest.raises(ValueError, match=r"song\.mp4 has no video, only a cover picture$"):
        read(tmp_path / "song.mp4")
    write_clip(tmp_path / "clip.mp4", 3)
    said: list[str] = []
    assert [frame.number for frame in open_source(str(tmp_path), say=said.append)] == [1, 2, 3]
    assert said == [f"{tmp_path}/song.mp4 has no video, only a cover picture; it is skipped"]
