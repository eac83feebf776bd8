"""Startup: --help imports none of the heavy libraries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "torchvision", "numpy", "cv2", "matplotlib", "PIL", "pycocotools"}


@pytest.mark.parametrize("rank", ["", "0", "1"])
@pytest.mark.parametrize(("script", "flag"), [("train.py", "--help"), ("val.py", "-h")])
def test_help_imports_no_heavy_library(script, flag, rank, tmp_path):
    """With several processes only rank 0 prints the help, and no rendezvous is needed."""
    command = [sys.executable, "-X", "importtime", str(ROOT / script), flag]
    rank_variables = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank} if rank else {}
    environment = os.environ | rank_variables
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    loaded = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert done.returncode == 0
    assert {"argparse", "utils"} <= loaded
    assert not loaded & HEAVY
    assert done.stdout.count("--dist-url") == (
        0 if rank == "1" else 2
    )  # in the usage line and in the list of options


@pytest.mark.slow
def test_help_of_compare_does_not_import_torch():
    command = [sys.executable, "-X", "importtime", "-m", "training.compare", "--help"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "training.compare" in loaded
    assert "torch" not in loaded
