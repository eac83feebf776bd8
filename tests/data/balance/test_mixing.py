"""Data sets that are mixed with weights: in a data YAML, by --data-weights, and held out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data import Dataset, open_data, open_dataset
from data.balance.mixing import describe_weights, weights_of_images
from data.layouts import Choices
from tests.support.data_sets import image_folder, opened
from utils.distributed.world import World

CPU = World(torch.device("cpu"))


def weights_by_folder(dataset: Dataset) -> dict[str, set[float]]:
    """Return the factors of the training images in each folder."""
    labels = dataset.labels["train"]
    found: dict[str, set[float]] = {}
    for index, factor in enumerate(dataset.draws.factors.tolist()):
        name = Path(labels.path(index)).parent.name
        found.setdefault(name, set()).add(round(factor, 5))
    return found


def write(folder: Path, train: str, **entries: str) -> Path:
    file = folder / "mixed.yaml"
    more = "".join(f"{key}: {value}\n" for key, value in entries.items())
    file.write_text(f"train: {train}\nnames: [cat, dog]\n{more}")
    return file


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of ten images, whose one object is a dog."""
    root = tmp_path_factory.mktemp("sets")
    image_folder(root / "a")
    image_folder(root / "b")
    return root


def test_images_of_a_weighted_source_are_drawn_more_often(folders: Path, tmp_path: Path) -> None:
    file = write(folders, "[{path: a, weight: 2.5}, b]", val="b")
    dataset = opened(file, cache=tmp_path)
    said: list[str] = []
    dataset.balance(0.0, said.append)
    assert weights_by_folder(dataset) == {"a": {2.5}, "b": {1.0}}
    assert dataset.draws.mean_per_pass == 35
    assert said == [
        "data sets are mixed with weights: 10 images x1, 10 images x2.5",
        "an epoch draws 35 images, not 20",
    ]

    # From the cache of the scan, and with repeat factors: dogs are in all images.
    again = opened(file, cache=tmp_path)
    assert "from cache" in again.reports["train"].cache
    again.balance(1.0)
    assert again.draws.digest() == dataset.draws.digest()


def test_repeat_factors_multiply_weights(folders: Path, tmp_path: Path) -> None:
    cats = image_folder(tmp_path / "cats", count=5, row="0 .5 .5 .5 .5")
    file = write(folders, f"[a, b, {{path: {cats}, weight: 0.5}}]", val="b")
    dataset = opened(file, cache=tmp_path / "cache")
    dataset.balance(0.8)
    # Cats are in 5 of 25 images: sqrt(0.8 / 0.2) = 2, times 0.5; dogs in 20 of 25.
    assert weights_by_folder(dataset) == {"a": {1.0}, "b": {1.0}, "cats": {1.0}}
    dataset.balance(0.2)
    assert weights_by_folder(dataset) == {"a": {1.0}, "b": {1.0}, "cats": {0.5}}


def test_coco_files_and_lists_have_weights(folders: Path, tmp_path: Path) -> None:
    images = [{"id": n, "file_name": f"../a/{n}.png", "width": 8, "height": 8} for n in range(10)]
    boxes = [{"id": 1, "image_id": 3, "category_id": 1, "bbox": [1, 1, 4, 4], "area": 16}]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    data = {"images": images, "annotations": boxes, "categories": categories}
    folder = folders / "coco"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(data))
    (folder / "b.txt").write_text("../b/1.png\n../b/2.png\n")
    file = write(folder, "[{path: a.json, weight: 3}, {path: b.txt, weight: 0.25}]", val="../b")
    for _ in range(2):  # also from the cache
        dataset = opened(file, cache=tmp_path)
        dataset.balance(0.0)
        assert weights_by_folder(dataset) == {"a": {3.0}, "b": {0.25}}


def test_tiles_have_the_weights_of_their_images(folders: Path, tmp_path: Path) -> None:
    import cv2

    large = image_folder(tmp_path / "large", count=1)
    cv2.imwrite(str(large / "0.png"), np.random.default_rng(0).integers(0, 255, (64, 64, 3)))
    file = write(folders, f"[a, {{path: {large}, weight: 2}}]", val="b")
    dataset = open_dataset(
        [str(file)], ("train",), CPU, download=False, single_class=False, cache_dir=str(tmp_path),
        tile=32, tile_overlap=0.0,
    )  # fmt: skip
    dataset.read("train")
    dataset.balance(0.0)
    assert weights_by_folder(dataset) == {"a": {1.0}, "large": {2.0}}
    assert dataset.draws.mean_per_pass == 10 + 4 * 2


def test_data_weights_of_joined_data_survive_the_run_folder(folders: Path, tmp_path: Path) -> None:
    """The val split is held out, so that lists replace the folders."""
    paths = (folders / "a", folders / "b")
    dataset = opened(*paths, cache=tmp_path, weights=(2.0, 0.5))
    plain = opened(*paths, cache=tmp_path)
    dataset.balance(0.0)
    assert weights_by_folder(dataset) == {"a": {2.0}, "b": {0.5}}
    assert dataset.digests == plain.digests  # the same images are held out

    run = tmp_path / "exp"
    run.mkdir()
    dataset.save(run)
    again = opened(run / "data.yaml", cache=tmp_path)
    again.balance(0.0)
    assert weights_by_folder(again) == {"a": {2.0}, "b": {0.5}}
    assert {path.parent for path in again.spec.train or ()} == {run}


def test_lists_of_earlier_weights_are_removed(folders: Path, tmp_path: Path) -> None:
    """The user changes the weights in the YAML. A file that is none of the lists stays."""

    def lists(train: str, **entries: str) -> set[str]:
        dataset = opened(write(folders, train, **entries), cache=tmp_path, val_split=0.2)
        folder = dataset.file.parent
        (folder / "train-images.txt").touch()  # of detect.py
        return {file.name for file in folder.glob("*.txt")} - {"train-images.txt"}

    assert lists("[{path: a, weight: 2}, b]") == {"train.txt", "train-weight-2.txt", "val.txt"}
    assert lists("[{path: a, weight: 3}, b]") == {"train.txt", "train-weight-3.txt", "val.txt"}
    assert lists("[{path: a, weight: 3}]") == {"train-weight-3.txt", "val.txt"}
    assert lists("[a, b]") == {"train.txt", "val.txt"}


def test_data_weights_multiply_those_of_a_yaml(folders: Path, tmp_path: Path) -> None:
    file = write(folders, "[{path: a, weight: 4}]", val="b")
    dataset = opened(file, folders / "b", cache=tmp_path, weights=(0.5, 3.0), val_split=0)
    dataset.balance(0.0)
    assert weights_by_folder(dataset) == {"a": {2.0}, "b": {3.0}}
    with pytest.raises(ValueError, match=r"--data-weights: times the weight of .*/a is 4000: choo"):
        opened(file, folders / "b", cache=tmp_path, weights=(1000.0, 1.0), val_split=0)


def test_names_of_mixed_data_must_be_equal(folders: Path, tmp_path: Path) -> None:
    other = image_folder(tmp_path / "c", names="cat\nbird\n")
    with pytest.raises(ValueError, match=r"the class names differ: .*/a/classes.txt has cat, dog"):
        open_data(str(folders / "a"), str(other), choices=Choices(weights=(1.0, 2.0)))
    file = write(folders, f"[{{path: a, weight: 2}}, {other}]", val="b")
    with pytest.raises(ValueError, match=r"c/classes\.txt names other classes than the"):
        opened(file, cache=tmp_path)


@pytest.mark.parametrize(
    ("weights", "count", "sentence"),
    [
        ((2.0,), 1, "--data-weights: 1 weight for 1 data set: give several --data, and a weight"),
        ((2.0,), 2, "--data-weights: 1 weight for 2 data sets: give several --data, and a weight"),
        ((0.0, 1.0), 2, "--data-weights 0: choose a number from 0.001 to 1000"),
        ((1.0, float("nan")), 2, "--data-weights nan: choose a number from 0.001 to 1000"),
    ],
)
def test_data_weights_that_cannot_be_used_are_refused(
    folders: Path, weights: tuple[float, ...], count: int, sentence: str
) -> None:
    paths = [str(folders / "a"), str(folders / "b")][:count]
    with pytest.raises(ValueError, match=f"^{sentence}"):
        open_data(*paths, choices=Choices(weights=weights))


@pytest.mark.parametrize(
    ("train", "val", "sentence"),
    [
        ("[{path: a, weight: 0}]", "b", "line 1: 'weight' is '0': choose a number from 0.001 to"),
        ("[{path: a, weight: inf}]", "b", "line 1: 'weight' is 'inf': choose a number from"),
        ("[{path: a, weight: [1]}]", "b", "line 1: 'weight' is '': choose a number from"),
        ("[{path: a}]", "b", "'train' has an entry with the keys 'path', it must have path and"),
        ("[{path: a, wight: 2}]", "b", "has an entry with the keys 'path, wight', it must have"),
        ("[{path: [a], weight: 2}]", "b", "line 1: 'train' must be text and not empty"),
        ("{path: a, weight: 2}", "b", "in 'train' also with weights as {path: a, weight: 2}"),
        ("a", "[{path: b, weight: 2}]", "'val' has weights, which only 'train' may have"),
        ("[a, {path: a, weight: 2}]", "b", "'train' lists a twice, with different weights"),
    ],
)
def test_entries_that_cannot_be_used_are_refused(
    folders: Path, tmp_path: Path, train: str, val: str, sentence: str
) -> None:
    file = write(folders, train, val=val)
    with pytest.raises(ValueError) as refusal:
        open_data(str(file))
    assert sentence in str(refusal.value)


def test_small_weights_that_leave_no_image_are_refused(folders: Path, tmp_path: Path) -> None:
    file = write(folders, "[{path: a, weight: 0.01}]", val="b")
    with pytest.raises(ValueError, match=r"has 0\.1 samples: raise the weights"):
        opened(file, cache=tmp_path).balance(0.0)


def test_processes_with_other_weights_are_refused(folders: Path, tmp_path: Path) -> None:
    class TwoProcesses(World):
        def all_gather_object(self, value: Any) -> list[Any]:
            return [value, "other" if isinstance(value, str) and len(value) == 16 else value]

    file = write(folders, "[{path: a, weight: 2}]", val="b")
    dataset = opened(file, cache=tmp_path)
    dataset.world = TwoProcesses(torch.device("cpu"))
    with pytest.raises(ValueError, match="how often images are drawn differs"):
        dataset.balance(0.0)


def test_no_image_has_no_weight(folders: Path) -> None:
    assert describe_weights(np.zeros(0)) == "data sets are mixed with weights: "
    spec = open_data(str(write(folders, "[{path: a, weight: 2}]", val="b")))
    empty = opened(spec.file, cache=folders / "cache").labels["train"].subset([])
    assert weights_of_images(spec, empty).tolist() == []
