"""data/layouts/names.py: class names where no YAML gives them."""

import re

import cv2
import numpy as np
import pytest

from data.formats.base import ClassNames
from data.layouts.names import check_listed_names, chosen_names, names_of_sources


def folder(root, name, rows, names=None):
    """A folder with an image, its label rows, and perhaps a list of class names."""
    source = root / name
    source.mkdir(parents=True)
    cv2.imwrite(str(source / "a.png"), np.zeros((8, 8, 3), np.uint8))
    (source / "a.txt").write_text(rows)
    if names is not None:
        (source / "classes.txt").write_text(names)
    return source


def test_list_of_names_is_used(tmp_path):
    source = folder(tmp_path, "a", "0 .5 .5 .5 .5\n", "cat\ndog\n\n")
    assert names_of_sources([source]) == ClassNames(("cat", "dog"), str(source / "classes.txt"))


def test_without_a_list_classes_are_called_by_their_numbers(tmp_path):
    one = folder(tmp_path / "x", "one", "1 .5 .5 .5 .5\n")
    two = folder(tmp_path / "y", "two", "10 .5 .5 .5 .5\n")
    assert names_of_sources([one, two]).names == tuple(map(str, range(11)))


@pytest.mark.parametrize("other", ["dog\ncat\n", "cat\n", "cat\ndog\nbird\n"])
def test_lists_that_differ_are_refused_with_both(tmp_path, other):
    one = folder(tmp_path / "x", "one", "0 .5 .5 .5 .5\n", "cat\ndog\n")
    two = folder(tmp_path / "y", "two", "0 .5 .5 .5 .5\n", other)
    expected = ", ".join(other.split())
    with pytest.raises(ValueError, match=f"the class names differ: .* cat, dog; .* {expected}$"):
        names_of_sources([one, two])


@pytest.mark.parametrize(
    ("rows", "encoding", "reason"),
    [
        (
            "0 .5 .5 .5 .5\n",
            "utf-16",
            "a.txt line 1: '0 .5 .5 .5 .5' is UTF-16 text, must be UTF-8",
        ),
        (
            "\ncat .5 .5 .5 .5\n",
            "utf-8",
            "a.txt line 2: 'cat' is not a number: rows begin with the number of their class, its "
            "place in classes.txt from 0",
        ),
        (
            "0,.5,.5,.5,.5\n",
            "utf-8",
            "a.txt line 1: '0,.5,.5,.5,.5' has commas between the values, must have spaces",
        ),
        ("-1 .5 .5 .5 .5\n", "utf-8", "a.txt line 1: class -1"),
    ],
)
def test_label_files_without_a_row_that_can_be_read_are_refused(tmp_path, rows, encoding, reason):
    source = folder(tmp_path, "a", "")
    (source / "a.txt").write_bytes(rows.encode(encoding))
    with pytest.raises(ValueError) as refusal:
        names_of_sources([source])
    assert str(refusal.value) == (
        f"no labels with a class in {source}: no row of its 1 label file can be read: "
        f"{source}/{reason}"
    )


def test_label_files_without_rows_are_refused(tmp_path):
    source = folder(tmp_path, "a", "\n")
    with pytest.raises(ValueError) as refusal:
        names_of_sources([source])
    assert str(refusal.value) == (
        f"no labels with a class in {source}: none of its 1 label file, such as {source}/a.txt, "
        "has a row: label the images in the tool, and export again"
    )


def test_label_files_of_other_names_are_refused_with_the_prefix(tmp_path):
    source = folder(tmp_path, "a", "0 .5 .5 .5 .5\n")
    (source / "a.txt").rename(source / "a1b2c3d4-a.txt")
    with pytest.raises(ValueError) as refusal:
        names_of_sources([source])
    assert str(refusal.value) == (
        f"no labels with a class in {source}: 1 label file without an image, such as "
        "a1b2c3d4-a.txt; 1 begin with a prefix such as a1b2c3d4-, no image does: give label files "
        "and images the same names"
    )


VIA_REGION = '{"shape_attributes":{"name":"rect","x":1,"y":1,"width":2,"height":2},%s}'
VIA = '{"a.png9":{"filename":"a.png","regions":[' + VIA_REGION + "]}}"
LABEL_STUDIO = (
    '[{"data":{"image":"a.png"},"annotations":[{"result":[{"type":"rectanglelabels",%s}]}]}]'
)
CSV = "filename,class,xmin,ymin,xmax,ymax\n"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("x.csv", CSV + 'a.png,cat,"43,5",1,2,2\n', "line 2: '43,5' is not a number"),
        (
            "x.json",
            VIA % '"region_attributes":{"a":{"cat":true,"dog":true}}',
            "['a.png9'].regions[0]: attribute 'a' has several classes: cat, dog",
        ),
        (
            "x.json",
            '[{"image":"a.png","annotations":[{"label":"cat","coordinates":{"x":1}}]}]',
            "[0].annotations[0]: 'y' is None, must be a number",
        ),
        (
            "x.json",
            LABEL_STUDIO % '"value":{"x":1,"rectanglelabels":["cat"]}',
            "[0].annotations[0].result[0]: 'y' is None, must be a number",
        ),
        (
            "a.json",  # of LabelMe
            '{"shapes":[{"label":"cat","points":[[1,2]],"shape_type":"point"}]}',
            "shapes[0]: shape_type is 'point', boxes are made of",
        ),
        (
            "a.xml",  # of Pascal VOC
            "<annotation><object><bndbox/></object></annotation>",
            "line 1: the object has no <name>",
        ),
    ],
)
def test_objects_that_cannot_be_read_are_refused_with_the_first_problem(
    tmp_path, name, text, reason
):
    source = folder(tmp_path, "a", "")
    (source / "a.txt").unlink()
    (source / name).write_text(text)
    source = source if name.startswith("a.") else source / name
    with pytest.raises(ValueError) as refusal:
        names_of_sources([source])
    file = tmp_path / "a" / name
    assert str(refusal.value).startswith(
        f"no labels with a class in {source}: none of its objects can be read: {file} {reason}"
    )


def test_only_the_first_problems_of_objects_are_named(tmp_path):
    source = folder(tmp_path, "a", "") / "x.csv"
    source.write_text(CSV + "a.png,cat,x,1,2,2\n" * 3)
    with pytest.raises(ValueError) as refusal:
        names_of_sources([source])
    assert str(refusal.value).endswith(
        f"{source} line 2: 'x' is not a number; {source} line 3: 'x' is not a number (3 problems)"
    )


def test_tool_files_without_objects_are_refused(tmp_path):
    source = folder(tmp_path, "a", "") / "x.csv"
    source.write_text(CSV + "a.png,,,,,\n")
    with pytest.raises(ValueError) as refusal:
        names_of_sources([source])
    assert str(refusal.value) == (
        f"no labels with a class in {source}: no image in its 1 label file, such as {source}, has "
        "an object: label the images in the tool, and export again"
    )


def test_coco_json_without_categories_is_refused(tmp_path):
    source = folder(tmp_path, "a", "") / "x.json"
    (source.parent / "a.png").touch()
    coco = '{"images":[%s],"annotations":[%s],"categories":[]}'
    image = '{"id":1,"file_name":"a.png"}'
    box = '{"id":1,"image_id":1,"category_id":1,"bbox":[1,1,2,2]}'
    reasons = {
        coco % (image, box): "none of its objects can be read: "
        f"{source} annotation 1: category_id 1 is not among the file's categories",
        coco % ("", ""): "it lists no image that has an object: "
        "label the images in the tool, and export again",
    }
    for text, reason in reasons.items():
        source.write_text(text)
        with pytest.raises(ValueError) as refusal:
            names_of_sources([source])
        assert str(refusal.value) == f"no labels with a class in {source}: {reason}"


def test_images_without_label_files_are_refused_with_what_lies_there(tmp_path):
    source = folder(tmp_path, "a", "")
    (source / "a.txt").unlink()
    with pytest.raises(ValueError, match=r"there are only images; give the folder or the file"):
        names_of_sources([source])
    (source / "boxes.manifest").write_text("{}")
    (source / "a.md").write_text("")
    (source / "b.md").write_text("")
    with pytest.raises(ValueError, match=r"are 2 \.md files such as a\.md, boxes\.manifest; docs"):
        names_of_sources([source])


def test_names_flag_does_not_change_a_list(tmp_path):
    """Label files number the classes by it: another order would give every box a wrong class."""
    listed = ClassNames(("cat", "dog"), "/set/classes.txt")
    assert chosen_names(listed, ("cat", "dog")) == listed
    for chosen in (("dog", "cat"), ("x", "y")):
        with pytest.raises(ValueError) as refusal:
            chosen_names(listed, chosen)
        assert str(refusal.value) == (
            f"--names has {', '.join(chosen)}, but /set/classes.txt names the classes cat, dog: "
            "change them there"
        )


def test_names_flag_names_numbered_classes_and_orders_named_ones():
    numbered = ClassNames(("0", "1"))
    named = ClassNames(("cat", "dog"))
    assert chosen_names(numbered, ("x", "y")).names == ("x", "y")
    assert chosen_names(named, ("dog", "cat")).names == ("dog", "cat")
    assert chosen_names(named, ()) == named


@pytest.mark.parametrize(
    ("found", "chosen", "message"),
    [
        (("0", "1"), ("x",), "--names has 1 name, but the labels have the classes 0 to 1"),
        (("cat", "dog"), ("cat",), "--names has cat, but the labels name cat, dog"),
        (("0", "1"), ("x", "x"), "--names: x, x has a name twice"),
    ],
)
def test_names_flag_that_does_not_fit_is_refused(found, chosen, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        chosen_names(ClassNames(found), chosen)


@pytest.mark.parametrize(
    ("listed", "names", "message"),
    [
        (
            "dog\ncat\n",
            ("cat", "dog"),
            "lists the classes in another order: dog, cat; the data YAML",
        ),
        (
            "Dog\nCat\n",
            ("cat", "dog"),
            "lists the classes in another order: Dog, Cat; the data YAML",
        ),
        ("cat\n", ("cat", "dog"), "lists 1 class: cat; the data YAML has cat, dog: correct one of"),
        (
            "cat\ndog\nx\n",
            ("cat", "dog"),
            "lists 3 classes: cat, dog, x; the data YAML has cat, dog",
        ),
    ],
)
def test_list_that_numbers_classes_otherwise_is_refused(tmp_path, listed, names, message):
    source = folder(tmp_path, "a", "0 .5 .5 .5 .5\n", listed)
    with pytest.raises(ValueError, match=re.escape(message)):
        check_listed_names({source: names}, tmp_path)


def test_other_spellings_are_said_and_equal_lists_are_not(tmp_path):
    source = folder(tmp_path, "a", "0 .5 .5 .5 .5\n", "Cat\ndog\n")
    (note,) = check_listed_names({source: ("cat", "dog")}, tmp_path)
    assert note.endswith(
        "classes.txt spells the classes in another way: Cat, dog; the data YAML has cat, dog"
    )
    assert check_listed_names({source: ("Cat", "dog")}, tmp_path) == []


def test_lists_above_the_data_set_do_not_count(tmp_path):
    source = folder(tmp_path / "set", "a", "0 .5 .5 .5 .5\n")
    (tmp_path / "classes.txt").write_text("another\ndata set\nentirely\n")
    assert check_listed_names({source: ("cat",)}, tmp_path / "set") == []


def folder_of_labels(root, images, labels, names):
    """Images in one folder, their labels with a list of names in another one, as LabelImg does."""
    (root / images).mkdir(parents=True)
    (root / labels).mkdir(parents=True)
    cv2.imwrite(str(root / images / "a.png"), np.zeros((8, 8, 3), np.uint8))
    (root / labels / "a.txt").write_text("0 .5 .5 .5 .5\n")
    (root / labels / "classes.txt").write_text(names)
    return root / images


@pytest.mark.parametrize("top", [".", "images", "images/train"])
def test_list_beside_the_labels_names_their_classes(tmp_path, top):
    """LabelImg writes classes.txt into the folder of the labels, not into that of the images."""
    images = folder_of_labels(tmp_path, "images/train", "labels/train", "dog\ncat\n")
    listed = names_of_sources([tmp_path / top])
    assert listed == ClassNames(("dog", "cat"), str(tmp_path / "labels/train/classes.txt"))
    with pytest.raises(ValueError, match="lists the classes in another order: dog, cat"):
        check_listed_names({images: ("cat", "dog")}, tmp_path)


def test_subfolders_whose_lists_differ_are_refused(tmp_path):
    """Two persons have labeled with LabelImg, which numbers classes as they are drawn."""
    one = folder(tmp_path, "one", "0 .5 .5 .5 .5\n", "cat\ndog\n")
    two = folder(tmp_path, "two", "0 .5 .5 .5 .5\n", "dog\ncat\n")
    with pytest.raises(ValueError) as refusal:
        names_of_sources([tmp_path])
    assert str(refusal.value) == (
        f"the class names differ: {one}/classes.txt has cat, dog; {two}/classes.txt has dog, cat: "
        "give each folder with a list of its own to --data by itself"
    )
    with pytest.raises(ValueError, match=r"two/classes\.txt lists the classes in another order"):
        check_listed_names({tmp_path: ("cat", "dog")}, tmp_path)


def test_lists_of_one_folder_must_agree(tmp_path):
    source = folder(tmp_path, "a", "0 .5 .5 .5 .5\n", "cat\ndog\n")
    (source / "labels.txt").write_text("__ignore__\ncat\n")  # what a person gave to LabelMe
    assert names_of_sources([source]).names == ("cat", "dog")
    (source / "obj.names").write_text("dog\ncat\n")
    with pytest.raises(ValueError, match=r"names differ: .* cat, dog; .* dog, cat: give"):
        names_of_sources([source])


def test_list_of_one_split_is_that_of_the_others(tmp_path):
    train = folder_of_labels(tmp_path, "images/train", "labels/train", "cat\ndog\n")
    val = folder_of_labels(tmp_path, "images/val", "labels/val", "")
    (tmp_path / "labels/val/classes.txt").unlink()
    assert names_of_sources([train, val]).names == ("cat", "dog")
    (tmp_path / "labels/val/a.txt").write_text("2 .5 .5 .5 .5\n")
    with pytest.raises(ValueError, match="has cat, dog, but the labels name 0, 1, 2"):
        names_of_sources([train, val])


def test_long_list_is_read_in_time_proportional_to_its_length(tmp_path):
    source = folder(tmp_path, "a", "0 .5 .5 .5 .5\n", "".join(f"{n}\n" for n in range(50_000)))
    assert len(names_of_sources([source]).names) == 50_000


def test_numbers_with_a_decimal_point_are_classes(tmp_path):
    source = folder(tmp_path, "a", "2.0 .5 .5 .5 .5\n0.5 .5 .5 .5 .5\n")
    assert names_of_sources([source]).names == ("0", "1", "2")
