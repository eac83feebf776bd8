"""Atomic writes: interrupted, on a full or read-only disk, and in a removed folder."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import train
from tests.support.launching import small_run_flags
from utils.files import checkpoint_file
from utils.files.atomic import atomic_write, copy_file, name_os_errors
from utils.files.folders import remove_partial_files
from utils.files.writers import write_csv
from utils.terminal import FaultError, exit_code_of


def test_full_disk_is_said_of_the_copy(tmp_path, monkeypatch):
    """Python's own error names the file that is read."""
    source = tmp_path / "a.png"
    source.write_bytes(b"pixels")

    def full(file, _target):
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match=r"No space.*out\.png"):
        copy_file(str(source), tmp_path / "out.png")
    with pytest.raises(FileNotFoundError, match=r"none\.png"):
        copy_file(str(tmp_path / "none.png"), tmp_path / "out.png")


def test_os_error_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"No space.*last\.pt"), name_os_errors(tmp_path / "last.pt"):
        raise OSError(28, "No space left on device")


def test_only_partial_files_are_removed(tmp_path):
    (tmp_path / "weights").mkdir()
    partial = ["weights/last.pt.tmp.12", ".labels.png.tmp.345", "results.csv.tmp.6"]
    complete = ["weights/last.pt", "notes.tmp.txt", "results.csv"]
    for name in partial + complete:
        (tmp_path / name).touch()
    remove_partial_files(tmp_path)
    assert all((tmp_path / name).exists() for name in complete)
    assert not any((tmp_path / name).exists() for name in partial)
    remove_partial_files(tmp_path / "nowhere")


def test_two_writers_of_one_file_have_temporary_files_of_their_own(tmp_path):
    """Process ids repeat between containers that share a disk."""
    file = tmp_path / "train.txt"
    with atomic_write(file) as one, atomic_write(file) as other:
        one.write_text("one")
        other.write_text("other")
    assert file.read_text() == "one"  # which ended last
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("numbers", [10, 1_000_000])
def test_checkpoint_save_on_full_disk_keeps_old_file(tmp_path, monkeypatch, numbers):
    """Without our handling torch would raise `unexpected pos 1778688 vs 1778584`."""
    file = tmp_path / "last.pt"
    checkpoint_file.save(file, {"model": torch.zeros(3)})
    before = file.read_bytes()
    real = open
    monkeypatch.setattr(
        "builtins.open",
        lambda path, *rest: real("/dev/full" if ".tmp." in str(path) else path, *rest),
    )
    with pytest.raises(OSError, match="No space left on device") as error:
        checkpoint_file.save(file, {"model": torch.zeros(numbers)})
    assert Path(error.value.filename) == file
    assert file.read_bytes() == before


@pytest.fixture
def limit_file_size(monkeypatch):
    """limit_file_size(bytes) limits the size of files, as `ulimit -f` does, until the test ends."""
    resource = pytest.importorskip("resource", reason="needs POSIX resource limits")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [64, 5_000, 300_000])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("last.pt", lambda file: checkpoint_file.save(file, {"model": torch.zeros(100_000)})),
        ("results.csv", lambda file: write_csv(file, [{"epoch": 1.5, "lr": 0.01}] * 50_000)),
    ],
)
def test_write_above_file_size_limit_keeps_old_file(
    tmp_path, limit_file_size, capsys, name, write, size
):
    """Each file would have 400 kB."""
    file = tmp_path / name
    file.write_text("old")
    limit_file_size(size)
    assert exit_code_of(lambda: write(file)) == 1
    assert (
        capsys.readouterr().err
        == f"error: {file}: File too large (over the limit of ulimit -f or of the disk)\n"
    )
    assert (file.read_text(), list(tmp_path.iterdir())) == ("old", [file])


def test_atomic_write_is_all_or_nothing(tmp_path):
    file = tmp_path / "a.txt"
    with atomic_write(file) as temporary:
        temporary.write_text("old")
        assert not file.exists()

    def stopped_in_the_middle():
        with atomic_write(file) as temporary:
            temporary.write_text("new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped_in_the_middle()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_write_into_missing_folder_is_reported(tmp_path):
    message = r"gone/a\.txt: its folder no longer exists"
    with (
        pytest.raises(FaultError, match=message),
        atomic_write(tmp_path / "gone" / "a.txt") as file,
    ):
        file.write_text("a")
    with pytest.raises(FaultError, match="its folder no longer exists"):
        checkpoint_file.save(tmp_path / "gone" / "last.pt", {})
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "a.txt"):
        (tmp_path / "other").read_text()


# ---------------------------------------------------------------------- training on a failing disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A 14 MB disk: the tiny model's checkpoints have 5.8 and 1.9 MB, and a new one is written
    beside the old one.
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=14m", "tmpfs", disk], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill_disk(run: Path) -> None:
    (run.parent / "others").write_bytes(bytes(shutil.disk_usage(run).free - 2_000_000))


def remount_read_only(run: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", run.parent], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_disk", "sentence", "has_checkpoints"),
    [
        (fill_disk, r"error: \S+/exp/weights/last\.pt: No space left on device\n", True),
        (remount_read_only, r"error: \S+/exp/results\.csv: Read-only file system\n", True),
        (shutil.rmtree, r"error: \S+/exp/results\.csv: its folder no longer exists\n", False),
    ],
    ids=["full", "read-only", "gone"],
)
def test_disk_failure_ends_run_with_one_line_and_old_checkpoint(
    small_disk,
    tiny_data,
    tiny_model,
    tmp_path,
    monkeypatch,
    capsys,
    break_disk,
    sentence,
    has_checkpoints,
):
    run = small_disk / "exp"
    real, epochs = train.train_one_epoch, iter(range(1, 9))

    def train_and_break(*arguments, **keywords):
        if next(epochs) == 3:
            break_disk(run)
        return real(*arguments, **keywords)

    monkeypatch.setattr(train, "train_one_epoch", train_and_break)
    monkeypatch.setattr(
        "training.run.lock_folder", lambda folder: None
    )  # an open lock file would prevent remounting the disk
    flags = small_run_flags(
        tiny_data,
        tiny_model,
        small_disk,
        "--epochs",
        "9",
        "--noval",
        "--cache-dir",
        str(tmp_path / "cache"),
    )
    assert exit_code_of(lambda: train.run_script(flags)) == 1
    assert re.fullmatch(sentence, capsys.readouterr().err)
    if has_checkpoints:
        assert checkpoint_file.load(run / "weights" / "last.pt")["epoch"] == 2
        assert checkpoint_file.load(run / "weights" / "best.pt")["epoch"] == 2
        assert sorted(file.name for file in (run / "weights").iterdir()) == ["best.pt", "last.pt"]
