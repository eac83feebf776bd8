"""benchmarks/gpu.py: one run of the quick stages that a CPU can run, with its reports."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.own_process import run_program

QUICK = ["machine", "data", "uploads", "losses", "nms"]
# Stages are forked from the benchmark's process, which must not have computed gradients in several
# threads: a process of tests that has exported models has.
SMALL_STAGES = """
import sys

from benchmarks import gpu
from benchmarks.on_gpu.stage import Sizes

model, *arguments = sys.argv[1:]
gpu.SMALL = Sizes(
    img=64,
    model=model,
    batch=4,
    workers=0,
    check_models=(model,),
    check_img=64,
    check_batch=2,
    models=(model,),
    copy_bytes=2**20,
    matrix=64,
)
gpu.main(arguments)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_quick_stages_find_nothing_wrong_on_a_cpu(
    tiny_data: Path, micro_model: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    flags = ["--device", "cpu", "--small", "--data", tiny_data, "--out", out, "--stages", *QUICK]
    done = run_program(SMALL_STAGES, micro_model, *flags, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    stored = json.loads((out / "gpu.json").read_text())
    outcomes = {stage["stage"]: stage["status"] for stage in stored["stages"]}
    assert outcomes == dict.fromkeys(QUICK, "passed")
    report = (out / "gpu.md").read_text()
    assert all(f"| {name} | passed |" in report for name in QUICK)
    assert (out / "gpu.log").exists()
