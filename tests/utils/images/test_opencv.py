"""utils/images/opencv.py: the error message on a machine without the system libraries of OpenCV."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_missing_opencv_library_gives_one_line_error(tmp_path):
    """A fake cv2 that fails like the real one if libGL is missing."""
    message = "libGL.so.1: cannot open shared object file"
    (tmp_path / "cv2.py").write_text(f"raise ImportError({message!r})\n")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import train"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert message in done.stderr
    assert "opencv-python-headless" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().count("\n") == 0


def test_only_opencv_module_imports_cv2():
    for file in [
        *ROOT.glob("*.py"),
        *(p for d in ("utils", "models", "data", "training") for p in (ROOT / d).rglob("*.py")),
    ]:
        if file.name != "opencv.py":
            assert "import cv2" not in file.read_text().replace(
                "from utils.images.opencv import cv2", ""
            ), file
