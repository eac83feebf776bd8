"""Images and finite videos at an http address: read as the same files on disk are, once and
completely.
"""

import hashlib
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator

import cv2
import numpy as np
import pytest

from data.sources import FrameSource, open_source
from data.sources.repeats import MAX_FRAMES, MIN_FRAMES, Beginning
from models.image_inputs import read_input
from tests.data.sources.test_live_streams import FAST, WAIT_S, motion_jpeg, slow, stream_threads
from tests.support.clips import frame_number, gray, jpeg, write_clip
from tests.support.scripted_server import Answer, Handler, file_answer, fixed_answer, raw_answer
from utils.images.decode import decode_bgr
from utils.images.detections import Frame

OPTIONS = {**FAST, "open_timeout_s": 5.0, "read_timeout_s": 5.0, "settled_s": 60.0}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("stream "):
            thread.join(WAIT_S)
    assert stream_threads() == []


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def opened(serve: Callable[..., object], said: list[str]) -> Callable[..., FrameSource]:
    """opened(answer, ..., path=) is the source of a server with these answers."""

    def start(*answers: Answer, path: str, **options: float) -> FrameSource:
        return open_source(
            f"{serve(*answers).url}{path}", say=said.append, **{**OPTIONS, **options}
        )

    return start


def chunked(data: bytes, kind: str) -> Answer:
    """The file in pieces, as a server sends it that does not know its length."""
    pieces = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    return raw_answer(head.encode() + body)


def ramp() -> np.ndarray:
    """A picture that no turn leaves as it is, uint8 [40, 64, 3]."""
    y, x = np.mgrid[:40, :64]
    return np.dstack([x * 3, y * 5, 250 - x - y]).astype(np.uint8)


def turned_jpeg() -> bytes:
    """A JPEG that its EXIF data turn by 90 degrees."""
    data = cv2.imencode(".jpg", ramp())[1].tobytes()
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", 1, 0x0112, 3, 1, 6, 0, 0)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]


def deep_png() -> bytes:
    """A PNG of 16 bits per channel whose values need 12, as a camera's: FFmpeg shows it nearly
    black.
    """
    return cv2.imencode(".png", ramp().astype(np.uint16) * 16)[1].tobytes()


# ---------------------------------------------------------------------- images


@pytest.mark.parametrize("path", ["/a.jpg", "/A.PNG?size=1", "/snapshot"])
@pytest.mark.parametrize("make", [turned_jpeg, deep_png])
@pytest.mark.parametrize("send", [file_answer, chunked])
def test_image_at_an_address_is_the_image_of_its_file(opened, said, serve, path, make, send):
    """On the command line and in Python."""
    data = make()
    kind = "image/jpeg" if make is turned_jpeg else "image/png"
    answer = chunked(data, kind) if send is chunked else file_answer(data, Content_Type=kind)
    expected = decode_bgr(data, "file")
    (frame,) = opened(answer, path=path)
    assert np.array_equal(frame.image, expected)
    assert (frame.number, frame.fps, said) == (None, 0.0, [])
    in_python = read_input(f"{serve(answer).url}{path}", channel_order=None, urls=True)
    assert np.array_equal(in_python.pixels[..., ::-1], expected)


def test_avif_at_an_address_is_read(opened):
    if not cv2.haveImageWriter("a.avif"):
        pytest.skip("this OpenCV has no AVIF")
    data = cv2.imencode(".avif", ramp())[1].tobytes()
    for path in ("/a.avif", "/snapshot"):
        (frame,) = opened(file_answer(data, Content_Type="image/avif"), path=path)
        assert np.array_equal(frame.image, decode_bgr(data, "file"))


@pytest.mark.parametrize("path", ["/a.jpg", "/snapshot"])
def test_truncated_image_at_an_address_is_refused(opened, said, serve, path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = cv2.imencode(".jpg", noise)[1].tobytes()
    answer = file_answer(data[: len(data) * 3 // 4], Content_Type="image/jpeg")
    damaged = rf"{path} is damaged, truncated or not an image that OpenCV can decode$"
    with pytest.raises(ValueError, match=damaged):
        list(opened(answer, path=path))
    with pytest.raises(ValueError, match=damaged):
        read_input(f"{serve(answer).url}{path}", channel_order=None, urls=True)


def test_faults_of_the_server_of_an_image_are_named(opened, monkeypatch):
    for answer, reason in (
        (fixed_answer(404), "answered 404 Not Found"),
        (file_answer(jpeg(1), only=1000), r"closed the connection after 1\.00 kB of 4\.\d+ kB"),
        (
            fixed_answer(302, Location="file:///etc/passwd"),
            "redirected to a URL that is not allowed: http:// must not",
        ),
        (raw_answer(b"nonsense\r\n\r\n"), "sent a response that is not HTTP"),
    ):
        with pytest.raises(
            ValueError, match=rf"^http://127.*/a\.jpg cannot be read: 127\.0\.0\.1:\d+ {reason}"
        ):
            list(opened(answer, path="/a.jpg"))
    with pytest.raises(
        ValueError, match=r"a\.jpg cannot be read: 127\.0\.0\.1:\d+ sent nothing for 0\.2 s$"
    ):
        list(
            opened(
                lambda handler: handler.server.stopped.wait(2), path="/a.jpg", read_timeout_s=0.2
            )
        )
    monkeypatch.setattr("data.sources.stream_reader.MAX_IMAGE_BYTES", 1000)
    with pytest.raises(
        ValueError, match=r"a\.jpg cannot be read: .* sent more than the allowed 1\.00 kB$"
    ):
        list(opened(file_answer(jpeg(1)), path="/a.jpg"))


def test_redirected_image_is_read(opened):
    (frame,) = opened(fixed_answer(302, Location="/b"), file_answer(jpeg(4)), path="/a.jpg")
    assert frame_number(frame.image) == 4


def test_camera_stream_that_is_called_jpg_is_a_stream(opened):
    frames = list(opened(motion_jpeg(*slow(1, 5, 9)), path="/video.jpg", reconnects=0))
    assert [frame_number(frame.image) for frame in frames] == [1, 5, 9]


def guarded(data: bytes, challenge: str, is_right: Callable[[str], bool]) -> Answer:
    """The file, if the Authorization header is right, or else the challenge."""

    def answer(handler: Handler) -> None:
        if is_right(handler.headers.get("Authorization") or ""):
            file_answer(data)(handler)
        else:
            handler.send(401, WWW_Authenticate=challenge)

    return answer


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def is_right_digest(header: str) -> bool:
    """Whether a header has RFC 7616's answer for the user `me` with the password `a:b`."""
    if not header.startswith("Digest "):
        return False
    given = {
        name: quoted or plain
        for name, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\w+))', header)
    }
    secret, request = md5("me:cam:a:b"), md5(f"GET:{given['uri']}")
    parts = (secret, "xyz", given["nc"], given["cnonce"], "auth", request)
    return (
        given["username"] == "me"
        and given["uri"] == "/a.jpg?n=1"
        and given["response"] == md5(":".join(parts))
    )


def test_password_of_an_address_is_sent_when_the_camera_asks_for_it(serve, said):
    digest = guarded(
        jpeg(3), 'Digest realm="cam", nonce="xyz", qop="auth", algorithm=MD5', is_right_digest
    )
    basic = guarded(jpeg(3), 'Basic realm="cam"', "Basic bWU6YTpi".__eq__)  # base64 of me:a:b
    for answer in (digest, basic):
        server = serve(answer)
        address = server.url.replace("://", "://me:a%3Ab@") + "/a.jpg?n=1"
        (frame,) = open_source(address, say=said.append, **OPTIONS)
        assert frame_number(frame.image) == 3
        assert "Authorization" not in server.received[0][1]
        assert "a%3Ab" not in frame.path + frame.name
    damaged = [
        fixed_answer(401, WWW_Authenticate=f"Digest {text}")
        for text in ("nonsense", "realm=,nonce=", 'realm="')
    ]
    for answer in (fixed_answer(401), *damaged, basic):
        address = serve(answer).url.replace("://", "://me:wrong@") + "/a.jpg"
        with pytest.raises(
            ValueError, match=r"me:\*\*\*@.*a\.jpg cannot be read: 127\.0\.0\.1:\d+ answered 401"
        ):
            list(open_source(address, say=said.append, **OPTIONS))


def test_password_is_not_sent_because_another_host_asks_for_it(serve, said):
    other = serve(fixed_answer(401, WWW_Authenticate='Basic realm="cam"'))
    server = serve(fixed_answer(302, Location=f"{other.url}/a.jpg"))
    with pytest.raises(ValueError, match="answered 401"):
        list(
            open_source(
                server.url.replace("://", "://me:secret@") + "/a.jpg", say=said.append, **OPTIONS
            )
        )
    assert (len(server.received), len(other.received)) == (1, 1)
    assert "Authorization" not in str([*server.received, *other.received])


def test_control_characters_in_a_password_are_refused_without_showing_it(serve, said):
    address = serve(fixed_answer(401, WWW_Authenticate='Digest realm="cam", nonce="xyz"')).url
    with pytest.raises(
        ValueError,
        match=r"a\.jpg cannot be read: its user name or password has control characters$",
    ):
        list(
            open_source(
                address.replace("://", "://me%0d%0aX:secret@") + "/a.jpg",
                say=said.append,
                **OPTIONS,
            )
        )


def test_image_that_comes_in_drops_is_given_up(opened):
    def drops(handler: Handler) -> None:
        handler.send(200, Content_Type="image/jpeg", Content_Length="1000000")
        while not handler.server.stopped.wait(0.05):
            handler.wfile.write(b"\xff")
            handler.wfile.flush()

    with pytest.raises(
        ValueError, match=r"a\.jpg cannot be read: 127\.0\.0\.1:\d+ sent only \d+ bytes? in \d s$"
    ):
        list(opened(drops, path="/a.jpg", read_timeout_s=1.0))


# ---------------------------------------------------------------------- videos that have an end


def read_slowly(source: FrameSource) -> list[Frame]:
    frames = []
    for frame in source:
        frames.append(frame)
        time.sleep(0.02)  # the model
    return frames


@pytest.mark.parametrize("name", ["a.ts", "a.mpg"])
def test_video_without_frame_count_is_read_once_and_completely(opened, said, tmp_path, name):
    data = write_clip(tmp_path / name, 12, fourcc="mpg1").read_bytes()
    frames = read_slowly(opened(file_answer(data), path=f"/{name}"))
    assert [frame_number(frame.image) for frame in frames] == list(range(1, 13))
    assert [frame.number for frame in frames] == list(range(1, 13))
    assert not [text for text in said if "lost" in text]


@pytest.mark.parametrize("send", [file_answer, chunked])
def test_gif_is_read_once_and_completely(opened, said, tmp_path, send):
    image = pytest.importorskip("PIL.Image")
    first, *rest = (image.fromarray(gray(3 * number)) for number in range(1, 7))
    first.save(tmp_path / "a.gif", save_all=True, append_images=rest, duration=100, loop=0)
    data = (tmp_path / "a.gif").read_bytes()
    answer = chunked(data, "image/gif") if send is chunked else file_answer(data)
    assert [frame.number for frame in read_slowly(opened(answer, path="/a.gif"))] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    assert said == []


def test_stream_that_begins_again_is_a_recording(opened, said, tmp_path):
    """The server does not say how long the file is, so that its end looks like that of a lost
    stream.
    """
    data = write_clip(tmp_path / "a.ts", 12, fourcc="mpg1").read_bytes()
    frames = list(opened(chunked(data, "video/mp2t"), path="/a.ts"))
    numbers = [frame.number for frame in frames]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] <= 12
    url = frames[0].path
    again = (
        "it began again after 12 frames, so it is a recording that has ended; it was read "
        "as a stream, which leaves"
    )
    assert said == [f"{url}: the stream was lost, connecting again", f"{url}: {again} frames out"]


def test_connections_that_are_lost_soon_are_counted(opened, said):
    """Each of them gives other frames."""
    answers = [motion_jpeg(*slow(first, first + 1)) for first in range(1, 20, 2)]
    frames = list(opened(*answers, path="/cam", reconnects=3))
    assert [frame_number(frame.image) for frame in frames] == [1, 2, 3, 4, 5, 6, 7, 8]
    url = frames[0].path
    end = "the stream ended after 8 frames; it was lost 4 times in a row, each time within 60 s"
    assert said == [f"{url}: the stream was lost, connecting again"] * 3 + [f"{url}: {end}"]


def test_connections_that_hold_are_not_counted(opened, said):
    answers = [motion_jpeg(*slow(first, first + 1)) for first in range(1, 20, 2)]
    frames = list(opened(*answers, fixed_answer(404), path="/cam", reconnects=3, settled_s=0.0))
    assert [frame_number(frame.image) for frame in frames] == list(range(1, 21))
    assert said[-1].endswith(
        "the stream ended after 20 frames, and was not reached again in 3 attempts"
    )


def give(beginning: Beginning, levels: list[int]) -> int:
    """Give frames of these gray levels as one connection, as long as they are wanted; return how
    many were.
    """
    beginning.connect()
    for count, level in enumerate(levels):
        if not beginning.wants_frame:
            return count
        beginning.add(np.full((4, 4, 3), level, np.uint8))
    return len(levels)


def test_only_changing_pictures_are_evidence_of_a_recording():
    long = list(range(100))
    beginning = Beginning()
    assert give(beginning, long) == MIN_FRAMES
    assert give(beginning, long) == MIN_FRAMES
    assert beginning.is_repeated
    assert give(beginning, long[:4]) == 4
    assert not beginning.is_repeated
    assert not beginning.has_ended_alike  # it ended too soon
    give(beginning, [*long[:4], 99, *long[5:]])
    assert (beginning.is_repeated, beginning.matched) == (False, 0)

    black = Beginning()
    assert give(black, [0] * 1000) == MAX_FRAMES
    assert give(black, [0] * 1000) == 0
    assert not black.is_repeated

    from_black = Beginning()
    assert give(from_black, [0] * 50 + long) == 52  # 0 is the first of `long`, too
    give(from_black, [0] * 50 + long)
    assert from_black.is_repeated

    short = Beginning()
    give(short, [1, 2, 3])
    give(short, [1, 2, 3])
    assert (short.is_repeated, short.has_ended_alike) == (False, True)  # the same, if it ends here
    give(short, [1, 2, 3, 4])
    assert (short.is_repeated, short.has_ended_alike) == (False, False)

    empty = Beginning()
    give(empty, [])
    assert not empty.has_ended_alike
    assert give(empty, long) == MIN_FRAMES  # the first frames of all
    assert not empty.is_repeated
