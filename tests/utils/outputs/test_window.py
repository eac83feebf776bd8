"""The window of --view-img, with a fake OpenCV and, where Xvfb is installed, with a real one."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import cv2
import pytest

from tests.support.detected import drawn_frame, found_boxes
from utils.outputs import window
from utils.outputs.annotated import Annotator
from utils.outputs.window import Window, WindowClosed, require_display

ROOT = Path(__file__).parents[3]


class FakeCv2(SimpleNamespace):
    """OpenCV's functions for windows: keys to press are taken from `keys`, calls are recorded with
    their thread.
    """

    WINDOW_NORMAL = WINDOW_KEEPRATIO = WINDOW_GUI_NORMAL = WND_PROP_VISIBLE = 0
    error = cv2.error

    def __init__(self, toolkit="QT"):
        super().__init__(keys=[], closed=set(), shown=[], open=set(), threads=set(), sizes={})
        self.toolkit = toolkit

    def currentUIFramework(self):
        return self.toolkit

    def namedWindow(self, title, flags):
        self.threads.add(threading.get_ident())
        self.open.add(title)

    def resizeWindow(self, title, width, height):
        self.sizes[title] = width, height

    def imshow(self, title, image):
        assert title in self.open
        self.threads.add(threading.get_ident())
        self.shown.append((title, image.shape))

    def waitKey(self, milliseconds):
        assert milliseconds > 0  # 0 would wait for ever
        self.threads.add(threading.get_ident())
        key = self.keys.pop(0) if self.keys else -1
        if key == -1:
            time.sleep(milliseconds / 1000)
        return key

    def getWindowProperty(self, title, which):
        if title in self.closed and len(self.open) == 1:
            raise cv2.error("NULL guiReceiver (please create a window)")  # as OpenCV 5 with Qt
        return 0.0 if title in self.closed else 1.0

    def destroyWindow(self, title):
        self.threads.add(threading.get_ident())
        self.open.remove(title)


@pytest.fixture
def fake(monkeypatch):
    fake = FakeCv2()
    monkeypatch.setattr(window, "cv2", fake)
    monkeypatch.setattr(window, "_has_display", lambda: True)
    return fake


def make(image_s=0.0):
    return Window(Annotator(["cat"]), image_s=image_s)


def test_frames_are_shown_from_one_thread_and_windows_closed(fake):
    output = make()
    for number in (1, 2):
        output.write(drawn_frame("a.mp4", number), found_boxes())
        output.write(drawn_frame("b\n.mp4", number), found_boxes())
    output.write(drawn_frame("x.jpg"), found_boxes())
    output.write(drawn_frame("y.jpg"), found_boxes())
    assert fake.open == {"a.mp4", "b\\n.mp4", "images"}
    output.close()
    output.close()
    assert not fake.open
    assert [title for title, _ in fake.shown] == ["a.mp4", "b\\n.mp4"] * 2 + ["images"] * 2
    assert len(fake.threads) == 1
    assert fake.threads != {threading.get_ident()}


def test_large_images_get_a_window_that_fits_a_screen(fake):
    output = make()
    output.write(drawn_frame("x.jpg", width=4000, height=3000), found_boxes())
    output.write(drawn_frame("a.mp4", 1, width=320, height=240), found_boxes())
    output.close()
    assert fake.sizes == {"images": (960, 720), "a.mp4": (320, 240)}


@pytest.mark.parametrize("key", [ord("q"), ord("Q"), 27, ord("q") + 0x100000])
def test_q_and_escape_end_the_program(fake, key):
    output = make()
    fake.keys.append(key)
    with pytest.raises(WindowClosed):
        output.write(drawn_frame("a.mp4", 1), found_boxes())
    output.close()
    assert not fake.open


@pytest.mark.parametrize("closed", ["a.mp4", "b.mp4"])
@pytest.mark.parametrize("others", [0, 1])
def test_closing_a_window_ends_the_program(fake, closed, others):
    output = make()
    for name in ("a.mp4", "b.mp4") if others else (closed,):
        output.write(drawn_frame(name, 1), found_boxes())
    fake.closed.add(closed)
    with pytest.raises(WindowClosed):
        output.write(drawn_frame(closed, 2), found_boxes())
    assert (closed, (48, 64, 3)) not in fake.shown[1 + others :]  # it is not opened again
    output.close()


def test_image_is_shown_until_a_key_or_for_its_time(fake):
    output = make(image_s=0.2)
    start = time.monotonic()
    output.write(drawn_frame("a.jpg"), found_boxes())
    assert 0.2 <= time.monotonic() - start < 2
    output.close()
    fake.keys += [-1, ord("n")]
    patient = make(image_s=60)
    start = time.monotonic()
    patient.write(drawn_frame("b.jpg"), found_boxes())
    assert time.monotonic() - start < 10
    patient.close()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems always have a display"
)
def test_missing_display_is_one_sentence(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(
        ValueError, match=r"^--view-img: there is no display \(DISPLAY=''\); look at the files"
    ):
        make()


@pytest.mark.parametrize("toolkit", ["", "NONE"])
def test_opencv_without_windows_is_one_sentence(fake, toolkit):
    fake.toolkit = toolkit
    with pytest.raises(
        ValueError,
        match=r"^--view-img: this OpenCV has no windows; pip uninstall opencv-python-head",
    ):
        require_display()


def test_toolkit_of_an_old_opencv_is_read_from_its_build_information(monkeypatch):
    text = "General:\n  GUI:                           NONE\n    QT: NO\n"
    monkeypatch.setattr(
        window, "cv2", SimpleNamespace(error=cv2.error, getBuildInformation=lambda: text)
    )
    assert window._toolkit() == "NONE"


def test_macos_needs_the_main_thread(fake, monkeypatch):
    monkeypatch.setattr(window.sys, "platform", "darwin")
    errors = []

    def open_there():
        try:
            require_display()
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=open_there)
    thread.start()
    thread.join()
    assert errors == [
        "--view-img: macOS shows windows only from the main thread; look at the files in the run "
        "folder instead of "
        "--view-img"
    ]
    require_display()
    output = make()
    output.write(drawn_frame("a.mp4", 1), found_boxes())
    output.close()
    assert fake.threads == {threading.get_ident()}


REAL = """
import sys, threading
from tests.support.detected import drawn_frame, found_boxes
from utils.outputs.annotated import Annotator
from utils.outputs.window import Window

output = Window(Annotator(["cat"]), image_s=0.1)
def work():
    for number in (1, 2, 3):
        output.write(drawn_frame("ä.mp4", number), found_boxes([[1, 1, 9, 9]]))
    output.write(drawn_frame("x.jpg"), found_boxes())
    print("shown")
thread = threading.Thread(target=work)
thread.start()
thread.join()
output.close()  # from another thread
print("closed")
"""


@pytest.mark.skipif(not shutil.which("Xvfb"), reason="Xvfb is not installed")
def test_real_window_on_a_virtual_display():
    if window._toolkit() in ("", "NONE"):
        pytest.skip("this OpenCV has no windows")
    with subprocess.Popen(
        ["Xvfb", "-displayfd", "1", "-screen", "0", "800x600x24"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            assert server.stdout is not None
            environment = os.environ | {
                "DISPLAY": f":{int(server.stdout.readline())}",
                "PYTHONPATH": str(ROOT),
            }
            command = [sys.executable, "-c", REAL]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
            )
        finally:
            server.terminate()
    assert (done.returncode, done.stdout) == (0, "shown\nclosed\n"), done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="displays of X11")
def test_display_that_does_not_answer_is_refused(monkeypatch):
    try:
        window.ctypes.CDLL("libX11.so.6")
    except OSError:
        pytest.skip("libX11 is not installed")
    monkeypatch.setenv("DISPLAY", ":987")
    with pytest.raises(ValueError, match=r"there is no display \(DISPLAY=':987'\)"):
        require_display()
