"""benchmarks/accuracy.py: one whole run of it, beside a program that writes results.csv."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

import pytest

from benchmarks import accuracy
from benchmarks.trainings import run
from tests.support.launching import ForkedProcess, forked_script
from utils.images.opencv import cv2

PEER = """
import sys, time
from itertools import pairwise
from pathlib import Path
folder = Path(sys.argv[1]) / "run"
folder.mkdir(parents=True)
with open(folder / "results.csv", "w") as file:
    print("epoch,  time, metrics/mAP50(B), metrics/mAP50-95(B)", file=file, flush=True)
    for epoch, value in enumerate((0.1, 0.45, 0.5, 0.4)):
        time.sleep(0.3)
        print(f"{epoch}, 1, {value + 0.2}, {value}", file=file, flush=True)
"""


@pytest.fixture
def peer(tmp_path):
    """The command of a program that writes results.csv as Ultralytics does, and no checkpoint."""
    (tmp_path / "peer.py").write_text(PEER)
    return f"{sys.executable} {tmp_path / 'peer.py'} {{out}}"


@pytest.mark.slow
def test_whole_benchmark(peer, tmp_path, tiny_data, micro_model, monkeypatch, capsys):
    """Our training and a peer's: a table, a picture, and best.pt measured by val.py.

    The processes of train.py and val.py are forked.
    """
    really_start = run.start

    def start(
        command: Sequence[str], output: IO[str], threads: int
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        if str(tmp_path / "peer.py") in command:
            return really_start(command, output, threads)
        return forked_script(command, tmp_path / "processes")

    words = ["--data", str(tiny_data), "--models", micro_model, "--out", str(tmp_path / "out")]
    words += ["--seeds", "0", "--recipe", "auto=", "--peer", f"Peer={peer}", "--threads", "1"]
    ours = f"--img 64 --epochs 2 --batch 4 --device cpu --workers 0 --cache-dir {tmp_path}".split()
    monkeypatch.setattr(sys, "argv", ["accuracy.py", *words, "--", *ours])
    monkeypatch.setattr(run, "start", start)
    accuracy.main()
    table = (tmp_path / "out" / "report.md").read_text()
    assert table.strip() in capsys.readouterr().out
    rows = [line.split(" | ")[1:3] for line in table.splitlines() if line.startswith("| tiny")]
    assert rows == [["micro auto", "1"], ["Peer", "1"]]
    stored = json.loads(next((tmp_path / "out").glob("micro-auto_tiny_0_*.json")).read_text())
    assert stored["same_evaluator"]
    assert len(stored["curve"]) == 2
    drawn = cv2.imread(str(tmp_path / "out" / "accuracy.png"))
    assert drawn is not None
    assert drawn.std() > 5
