"""data/layouts/labels_elsewhere.py: labels in an archive or a folder apart from the images."""

import os
import zipfile
from pathlib import Path

import pytest

from data.layouts import labels_elsewhere
from data.layouts.labels_elsewhere import Pair, find_pair
from tests.support.data_sets import class_names_by_image, image_folder, opened

ROW = "0 .5 .5 .5 .5\n"


def photos(root, count=4):
    """Images without labels."""
    folder = image_folder(root, count, names="")
    for file in folder.glob("*.txt"):
        file.unlink()
    return folder


def labels_zip(file, count=4, top=""):
    """A zip as Make Sense writes it: a label file for each image, and no list of names."""
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(count):
            archive.writestr(f"{top}{number}.txt", f"{number % 2} .5 .5 .5 .5\n")
    return file


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("top", ["", "labels_my-project/"])
def test_images_and_an_archive_of_labels_are_one_data_set(tmp_path, order, top):
    images = photos(tmp_path / "photos")
    archive = labels_zip(tmp_path / "labels.zip", top=top)
    said = []
    given = [images, archive][::order]
    dataset = opened(*given, cache=tmp_path / "cache", said=said, names=("cat", "dog"))
    found = class_names_by_image(dataset)
    assert {Path(path).name: names for path, names in found.items()} == {
        "0.png": ["cat"],
        "1.png": ["dog"],
        "2.png": ["cat"],
        "3.png": ["dog"],
    }
    assert said[0].startswith(f"{images} with {archive}: YOLO; 2 classes from --names: cat, dog;")
    assert not [line for line in said if "cache" in line.replace("[cached", "")]
    assert sorted(path.name for path in images.iterdir()) == [f"{n}.png" for n in range(4)]


def test_an_archive_of_labels_among_the_images_is_used(tmp_path):
    images = photos(tmp_path / "photos")
    archive = labels_zip(images / "labels_my-project.zip")
    said = []
    found = class_names_by_image(opened(images, cache=tmp_path / "cache", said=said))
    assert len(found) == 4
    assert said[0].startswith(f"{images} with {archive}: YOLO; ")


def test_a_folder_and_a_file_of_labels_are_used(tmp_path):
    images = photos(tmp_path / "photos")
    folder = tmp_path / "elsewhere" / "txt"
    folder.mkdir(parents=True)
    for number in range(4):
        (folder / f"{number}.txt").write_text(ROW)
    assert len(class_names_by_image(opened(images, folder, cache=tmp_path / "cache"))) == 4

    rows = "".join(f"{number}.png,1,1,5,5,dog\n" for number in range(4))
    file = tmp_path / "elsewhere" / "boxes.csv"
    file.write_text(f"image,xmin,ymin,xmax,ymax,label\n{rows}")
    found = class_names_by_image(opened(images, file, cache=tmp_path / "cache"))
    assert set(map(tuple, found.values())) == {("dog",)}


def test_labels_in_their_usual_place_may_be_given_too(tmp_path):
    images = image_folder(tmp_path / "set" / "images", 5, names="")
    labels = tmp_path / "set" / "labels"
    labels.mkdir()
    for file in images.glob("*.txt"):
        file.rename(labels / file.name)
    dataset = opened(images, labels, cache=tmp_path / "cache", names=("cat", "dog"))
    assert list(class_names_by_image(dataset).values()) == [["dog"]] * 5


def test_images_that_have_labels_and_other_archives_are_no_pair(tmp_path):
    labeled = image_folder(tmp_path / "labeled", 2)
    archive = labels_zip(tmp_path / "labels.zip")
    assert find_pair([labeled, archive]) is None
    labels_zip(labeled / "old.zip")
    assert find_pair([labeled]) is None

    images = photos(tmp_path / "photos", 2)
    assert find_pair([images, archive]) == Pair(images, archive)
    assert find_pair([images, labeled]) is None
    assert find_pair([images]) is None
    (images / "broken.zip").write_bytes(b"x")
    with zipfile.ZipFile(images / "copy.zip", "w") as packed:
        packed.write(images / "0.png", "0.png")
    assert find_pair([images]) is None
    assert find_pair([tmp_path / "nowhere"]) is None
    assert find_pair([]) is None


def test_two_runs_may_join_the_same_folders_at_once(tmp_path, monkeypatch):
    images, labels = tmp_path / "a", tmp_path / "b"
    images.mkdir()
    labels.mkdir()
    pair = Pair(images, labels)
    make_folder = labels_elsewhere.make_folder

    def make_after_another_run(folder, flag):
        monkeypatch.setattr(labels_elsewhere, "make_folder", make_folder)
        labels_elsewhere.join(pair, tmp_path / "cache")

    monkeypatch.setattr(labels_elsewhere, "make_folder", make_after_another_run)
    joined = labels_elsewhere.join(pair, tmp_path / "cache")
    assert sorted(os.listdir(joined.path)) == ["images", "labels"]
    assert len(os.listdir(joined.path.parent)) == 1
