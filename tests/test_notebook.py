"""docs/detect.ipynb: its cells run from top to bottom, with a training of one epoch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    """In a copy of the project, because it writes runs/, with fewer generated images; the last line
    of a cell is shown, as in a notebook.
    """
    copy = tmp_path / "kestrel"
    for name in ("data", "models", "training", "utils", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for script in ROOT.glob("*.py"):
        shutil.copy(script, copy)
    drawing = copy / "data" / "shapes" / "generate.py"
    text = drawing.read_text()
    assert "train: int = 1000,\n    val: int = 200," in text
    drawing.write_text(text.replace("int = 1000", "int = 64").replace("int = 200", "int = 8"))

    code = "\n".join(cells("code"))
    assert "EPOCHS = 13\n" in code
    code = code.replace("EPOCHS = 13\n", "EPOCHS = 1\n").replace("confidence=0.5", "confidence=0.0")
    code = code.replace("results[0]\n\n", "print(len(results[0]._repr_png_()))\n", 1)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=copy / "docs", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (copy / "runs/train/notebook/detected.jpg").stat().st_size > 1000
    assert '"detections": [{"box_xyxy"' in done.stdout
