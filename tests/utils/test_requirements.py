"""utils/requirements.py: packages that are missing, or too old."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from utils import requirements
from utils.requirements import FILE, missing_packages, old_packages, requirements_error

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["train.py", "val.py", "detect.py", "export.py"])
def test_all_missing_packages_are_named_at_once(script):
    """-S: without the packages of the environment."""
    command = [sys.executable, "-S", script, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: torch, torchvision, opencv-python, pycocotools, numpy, PyYAML, matplotlib, tqdm "
        f"are not installed: {sys.executable} -m pip install -r {FILE}\n"
    )


def test_nothing_is_missing_here():
    assert missing_packages() == old_packages() == []
    assert requirements_error([], "too old") == ""


def test_old_packages_are_named_with_both_versions(monkeypatch):
    def version(package):
        if package == "opencv-python":  # installed as opencv-python-headless
            raise importlib.metadata.PackageNotFoundError
        return {"torch": "2.9.1+cu128", "tqdm": "4.65"}.get(package, "99")

    monkeypatch.setattr(importlib.metadata, "version", version)
    old = ["torch 2.9.1+cu128 (needs 2.11 or newer)", "tqdm 4.65 (needs 4.66 or newer)"]
    assert old_packages() == old


def test_one_missing_package_is_said_in_the_singular(monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "yaml" else name)
    sentence = requirements_error(missing_packages(), "not installed")
    assert sentence.startswith("PyYAML is not installed: ")


@pytest.mark.parametrize("program", ["import utils.startup", "import models"])
def test_python_that_is_too_old_is_refused_in_one_sentence(program):
    old = f"import sys; sys.version_info = (3, 9, 18, 'final', 0); {program}"
    command = [sys.executable, "-c", old]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: Kestrel needs Python 3.10 or newer, but {sys.executable} is 3.9.18: start it with "
        "a newer one, such as python3.12\n"
    )
