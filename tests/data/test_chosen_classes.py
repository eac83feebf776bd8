"""Some classes of a data set: --classes of train.py and val.py."""

from pathlib import Path

import numpy as np
import pytest

from data.layouts import Choices
from data.splits import open_dataset
from tests.data.balance.test_image_weights import labels_with
from tests.data.balance.test_mixing import CPU
from tests.support.data_sets import image_folder, opened
from tests.support.tiny_data import NAMES

# The classes of tiny_data's images, in the order of their names.
ROWS = [[1, 1], [1, 2, 1], [2, 2], [1, 0, 1], [0, 0], [2, 1, 2], [2, 1], [2, 2, 2]]


def read(data: Path, cache: Path, *classes: str | int, train: bool = True, **settings: object):
    """Return the data set with these classes of its train split, and what is said."""
    said: list[str] = []
    values = {"single_class": False, **settings}
    dataset = open_dataset(
        [str(data)], ("train",), CPU, said.append, download=False, cache_dir=str(cache), **values
    )
    dataset.choose_classes(classes)
    dataset.read("train", said.append, leave_out_emptied=train)
    return dataset, said


def test_training_keeps_boxes_of_the_classes_and_drops_emptied_images(tiny_data, tmp_path):
    dataset, said = read(tiny_data, tmp_path, "disc", "2")
    labels = dataset.labels["train"]
    assert dataset.names == ["disc", "bar"]
    expected = [[{0: 0, 2: 1}[c] for c in row if c in (0, 2)] for row in ROWS]
    kept = [(f"{n}.png", row) for n, row in enumerate(expected) if row]
    found = [
        (Path(labels.path(n)).name, labels.classes[labels.rows(n)].tolist())
        for n in range(len(labels))
    ]
    assert found == kept
    assert said[-1] == (
        "train: --classes disc, bar: 12 of 20 boxes; images with boxes of other classes only: 1, "
        "left out"
    )

    # Everything about a box stays.
    whole = opened(tiny_data, cache=tmp_path).labels["train"]
    stays = np.isin(whole.classes, [0, 2])
    assert (labels.boxes_xywh == whole.boxes_xywh[stays]).all()
    assert (labels.areas == whole.areas[stays]).all()
    assert labels.category_ids.tolist() == [1, 3]
    report = dataset.reports["train"]
    assert report.instances_per_class == (("disc", 3), ("bar", 9))
    assert (report.images, report.instances, report.background) == (7, 12, 0)


def test_evaluation_keeps_all_images(tiny_data, tmp_path):
    dataset, said = read(tiny_data, tmp_path, "bar", train=False)
    assert len(dataset.labels["train"]) == 8
    assert dataset.reports["train"].background == 3
    assert said[-1].endswith("images with boxes of other classes only: 3, kept as background")


def test_background_images_stay_in_training(tmp_path):
    root = image_folder(tmp_path / "set")  # ten images with a dog
    for number in range(4):
        (root / f"{number}.txt").write_text("")
    (root / "9.txt").write_text("0 .5 .5 .5 .5\n")
    dataset, _ = read(root, tmp_path / "cache", "cat", choices=Choices(val_split=0))
    names = [Path(dataset.labels["train"].path(n)).name for n in range(5)]
    assert names == ["0.png", "1.png", "2.png", "3.png", "9.png"]
    assert len(dataset.labels["train"]) == 5


def test_held_out_images_and_scan_cache_are_the_same_with_and_without(tmp_path):
    root = image_folder(tmp_path / "set", count=20, row="0 .5 .5 .5 .5\n1 .2 .2 .1 .1")
    plain = opened(root, cache=tmp_path / "cache")
    said: list[str] = []
    dataset = open_dataset(
        [str(root)], ("train", "val"), CPU, said.append, download=False, single_class=False,
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    dataset.choose_classes(["dog"])
    for split in ("train", "val"):
        labels = dataset.read(split, said.append, leave_out_emptied=split == "train")
        assert "from cache" in dataset.reports[split].cache
        whole = plain.labels[split]
        assert [labels.path(n) for n in range(len(labels))] == [
            whole.path(n) for n in range(len(whole))
        ]


def test_names_with_spaces_are_taken_as_they_are(tmp_path):
    root = image_folder(tmp_path / "set", names="traffic light\nstop sign\n")
    dataset, _ = read(root, tmp_path / "cache", "stop sign", choices=Choices(val_split=0))
    assert dataset.names == ["stop sign"]
    assert dataset.chosen_words == ["stop sign"]


def test_words_of_chosen_classes_choose_them_again(tmp_path):
    """A name wins over a number, so that a class called by digits is chosen by them."""
    root = image_folder(tmp_path / "set", names="1\n7\n")
    dataset, _ = read(root, tmp_path / "cache", choices=Choices(val_split=0))
    assert dataset.chosen_words == []
    dataset.choose_classes(["1"])
    assert (dataset.names, dataset.chosen_words) == (["1"], ["1"])
    dataset.choose_classes([1])
    assert (dataset.names, dataset.chosen_words) == (["7"], ["7"])


def test_chosen_classes_can_be_treated_as_one(tiny_data, tmp_path):
    dataset, _ = read(tiny_data, tmp_path, "disc", "bar", single_class=True)
    assert (dataset.names, dataset.chosen_names) == (["object"], ["disc", "bar"])
    assert set(dataset.labels["train"].classes.tolist()) == {0}


def test_tiles_show_only_the_chosen_classes(tiny_data, tmp_path):
    dataset, _ = read(tiny_data, tmp_path, "bar", tile=48, tile_overlap=0.0)
    labels = dataset.labels["train"]
    assert set(labels.classes.tolist()) == {0}
    assert len(labels.whole) == 5


def test_without_classes_nothing_changes(tiny_data, tmp_path):
    dataset, said = read(tiny_data, tmp_path)
    assert dataset.names == list(NAMES)
    assert len(dataset.labels["train"]) == 8
    assert not [line for line in said if "--classes" in line]


def test_ignore_regions_of_other_classes_go(tiny_data):
    labels = labels_with([0, 2], [2], [], [1], crowd=2).with_classes([0, 1])
    assert labels.classes.tolist() == [0, 1]
    assert np.diff(labels.offsets).tolist() == [1, 0, 0, 1]
    only_regions = labels_with([0, 2], [2], crowd=2).with_classes([2])
    assert only_regions.crowd.all()
    assert labels_with().with_classes([1]).classes.tolist() == []


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        (
            ["Disc"],
            r"^--classes: class 'Disc': .*tiny.yaml has disc, square, bar .did you mean",
        ),
        (["3"], r"^--classes: class 3: .*tiny.yaml has 3 classes \(0-2\)$"),
        (["-1"], r"^--classes: class '-1': .*tiny.yaml has disc, square, bar$"),
        (["99999999999"], r"^--classes: class 99999999999: .*has 3 classes \(0-2\)$"),
        (["a\x1b[1m"], r"^--classes: class 'a\\x1b\[1m': "),
    ],
)
def test_unknown_classes_are_refused(tiny_data, tmp_path, classes, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(tiny_data, tmp_path, *classes)


def test_split_without_box_of_the_classes_is_refused(tmp_path):
    root = image_folder(tmp_path / "set")
    sentence = r"^'train' of .*set: no box of these classes \(--classes cat\)$"
    with pytest.raises(ValueError, match=sentence):
        read(root, tmp_path / "cache", "cat", choices=Choices(val_split=0))


# Classes of an older model in front of those of the data


def test_other_classes_are_in_front_and_numbers_of_labels_follow(tiny_data, tmp_path):
    """disc, square, bar: of these square and bar are chosen, and become 2 and 3."""
    plain, _ = read(tiny_data, tmp_path, "square", "bar")
    dataset = open_dataset(
        [str(tiny_data)],
        ("train",),
        CPU,
        download=False,
        single_class=False,
        cache_dir=str(tmp_path),
    )
    dataset.choose_classes(["square", "bar"])
    dataset.prepend_classes(["disc", "fox"])
    labels = dataset.read("train", leave_out_emptied=True)
    assert dataset.names == ["disc", "fox", "square", "bar"]
    assert dataset.own_names == ["square", "bar"]
    assert dataset.chosen_words == ["square", "bar"]  # those of the data, for the next time

    expected = plain.labels["train"]
    assert labels.classes.tolist() == (expected.classes + 2).tolist()
    assert (labels.boxes_xywh == expected.boxes_xywh).all()
    assert labels.category_ids.tolist() == [4, 5, 2, 3]  # those of the data keep theirs
    assert dataset.reports["train"].instances_per_class == (("square", 8), ("bar", 9))


def test_labels_without_rows_and_without_others(tiny_data, tmp_path):
    labels = read(tiny_data, tmp_path)[0].labels["train"]
    nothing = labels.subset([]).with_classes_before(1)
    assert (len(nothing), len(nothing.classes), len(nothing.category_ids)) == (0, 0, 4)
    assert labels.with_classes_before(0).digest() == labels.digest()


def test_classes_that_both_have_are_refused(tiny_data, tmp_path):
    dataset, _ = read(tiny_data, tmp_path, "bar")
    dataset.prepend_classes([])
    assert dataset.names == ["bar"]
    dataset.prepend_classes(["disc"])  # of the data, but not chosen
    sentence = "--add-classes: .* has bar, which the model has already; name new classes only, or"
    with pytest.raises(ValueError, match=sentence):
        dataset.prepend_classes(["disc", "bar"])
