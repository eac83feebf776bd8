"""data/sanity/alike_names.py: class names that are hardly two classes."""

import pytest

from data.layouts import Choices
from data.sanity.alike_names import alike_names_note
from data.splits import open_dataset
from tests.data.balance.test_mixing import CPU
from tests.support.data_sets import image_folder


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        (["dog", "Dog"], "Dog=dog"),
        (["dog", "dog "], "'dog =dog'"),
        (["traffic light", "traffic_Light"], "'traffic_Light=traffic light'"),
    ],
)
def test_alike_names_are_said(names, merged):
    note = alike_names_note(["cat", *names, "fox"])
    first, second = names
    assert note == (
        f"classes '{first}' and '{second}' differ in capital letters or spaces only: "
        f"--merge {merged} joins them"
    )


@pytest.mark.parametrize("names", [[], ["dog", "dogs"], ["-", "_"], ["1", "2"], ["A1", "B1"]])
def test_other_names_say_nothing(names):
    assert alike_names_note(names) == ""


def test_of_many_pairs_some_are_shown():
    names = [name for number in range(5) for name in (f"a{number}", f"A{number}")]
    assert "'a2' and 'A2' and 2 more differ" in alike_names_note(names)


def test_a_data_set_and_a_model_to_extend_say_it(tmp_path):
    root = image_folder(tmp_path / "set", names="dog\nDog\n")
    said: list[str] = []
    dataset = open_dataset(
        [str(root)], ("train",), CPU, said.append, download=False, single_class=False,
        cache_dir=str(tmp_path / "cache"), choices=Choices(val_split=0),
    )  # fmt: skip
    assert said[-1].startswith("classes 'dog' and 'Dog' differ")
    dataset.choose_classes(["Dog"])
    dataset.prepend_classes(["cat", "DOG"], say=said.append)
    assert said[-1].startswith("classes 'DOG' and 'Dog' differ")
