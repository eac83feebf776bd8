"""data/layouts/written.py, classes.py: several data sets as one, and classes that are renamed."""

import json
import re
import shutil
from pathlib import Path

import pytest

from data import open_data
from data.dataset_yaml import read_data_yaml
from data.formats.base import ClassNames
from data.layouts.base import Layout
from data.layouts.classes import joined_classes
from tests.support.data_sets import class_names_by_image, image_folder, opened


def coco_folder(root, category):
    """Two images and a COCO JSON with a box of this category in each."""
    image_folder(root, 2, names="")
    for label in root.glob("*.txt"):
        label.unlink()
    images = [
        {"id": 5 + number, "file_name": f"{number}.png", "width": 8, "height": 8}
        for number in range(2)
    ]
    boxes = [
        {"id": number, "image_id": 5 + number, "category_id": 7, "bbox": [1, 1, 4, 4]}
        for number in range(2)
    ]
    categories = [{"id": 7, "name": category}, {"id": 9, "name": "dog"}]
    contents = {"images": images, "annotations": boxes, "categories": categories}
    (root / "boxes.json").write_text(json.dumps(contents))
    return root


# ---------------------------------------------------------------------- several data sets


def test_several_data_sets_are_one(tmp_path):
    one = image_folder(tmp_path / "one")
    two = image_folder(tmp_path / "two", 4, "0 .5 .5 .5 .5")
    said = []
    dataset = opened(one, two, cache=tmp_path / "cache", said=said)
    assert class_names_by_image(dataset) == {
        **{str(one / f"{number}.png"): ["dog"] for number in range(10)},
        **{str(two / f"{number}.png"): ["cat"] for number in range(4)},
    }
    held_out = len(dataset.labels["val"])
    assert said[:3] == [
        f"{one}: YOLO; 2 classes from classes.txt: cat, dog",
        f"{two}: YOLO; 2 classes from classes.txt: cat, dog",
        f"together 2 classes: cat, dog; no val split: {held_out} of 14 images held out "
        "(--val-split 0.2)",
    ]


def test_each_image_keeps_its_side_when_a_data_set_is_added(tmp_path):
    one = image_folder(tmp_path / "one")
    two = image_folder(tmp_path / "two", 4)
    alone = opened(one, cache=tmp_path / "cache").labels["val"]
    joined = opened(one, two, cache=tmp_path / "cache").labels["val"]
    held_out = {joined.path(index) for index in range(len(joined))}
    assert {alone.path(index) for index in range(len(alone))} <= held_out


def test_lists_in_another_order_number_the_classes_of_their_own_labels(tmp_path):
    """YOLO's label files have only numbers: 0 is a cat in one data set, and a dog in the other."""
    one = image_folder(tmp_path / "one", 3, "0 .5 .5 .5 .5", "cat\ndog\n")
    two = image_folder(tmp_path / "two", 3, "0 .5 .5 .5 .5", "dog\ncat\n")
    dataset = opened(one, two, cache=tmp_path / "cache")
    assert dataset.names == ["cat", "dog"]
    found = class_names_by_image(dataset)
    assert [found[str(folder / "1.png")] for folder in (one, two)] == [["cat"], ["dog"]]

    # The YAML that is written says so.
    spec = read_data_yaml(dataset.file)
    assert spec.label_names == {two: {"dog": "dog", "cat": "cat"}}
    again = opened(dataset.file, cache=tmp_path / "cache")
    assert class_names_by_image(again) == found


def test_data_sets_of_different_formats_are_joined(tmp_path):
    text = image_folder(tmp_path / "text", 3)
    coco = coco_folder(tmp_path / "coco", "cat")
    found = class_names_by_image(opened(text, coco, cache=tmp_path / "cache"))
    assert found[str(text / "0.png")] == ["dog"]
    assert found[str(coco / "0.png")] == ["cat"]
    assert len(found) == 5


def test_data_yamls_are_joined_split_by_split(tmp_path):
    files = []
    for name in ("one", "two"):
        image_folder(tmp_path / name / "train", 3)
        image_folder(tmp_path / name / "valid", 2)
        file = tmp_path / name / "data.yaml"
        file.write_text("train: train\nval: valid\nnames: [cat, dog]\n")
        files.append(file)
    dataset = opened(*files, cache=tmp_path / "cache")
    assert [len(dataset.labels[split]) for split in ("train", "val")] == [6, 4]
    assert dataset.is_written


@pytest.mark.parametrize(
    ("names", "other", "message"),
    [
        (
            "cat\ndog\n",
            "cat\nbird\n",
            "the class names differ: {one}/classes.txt has cat, dog; {two}/classes.txt has cat, "
            "bird: --merge OLD=NEW renames classes",
        ),
        (
            "cat\ndog\n",
            "",
            "{two} has only class numbers, other data have names: list its names in a file "
            "classes.txt in it, or give all with --names",
        ),
    ],
)
def test_data_sets_whose_names_differ_are_refused(tmp_path, names, other, message):
    one = image_folder(tmp_path / "one", 2, names=names)
    two = image_folder(tmp_path / "two", 2, names=other)
    with pytest.raises(ValueError) as refusal:
        opened(one, two, cache=tmp_path / "cache")
    assert str(refusal.value) == message.format(one=one, two=two)


def test_names_flag_names_the_data_set_that_has_only_numbers(tmp_path):
    one = image_folder(tmp_path / "one", 2)
    two = image_folder(tmp_path / "two", 2, "0 .5 .5 .5 .5", names="")
    dataset = opened(one, two, cache=tmp_path / "cache", names=("cat", "dog"))
    assert class_names_by_image(dataset)[str(two / "1.png")] == ["cat"]


def test_data_yamls_that_cannot_be_joined_are_refused(tmp_path):
    folder = image_folder(tmp_path / "photos", 2)
    plain = tmp_path / "plain.yaml"
    plain.write_text("train: photos\nnames: [cat, dog]\n")
    (tmp_path / "list.txt").write_text(f"{folder}/0.png\n")
    listed = tmp_path / "listed.yaml"
    listed.write_text("train: list.txt\nlabels: photos\nnames: [cat, dog]\n")
    with pytest.raises(ValueError, match=r"listed\.yaml has 'labels', so it cannot be joined"):
        opened(plain, listed, cache=tmp_path / "cache")
    pose = tmp_path / "pose.yaml"
    pose.write_text("train: photos\nnames: [cat, dog]\nkpt_shape: [17, 3]\n")
    with pytest.raises(ValueError, match=r"differ in 'kpt_shape': \[17, 3\], none$"):
        opened(plain, pose, cache=tmp_path / "cache")


def test_data_set_that_is_given_twice_counts_once(tmp_path):
    folder = image_folder(tmp_path / "photos")
    dataset = opened(folder, folder, cache=tmp_path / "cache")
    assert sum(map(len, dataset.labels.values())) == 10
    reasons = [problem.reason for problem in dataset.reports["train"].problems]
    assert reasons == ["files that are not images, ignored: 11 .txt"]


def test_numbers_in_use_of_several_data_sets_are_joined():
    layouts = [
        Layout("YOLO", path, {"": (path,)}, ClassNames(names))
        for path, names in ((image, ("0", "1")[:count]) for image, count in (("a", 1), ("b", 2)))
    ]
    assert joined_classes(layouts).names == ("0", "1")


# ---------------------------------------------------------------------- splits of the tool


def cvat_export(root, subsets):
    """A project export of CVAT: one file, an image for each of these subsets, a box in each."""
    image_folder(root, len(subsets), names="")
    lines = []
    for number, subset in enumerate(subsets):
        (root / f"{number}.txt").unlink()
        box = '<box label="cat" xtl="1" ytl="1" xbr="5" ybr="5"/>'
        size = 'width="8" height="8"'
        name = f'id="{number}" name="{number}.png"'
        lines.append(f'<image {name} subset="{subset}" {size}>{box}</image>')
    text = f"<annotations><meta/>{''.join(lines)}</annotations>"
    (root / "annotations.xml").write_text(text)
    return root


def images_of(dataset, split):
    labels = dataset.labels[split]
    return [Path(labels.path(index)).name for index in range(len(labels))]


def test_subsets_of_a_file_are_its_splits(tmp_path):
    subsets = ("Train", "Validation", "train", "Test", "Train")
    said = []
    dataset = opened(cvat_export(tmp_path / "set", subsets), cache=tmp_path / "cache", said=said)
    assert images_of(dataset, "train") == ["0.png", "2.png", "4.png"]
    assert images_of(dataset, "val") == ["1.png"]
    assert len(dataset.labels["train"].classes) == 3
    assert "held out" not in " ".join(said)

    # The run's own copy has all of them.
    run = tmp_path / "run"
    run.mkdir()
    dataset.save(run)
    again = opened(run / "data.yaml", cache=tmp_path / "cache")
    assert images_of(again, "val") == ["1.png"]
    assert again.read("test").path(0).endswith("3.png")


def test_images_are_held_out_of_the_subset_train(tmp_path):
    source = cvat_export(tmp_path / "set", ["Train"] * 6 + ["Test", "default"])
    said = []
    dataset = opened(source, cache=tmp_path / "cache", said=said)
    assert len(dataset.labels["train"]) + len(dataset.labels["val"]) == 6
    assert "of 6 images held out" in said[0]
    assert "not used, because they are in no split: 1 image" in said


def test_subsets_that_name_no_split_are_one(tmp_path):
    source = cvat_export(tmp_path / "set", ["default"] * 3 + ["batch 2"] * 3)
    dataset = opened(source, cache=tmp_path / "cache")
    assert len(dataset.labels["train"]) + len(dataset.labels["val"]) == 6


@pytest.mark.parametrize(
    ("subsets", "present"), [(["Validation", "Test"], "val, test"), (["Test", "Test"], "test")]
)
def test_file_without_the_subset_train_is_refused(tmp_path, subsets, present):
    source = cvat_export(tmp_path / "set", subsets)
    with pytest.raises(ValueError, match=rf"has no 'train' \(it has: {present}\)"):
        opened(source, cache=tmp_path / "cache")


def test_test_split_beside_held_out_images_is_read(tmp_path):
    """The lists of held-out images take their labels from the files of all splits."""
    for split in ("train", "test"):
        folder = coco_folder(tmp_path / "set" / split, "cat")
        for image in folder.glob("*.png"):  # differ between the splits
            image.rename(folder / f"{split}-{image.name}")
        document = json.loads((folder / "boxes.json").read_text())
        for image in document["images"]:
            image["file_name"] = f"{split}-{image['file_name']}"
        (folder / "boxes.json").write_text(json.dumps(document))
    dataset = opened(tmp_path / "set", cache=tmp_path / "cache")
    assert [len(dataset.labels[split]) for split in ("train", "val")] == [1, 1]
    assert len(dataset.read("test").classes) == 2


# ---------------------------------------------------------------------- renamed classes


def test_merge_flag_renames_and_joins_classes(tmp_path):
    folder = image_folder(tmp_path / "photos", 5, "2 .5 .5 .5 .5", "cat\ndog\nkitten\n")
    said = []
    dataset = opened(folder, cache=tmp_path / "cache", said=said, merge=("kitten=cat", "dog=hound"))
    assert dataset.names == ["cat", "hound"]
    assert set(map(tuple, class_names_by_image(dataset).values())) == {("cat",)}
    assert said[1].startswith("together 2 classes: cat, hound; no val split")
    assert dict(dataset.reports["train"].instances_per_class)["hound"] == 0

    # The run's own copy needs no flag.
    run = tmp_path / "run"
    run.mkdir()
    dataset.save(run)
    again = opened(run / "data.yaml", cache=tmp_path / "cache")
    assert again.names == ["cat", "hound"]
    assert class_names_by_image(again) == class_names_by_image(dataset)


def test_merge_in_a_yaml_is_the_merge_flag(tmp_path):
    image_folder(tmp_path / "photos", 5, "2 .5 .5 .5 .5", "cat\ndog\nkitten\n")
    file = tmp_path / "data.yaml"
    text = "train: photos\nval: photos\nnames: [cat, dog, kitten]\n"
    file.write_text(text)
    by_flag = opened(file, cache=tmp_path / "cache", merge=("kitten=cat",))
    file.write_text(f"{text}merge: {{kitten: cat}}\n")
    by_yaml = opened(file, cache=tmp_path / "cache")
    assert by_flag.names == by_yaml.names == ["cat", "dog"]
    assert class_names_by_image(by_flag) == class_names_by_image(by_yaml)
    assert by_flag.labels["val"].digest() == by_yaml.labels["val"].digest()

    # One after the other: the flag names the classes that the YAML gives.
    both = opened(file, cache=tmp_path / "cache", merge=("cat=animal", "dog=animal"))
    assert both.names == ["animal"]
    assert len(both.labels["train"].classes) == 5


def test_merge_makes_data_sets_agree(tmp_path):
    one = image_folder(tmp_path / "one", 3, "0 .5 .5 .5 .5", "cat\ndog\n")
    two = coco_folder(tmp_path / "two", "kitten")
    dataset = opened(one, two, cache=tmp_path / "cache", merge=("kitten=cat",))
    assert dataset.names == ["cat", "dog"]
    assert set(map(tuple, class_names_by_image(dataset).values())) == {("cat",)}


def test_classes_of_a_coco_file_keep_their_ids(tmp_path):
    """The id of a class that is joined is that of the first of its classes: 7 and 9 become 7."""
    folder = coco_folder(tmp_path / "coco", "cat")
    file = tmp_path / "data.yaml"
    text = "train: coco/boxes.json\nval: coco/boxes.json\nnames: [cat, dog]\n"
    file.write_text(text)
    plain = opened(file, cache=tmp_path / "cache").labels["val"]
    assert plain.category_ids.tolist() == [7, 9]
    file.write_text(f"{text}merge: {{dog: cat}}\n")
    merged = opened(file, cache=tmp_path / "cache").labels["val"]
    assert merged.category_ids.tolist() == [7]
    assert merged.image_ids.tolist() == [5, 6]
    assert {merged.path(0), merged.path(1)} == {str(folder / f"{n}.png") for n in range(2)}


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        (("kitten",), "--merge kitten: write OLD=NEW, such as kitten=cat"),
        (("=cat",), "--merge =cat: write OLD=NEW, such as kitten=cat"),
        (
            ("dgo=cat",),
            "--merge renames dgo, but the classes are cat, dog (did you mean dog?)",
        ),
        (("dog=a", "dog=b"), "--merge renames dog twice, to a and b"),
    ],
)
def test_merge_flag_that_does_not_fit_is_refused(tmp_path, merge, message):
    folder = image_folder(tmp_path / "photos", 2)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        opened(folder, cache=tmp_path / "cache", merge=merge)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("merge: cat", "line 3: 'merge' must be a mapping from old to new names"),
        ("merge: {dgo: cat}", "line 3: 'merge' renames 'dgo', which is not in 'names' (did you"),
        ("merge: {dog: }", "line 3: 'merge' must be text and not empty"),
        ("merge: {dog: [a]}", "line 3: 'merge' must be text and not empty"),
        ("label_names: [a]", "line 3: 'label_names' must be a mapping from sources to mappings"),
        ("label_names: {a: b}", "line 3: 'label_names' must be a mapping from sources to mappings"),
        ("label_names: {a: {}}", "line 3: 'label_names' must be a mapping from sources to"),
        ("label_names: {a: {b: c}}", "line 3: 'c' is not in 'names'"),
    ],
)
def test_yaml_entry_that_does_not_fit_is_refused(tmp_path, entry, message):
    file = tmp_path / "data.yaml"
    file.write_text(f"train: .\nnames: [cat, dog]\n{entry}\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        read_data_yaml(file)


# ---------------------------------------------------------------------- added images


def test_image_that_changes_its_split_is_said(tmp_path):
    """An image of the val split gets a copy whose name comes first, and whose side is the other."""
    folder = image_folder(tmp_path / "photos", 12)
    before = opened(folder, cache=tmp_path / "cache", val_split=0.5).labels["val"]
    held_out = before.path(0)
    for number in range(100):
        copy = folder / f"-{number}.png"
        shutil.copy(held_out, copy)
        copy.with_suffix(".txt").write_text("1 .5 .5 .5 .5\n")
        said = []
        after = opened(folder, cache=tmp_path / "cache", said=said, val_split=0.5).labels["val"]
        still = {after.path(index) for index in range(len(after))}
        if held_out not in still:
            moved = (
                r"[1-9] images? in another split than the last time: images were added or removed"
            )
            assert any(re.fullmatch(moved, line) for line in said)
            return
        copy.unlink()
        copy.with_suffix(".txt").unlink()
    raise AssertionError("all of 100 names have hashes below the share")


# ---------------------------------------------------------------------- data without a train split


def test_data_with_only_a_test_split_can_be_evaluated(tmp_path):
    source = image_folder(tmp_path / "set" / "test", 3).parent
    cache = {"cache_dir": str(tmp_path / "cache")}
    spec = open_data(str(source), splits=("test",), **cache)
    assert spec.sources("test") == (source / "test",)
    assert spec.train is None
    with pytest.raises(ValueError, match=r"set has no train split \(it has: test\)"):
        open_data(str(source), splits=("train",), **cache)


def test_image_in_two_data_sets_with_other_classes_is_refused(tmp_path):
    """Its 0 would be a cat or a dog, as the data sets are given first or last."""
    one = image_folder(tmp_path / "one", 3, "0 .5 .5 .5 .5", "cat\ndog\n")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "classes.txt").write_text("dog\ncat\n")
    for split, number in (("train", 0), ("val", 1)):
        (tmp_path / "two" / f"{split}.txt").write_text(f"{one}/{number}.png\n")
    (tmp_path / "two.yaml").write_text(
        "train: two/train.txt\nval: two/val.txt\nnames: [dog, cat]\n"
    )
    one_again = tmp_path / "one.yaml"
    one_again.write_text("train: one\nval: one\nnames: [cat, dog]\n")
    (one / "classes.txt").unlink()
    with pytest.raises(ValueError) as refusal:
        opened(one_again, tmp_path / "two.yaml", cache=tmp_path / "cache")
    assert str(refusal.value) == (
        f"{one}/0.png is in {one} and {tmp_path}/two/train.txt, which have other classes or "
        "another format"
    )
    # With the same classes nothing depends on the order.
    text = (tmp_path / "two.yaml").read_text().replace("[dog, cat]", "[cat, dog]")
    (tmp_path / "two.yaml").write_text(text)
    (tmp_path / "two" / "classes.txt").unlink()
    assert len(opened(one_again, tmp_path / "two.yaml", cache=tmp_path / "cache").labels["train"])


def voc_folder(root, *names):
    """Images with an object of Pascal VOC each."""
    image_folder(root, len(names), names="")
    for number, name in enumerate(names):
        (root / f"{number}.txt").unlink()
        box = "<xmin>2</xmin><ymin>2</ymin><xmax>6</xmax><ymax>6</ymax>"
        (root / f"{number}.xml").write_text(
            f"<annotation><object><name>{name}</name><bndbox>{box}</bndbox></object></annotation>"
        )
    return root


def test_classes_that_differ_in_spelling_only_are_said(tmp_path):
    one = voc_folder(tmp_path / "one", "Cat", "dog", "dog")
    two = voc_folder(tmp_path / "two", "cat", "cat")
    said = []
    assert opened(one, two, cache=tmp_path / "cache", said=said).names == ["Cat", "cat", "dog"]
    assert said[0] == (
        "classes differ in spelling only: Cat, cat: --merge 'Cat=cat' makes one class of two"
    )
    said.clear()
    opened(one, two, cache=tmp_path / "cache", said=said, merge=("Cat=cat",))
    assert "spelling" not in " ".join(said)


def test_names_flag_names_the_numbers_of_one_of_several_data_sets(tmp_path):
    """As the refusal of numbers beside names says; the names may be more than those in use."""
    named = voc_folder(tmp_path / "named", "cat", "dog", "dog")
    numbered = image_folder(tmp_path / "numbered", 3, "2 .5 .5 .5 .5", names="")
    names = ("bird", "cat", "dog")
    found = class_names_by_image(opened(named, numbered, cache=tmp_path / "cache", names=names))
    assert [found[str(folder / "1.png")] for folder in (named, numbered)] == [["dog"], ["dog"]]
    assert found[str(named / "0.png")] == ["cat"]


def test_a_class_that_may_be_chinese_in_another_encoding_is_said(tmp_path):
    said = []
    opened(voc_folder(tmp_path / "one", "è", "dog"), cache=tmp_path / "cache", said=said)
    assert said[0] == ("if class è should be 猫, its text is in GBK: save the label files as UTF-8")
    said.clear()
    opened(voc_folder(tmp_path / "two", "Käfer", "кот"), cache=tmp_path / "cache", said=said)
    assert not [line for line in said if "GBK" in line]
