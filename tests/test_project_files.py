"""CHANGELOG.md, CITATION.cff, .github/ and .pre-commit-config.yaml agree with the code and with
each other.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from models.loading import load_backend
from utils import __version__

ROOT = Path(__file__).parents[1]


def read_yaml(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def developer_version(package: str) -> str:
    """The version of a package that requirements-dev.txt pins."""
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}==")).partition("==")[2]


def test_changelog_and_citation_state_the_version():
    """That of checkpoints is tested in test_run.py."""
    newest = re.search(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest.group(1) == __version__
    assert read_yaml("CITATION.cff")["version"] == __version__


@pytest.mark.parametrize("script", ["train.py", "val.py", "detect.py", "export.py"])
def test_script_prints_the_version_without_importing_torch(script):
    code = f"import sys, runpy; sys.argv = [{script!r}, '--version']\n"
    code += f"try:\n    runpy.run_path({script!r}, run_name='__main__')\n"
    code += "finally:\n    assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"Kestrel {__version__}\n", "")


@pytest.mark.slow
def test_exported_file_states_the_version(exports):
    backend = load_backend(exports("torchscript", "--img", "64"), torch.device("cpu")).backend
    assert backend.model.kestrel_version == __version__


def test_citation_has_what_its_schema_requires():
    """Keys of the Citation File Format 1.2.0."""
    citation = read_yaml("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == "Apache-2.0"


def test_workflow_runs_the_checks_with_the_oldest_python():
    workflow = read_yaml(".github/workflows/ci.yml")
    steps = workflow["jobs"]["checks"]["steps"]
    assert steps[-1] == {"run": ".ci/run"}
    pythons = next(step["with"]["python-version"] for step in steps if "with" in step).split()
    assert "3.10" in pythons
    assert "Python 3.10 or newer" in (ROOT / "requirements.txt").read_text()


def test_hooks_have_the_versions_of_the_requirements():
    repositories = read_yaml(".pre-commit-config.yaml")["repos"]
    ruff = next(entry for entry in repositories if "ruff" in entry["repo"])
    assert ruff["rev"] == f"v{developer_version('ruff')}"
    hooks = {hook["id"]: hook for entry in repositories for hook in entry["hooks"]}
    assert hooks.keys() == {"ruff-check", "ruff-format", "mypy"}
    assert hooks["mypy"]["name"] == f"mypy {developer_version('mypy')}"


def test_issue_forms_ask_for_a_command_and_a_version():
    forms = {file.stem: file for file in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    assert forms.keys() == {"bug", "feature", "config"}
    fields = {field["id"] for field in read_yaml(".github/ISSUE_TEMPLATE/bug.yml")["body"]}
    assert fields >= {"command", "output", "version"}
