"""Writing that fails."""

import os
from pathlib import Path

import pytest
import torch

from utils import checkpoint
from utils.files import naming, remove_torn_files, written_whole


def test_the_error_says_which_file(tmp_path):
    with pytest.raises(OSError, match=r"No space.*last\.pt"), naming(tmp_path / "last.pt"):
        raise OSError(28, "No space left on device")


def test_torn_files_go_and_others_stay(tmp_path):
    (tmp_path / "weights").mkdir()
    torn = ["weights/last.pt.tmp.12", ".labels.png.tmp.345", "results.csv.tmp.6"]
    whole = ["weights/last.pt", "notes.tmp.txt", "results.csv"]
    for name in torn + whole:
        (tmp_path / name).touch()
    remove_torn_files(tmp_path)
    assert all((tmp_path / name).exists() for name in whole)
    assert not any((tmp_path / name).exists() for name in torn)
    remove_torn_files(tmp_path / "nowhere")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a file that is always full")
@pytest.mark.parametrize("numbers", [10, 1_000_000])
def test_a_checkpoint_on_a_full_disk(tmp_path, monkeypatch, numbers):
    """torch would say `unexpected pos 1778688 vs 1778584`."""
    file = tmp_path / "last.pt"
    checkpoint.save(file, {"model": torch.zeros(3)})
    before = file.read_bytes()
    real = open
    monkeypatch.setattr("builtins.open", lambda path, *rest: real("/dev/full" if ".tmp." in str(path) else path, *rest))
    with pytest.raises(OSError, match="No space left on device") as full:
        checkpoint.save(file, {"model": torch.zeros(numbers)})
    assert Path(full.value.filename) == file
    assert file.read_bytes() == before


def test_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "a.txt"
    with written_whole(file) as temporary:
        temporary.write_text("old")
        assert not file.exists()

    def stopped_in_the_middle():
        with written_whole(file) as temporary:
            temporary.write_text("new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped_in_the_middle()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
