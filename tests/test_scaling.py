"""benchmarks/scaling.py: a run in one process, and its report."""

import json
from pathlib import Path

from benchmarks import scaling, scaling_report
from benchmarks.scaling_report import Measured
from benchmarks.timed_steps import Setting
from data.shapes.generate import generate


def test_scaling_measures_one_process(monkeypatch, tmp_path, micro_model):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    generate(tmp_path / "shapes", train=2, val=1, size=64)
    flags = [
        "--cfg",
        micro_model,
        "--img",
        "64",
        "--batch",
        "2",
        "--steps",
        "4",
        "--warmup",
        "1",
        "--amp",
        "fp32",
    ]
    scaling.main([*flags, "--workers", "0", "--processes", "1", "--measure", str(tmp_path)])
    found = Measured(**json.loads((tmp_path / "1.json").read_text()))
    assert (found.processes, found.backend, found.workers) == (1, "", 0)
    assert len(found.step) == len(found.fed) == 4
    assert min(found.step + found.fed) > 0
    assert 0 < found.waiting < 1
    assert found.silent == found.every_batch == found.alone == []
    assert found.gradient_bytes == 4 * sum(
        p.numel() for p in scaling.build_model(micro_model, 80).parameters()
    )
    assert Path(micro_model).stem in scaling_report.report([found], Setting(cfg=micro_model))
