"""benchmarks/trainings/subset.py: the data set that it writes."""

import sys

import pytest

from benchmarks.trainings import subset
from data.images import find_images
from data.layouts import open_data
from utils.terminal import exit_code_of


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["subset.py", *map(str, words)])
    return exit_code_of(subset.main)


@pytest.fixture
def data(tmp_path, tiny_data):
    """A data set of 8 images in all three splits, whose training images are in a list."""
    images = find_images(tiny_data.parent / "images").images
    (tmp_path / "own.txt").write_text("\n".join(images))
    (tmp_path / "own.yaml").write_text(
        f"train: own.txt\nval: {tiny_data.parent}/images\ntest: {tiny_data.parent}/images\nnames: "
        "[a, b, c]\n"
    )
    return tmp_path / "own.yaml"


def test_subset_has_fewer_training_images_and_the_other_splits(data, tmp_path, monkeypatch):
    for out in ("new/a.yaml", "new/b.yaml"):
        assert run(monkeypatch, "--data", data, "--images", 5, "--out", tmp_path / out) == 0
    first, second = (open_data(str(tmp_path / "new" / name)) for name in ("a.yaml", "b.yaml"))
    own = open_data(str(data))
    drawn = find_images(first.sources("train")[0]).images
    assert len(drawn) == 5
    assert set(drawn) < set(find_images(own.sources("train")[0]).images)
    assert drawn == find_images(second.sources("train")[0]).images  # the same for the same seed
    assert (first.val, first.test, first.names) == (own.val, own.test, own.names)
    assert (
        run(
            monkeypatch,
            "--data",
            data,
            "--images",
            5,
            "--seed",
            1,
            "--out",
            tmp_path / "new" / "c.yaml",
        )
        == 0
    )
    assert find_images(tmp_path / "new" / "c.txt").images != drawn
