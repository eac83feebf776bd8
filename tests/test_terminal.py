"""How a script ends."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sys
from utils.terminal import stops_with_a_sentence
def run():
    {body}
sys.exit(stops_with_a_sentence(run))
"""


def end_of(body: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("pass", 0, ""),
        (
            "raise ValueError('--epochs 0: train for 1 epoch or more')",
            2,
            "error: --epochs 0: train for 1 epoch or more\n",
        ),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_ends(body, code, text):
    assert end_of(body) == (code, text)


def test_a_fault_keeps_its_traceback():
    code, text = end_of("raise KeyError('x')")
    assert code == 1
    assert text.startswith("Traceback")
    assert text.endswith("KeyError: 'x'\n")


def test_the_traceback_of_a_refusal_on_demand():
    code, text = end_of("raise ValueError('no')", KESTREL_TRACEBACK="1")
    assert code == 2
    assert text.startswith("Traceback")
    assert text.endswith("error: no\n")


def test_a_fault_of_the_disk_is_one_sentence():
    code, text = end_of("import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'runs/exp/last.pt')")
    assert (code, text) == (1, "error: runs/exp/last.pt: No space left on device\n")
    code, text = end_of("open('/dev/null/x')")  # not a directory: a mistake of ours
    assert code == 1
    assert text.startswith("Traceback")


def test_letters_that_the_terminal_lacks():
    assert end_of("from utils.terminal import show; show('\\u6f22')", PYTHONIOENCODING="ascii") == (0, "")


def test_no_terminal_at_all():
    assert end_of("from utils.terminal import show; sys.stdout = None; show('a')") == (0, "")
