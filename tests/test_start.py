"""How soon a script answers, and what it leaves alone until it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "torchvision", "numpy", "cv2", "matplotlib", "PIL", "pycocotools"}


@pytest.mark.parametrize("rank", ["", "0", "1"])
@pytest.mark.parametrize(("script", "flag"), [("train.py", "--help"), ("val.py", "-h")])
def test_help_waits_for_no_library(script, flag, rank, tmp_path):
    """And of several processes, which need not meet for it, the first one's is enough."""
    command = [sys.executable, "-X", "importtime", str(ROOT / script), flag]
    place = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank} if rank else {}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=os.environ | place, check=False
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert {"argparse", "utils"} <= loaded
    assert not loaded & HEAVY
    assert done.stdout.count("--dist-url") == (0 if rank == "1" else 2)  # how it is used, and what it means
