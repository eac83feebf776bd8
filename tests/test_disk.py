"""Room on a disk, and folders that one process at a time writes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from utils.disk import _locked, amount, hold_alone, require_room, sole_worker
from utils.terminal import FaultError

ROOT = Path(__file__).parents[1]
HOLDER = "import sys, time; from pathlib import Path; from utils.disk import hold_alone; "
HOLDER += "held = hold_alone(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_one_process_at_a_time(tmp_path):
    folder = tmp_path / "a" / "work"
    with sole_worker(folder):
        inside = os.open(folder / "lock", os.O_RDWR)
        assert not _locked(inside)
        (folder / "kept").touch()
    assert _locked(inside)
    os.close(inside)
    assert sorted(os.listdir(folder)) == ["kept", "lock"]
    with sole_worker(folder):
        (folder / "kept").unlink()
    assert os.listdir(tmp_path / "a") == []


def test_room(tmp_path):
    require_room(tmp_path, 0)
    with pytest.raises(FaultError, match=r"1.00 EB are needed there, .* are free"):
        require_room(tmp_path, 10**18)
    assert [amount(n) for n in (0, 999, 1000, 2**31)] == ["0 bytes", "999 bytes", "1.00 kB", "2.15 GB"]


def test_a_folder_that_another_process_holds(tmp_path):
    """As long as that lives, and no longer; its children do not keep it."""
    other = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=-1, cwd=ROOT)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(
            ValueError, match="another run is writing there; wait for its end, or choose another --name"
        ):
            hold_alone(tmp_path, patience_s=0.3)
    finally:
        other.kill()
        other.communicate()
    began = time.monotonic()
    first = hold_alone(tmp_path)
    assert time.monotonic() - began < 1
    first.let_go()
    first.let_go()
    hold_alone(tmp_path).let_go()


def test_a_disk_without_locks_counts_as_free(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("utils.disk._locked", refuse)
    hold_alone(tmp_path).let_go()
    with pytest.raises(FaultError, match="this disk cannot keep two processes apart"), sole_worker(tmp_path / "work"):
        pass
