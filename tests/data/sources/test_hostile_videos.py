"""Files that pretend to be videos and name other files or addresses: FFmpeg never opens those."""

import os
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.sources import capture, open_source, video
from data.sources.capture import OPTIONS, open_file
from tests.support.clips import frame_number, write_clip
from tests.support.scripted_server import fixed_answer


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The second file, that must not be read: 7 frames."""
    return write_clip(tmp_path / "secret.ts", 7, fourcc="mpg1")


def playlist(target: object) -> bytes:
    return f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{target}\n#EXT-X-ENDLIST\n".encode()


def frames_without_protection(path: Path) -> int:
    reader = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    count = 0
    while reader.grab():
        count += 1
    reader.release()
    return count


def script(secret: Path) -> bytes:
    return f"ffconcat version 1.0\nfile {secret.name}\n".encode()


@pytest.mark.parametrize("kind", [script, playlist])
@pytest.mark.parametrize("suffix", [".mp4", ".avi", ".ts"])
def test_playlist_with_the_suffix_of_a_video_is_rejected(tmp_path, secret, kind, suffix):
    hostile = tmp_path / f"clip{suffix}"
    hostile.write_bytes(kind(secret))
    with pytest.raises(
        ValueError,
        match=rf"clip\{suffix} is not a video: it starts like none of the known containers",
    ):
        list(open_source(str(hostile), say=print))


def test_without_protection_the_second_file_would_be_read(tmp_path, secret):
    """So the tests here would fail if the protection were missing."""
    (tmp_path / "clip.mp4").write_bytes(script(secret))
    assert frames_without_protection(tmp_path / "clip.mp4") == 7
    (tmp_path / "clip.m3u8").write_bytes(playlist(secret))
    assert frames_without_protection(tmp_path / "clip.m3u8") == 7


@pytest.mark.parametrize(
    "container",
    ["mov", "avi", "matroska", "mpegts", "mpeg", "mpegvideo", "flv", "asf", "gif", "ogg"],
)
@pytest.mark.parametrize("kind", [script, playlist])
def test_ffmpeg_uses_no_other_demuxer_even_if_the_first_bytes_were_not_checked(
    tmp_path, secret, container, kind
):
    hostile = tmp_path / "clip.mp4"
    hostile.write_bytes(kind(secret))
    reader = open_file(str(hostile), container)
    assert not (reader.isOpened() and reader.grab())


def test_each_demuxer_name_is_known_to_ffmpeg(tmp_path, secret):
    """An unknown name would let FFmpeg guess."""
    hostile = tmp_path / "clip.mp4"
    hostile.write_bytes(script(secret))
    assert not open_file(
        str(hostile), "no such demuxer"
    ).isOpened()  # the list of formats stops it then


def test_video_file_never_uses_the_network(tmp_path, secret, serve, monkeypatch):
    server = serve(fixed_answer(200, secret.read_bytes()))
    hostile = tmp_path / "clip.mp4"
    hostile.write_bytes(playlist(f"{server.url}/a.ts"))
    with pytest.raises(ValueError, match="is not a video"):
        list(open_source(str(hostile), say=print))
    monkeypatch.setattr(video, "container_of", lambda head: "hls")  # as if playlists were allowed
    with pytest.raises(ValueError, match=r"clip\.mp4 "):
        list(open_source(str(hostile), say=print))
    assert server.received == []
    monkeypatch.setenv(OPTIONS, "input_format;hls|protocol_whitelist;file,http,tcp")
    assert frames_without_protection(hostile.rename(tmp_path / "clip.m3u8")) == 7
    assert server.received != []  # so a request would have been noticed


def test_options_of_the_user_cannot_remove_the_protection_by_accident(
    tmp_path, secret, monkeypatch
):
    hostile = tmp_path / "clip.mp4"
    hostile.write_bytes(script(secret))
    for given in ("rtsp_transport;udp", "|", "=;;|x", ";" * 50):
        monkeypatch.setenv(OPTIONS, given)
        assert not open_file(str(hostile), "mov").isOpened()
        assert os.environ[OPTIONS] == given


def test_image_patterns_are_not_expanded(tmp_path, monkeypatch):
    """FFmpeg and OpenCV take such a name for a sequence of images."""
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"img{number:03d}.png"), np.zeros((8, 8, 3), np.uint8))
    for name in ("img%03d.png", "img%03d.mp4", "img%03d.gif"):
        with pytest.raises(ValueError, match="does not exist; allowed are"):
            open_source(str(tmp_path / name), say=print)
        (tmp_path / name).write_bytes(b"GIF89a" + bytes(50))
        with pytest.raises(ValueError, match=r"img%03d\.\w+ (has|is)"):
            list(open_source(str(tmp_path / name), say=print))


# -------------------------------------------------------------------- references inside a .mov file


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + kind + content


def alias(target: Path) -> bytes:
    """A data reference to another file, a Macintosh alias record: type 2 is its absolute path,
    colons for slashes.
    """
    path = str(target).replace("/", ":").encode()
    path += b"\0" * (len(path) % 2)
    name = target.name.encode()
    record = (
        bytes(10) + bytes([0]) + bytes(27) + bytes(12) + bytes([len(name)]) + name.ljust(63, b"\0")
    )
    record += bytes(16) + struct.pack(">hh", 1, 1) + bytes(16)
    record += struct.pack(">HH", 2, len(path)) + path + struct.pack(">HH", 0xFFFF, 0)
    return box(b"alis", bytes(4) + record)  # flags 0: not in this file


def with_reference(data: bytes, target: Path) -> bytes:
    """Replace the data reference of an .mp4 file whose index is at its end, so that no offset
    changes.
    """
    content = b""
    position = 0
    while position < len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        inner = data[position + 8 : position + length]
        if kind in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
            inner = with_reference(inner, target)
        elif kind == b"dref":
            inner = bytes(4) + struct.pack(">I", 1) + alias(target)
        content += box(kind, inner)
        position += length
    return content


def test_mov_references_to_other_files_are_not_followed(tmp_path):
    """The pixels are in other.mp4; the .mov has an index with the same offsets, and zeros where
    pixels would be.
    """
    other = write_clip(tmp_path / "other.mp4", 5)
    data = other.read_bytes()
    start = data.index(b"mdat") + 4
    length = int.from_bytes(data[start - 8 : start - 4], "big") - 8
    hostile = tmp_path / "clip.mov"
    hostile.write_bytes(
        with_reference(data[:start] + bytes(length) + data[start + length :], other)
    )

    with capture._ENVIRONMENT.options("enable_drefs;1|use_absolute_path;1|protocol_whitelist;file"):
        reader = cv2.VideoCapture(str(hostile), cv2.CAP_FFMPEG)
    found, image = reader.read()
    assert found, "this FFmpeg does not follow references at all"
    assert (
        frame_number(image) == 1
    )  # so the file is a working reference, and following it would be noticed

    with pytest.raises(ValueError, match=r"clip\.mov "):
        list(open_source(str(hostile), say=print))
