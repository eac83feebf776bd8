"""utils/files/atomic.py: a folder is replaced as a whole, or stays as it was."""

import os
from pathlib import Path

import pytest

from utils.files.atomic import replace_folder, temporary_folder


def fill(folder: Path, name: str) -> Path:
    with temporary_folder(folder) as temporary:
        (temporary / "new").mkdir()
        (temporary / "new" / name).write_text(name)
        assert temporary.parent == folder.parent
        replace_folder(temporary / "new", folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_folder_is_created_and_replaced(tmp_path):
    folder = fill(tmp_path / "m", "first")
    assert names(folder) == ["first"]
    fill(folder, "second")
    assert names(folder) == ["second"]
    assert names(tmp_path) == ["m"]


def test_after_an_error_the_old_folder_stays(tmp_path):
    def fail(temporary):
        (temporary / "half").touch()
        raise KeyError

    folder = fill(tmp_path / "m", "first")
    for path in (folder, tmp_path / "new"):
        with pytest.raises(KeyError), temporary_folder(path) as temporary:
            fail(temporary)
    assert (names(folder), names(tmp_path)) == (["first"], ["m"])


def test_old_folder_returns_if_the_new_one_cannot_be_renamed(tmp_path, monkeypatch):
    folder, replace = fill(tmp_path / "m", "first"), os.replace

    def refuse(source, target):
        if Path(source).name == "new":
            raise PermissionError(13, "in use")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError) as caught:
        fill(folder, "second")
    assert caught.value.filename == str(folder)
    assert (names(folder), names(tmp_path)) == (["first"], ["m"])


def test_temporary_folders_of_one_path_do_not_meet(tmp_path):
    with temporary_folder(tmp_path / "m") as first, temporary_folder(tmp_path / "m") as second:
        assert first != second
    assert names(tmp_path) == []


def test_os_errors_name_the_folder(tmp_path):
    with pytest.raises(OSError) as caught, temporary_folder(tmp_path / "missing" / "m"):
        pass
    assert caught.value.filename == str(tmp_path / "missing" / "m")
