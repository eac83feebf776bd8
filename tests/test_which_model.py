"""benchmarks/detection/which_model.py: its columns are right, and docs/models.md has its table."""

import doctest
from pathlib import Path

import pytest

from benchmarks.detection import which_model
from benchmarks.detection.which_model import MODELS, PLACE, RUNTIMES, SIZES, Times

MICRO = Path(__file__).parent / "tables" / "micro.yaml"
PAGE = Path(__file__).parents[1] / "docs" / "models.md"


def test_which_model_doctests_pass():
    assert doctest.testmod(which_model).failed == 0


def test_table_has_a_column_for_each_runtime_and_size():
    times = {64: Times(2.0, 1.9, 2.3), 32: Times(1.0, 1.0, 1.0)}
    measured = {("micro", "torch"): times}
    lines = which_model.table_lines([str(MICRO)], ["torch", "onnx"], [64, 32], measured, "here")
    assert lines[2].splitlines()[-1] == "| `micro` | 0.1 | 0.5 | none | 2.0 | - | 1.0 | - |"
    assert lines[4] == (
        "Milliseconds per image, medians; here. A quartile is at most 15% from its median."
    )


@pytest.mark.slow
def test_small_run_measures_and_files_a_table(tmp_path):
    out = tmp_path / "table.md"
    flags = ["--runtimes", "torch", "--sizes", "64", "--images", "2", "--threads", "1"]
    which_model.main(["--models", str(MICRO), *flags, "--out", str(out), "--about", "a test"])
    row = out.read_text().splitlines()[4]
    assert row.startswith("| `micro` | 0.1 | 0.5 | none | ")
    assert float(row.split("|")[5]) > 0


def test_page_has_the_table_of_all_models():
    """What does not depend on the machine: names, parameters, GFLOPs, AP; and the columns."""
    begin, end = PLACE
    between = PAGE.read_text().partition(begin)[2].partition(end)[0]
    header, _, *rows = [line for line in between.splitlines() if line.startswith("|")]
    expected = which_model.table_lines(MODELS, list(RUNTIMES), SIZES, {}, "")[2].splitlines()
    assert header == expected[0]
    assert [row.split("|")[:5] for row in rows] == [row.split("|")[:5] for row in expected[2:]]
