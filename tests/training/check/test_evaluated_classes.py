"""training/check/evaluated_classes.py: which classes of data a model is evaluated on."""

import numpy as np
import pytest

from data.layouts import Choices
from data.splits import Dataset, open_dataset
from models.export.metadata import ExportedModel
from tests.data.balance.test_mixing import CPU
from tests.support.data_sets import image_folder
from training.check.evaluated_classes import choose_evaluated_classes

DICE = "1\n2\n3\n"


def opened(tmp_path, names: str, **settings) -> Dataset:
    root = image_folder(tmp_path / "set", names=names)
    return open_dataset(
        [str(root)], ("train",), CPU, download=False, cache_dir=str(tmp_path / "cache"),
        choices=Choices(val_split=0), **{"single_class": False, **settings},
    )  # fmt: skip


def model(*names: str, **settings) -> ExportedModel:
    return ExportedModel(names, 32, 64, **settings)


def test_a_class_called_by_digits_is_chosen_by_its_name(tmp_path):
    dataset = opened(tmp_path, DICE)
    said: list[str] = []
    choose_evaluated_classes(dataset, "m.pt", model("1", "2", "3"), ["1"], say=said.append)
    assert dataset.names == ["1"]
    assert said == [
        "--classes 1 is the class called 1, not the one with number 1, which is called 2"
    ]


@pytest.mark.parametrize("known_only", [False, True])
def test_classes_of_the_training_are_chosen_again(tmp_path, known_only):
    dataset = opened(tmp_path, DICE)
    said: list[str] = []
    trained = model("1", chosen_classes=("1",))
    choose_evaluated_classes(dataset, "m.pt", trained, known_only=known_only, say=said.append)
    assert (dataset.names, said) == (["1"], [])


@pytest.mark.parametrize("known_only", [False, True])
def test_classes_that_were_trained_as_one_are_chosen_again(tmp_path, known_only):
    dataset = opened(tmp_path, "cat\ndog\nfox\n", single_class=True)
    trained = model("object", chosen_classes=("cat", "dog"), single_class=True)
    choose_evaluated_classes(dataset, "m.pt", trained, known_only=known_only)
    assert dataset.own_names == ["cat", "dog"]


def test_unknown_classes_are_left_out_only_if_wanted(tmp_path):
    dataset = opened(tmp_path, "cat\ndog\n")
    choose_evaluated_classes(dataset, "m.pt", model("dog"))
    assert dataset.chosen is None
    choose_evaluated_classes(dataset, "m.pt", model("dog"), known_only=True)
    assert dataset.own_names == ["dog"]


def test_a_class_of_the_training_that_the_data_lack_is_an_error(tmp_path):
    dataset = opened(tmp_path, "cat\ndog\n")
    with pytest.raises(ValueError, match=r"m\.pt was trained with --classes: class 'fox': "):
        choose_evaluated_classes(dataset, "m.pt", model("fox", chosen_classes=("fox",)))


def test_classes_before_those_of_the_data_have_no_labels(tmp_path):
    dataset = opened(tmp_path, "cat\ndog\n")
    said: list[str] = []
    choose_evaluated_classes(dataset, "m.pt", model("fox", "cat", "dog"), say=said.append)
    assert dataset.names == ["fox", "cat", "dog"]
    assert said == [f"{dataset.file} has no labels of 1 class of the model"]
    assert np.array_equal(dataset.read("train").classes, [2] * 10)
