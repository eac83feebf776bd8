"""`python -m models NAME`: the layer table as text."""

import pytest

from models.__main__ import main
from tests.support.own_process import run_program


def test_models_command_prints_the_table(capsys):
    main(["yolov5s.yaml"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[5].split()[:5] == ["4", "3", "2", "115,712", "C3"]
    assert lines[-1] == "7,235,389 parameters, 16.4 GFLOPs at 640"


def test_models_command_rejects_bad_image_size_in_one_line():
    with pytest.raises(ValueError, match=r"^--img 100: must be a multiple of the stride, 32$"):
        main(["yolov5s.yaml", "--img", "100"])


@pytest.mark.slow
def test_models_command_runs_as_a_process(tmp_path):
    code = "import runpy; runpy.run_module('models', run_name='__main__', alter_sys=True)"
    done = run_program(code, "yolov5n", "--nc", 3, "--img", 320, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    # 80 - 3 = 77 classes less: 3 anchors * (64 + 128 + 256 channels + 3 biases) * 77 = 104,181
    # parameters less
    assert done.stdout.splitlines()[-1].startswith(f"{1_872_157 - 104_181:,} parameters, ")
