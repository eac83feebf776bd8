"""data/layouts/surroundings.py: a data YAML above what is given, and labels beside it."""

import pytest

from tests.support.data_sets import image_folder, opened


@pytest.fixture
def data_set(tmp_path):
    """train/ and valid/ as Roboflow exports them, with images/ and labels/, and a data YAML."""
    for split in ("train", "valid"):
        root = tmp_path / "set" / split
        image_folder(root / "images", 5, names="")
        (root / "labels").mkdir()
        for file in (root / "images").glob("*.txt"):
            file.rename(root / "labels" / file.name)
    text = "train: ../train/images\nval: ../valid/images\nnames: [cat, dog, fox]\n"
    (tmp_path / "set" / "data.yaml").write_text(text)
    return tmp_path / "set"


def said_of(*paths, cache, **choices):
    said = []
    return opened(*paths, cache=cache, said=said, **choices).names, said


def test_the_names_of_a_data_yaml_above_are_used_and_said(data_set, tmp_path):
    (data_set / "train.txt").write_text("train/images/0.png\ntrain/images/1.png\n")
    file = data_set / "data.yaml"
    for given in ("train", "train/images", "train.txt"):
        names, said = said_of(data_set / given, cache=tmp_path / "cache")
        assert names == ["cat", "dog", "fox"]
        assert (
            f"{data_set}/{given}: class names are those of {file}; its splits are not used: "
            f"--data {file} uses them"
        ) in said


def test_names_that_are_not_used_are_said(data_set, tmp_path):
    file = data_set / "data.yaml"
    sentence = f"{data_set}/train: names and splits of {file} are not used: --data {file} uses them"
    names, said = said_of(data_set / "train", cache=tmp_path / "cache", names=("a", "b"))
    assert (names, sentence in said) == (["a", "b"], True)

    file.write_text(f"{file.read_text()}merge: {{cat: dog}}\n")
    names, said = said_of(data_set / "train", cache=tmp_path / "cache")
    assert (names, sentence in said) == (["0", "1"], True)


def test_a_list_of_names_beside_the_labels_is_nearer_than_a_data_yaml(data_set, tmp_path):
    (data_set / "train" / "classes.txt").write_text("tiger\nwolf\nbear\n")
    names, said = said_of(data_set / "train", cache=tmp_path / "cache")
    assert names == ["tiger", "wolf", "bear"]
    assert any("names and splits of" in line for line in said)


def test_a_data_yaml_of_other_images_is_not_used(data_set, tmp_path):
    text = "train: elsewhere\nval: elsewhere\nnames: [cat, dog]\n"
    (data_set / "data.yaml").write_text(text)
    (data_set / "broken.yaml").write_text("{")
    names, said = said_of(data_set / "train", cache=tmp_path / "cache")
    assert names == ["0", "1"]
    assert not [line for line in said if "data.yaml" in line]


def test_a_loop_of_links_in_a_data_yaml_above_is_no_image_folder(data_set, tmp_path):
    (data_set / "loop").symlink_to("loop")
    (data_set / "data.yaml").write_text("train: loop\nval: loop\nnames: [cat, dog]\n")
    names, _ = said_of(data_set / "train", cache=tmp_path / "cache")
    assert names == ["0", "1"]


def test_labels_outside_of_the_folder_are_said(data_set, tmp_path):
    sentence = f"{data_set}/train/images: labels are those in {data_set}/train/labels"
    for given, is_said in (("train/images", True), ("train", False)):
        _, said = said_of(data_set / given, cache=tmp_path / "cache")
        assert (sentence in said) == is_said
