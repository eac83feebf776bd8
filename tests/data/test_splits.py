"""data/splits.py: opening data sets by name."""

from pathlib import Path

import pytest

from data import splits


def test_open_data_generates_only_the_shapes_dataset(tiny_data, monkeypatch):
    drawn = []
    monkeypatch.setattr(splits, "generate", drawn.append)
    assert splits.open_data(str(tiny_data)).file == tiny_data
    assert drawn == []
    assert [splits.open_data("shapes.yaml").root] == drawn


@pytest.mark.parametrize(
    ("val", "message"),
    [
        ("", "has no 'val' (it has: train)"),
        ("val: nowhere", "'val' is {folder}/nowhere, which does not exist"),
        ("val: [., nowhere.txt]", "'val' is {folder}/nowhere.txt, which does not exist"),
    ],
)
def test_open_data_requires_all_requested_splits(tmp_path, val, message):
    file = tmp_path / "data.yaml"
    file.write_text(f"train: .\n{val}\nnames: [a]\n")
    assert splits.open_data(str(file)) == splits.open_data(str(file), splits=("train",))
    with pytest.raises(ValueError) as refusal:
        splits.open_data(str(file), splits=("train", "val"))
    assert message.format(folder=tmp_path) in str(refusal.value)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"XDG_CACHE_HOME": "/caches", "HOME": "/home/a"}, "/caches/kestrel"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/a"}, "/home/a/.cache/kestrel"),
    ],
)
def test_cache_folder_default_and_override(monkeypatch, variables, folder):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert splits.cache_folder("") == Path(folder)
    assert splits.cache_folder("here") == Path("here")


def test_user_without_home_folder_gets_no_cache(tiny_data, monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")  # as for a user id unknown to the system

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(splits.Path, "home", no_home)
    assert splits.cache_folder("") is None
    spec = splits.open_data(str(tiny_data))
    labels, report = splits.read_split(spec, "train", single=False, cache_dir="", progress=False)
    assert len(labels) == 8
    assert report.cache == "not cached: no home folder, and no --cache-dir"
