"""utils/images/decoder_messages.py: what libraries print to stderr is caught; Python's own stderr
is not.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from utils.images.decoder_messages import caught_messages, discarded_messages

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not hasattr(os, "pread"), reason="nothing is caught on this system")


def test_messages_are_caught_and_stderr_is_restored(capfd: pytest.CaptureFixture[str]) -> None:
    with caught_messages() as messages:
        assert messages.size == 0
        os.write(2, b"one\n")
        printed = messages.size
        os.write(2, b"two\nthree\n")
        assert (printed, messages.size) == (4, 14)
        assert messages.since(printed) == "two; three"
        assert messages.since(messages.size) == ""
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_stderr_is_restored_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"^no$"), caught_messages():
        raise ValueError("no")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_discarded_messages_do_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with discarded_messages():
        os.write(2, b"inside\n")
    os.write(2, b"after\n")
    with pytest.raises(ValueError, match=r"^no$"), discarded_messages():
        raise ValueError("no")
    os.write(2, b"last\n")
    assert capfd.readouterr().err == "after\nlast\n"


def test_second_block_at_the_same_time_catches_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Otherwise the descriptors could be restored in the wrong order."""
    sizes: list[int] = []

    def run() -> None:
        with caught_messages() as inner:
            os.write(2, b"inside\n")
            sizes.append(inner.size)

    with caught_messages() as outer:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert outer.since(0) == "inside"
    assert sizes == [0]
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


@pytest.mark.slow
def test_python_prints_to_the_terminal_meanwhile() -> None:
    program = """
import os, sys
from utils.images.decoder_messages import caught_messages
with caught_messages():
    os.write(2, b"caught ")
    print("bar", file=sys.stderr)
print("end", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == "bar\nend\n"
