"""utils/class_choice.py: classes by name or number, where names may be numbers, too."""

import pytest

from utils.command_line.class_choice import ambiguous_classes_note, class_ids

DICE = ["1", "2", "3", "4", "5"]


def test_a_name_of_digits_is_the_name():
    assert class_ids(["1", "5"], DICE, "it") == [0, 4]
    assert class_ids(["0"], DICE, "it") == [0]  # no class is called 0


def test_a_whole_number_is_an_index():
    assert class_ids([1, 0], DICE, "it") == [1, 0]


def test_all_classes_of_one_name_are_chosen():
    assert class_ids(["x"], ["x", "1", "x"], "it") == [0, 2]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("6", r"class 6: it has 5 classes \(0-4\)"),
        ("9" * 30, r"class 9+: it has 5 classes \(0-4\)"),
        ("six", r"class 'six': it has 1, 2, 3, 4, 5$"),
        (-1, r"class -1: it has 5 classes \(0-4\)"),
        (1.0, r"class 1.0: give a name or a whole number"),
    ],
)
def test_unknown_classes_are_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        class_ids([given], DICE, "it")


def test_nothing_is_chosen():
    assert class_ids([], DICE, "it") == []
    assert ambiguous_classes_note([], DICE) == ""


def test_an_ambiguity_is_noted():
    assert ambiguous_classes_note(["1", "2", "x"], DICE) == (
        "--classes 1 is the class called 1, not the one with number 1, which is called 2; 2 is the "
        "class called 2, not the one with number 2, which is called 3"
    )


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["5"], DICE),  # no class has number 5
        (["0"], DICE),  # no class is called 0
        ([1], DICE),  # a whole number is always an index
        (["0", "1"], ["0", "1"]),  # name and number are the same class
        (["cat"], ["dog", "cat"]),
    ],
)
def test_other_choices_are_not_ambiguous(given, names):
    assert ambiguous_classes_note(given, names) == ""
