"""data/splits.py: opening data sets by name."""

import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from data import Choices, open_data, open_dataset, splits
from tests.support.tiny_data import NAMES, draw_tiny_data
from utils.distributed.world import World
from utils.files.folders import new_run_folder

CPU = World(torch.device("cpu"))


def test_open_data_generates_only_the_shapes_dataset(tiny_data, monkeypatch):
    drawn = []
    monkeypatch.setattr("data.layouts.opening.generate", drawn.append)
    assert open_data(str(tiny_data)).file == tiny_data
    assert drawn == []
    assert [open_data("shapes.yaml").root] == drawn


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
    no_val = Choices(val_split=0)  # none is held out
    assert open_data(str(file)) == open_data(str(file), splits=("train",))
    with pytest.raises(ValueError) as refusal:
        open_data(str(file), splits=("train", "val"), choices=no_val)
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


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, r"no images in .*/images"),
        (
            "",
            r"no labels for 1 image: those of the first image .*/a\.png should be in .*a\.txt, "
            r"which is empty$",
        ),
        (
            "0,.5",
            r"none of 1 images can be used; the first problem is .*a\.txt line 1: '0,\.5' has "
            r"commas",
        ),
    ],
)
def test_error_of_empty_split_names_it(tmp_path, rows, message):
    (tmp_path / "images").mkdir()
    if rows is not None:
        cv2.imwrite(str(tmp_path / "images" / "a.png"), np.zeros((9, 9, 3), np.uint8))
        (tmp_path / "labels").mkdir()
        (tmp_path / "labels" / "a.txt").write_text(rows)
    (tmp_path / "data.yaml").write_text("train: images\nval: images\nnames: [a]\n")
    spec = open_data(str(tmp_path / "data.yaml"))
    with pytest.raises(ValueError, match=f"^'val' of {tmp_path}/data.yaml: {message}"):
        splits.read_split(spec, "val", cache_dir=str(tmp_path / "cache"), progress=False)


def test_user_without_home_folder_gets_no_cache(tiny_data, monkeypatch):
    def no_home() -> Path:
        raise RuntimeError(
            "Could not determine home directory."
        )  # as for a user id unknown to the system

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert splits.cache_folder("") is None
    spec = open_data(str(tiny_data))
    labels, report = splits.read_split(spec, "train", cache_dir="", progress=False)
    assert len(labels) == 8
    assert report.cache == "not cached: no home folder, and no --cache-dir"


def test_run_folders_in_the_data_are_said_once(tmp_path):
    """Not for each split that is in the same folder."""
    file = draw_tiny_data(tmp_path / "data")
    file.write_text(f"path: .\ntrain: .\nval: .\nnames: [{', '.join(NAMES)}]\n")
    run = new_run_folder(tmp_path / "data" / "runs", "exp", exist_ok=False)
    shutil.copy(tmp_path / "data" / "images" / "0.png", run)
    said: list[str] = []
    reading = {"download": False, "single_class": False, "cache_dir": str(tmp_path / "cache")}
    data = open_dataset([str(file)], ("train", "val"), CPU, **reading)
    assert [len(data.read(split, said.append)) for split in ("train", "val")] == [8, 8]
    told = [line for line in said if "run folder" in line]
    assert told == [
        f"{tmp_path / 'data'}: 1 image left out in 1 run folder, results of train.py, val.py or "
        f"detect.py, as in {run}"
    ]


@pytest.fixture
def open_tiny(tiny_data):
    """open_tiny(folder) opens a data set with this cache folder, and returns what is said."""

    def open_with(cache: Path) -> list[str]:
        said: list[str] = []
        reading = {"download": False, "single_class": False, "cache_dir": str(cache)}
        open_dataset([str(tiny_data)], ("train", "val"), CPU, said.append, **reading)
        return said

    return open_with


def test_cache_folder_that_cannot_be_created_is_found_before_the_scan(open_tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError) as refusal:
        open_tiny(tmp_path / "file" / "cache")
    assert str(refusal.value) == (
        f"{tmp_path}/file/cache: cannot be created (Not a directory); --cache-dir names another "
        "folder"
    )


def test_cache_folder_that_cannot_be_written_is_said_before_the_scan(
    open_tiny, tmp_path, monkeypatch
):
    """It may hold the results of an earlier scan: a cluster's shared folder."""
    assert open_tiny(tmp_path) == []
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    assert open_tiny(tmp_path) == [f"--cache-dir {tmp_path} cannot be written: it is only read"]
