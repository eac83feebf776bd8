"""benchmarks/scaling.py: its arithmetic checked by hand, its counts of collectives, and a run in
one process.
"""

import doctest
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks import scaling, scaling_report
from benchmarks.scaling import Ledger
from benchmarks.scaling_report import SMALL_MESSAGE, Losses, Measured
from benchmarks.timed_steps import Setting
from data.shapes.generate import generate
from utils.distributed.sync_bn import SyncBatchNorm2d
from utils.distributed.world import World

ONE = Measured(
    1, device="CPU, 1 threads", precision="float32", step=[0.100] * 5, fed=[0.110] * 5, waiting=0.1
)
TWO = Measured(
    2,
    backend="gloo",
    gradient_bytes=8_000_000,
    step=[0.150] * 5,
    shared_out=[0.080] * 5,
    silent=[0.130] * 5,
    every_batch=[0.600] * 5,
    last_batch=[0.540] * 5,
    fed=[0.200] * 5,
    waiting=0.05,
    moved={"gradients": [2, 8_000_000, 8_000_000.0], "SyncBN": [10, 400, 400.0]},
    alone=[(SMALL_MESSAGE, [0.001] * 3), (8_000_000, [0.004] * 3)],
)


def test_scaling_doctests_pass():
    assert doctest.testmod(scaling).failed == doctest.testmod(scaling_report).failed == 0


def test_time_losses_match_hand_computed_values():
    # 130 - 100 ms lost by sharing, 150 - 130 by the exchange; 8 MB at 2 GB/s take 4 ms; 10 small
    # messages take 10 ms
    lost = Losses.of(ONE, TWO)
    assert (lost.sharing, lost.exchange) == (pytest.approx(0.030), pytest.approx(0.020))
    assert (lost.ring, lost.small) == (pytest.approx(0.004), pytest.approx(0.010))
    assert scaling_report.bandwidth(TWO, 8_000_000) == pytest.approx(2e9)  # 2(2-1)/2 * 8 MB in 4 ms


def test_scaling_report_contains_hand_computed_values():
    text = scaling_report.report([ONE, TWO], Setting(cfg="yolov5n.yaml", batch=4))
    # weak: 2 * 4 images in 150 ms, 100 / 150; strong: 4 images in 80 ms, 100 / (2 * 80)
    two = "| 2 | 150.0 (150.0 to 150.0) | 53.3 | 66.7% | 80.00 (80.00 to 80.00) | 50.0 | 62.5% |"
    assert two in text.splitlines()
    assert "| 1 | 100.0 (100.0 to 100.0) | 40.0 | 100.0% |" in text
    assert "| 30.00 | 20.00 | 4.00 | 10.00 |" in text
    assert "| 10.0% |" in text  # 540 of 600 ms: saved by no_sync
    assert "+50.0 ms (+50%)" in text
    assert "The limit is sharing the machine." in text
    assert scaling_report.ON_A_CPU in text
    alone = scaling_report.report([ONE], Setting())
    assert "| 1 | 0 | 100.0 (100.0 to 100.0) | 110.0 (110.0 to 110.0) | 10.0% |" in alone
    assert "N = " not in alone


def test_ledger_counts_collective_calls_and_bytes(monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, *rest: tensor)
    monkeypatch.setattr(dist, "all_gather", lambda parts, tensor: parts)
    plain, ledger = dist.all_reduce, Ledger(size=4)
    values = torch.zeros(
        10
    )  # 40 bytes; in a ring of 4, an all-reduce sends 1.5 times as much, an all-gather 3 times
    with ledger.open():
        ledger.turn()
        assert dist.all_reduce(values) is values
        dist.all_reduce(values)
        dist.all_gather([values] * 4, values)
        ledger.turn()
    assert dist.all_reduce is plain
    assert ledger.pages == [{__name__: [3, 120, 60 + 60 + 120]}, {}]


def test_modules_that_call_collectives_are_listed():
    assert {World.all_reduce_sum.__module__, SyncBatchNorm2d.__module__} <= scaling.SENDERS.keys()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--processes", "2", "4"], "--processes 2 4: the smallest must be 1"),
        (["--processes", "0", "1"], "--processes 0 1: the smallest must be 1"),
        (
            ["--processes", "1", "3", "--batch", "8"],
            r"--batch 8: must be a positive multiple of 3 \(--processes\)",
        ),
        (["--batch", "0"], "--batch 0: must be a positive multiple of 1 "),
        (["--proceses", "1"], "did you mean --processes"),
    ],
)
def test_invalid_scaling_flags_are_refused(words, text):
    with pytest.raises(ValueError, match=text):
        scaling.main(words)


def test_scaling_measures_one_process(monkeypatch, tmp_path, tiny_model):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    generate(tmp_path / "shapes", train=2, val=1, size=64)
    flags = [
        "--cfg",
        tiny_model,
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
        p.numel() for p in scaling.build_model(tiny_model, 80).parameters()
    )
    assert Path(tiny_model).stem in scaling_report.report([found], Setting(cfg=tiny_model))
