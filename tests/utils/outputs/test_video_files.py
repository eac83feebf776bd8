"""Videos with detections, read back with OpenCV: frames, rate, size; and what is left after a
kill.
"""

import os
import signal
import sys
import time

import cv2
import numpy as np
import pytest

from tests.support.detected import drawn_frame, found_boxes
from utils.images.detections import Frame
from utils.outputs import recent, video
from utils.outputs.annotated import Annotator
from utils.outputs.video import VideoFiles
from utils.terminal import FaultError


def open_video(folder):
    return VideoFiles(folder, Annotator(["cat"]))


def read(path):
    """The frames of a video [N, H, W, 3], and its frames per second."""
    capture = cv2.VideoCapture(str(path))
    frames = []
    while (read := capture.read())[0]:
        frames.append(read[1])
    return np.array(frames), capture.get(cv2.CAP_PROP_FPS)


def names(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_video_has_all_frames_in_order_at_their_rate(tmp_path):
    output = open_video(tmp_path)
    for number in range(1, 11):
        output.write(drawn_frame("b/clip.avi", number, value=20 * number), found_boxes())
    output.close()
    output.close()
    assert names(tmp_path) == ["b/clip.mp4"]
    frames, fps = read(tmp_path / "b/clip.mp4")
    assert frames.shape == (10, 48, 64, 3)
    assert fps == 12.5
    np.testing.assert_allclose(frames.mean((1, 2, 3)), 20 * np.arange(1, 11), atol=5)


def test_video_shows_the_boxes(tmp_path):
    output = open_video(tmp_path)
    for number in (1, 2):
        output.write(
            drawn_frame("c.mp4", number, width=320, height=240), found_boxes([[100, 100, 200, 200]])
        )
    output.close()
    frames, _ = read(tmp_path / "c.mp4")
    assert np.abs(frames[1][150, 100:300].astype(int) - 128).max() > 60
    assert np.abs(frames[1][150, 120:180].astype(int) - 128).max() < 20


def test_images_are_left_to_the_pictures(tmp_path):
    output = open_video(tmp_path)
    output.write(drawn_frame("a.jpg"), found_boxes())
    output.close()
    assert names(tmp_path) == []


@pytest.mark.parametrize("size", [(65, 49), (1, 1), (64, 33), (16, 301)])
def test_odd_sizes_are_made_even(tmp_path, size):
    output = open_video(tmp_path)
    for number in (1, 2, 3):
        output.write(
            drawn_frame("c.mp4", number, width=size[0], height=size[1], value=200), found_boxes()
        )
    output.close()
    frames, _ = read(tmp_path / "c.mp4")
    assert frames.shape == (3, size[1] + size[1] % 2, size[0] + size[0] % 2, 3)
    assert frames.min() > 190  # the added row and column repeat the last ones


def test_frame_of_another_size_is_letterboxed_into_the_first_size(tmp_path):
    output = open_video(tmp_path)
    sizes = [(64, 48), (128, 48), (32, 24), (64, 48)]
    for number, (width, height) in enumerate(sizes, 1):
        output.write(
            drawn_frame("c.mp4", number, width=width, height=height, value=250), found_boxes()
        )
    output.close()
    frames, _ = read(tmp_path / "c.mp4")
    assert frames.shape == (4, 48, 64, 3)
    low = frames[1].mean((1, 2))  # 64 x 24 in the middle, gray above and below
    assert low[20:28].min() > 235
    assert max(low[:10].max(), low[-10:].max()) < 130
    assert frames[2].min() > 235  # enlarged


@pytest.mark.parametrize(
    ("numbers", "step", "expected"),
    [((1, 2, 3), 1, 3), ((1, 7, 8), 1, 8), ((1, 4, 7), 3, 3), ((1, 4, 13), 3, 5), ((5, 6), 1, 2)],
)
def test_frames_that_were_left_out_are_filled(tmp_path, numbers, step, expected):
    """So that ten seconds of a camera stay ten seconds. The fourth: 1 + 1 + 3 frames."""
    output = open_video(tmp_path)
    for number in numbers:
        image = np.zeros((48, 64, 3), np.uint8)
        output.write(Frame(image, "", "c.mp4", number, 10.0, step), found_boxes())
    output.close()
    assert len(read(tmp_path / "c.mp4")[0]) == expected


@pytest.mark.parametrize(
    ("fps", "expected"), [(29.97, 29.97), (0.5, 0.5), (0.0, 25), (float("nan"), 25), (1e9, 1000)]
)
def test_frame_rate_of_the_file(tmp_path, fps, expected):
    output = open_video(tmp_path)
    for number in (1, 2):
        output.write(
            Frame(np.zeros((48, 64, 3), np.uint8), "", "c.mp4", number, fps), found_boxes()
        )
    output.close()
    assert read(tmp_path / "c.mp4")[1] == pytest.approx(expected)


def test_streams_in_turn_and_odd_names_have_files_of_their_own(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    given = ["a.mp4", "a.avi", "ä\n.mp4", "../x.mp4", "/y.mp4", os.fsdecode(b"b\xff.mp4")]
    output = open_video(folder)
    for number in (1, 2, 3):
        for value, name in enumerate(given):
            output.write(drawn_frame(name, number, value=40 * value), found_boxes())
    output.close()
    assert set(names(folder)) == {"a.mp4", "a.avi.mp4", "ä_.mp4", "_/x.mp4", "y.mp4", "b_.mp4"}
    assert os.listdir(tmp_path) == ["run"]
    frames, _ = read(folder / "a.avi.mp4")
    assert len(frames) == 3
    assert abs(frames.mean() - 40) < 5


def test_video_is_finished_when_another_starts_long_after(tmp_path, monkeypatch):
    monkeypatch.setattr(recent, "MAX_IDLE", 3)
    output = open_video(tmp_path)
    for name in ("a.mp4", "b.mp4", "c.mp4", "a.mp4"):
        for number in (1, 2, 3):
            output.write(drawn_frame(name, number), found_boxes())
    assert "a.mp4" in names(tmp_path)
    output.close()
    assert names(tmp_path) == ["a-2.mp4", "a.mp4", "b.mp4", "c.mp4"]
    assert [len(read(tmp_path / name)[0]) for name in names(tmp_path)] == [3] * 4


def test_name_is_given_to_the_whole_file_only(tmp_path):
    output = open_video(tmp_path)
    output.write(drawn_frame("c.mp4", 1), found_boxes())
    assert names(tmp_path) == [f"video.tmp.{os.getpid()}.1.mp4"]
    output.close()  # as after Ctrl-C
    assert names(tmp_path) == ["c.mp4"]
    assert len(read(tmp_path / "c.mp4")[0]) == 1


def test_next_codec_is_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "CODECS", (("avc9", ".mp4"), ("MJPG", ".avi")))
    output = open_video(tmp_path)
    output.write(drawn_frame("c.mp4", 1), found_boxes())
    output.close()
    assert names(tmp_path) == ["c.avi"]
    assert len(read(tmp_path / "c.avi")[0]) == 1


def test_sizes_beyond_mpeg4_get_another_codec(tmp_path):
    output = open_video(tmp_path)
    output.write(drawn_frame("c.mp4", 1, width=8200, height=16), found_boxes())
    output.close()
    assert len(names(tmp_path)) == 1
    assert read(next(tmp_path.iterdir()))[0].shape == (1, 16, 8200, 3)


def test_no_codec_gives_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "CODECS", (("avc9", ".mp4"),))
    output = open_video(tmp_path)
    with pytest.raises(
        FaultError,
        match=r"c\.mp4: OpenCV has no codec for a video of 64 x 48 px; --nosave writes no",
    ):
        output.write(drawn_frame("c.mp4", 1), found_boxes())
    output.close()
    assert names(tmp_path) == []


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"):
        open_video(tmp_path / "gone").write(drawn_frame("c.mp4", 1), found_boxes())


def test_video_is_finished_before_the_disk_is_full(tmp_path, monkeypatch):
    output = open_video(tmp_path)
    output.write(drawn_frame("c.mp4", 1), found_boxes())
    monkeypatch.setattr(video, "MIN_FREE_BYTES", 1e30)
    with pytest.raises(FaultError, match=r"but .* are needed"):
        output.write(drawn_frame("c.mp4", 2), found_boxes())
    output.close()
    assert len(read(tmp_path / "c.mp4")[0]) == 1


def test_file_that_is_not_whole_is_reported_and_the_others_are_kept(tmp_path):
    output = open_video(tmp_path)
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        output.write(drawn_frame(name, 1), found_boxes())
    (tmp_path / f"video.tmp.{os.getpid()}.2.mp4").unlink()
    with pytest.raises(
        FaultError, match=r"b\.mp4: the video could not be written; perhaps the disk is full"
    ):
        output.close()
    assert names(tmp_path) == ["a.mp4", "c.mp4"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_killed_process_leaves_no_video_under_its_name(tmp_path):
    child = os.fork()
    if child == 0:
        output = open_video(tmp_path)
        for name in ("a.mp4", "b.mp4"):
            for number in range(1, 6 if name == "a.mp4" else 10**6):
                output.write(drawn_frame(name, number), found_boxes())
            if name == "a.mp4":
                output.close()
        os._exit(0)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(names(tmp_path)) < 2:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert [name for name in names(tmp_path) if ".tmp." not in name] == ["a.mp4"]
    assert len(read(tmp_path / "a.mp4")[0]) == 5
