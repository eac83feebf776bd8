"""utils/plots/pictures.py: what is drawn while training goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Draws with an empty list of fonts, which matplotlib fills by running programs; says of each
# whether workers could have been forked meanwhile.
SCRIPT = """
import subprocess, sys
from pathlib import Path
import numpy as np
from utils import threads
from utils.plots.pictures import Pictures

def run(program, *_, **__):
    print(Path(program[0]).name, "locked" if threads.fork_lock.locked() else "free")
    raise OSError("not installed")

subprocess.check_output = run
pictures = Pictures(Path(sys.argv[1]), ["a"])
pictures.labels(np.zeros(0, np.int64), np.zeros((0, 4)))
pictures.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="matplotlib runs no program there")
def test_programs_that_list_fonts_run_while_no_worker_can_be_forked(tmp_path):
    """A DataLoader worker forked meanwhile would keep the program's pipe open."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path / "empty"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "labels.png").exists()

    lines = done.stdout.splitlines()
    assert lines
    assert all(line.endswith(" locked") for line in lines)
