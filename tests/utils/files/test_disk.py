"""utils/files/disk.py: free disk space, and locks on folders."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from utils.files.disk import (
    _locked,
    exclusive_access,
    format_bytes,
    lock_folder,
    require_free_space,
)
from utils.terminal import FaultError

ROOT = Path(__file__).parents[3]
LOCK_HOLDER = (
    "import sys, time; from pathlib import Path; from utils.files.disk import lock_folder; "
)
LOCK_HOLDER += "held = lock_folder(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_exclusive_access_locks_and_cleans_up_folder(tmp_path):
    folder = tmp_path / "a" / "work"
    with exclusive_access(folder):
        inside = os.open(folder / "lock", os.O_RDWR)
        assert not _locked(inside)
        (folder / "kept").touch()
    assert _locked(inside)
    os.close(inside)
    assert sorted(os.listdir(folder)) == ["kept", "lock"]
    with exclusive_access(folder):
        (folder / "kept").unlink()
    assert os.listdir(tmp_path / "a") == []


def test_required_free_space_and_byte_format(tmp_path):
    require_free_space(tmp_path, 0)
    with pytest.raises(FaultError, match=r"the disk has .* free, but 1.00 EB are needed"):
        require_free_space(tmp_path, 10**18)
    assert [format_bytes(n) for n in (0, 999, 1000, 2**31)] == [
        "0 bytes",
        "999 bytes",
        "1.00 kB",
        "2.15 GB",
    ]


def test_folder_lock_is_held_until_its_process_ends(tmp_path, monkeypatch):
    """The lock is held as long as that process runs, and no longer; its children do not keep it."""
    other = subprocess.Popen([sys.executable, "-c", LOCK_HOLDER, tmp_path], stdout=-1, cwd=ROOT)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(
            ValueError,
            match="another run is writing there; wait for its end, or choose another --name",
        ):
            lock_folder(tmp_path, wait_s=0.3)
    finally:
        other.kill()
        other.communicate()
    monkeypatch.setattr(
        time, "sleep", None
    )  # an attempt to wait would fail: the lock must be free at once
    first = lock_folder(tmp_path)
    first.release()
    first.release()
    lock_folder(tmp_path).release()


def test_lock_folder_works_on_disk_without_locks(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> bool:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("utils.files.disk._locked", refuse)
    lock_folder(tmp_path).release()
    with (
        pytest.raises(FaultError, match="this disk does not support file locks"),
        exclusive_access(tmp_path / "work"),
    ):
        pass
