"""docs/detect.ipynb: its cells run from top to bottom, with a training of one epoch."""

import json
from pathlib import Path

import pytest

from data.shapes.generate import generate
from tests.support.own_process import run_program

ROOT = Path(__file__).parents[1]


def cells(kind: str) -> list[str]:
    """The texts of the notebook's cells of one kind."""
    content = json.loads((ROOT / "docs" / "detect.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


def test_notebook_has_text_and_code_that_python_can_read():
    for text in cells("code"):
        compile(text, "docs/detect.ipynb", "exec")
    assert len(cells("markdown")) > 5 < len(cells("code"))


@pytest.mark.slow
def test_notebook_runs_from_top_to_bottom(tmp_path):
    """In a folder of its own, because it writes runs/, with a shapes.yaml of fewer images; the last
    line of a cell is shown, as in a notebook.
    """
    folder = generate(tmp_path / "kestrel", train=32, val=4)
    (folder / "train.py").touch()  # by which the notebook knows the folder of Kestrel
    docs = folder / "docs"
    docs.mkdir()

    code = "\n".join(cells("code"))
    assert "EPOCHS = 13\n" in code
    code = code.replace("EPOCHS = 13\n", "EPOCHS = 1\n").replace("confidence=0.5", "confidence=0.0")
    code = code.replace("results[0]\n\n", "print(len(results[0]._repr_png_()))\n", 1)
    done = run_program(code, folder=docs)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "runs/train/notebook/detected.jpg").stat().st_size > 1000
    assert '"detections": [{"box_xyxy"' in done.stdout
