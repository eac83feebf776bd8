"""benchmarks/gpu.py: one run of the quick stages that a CPU can run, with its reports."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.on_gpu.stage import Sizes

QUICK = ["machine", "data", "uploads", "losses", "nms"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_quick_stages_find_nothing_wrong_on_a_cpu(
    tiny_data: Path, micro_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Sizes(
        img=64,
        model=micro_model,
        batch=4,
        workers=0,
        check_models=(micro_model,),
        check_img=64,
        check_batch=2,
        models=(micro_model,),
        copy_bytes=2**20,
        matrix=64,
    )
    monkeypatch.setattr(gpu, "SMALL", small)
    flags = ["--device", "cpu", "--small", "--data", str(tiny_data), "--out", str(tmp_path / "out")]
    unlimited = [
        "--minutes",
        "1e6",
    ]  # they count from the start of the process, which runs all tests
    gpu.main([*flags, *unlimited, "--stages", *QUICK])

    stored = json.loads((tmp_path / "out" / "gpu.json").read_text())
    outcomes = {stage["stage"]: stage["status"] for stage in stored["stages"]}
    assert outcomes == dict.fromkeys(QUICK, "passed")
    report = (tmp_path / "out" / "gpu.md").read_text()
    assert all(f"| {name} | passed |" in report for name in QUICK)
    assert (tmp_path / "out" / "gpu.log").exists()
