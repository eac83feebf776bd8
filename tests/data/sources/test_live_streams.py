"""Streams over HTTP on this machine: newest frame, lost and silent servers, several at once,
recordings, images.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from data.sources import FrameSource, open_source
from data.sources.stream_reader import StreamReader
from tests.support.clips import frame_number, jpeg, write_clip, write_noise
from tests.support.scripted_server import Answer, Handler, file_answer, fixed_answer
from utils.images.detections import Frame

FAST = {"open_timeout_s": 1.0, "read_timeout_s": 0.4, "pause_s": 0.02}
WAIT_S = 8.0


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    until = time.monotonic() + WAIT_S
    while stream_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert stream_threads() == []


def stream_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stream ")]


def motion_jpeg(
    *parts: int | float | bytes, then: str = "close", content_type: str = "multipart"
) -> Answer:
    """A motion JPEG stream. Parts: an int is the frame with this number, a float a pause in s,
    bytes are sent as is.
    """

    def answer(handler: Handler) -> None:
        kind = (
            "multipart/x-mixed-replace; boundary=frame"
            if content_type == "multipart"
            else content_type
        )
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.end_headers()
        for part in parts:
            if isinstance(part, float):
                time.sleep(part)
                continue
            data = jpeg(part) if isinstance(part, int) else part
            header = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
            handler.wfile.write(header.encode() + data + b"\r\n")
            handler.wfile.flush()
        if then == "stall":
            handler.server.stopped.wait(WAIT_S)

    return answer


def slow(*numbers: int, pause_s: float = 0.03) -> list[int | float]:
    """Frames with pauses between them, so that each one can be taken."""
    return [part for number in numbers for part in (number, pause_s)]


def drawn(frames: list[Frame]) -> list[int]:
    return [frame_number(frame.image) for frame in frames]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def opened(serve: Callable[..., object], said: list[str]) -> Callable[..., FrameSource]:
    """opened(answer, ...) is the source of a server with these answers."""

    def start(*answers: Answer, path: str = "/cam", **options: float) -> FrameSource:
        return open_source(f"{serve(*answers).url}{path}", say=said.append, **{**FAST, **options})

    return start


def test_stream_gives_its_frames_and_ends(opened, said):
    source = opened(motion_jpeg(*slow(1, 5, 9, 13)), reconnects=0)
    frames = list(source)
    assert source.total is None
    assert drawn(frames) == [1, 5, 9, 13]
    assert [frame.number for frame in frames] == [1, 2, 3, 4]
    ((path, name, fps),) = {(frame.path, frame.name, frame.fps) for frame in frames}
    assert path.startswith("http://127.0.0.1:")
    assert name == path.removeprefix("http://").replace(".", "-").replace(":", "-").replace(
        "/", "-"
    )
    assert fps == 25.0  # FFmpeg's value for motion JPEG
    assert said == [f"{path}: the stream ended after 4 frames"]


def test_slow_consumer_gets_the_newest_frame(opened):
    source = opened(motion_jpeg(*slow(*range(1, 21), pause_s=0.01), then="stall"))
    frames = iter(source)
    assert frame_number(next(frames).image) <= 20
    time.sleep(0.6)
    newest = next(frames)
    assert (newest.number, frame_number(newest.image)) == (20, 20)
    source.close()
    assert list(frames) == []


def test_frame_step_leaves_frames_of_a_stream_out(opened):
    source = opened(motion_jpeg(*slow(*range(1, 9))), reconnects=0, frame_step=3)
    frames = list(source)
    assert [frame.number for frame in frames] == drawn(frames) == [1, 4, 7]
    assert frames[0].fps == pytest.approx(25 / 3)


def test_lost_stream_is_connected_again(opened, said):
    answers = [
        motion_jpeg(*slow(1, 2, 3)),
        fixed_answer(503),
        motion_jpeg(*slow(11, 12)),
        fixed_answer(404),
    ]
    source = opened(*answers, reconnects=3)
    frames = list(source)
    assert drawn(frames) == [1, 2, 3, 11, 12]
    assert [frame.number for frame in frames] == [1, 2, 3, 4, 5]
    url = frames[0].path
    assert said == [f"{url}: the stream was lost, connecting again"] * 2 + [
        f"{url}: the stream ended after 5 frames, and was not reached again in 3 attempts"
    ]


def test_pauses_between_attempts_grow(serve, said):
    server = serve(motion_jpeg(*slow(1, 2)), fixed_answer(404))
    times: list[float] = []
    server.answers[1] = lambda handler: (times.append(time.monotonic()), handler.send(404))[1]
    list(
        open_source(f"{server.url}/cam", say=said.append, **FAST | {"pause_s": 0.05}, reconnects=4)
    )
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(times) == 4
    for gap, expected in zip(gaps, (0.1, 0.2, 0.4), strict=True):
        assert expected <= gap < expected + 0.25


def test_silent_server_is_given_up_after_the_read_timeout(opened, said):
    started = time.monotonic()
    frames = list(opened(motion_jpeg(*slow(1, 2, 3), then="stall"), reconnects=0))
    assert drawn(frames) == [1, 2, 3]
    assert 0.4 < time.monotonic() - started < 3.0
    assert len(said) == 1


def test_damaged_frame_is_left_out_and_the_stream_goes_on(opened):
    broken = jpeg(2)[:4200] + b"garbage" * 20
    frames = list(opened(motion_jpeg(*slow(1), broken, 0.03, *slow(3, 4)), reconnects=0))
    assert drawn(frames)[0] == 1
    assert drawn(frames)[-2:] == [3, 4]


@pytest.mark.parametrize(
    "answer",
    [
        fixed_answer(404),
        fixed_answer(200, b"<html>no stream</html>", Content_Type="text/html"),
        fixed_answer(
            200, bytes(range(256)) * 800, Content_Type="multipart/x-mixed-replace; boundary=frame"
        ),
        fixed_answer(200),
        motion_jpeg(then="stall"),
        motion_jpeg(b"no jpeg", b"no jpeg", b"no jpeg"),
    ],
)
def test_address_without_a_picture_is_an_error(opened, said, answer):
    source = opened(answer)
    with pytest.raises(
        ValueError, match=r"^http://127\.0\.0\.1:\d+/cam cannot be opened, or gives no picture$"
    ):
        list(source)
    assert (said, source.skipped) == ([], 1)


def test_error_does_not_show_the_password(said):
    source = open_source("rtsp://me:secret@127.0.0.1:1/x?token=abc", say=said.append, **FAST)
    with pytest.raises(
        ValueError, match=r"^rtsp://me:\*\*\*@127\.0\.0\.1:1/x\?token=\*\*\* cannot be opened, or"
    ):
        list(source)


def test_missing_camera_is_an_error(said):
    source = open_source("999", say=said.append, **FAST)
    with pytest.raises(ValueError, match=r"^camera 999 cannot be opened, or gives no picture$"):
        list(source)


# ---------------------------------------------------------------------- close


@pytest.mark.parametrize("read_timeout_s", [0.5, 5.0])
def test_close_from_another_thread_ends_a_blocked_read(opened, read_timeout_s):
    source = opened(motion_jpeg(*slow(1), 2, then="stall"), read_timeout_s=read_timeout_s)
    found: list[Frame] = []
    consumer = threading.Thread(target=lambda: found.extend(source))
    consumer.start()
    time.sleep(0.4)
    started = time.monotonic()
    source.close()
    consumer.join(WAIT_S)
    assert not consumer.is_alive()
    assert time.monotonic() - started < 1.5
    assert drawn(found) == [1, 2]


def test_close_before_and_during_iteration_starts_and_leaves_no_thread(opened):
    with opened(motion_jpeg(*slow(*range(1, 20)))) as source:
        assert stream_threads() == []
        next(iter(source))
    assert list(source) == []


def test_close_ends_the_pause_before_connecting_again(opened, said):
    source = opened(motion_jpeg(*slow(1, 2)), fixed_answer(404), pause_s=60)
    frames = iter(source)
    next(frames), next(frames)
    threading.Timer(0.1, source.close).start()
    started = time.monotonic()
    assert list(frames) == []
    assert time.monotonic() - started < 1.0


# ---------------------------------------------------------------------- several streams


def streams_file(tmp_path: Path, *urls: str) -> str:
    (tmp_path / "all.streams").write_text("\n".join(urls))
    return str(tmp_path / "all.streams")


def test_two_streams_take_turns(serve, tmp_path, said):
    urls = [
        f"{serve(motion_jpeg(*slow(*numbers))).url}/cam" for numbers in (range(1, 9), range(11, 19))
    ]
    with open_source(
        streams_file(tmp_path, *urls), say=said.append, **FAST, reconnects=0
    ) as source:
        frames = list(source)
    by_name = {
        name: [f for f in frames if f.name == name] for name in {frame.name for frame in frames}
    }
    assert sorted(drawn(own) for own in by_name.values()) == [[*range(1, 9)], [*range(11, 19)]]
    assert len({frame.path for frame in frames}) == 2
    changes = sum(before.name != after.name for before, after in itertools.pairwise(frames))
    assert changes >= 8  # of 15
    assert len(said) == 2


def test_fast_stream_does_not_starve_a_slow_one(serve, tmp_path, said):
    fast = serve(motion_jpeg(*slow(*[1] * 60, pause_s=0.005))).url
    calm = serve(motion_jpeg(*slow(11, 12, 13, pause_s=0.1))).url
    frames = []
    for frame in open_source(
        streams_file(tmp_path, fast, calm), say=said.append, **FAST, reconnects=0
    ):
        frames.append(frame)
        time.sleep(0.02)  # the model
    assert [number for number in drawn(frames) if number > 10] == [11, 12, 13]


def test_other_streams_go_on_without_one_that_cannot_be_opened(serve, tmp_path, said):
    good, bad = serve(motion_jpeg(*slow(1, 2, 3))).url, serve(fixed_answer(404)).url
    source = open_source(streams_file(tmp_path, bad, good), say=said.append, **FAST, reconnects=0)
    assert drawn(list(source)) == [1, 2, 3]
    assert set(said) == {  # each stream has a thread, so any of the two may be first
        f"{bad} cannot be opened, or gives no picture",
        f"{good}: the stream ended after 3 frames",
    }
    assert len(said) == 2
    assert source.skipped == 1


def test_streams_file_without_any_picture_is_an_error(serve, tmp_path, said):
    file = streams_file(tmp_path, *(serve(fixed_answer(404)).url for _ in range(2)))
    with pytest.raises(ValueError, match=r"all\.streams: no stream gave a picture$"):
        list(open_source(file, say=said.append, **FAST))
    assert len(said) == 2


# -------------------------------------------------------------- recordings and images at an address


def test_recording_is_read_completely_by_a_slow_consumer(opened, tmp_path, said):
    data = write_clip(tmp_path / "a.mkv", 12).read_bytes()
    numbers = []
    for frame in opened(file_answer(data), path="/a.mkv", frame_step=2):
        numbers.append((frame.number, frame_number(frame.image)))
        time.sleep(0.02)
    assert numbers == [(number, number) for number in (1, 3, 5, 7, 9, 11)]
    assert said == []


def test_recording_that_breaks_off_is_reported(opened, tmp_path, said):
    data = write_noise(tmp_path / "a.mkv", 60).read_bytes()
    source = opened(file_answer(data, only=len(data) // 2), path="/a.mkv")
    count = len(list(source))
    assert 10 < count < 50
    assert len(said) == 1
    assert f"/a.mkv: {count} of 60 frames were read; the rest is damaged" in said[0]
    assert source.skipped == 60 - count


@pytest.mark.parametrize("path", ["/bus.jpg", "/snapshot"])
def test_address_of_an_image_is_one_frame(opened, said, path):
    headers = {"Content_Type": "image/jpeg", "Content_Length": str(len(jpeg(7)))}
    (frame,) = opened(fixed_answer(200, jpeg(7), **headers), path=path)
    assert (frame_number(frame.image), frame.number) == (7, None)
    assert said == []


@pytest.mark.parametrize(
    "body", [b"ffconcat version 1.0\nfile file://%s\n", b"#EXTM3U\n#EXTINF:1,\nfile://%s\n"]
)
def test_server_cannot_make_the_stream_read_a_local_file(opened, tmp_path, body):
    secret = write_clip(tmp_path / "secret.ts", 5, fourcc="mpg1")
    source = opened(
        fixed_answer(200, body % bytes(secret), Content_Type="application/vnd.apple.mpegurl"),
        path="/a.m3u8",
    )
    with pytest.raises(ValueError, match="cannot be opened, or gives no picture"):
        list(source)


def test_unexpected_error_in_the_thread_ends_the_stream(opened, monkeypatch):
    def fail(_: StreamReader) -> bool:
        raise MemoryError("no memory for a frame")

    monkeypatch.setattr(StreamReader, "_connect_and_read", fail)
    with pytest.raises(MemoryError, match="no memory for a frame"):
        list(opened(motion_jpeg(1)))
