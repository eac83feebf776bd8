"""Names of images as other machines write them: each rule, ambiguous names, names that lead out."""

import os
import unicodedata
from pathlib import Path

import pytest

from data.formats.image_finder import (
    ACCENTS_COMPOSED,
    CASE_IGNORED,
    DECODED,
    FOLDERS_DROPPED,
    FOUND_BESIDE,
    PREFIX_DROPPED,
    SUFFIX_ADDED,
    AmbiguousImageError,
    ImageFinder,
)


def finder(folder: Path, *images: str, label_file: str = "labels.json") -> ImageFinder:
    """Return a finder for a label file in a folder with these files."""
    for name in images:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return ImageFinder(folder / label_file)


@pytest.mark.parametrize(
    ("name", "image", "rules"),
    [
        ("a.jpg", "a.jpg", []),
        ("images/a.jpg", "images/a.jpg", []),
        ("./images/../a.jpg", "a.jpg", []),
        ("images\\a.jpg", "images/a.jpg", []),
        ("a.jpg", "deep/below/a.jpg", []),
        ("data/images/a.jpg", "images/a.jpg", [FOLDERS_DROPPED]),
        ("C:\\Users\\me\\images\\a.jpg", "images/a.jpg", [FOLDERS_DROPPED]),
        ("C:a.jpg", "a.jpg", []),
        ("/home/me/images/a.jpg", "images/a.jpg", [FOLDERS_DROPPED]),
        ("\\\\server\\share\\a.jpg", "a.jpg", [FOLDERS_DROPPED]),
        ("file:///C:/my%20photos/a%20b.jpg", "my photos/a b.jpg", [DECODED]),
        ("file:C:/photos/a%20b.jpg", "photos/a b.jpg", [DECODED]),
        ("file://localhost/photos/a.jpg", "photos/a.jpg", [FOLDERS_DROPPED]),
        ("https://example.org/x/a.jpg?token=a/b.jpg", "a.jpg", [DECODED, FOLDERS_DROPPED]),
        ("s3://bucket/a%23b.jpg", "a#b.jpg", [DECODED, FOLDERS_DROPPED]),
        ("s3://bucket/a%20b.jpg", "a%20b.jpg", [FOLDERS_DROPPED]),
        ("http://[half/a.jpg", "a.jpg", [FOLDERS_DROPPED]),
        ("a%20b.jpg", "a b.jpg", [DECODED]),
        ("my%20photos/a.jpg", "my photos/a.jpg", [DECODED]),
        ("a%20b.jpg", "a%20b.jpg", []),
        ("100%.jpg", "100%.jpg", []),
        ("/data/local-files/?d=set%2Fa.jpg", "set/a.jpg", [DECODED]),
        ("/data/local-files/?x=1&d=set\\a.jpg", "set/a.jpg", [DECODED]),
        ("/data/upload/3/0123abcd-a.jpg", "a.jpg", [PREFIX_DROPPED]),
        ("/data/upload/3/0123abcd-a.jpg", "0123abcd-a.jpg", [FOLDERS_DROPPED]),
        ("a.JPG", "a.jpg", [CASE_IGNORED]),
        ("Images/A.jpg", "images/a.jpg", [CASE_IGNORED]),
        ("STRASSE.jpg", "straße.jpg", [CASE_IGNORED]),
        ("a", "a.png", [SUFFIX_ADDED]),
        ("A.b", "a.b.png", [SUFFIX_ADDED, CASE_IGNORED]),
        ("frame_000001", "frame_000001.PNG", [SUFFIX_ADDED]),
        (" a.jpg", " a.jpg", []),
    ],
)
def test_rules(tmp_path: Path, name: str, image: str, rules: list[str]) -> None:
    found = finder(tmp_path, image)
    assert found.find(name) == str(tmp_path / image)
    assert sorted(found.rules.elements()) == sorted(rules)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_may_be_written_in_another_way(tmp_path: Path, form: str) -> None:
    other = {"NFC": "NFD", "NFD": "NFC"}[form]
    found = finder(tmp_path, unicodedata.normalize(form, "é/ÖÜ.jpg"))
    path = found.find(unicodedata.normalize(other, "é/ÖÜ.jpg"))
    assert path == str(tmp_path / unicodedata.normalize(form, "é/ÖÜ.jpg"))
    assert list(found.rules) == [ACCENTS_COMPOSED]


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/", "b.jpg", "a.png", "a.jpg.txt", "a\0.jpg", "\ud800.jpg", "?d="),
        *("/data/local-files/?d=", "file:///", "C:", "a" * 5000 + ".jpg", "images", "x/", "%00"),
    ],
)
def test_no_image_is_none(tmp_path: Path, name: str) -> None:
    found = finder(tmp_path, "a.jpg", "images/c.txt")
    assert found.find(name) is None
    assert not found.rules


def test_images_beside_the_folder_are_found_if_it_has_none(tmp_path: Path) -> None:
    found = finder(tmp_path, "images/train/a.jpg", label_file="annotations/labels.json")
    (tmp_path / "annotations").mkdir()
    assert found.find("a.jpg") == str(tmp_path / "images" / "train" / "a.jpg")
    assert list(found.rules) == [FOUND_BESIDE]
    own = finder(tmp_path, "annotations/b.jpg", label_file="annotations/labels.json")
    assert own.find("a.jpg") is None


def test_of_several_the_one_with_most_of_the_folders_is_found(tmp_path: Path) -> None:
    images = ["train/x/a.jpg", "val/x/a.jpg", "val/y/a.jpg"]
    found = finder(tmp_path, *images)
    for name, image in (
        ("data/val/x/a.jpg", "val/x/a.jpg"),
        ("C:\\set\\TRAIN\\x\\a.jpg", "train/x/a.jpg"),
        ("other/y/a.jpg", "val/y/a.jpg"),
    ):
        assert found.find(name) == str(tmp_path / image)
    for name in ("a.jpg", "x/a.jpg", "z/a.jpg"):
        with pytest.raises(AmbiguousImageError, match=r"^fits both /.*a\.jpg and /.*a\.jpg$"):
            found.find(f"data/{name}")


def test_of_several_the_one_with_the_same_capital_letters_is_found(tmp_path: Path) -> None:
    found = finder(tmp_path, "x/A.jpg", "y/a.jpg")
    if len(found.images) < 2:
        pytest.skip("the file system ignores capital letters")
    assert found.find("a.jpg") == str(tmp_path / "y" / "a.jpg")
    with pytest.raises(AmbiguousImageError):
        found.find("a.JPG")


@pytest.mark.parametrize(
    ("label_file", "image"),
    [
        ("annotations/train.xml", "images/train/a.jpg"),
        ("annotations/instances_val2017.csv", "images/val2017/a.jpg"),
        ("annotations/train_images.csv", "images/train/a.jpg"),
    ],
)
def test_of_several_the_one_in_a_folder_of_the_label_files_name_is_found(
    tmp_path: Path, label_file: str, image: str
) -> None:
    images = [f"images/{split}/a.jpg" for split in ("train", "val", "val2017")]
    names = [name for name in images if name != "images/val/a.jpg" or "val" not in label_file]
    (tmp_path / "annotations").mkdir()
    found = finder(tmp_path, *names, label_file=label_file)
    assert found.find("a.jpg") == str(tmp_path / image)


def test_image_of_another_sequence_is_no_substitute_for_a_missing_one(tmp_path: Path) -> None:
    """Sequences are numbered alike: day.csv lists 1.jpg and 2.jpg, and day/2.jpg is missing."""
    found = finder(tmp_path, "day/1.jpg", "night/1.jpg", "night/2.jpg", label_file="day.csv")
    assert found.find("1.jpg") == str(tmp_path / "day" / "1.jpg")
    assert found.find("2.jpg") == str(tmp_path / "night" / "2.jpg")
    assert [found.is_doubtful(name) for name in ("1.jpg", "2.jpg")] == [False, True]

    # Without a choice between several images nothing tells where they lie.
    alone = finder(tmp_path / "b", "night/1.jpg", "night/2.jpg", label_file="day.csv")
    assert alone.find("2.jpg") == str(tmp_path / "b" / "night" / "2.jpg")
    assert not alone.is_doubtful("2.jpg")


def test_names_lead_out_of_the_folder_only_to_a_file_with_this_path(tmp_path: Path) -> None:
    """As in a list of images: `..` and an absolute path mean that file, if it is an image."""
    (tmp_path / "secret").mkdir()
    for name in ("out.jpg", "out.txt"):
        (tmp_path / "secret" / name).touch()
    found = finder(tmp_path / "set", "in.jpg")

    outside = str(tmp_path / "secret" / "out.jpg")
    assert found.find("../secret/out.jpg") == outside
    assert found.find(outside) == outside
    assert found.find("../secret/out.txt") is None
    assert found.find("../secret/out") is None
    assert found.find("..\\secret\\out.jpg") is None
    assert found.find("../../x/secret/out.jpg") is None
    assert found.find(f"file://{outside}") is None
    assert found.find("../../etc/in.jpg") == str(tmp_path / "set" / "in.jpg")
    assert found.rules == {FOLDERS_DROPPED: 1}


@pytest.mark.skipif(os.name != "posix", reason="symlinks and pipes")
def test_folders_and_pipes_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = finder(tmp_path, "a.jpg")
    assert found.find("folder.jpg") is None
    assert found.find("loop/loop/a.jpg") == str(tmp_path / "loop" / "loop" / "a.jpg")
    assert [path for path in found.images if path.endswith("a.jpg")] == [str(tmp_path / "a.jpg")]


def test_name_in_a_folder_images_beside_the_file_is_not_ambiguous(tmp_path):
    """CVAT's names are relative to images/, in which subfolders may have the same name."""
    for folder in ("images", "images/b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(b"")
    finder = ImageFinder(tmp_path / "annotations.xml")
    assert finder.find("a.png") == str(tmp_path / "images" / "a.png")
    assert finder.find("b/a.png") == str(tmp_path / "images" / "b" / "a.png")
