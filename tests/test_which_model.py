"""benchmarks/detection/which_model.py: its columns are right, and docs/models.md has its table."""

import doctest
import json
from pathlib import Path

import pytest

from benchmarks.detection import which_model
from benchmarks.detection.which_model import FREE_AP, MODELS, PLACE, RUNTIMES, SIZES, Times

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


def test_small_run_measures_and_files_a_table(tmp_path, capsys, monkeypatch):
    """In this process; a run measures in others, with the same flags."""
    main = which_model.main

    def measure_here(file, options):
        main(["--only", str(file), "--sizes", "64", "--images", "2", "--threads", "1"])
        read = json.loads(capsys.readouterr().out)
        return {int(size): Times(*values) for size, values in read.items()}

    monkeypatch.setattr(which_model, "measure_in_process", measure_here)
    out = tmp_path / "table.md"
    flags = ["--runtimes", "torch", "--sizes", "64", "--out", str(out), "--about", "a test"]
    main(["--models", str(MICRO), *flags])
    lines = out.read_text().splitlines()
    assert lines[4].startswith("| `micro` | 0.1 | 0.5 | none | ")
    assert float(lines[4].split("|")[5]) > 0
    assert lines[6].startswith("Milliseconds per image, medians; a test, 2 threads, torch ")

    # A model that is not begun in time is left out.
    main(["--models", str(MICRO), *flags, "--minutes", "0"])
    assert out.read_text().splitlines()[4].endswith("| none | - |")
    assert "micro.yaml: left out, after 0 minutes" in capsys.readouterr().err


@pytest.mark.slow
def test_page_has_the_table_of_all_models():
    """What does not depend on the machine: names, parameters, GFLOPs, AP; and the columns."""
    begin, end = PLACE
    between = PAGE.read_text().partition(begin)[2].partition(end)[0]
    header, _, *rows = [line for line in between.splitlines() if line.startswith("|")]
    assert [row.split("`")[1] for row in rows] == list(MODELS)

    # Counting takes a second for each model, so of two.
    counted = [MODELS[0], MODELS[3]]
    expected = which_model.table_lines(counted, list(RUNTIMES), SIZES, {}, "")[2].splitlines()
    assert header == expected[0]
    own_columns = [row.split("|")[:5] for row in (rows[0], rows[3])]
    assert own_columns == [row.split("|")[:5] for row in expected[2:]]
    for row, name in zip(rows, MODELS, strict=True):
        assert row.split("|")[4].strip() == FREE_AP.get(name, "none")
