"""--class-weights: auto, files and words."""

from pathlib import Path

import pytest

from data import Draws
from tests.data.balance.test_image_weights import labels_with
from training.settings.class_weights import (
    choose_class_weights,
    describe_class_weights,
    weights_in_order,
)

NAMES = ["cat", "big dog", "a=b"]
LABELS = labels_with([0, 0, 0, 0], [1], [])


def choose(*given: str, names: list[str] = NAMES) -> tuple[str, ...]:
    return choose_class_weights(given, names, LABELS, Draws.once(3), known=["bird"])


def weights(*given: str) -> tuple[float, ...]:
    return weights_in_order(choose(*given), NAMES)


def test_auto_follows_the_boxes_as_they_are_drawn() -> None:
    # Roots of 4, 1, 0 boxes: 2, 1; 5 boxes / 3 = 1.667 over the root.
    assert weights("auto") == pytest.approx((5 / 6, 5 / 3, 1.0))
    # The second image four times: 4 and 4 boxes have equal weights.
    repeated = Draws(LABELS.offsets[1:] * 0 + [1.0, 4.0, 1.0])
    words = choose_class_weights(["auto"], NAMES, LABELS, repeated)
    assert weights_in_order(words, NAMES) == pytest.approx((1, 1, 1))


def test_words_are_kept_exactly_and_missing_classes_have_weight_1() -> None:
    words = choose("a=b=0.1", "cat=3")
    assert words == ("cat=3.0", "big dog=1.0", "a=b=0.1")
    assert choose(*words) == words  # as a resumed run reads them
    assert weights_in_order(words, NAMES) == (3.0, 1.0, 0.1)
    assert weights_in_order((), NAMES) == () == choose()


def test_file_names_classes_also_those_that_are_not_trained(tmp_path: Path) -> None:
    file = tmp_path / "weights.yaml"
    file.write_text("big dog: 2.5\nbird: 7\n")
    assert weights(str(file)) == (1.0, 2.5, 1.0)


def test_largest_and_smallest_weights_are_logged() -> None:
    assert describe_class_weights(choose("cat=0.12345", "big dog=4")) == (
        "--class-weights: big dog 4, a=b 1, cat 0.123"
    )
    many = tuple(f"{n}={n + 1}.0" for n in range(9))
    assert describe_class_weights(many) == "--class-weights: 8 9, 7 8, 6 7, ..., 2 3, 1 2, 0 1"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "cat: 0\n",
            "line 1: the weight of class 'cat' is '0': choose a number from",
        ),
        ("cat: 1\nbig dog: .inf\n", "line 2: the weight of class 'big dog' is '.inf': choose"),
        (
            "cat: -1\n",
            "line 1: the weight of class 'cat' is '-1': choose a number from",
        ),
        ("cat: 1e-50\n", "line 1: the weight of class 'cat' is '1e-50': choose a number from"),
        ("cat: 1e39\n", "line 1: the weight of class 'cat' is '1e39': choose a number from"),
        (
            "cat: [1]\n",
            "line 1: the weight of class 'cat' is '': choose a number from",
        ),
        (
            "cats: 2\n",
            "line 1: class 'cats' is none of the 4 classes of the data (did you mean",
        ),
        ("cat: 1\ncat: 2\n", "line 2: the key 'cat' appears twice in the file"),
        ("", ": class weights are lines of name: weight"),
        ("- cat\n", ": class weights are lines of name: weight"),
        ("cat: !!python/name:os.system 1\n", "tags"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "weights.yaml"
    file.write_text(text)
    with pytest.raises(ValueError) as refusal:
        choose(str(file))
    assert str(refusal.value).startswith(str(file))
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["atuo"], "--class-weights atuo: give auto, a YAML file of name: weight, or NAME=WEIGHT"),
        (["auto", "cat=2"], "--class-weights auto: give auto, a YAML file"),
        (
            ["cat=x"],
            "--class-weights: the weight of class 'cat' is 'x': choose a number",
        ),
        (["=2"], "--class-weights =2: give auto"),
        (["dog=2"], "--class-weights: class 'dog' is none of the 4 classes of the data"),
        (["cat=1", "cat=2"], "--class-weights: class 'cat' has two weights"),
        (["nowhere.yaml"], "nowhere.yaml cannot be read: No such file or directory"),
    ],
)
def test_words_that_cannot_be_used_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ValueError) as refusal:
        choose(*words)
    assert str(refusal.value).startswith(sentence)
