"""The data YAML: how values are read, and the error message for everything that is not allowed."""

import os
import re
from pathlib import Path

import pytest

from data.dataset_yaml import MAX_BYTES, find_yaml, read_data_yaml
from utils.files.download import DownloadSource


def write(folder: Path, text: str, name: str = "data.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_sources_are_relative_to_path_and_path_to_the_yaml(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "path: ../set\ntrain: images/train\nval: [a.txt, b.json]\nnames: [cat, dog]\nnc: 2\n",
    )
    spec = read_data_yaml(file)
    assert spec.root == tmp_path.parent / "set"
    assert spec.train == (spec.root / "images/train",)
    assert spec.val == (spec.root / "a.txt", spec.root / "b.json")
    assert spec.test is None
    assert spec.names == ("cat", "dog")


def test_root_defaults_to_folder_of_the_yaml(tmp_path: Path) -> None:
    spec = read_data_yaml(write(tmp_path, "train: .\ntest: ~\nval:\nnames: {1: b, 0: a}\n"))
    assert spec.root == tmp_path
    assert spec.train == (tmp_path,)
    assert (spec.val, spec.test) == (None, None)
    assert spec.names == ("a", "b")


def test_class_names_are_read_as_written(tmp_path: Path) -> None:
    text = 'names: [no, 007, null, "null", " a b ", "x\\ny", é, 2024-13-45]\n'
    with pytest.raises(ValueError, match="classes 2 and 3 are both 'null'"):
        read_data_yaml(write(tmp_path, text))
    spec = read_data_yaml(write(tmp_path, text.replace(' "null",', "")))
    assert spec.names == ("no", "007", "null", " a b ", "x\ny", "é", "2024-13-45")


def test_yaml_with_ten_thousand_classes_is_read(tmp_path: Path) -> None:
    spec = read_data_yaml(
        write(tmp_path, "names:\n" + "".join(f"  {i}: class {i}\n" for i in range(10_000)))
    )
    assert len(spec.names) == 10_000
    assert spec.names[9_999] == "class 9999"


def test_tilde_is_the_home_folder_unless_it_exists_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))  # Windows
    file = write(
        tmp_path,
        "path: ~/set\ntrain: images\nval: ~/other/val\ntest: ~nobody-of-this-name/x\nnames: [a]\n",
    )
    spec = read_data_yaml(file)
    root = tmp_path / "home" / "set"
    assert (spec.root, spec.train, spec.val) == (
        root,
        (root / "images",),
        (tmp_path / "home" / "other" / "val",),
    )
    assert spec.test == (root / "~nobody-of-this-name" / "x",)
    (tmp_path / "~" / "set").mkdir(parents=True)
    assert read_data_yaml(file).root == tmp_path / "~" / "set"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("valid", "val"),
        ("Validation", "val"),
        ("tests", "test"),
        ("classes", "names"),
        ("paths", "path"),
        ("scales", ""),
    ],
)
def test_unknown_key_is_answered_with_the_nearest_one(tmp_path: Path, key: str, meant: str) -> None:
    hint = f" (did you mean {meant}?)" if meant else ""
    allowed = (
        "allowed are path, train, val, test, labels, names, nc, merge, label_names, kpt_shape, "
        "download"
    )
    with pytest.raises(
        ValueError, match=re.escape(f"line 2: unknown key '{key}', {allowed}{hint}") + "$"
    ):
        read_data_yaml(write(tmp_path, f"names: [a]\n{key}: x\n"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_yaml_in_utf_16_is_refused_with_the_reason(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "data.yaml").write_text("names: [a]", encoding=encoding)
    with pytest.raises(
        ValueError, match=r"data\.yaml line 1: not UTF-8 text, but UTF-16: save the file as UTF-8$"
    ):
        read_data_yaml(tmp_path / "data.yaml")


def test_download_entry_is_parsed_but_not_run(tmp_path: Path) -> None:
    """Its error messages are tested in tests/data/test_fetching.py."""
    digest = "00fF" * 16
    spec = read_data_yaml(
        write(tmp_path, f"names: [a]\ndownload:\n  url: https://x.org/a.zip\n  sha256: {digest}\n")
    )
    assert (spec.download, spec.download_error) == (
        (DownloadSource("https://x.org/a.zip", digest.lower()),),
        "",
    )
    spec = read_data_yaml(
        write(tmp_path, "names: [a]\ndownload: [https://x.org/a.zip, {url: file:///b.zip}]\n")
    )
    assert spec.download == (DownloadSource("https://x.org/a.zip"), DownloadSource("file:///b.zip"))
    assert [str(source) for source in spec.download] == [
        "a.zip from x.org",
        "b.zip from this machine",
    ]
    spec = read_data_yaml(write(tmp_path, "names: [a]\ndownload: |\n  import os\n"))
    assert spec.download == ()
    assert (
        "line 2: 'download' is 'import os\\n': it is not an https:// or file:// URL"
        in spec.download_error
    )
    assert read_data_yaml(write(tmp_path, "names: [a]\ndownload:\n")).download_error == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a data YAML"),
        ("- a\n", "is not a data YAML"),
        ("train: a\n", "has no 'names'"),
        (
            "names: [a]\nclasses: 3\n",
            "line 2: unknown key 'classes', allowed are path, train, val, test, labels, names, nc, "
            "merge, label_names, kpt_shape, download",
        ),
        ("names: [a]\nnames: [b]\n", "line 2: the key 'names' appears twice"),
        ("names: []\n", "line 1: 'names' is empty"),
        ("names: a\n", "'names' must be a list"),
        ("names: [a, b, a]\n", "line 1: classes 0 and 2 are both 'a'"),
        ("names: [a, [b]]\n", "'names' must be text"),
        ("names: ['']\n", "'names' must be text"),
        ("names: {0: a, 2: b}\n", "2 names up to id 2, but none for 1"),
        ("names: {-1: a}\n", "class id '-1'"),
        ("names: {0: a, 00: b}\n", "class id '00'"),
        ("names: {99999999999999999999: a}\n", "class id"),
        ("names: [a]\nnc: 2\n", "line 2: 'nc' is 2, but 'names' has 1 class"),
        ("names: [a]\nnc: [1]\n", "'nc' is not a number"),
        ("names: [a]\ntrain: {a: b}\n", "'train' must be a folder"),
        ("names: [a]\ntrain: []\n", "'train' must be a folder"),
        ("names: [a]\ntrain: [[a]]\n", "'train' must be text"),
        ('names: [a]\ntrain: "a\\0b"\n', "NUL"),
        ("names: [a\n", "not YAML"),
        ("names: [a]\n---\nnames: [b]\n", "not YAML"),
        ("? [a]\n: b\n", "a key of the file must be plain text"),
        ("names: &n [a]\ntrain: *n\n", "line 2: aliases (*n) are not allowed"),
        (
            "names: !!python/object/apply:os.system [ls]\n",
            "tags (tag:yaml.org,2002:python/object/apply:os...) are",
        ),
        ("names: " + "[" * 21 + "]" * 21, "nested more than 20 deep"),
        ("names:\n" + "- " * 50_000, "nested more than 20 deep"),
    ],
)
def test_invalid_dataset_yaml_is_rejected_with_file_name(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        read_data_yaml(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_non_utf8_too_large_or_missing_yaml_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "data.yaml"
    file.write_bytes(b"names: [a]\ntrain: \xff\xfe")
    with pytest.raises(ValueError, match="line 2: not UTF-8"):
        read_data_yaml(file)
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ValueError, match="larger than"):
        read_data_yaml(file)
    with pytest.raises(ValueError, match="cannot be read"):
        read_data_yaml(tmp_path / "none.yaml")
    file.write_bytes(b"\xef\xbb\xbfnames: [a]\n")
    assert read_data_yaml(file).names == ("a",)


def test_sources_must_exist(tmp_path: Path) -> None:
    spec = read_data_yaml(write(tmp_path, "train: .\nval: nowhere\nnames: [a]\n"))
    assert spec.sources("train") == (tmp_path,)
    with pytest.raises(
        ValueError, match=re.escape(f"'val' is {tmp_path / 'nowhere'}, which does not exist")
    ):
        spec.sources("val")
    with pytest.raises(ValueError, match=r"has no 'test' \(it has: train, val\)"):
        spec.sources("test")
    with pytest.raises(ValueError, match="split is 'x', allowed are train, val, test"):
        spec.sources("x")


def test_find_yaml_tries_given_path_then_folder(tmp_path: Path) -> None:
    file = write(tmp_path, "", "shapes.yaml")
    assert find_yaml("shapes.yaml", tmp_path) == file
    assert find_yaml(file, tmp_path / "other") == file
    assert find_yaml("shapes", tmp_path) == file
    with pytest.raises(ValueError, match="does not exist"):
        find_yaml(tmp_path / "shapes", tmp_path)
    with pytest.raises(
        ValueError, match=r"neither .*none.yaml nor .*none.yaml exists. Files in .*/: shapes.yaml$"
    ):
        find_yaml("none.yaml", tmp_path)
    with pytest.raises(
        ValueError, match=r"^no file : the name is empty. Files in .*/: shapes.yaml$"
    ):
        find_yaml("", tmp_path)
    with pytest.raises(ValueError) as refusal:
        find_yaml(tmp_path, tmp_path / "other", "data set")
    assert str(refusal.value) == f"{tmp_path} is a folder: give a data set YAML file"


@pytest.mark.parametrize("name", ["none.yaml", "{folder}/none.yaml", "../{folder.name}/none.yaml"])
def test_find_yaml_error_names_each_path_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = name.format(folder=tmp_path)
    with pytest.raises(ValueError) as refusal:
        find_yaml(name, tmp_path)
    assert str(refusal.value) == f"no file {name}: {tmp_path / 'none.yaml'} does not exist"


ROBOFLOW = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnames: [a]\n"


def test_missing_parent_folder_source_falls_back_to_yaml_folder(tmp_path: Path) -> None:
    """Roboflow exports: data.yaml is beside train/ and valid/, but its paths are relative to a
    folder inside them.
    """
    folder = tmp_path / "export"
    for split in ("train", "valid"):
        (folder / split / "images").mkdir(parents=True)
    spec = read_data_yaml(write(folder, ROBOFLOW))
    assert spec.sources("train") == (folder / "train/images",)
    assert spec.sources("val") == (folder / "valid/images",)
    assert spec.test == (tmp_path / "test/images",)  # neither exists: as written
    assert spec.notes == (
        f"{folder}/data.yaml: ../train/images, ../valid/images not found: used without ../ in "
        f"{folder}",
    )


def test_existing_parent_folder_source_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    for parent in (folder / "train", tmp_path / "train", tmp_path / "valid"):
        (parent / "images").mkdir(parents=True)
    spec = read_data_yaml(write(folder, ROBOFLOW))
    assert spec.train == (tmp_path / "train/images",)  # both exist
    assert spec.val == (tmp_path / "valid/images",)
    assert spec.notes == ()
    assert read_data_yaml(write(folder, "names: [a]\n")).notes == ()


def test_only_a_single_parent_step_is_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    (folder / "images").mkdir(parents=True)
    spec = read_data_yaml(
        write(folder, "train: ../../images\nval: [../images, ../x.txt]\nnames: [a]\n")
    )
    assert spec.train == (tmp_path / "images",)
    assert spec.val == (folder / "images", tmp_path / "a" / "x.txt")


def test_roboflow_key_is_ignored(tmp_path):
    file = tmp_path / "data.yaml"
    file.write_text("train: images\nnames: [cat]\nroboflow:\n  workspace: someone\n  version: 1\n")
    assert read_data_yaml(file).names == ("cat",)


def test_path_relative_to_current_folder_is_used_if_there_is_none_beside_the_yaml(
    tmp_path, monkeypatch
):
    """As in YOLOv5, whose data YAMLs are in yolov5/data and say ../datasets/x for a folder beside
    yolov5/.
    """
    (tmp_path / "yolov5" / "data").mkdir(parents=True)
    file = write(tmp_path / "yolov5" / "data", "path: ../datasets/x\ntrain: images\nnames: [a]\n")
    beside_yaml, beside_repository = (
        tmp_path / "yolov5" / "datasets" / "x",
        tmp_path / "datasets" / "x",
    )
    monkeypatch.chdir(tmp_path / "yolov5")
    spec = read_data_yaml(file)
    assert (spec.root, spec.notes) == (beside_yaml, ())
    beside_repository.mkdir(parents=True)
    spec = read_data_yaml(file)
    assert (spec.root, spec.train) == (beside_repository, (beside_repository / "images",))
    assert spec.notes == (
        f"{file}: {beside_yaml} not found: used {beside_repository}, from the current folder",
    )
    beside_yaml.mkdir(parents=True)
    spec = read_data_yaml(file)
    assert (spec.root, spec.notes) == (beside_yaml, ())


def test_path_that_does_not_exist_is_answered_with_the_folder_beside_the_yaml(tmp_path):
    (tmp_path / "images").mkdir()
    file = tmp_path / "data.yaml"
    file.write_text("path: elsewhere\ntrain: images\nval: nowhere\nnames: [a]\n")
    with pytest.raises(ValueError) as refusal:
        read_data_yaml(file).sources("train")
    beside = f"{tmp_path}/images exists: remove 'path' from the YAML, or correct it"
    assert str(refusal.value).endswith(f"which does not exist; {beside}")
    with pytest.raises(ValueError, match=r"'path' is .*/elsewhere, which does not exist either$"):
        read_data_yaml(file).sources("val")


@pytest.mark.skipif(os.name == "nt", reason="paths of Windows may exist there")
def test_a_path_of_windows_is_named_as_the_cause(tmp_path):
    here = "a path of Windows: write where the data are here"
    for path, hint in (("C:\\Users\\me\\x", ""), ("D:/x", ""), ("\\\\server\\x", "")):
        file = write(tmp_path, f"path: {path}\ntrain: images\nnames: [a]\n")
        with pytest.raises(ValueError) as refusal:
            read_data_yaml(file).sources("train")
        assert str(refusal.value).endswith(f"which does not exist; 'path' is {path}, {here}{hint}")

    file = write(tmp_path, "train: C:\\x\\images\nnames: [a]\n")
    with pytest.raises(ValueError) as refusal:
        read_data_yaml(file).sources("train")
    assert str(refusal.value).endswith(f"which does not exist; it is C:\\x\\images, {here}")

    (tmp_path / "images").mkdir()
    file = write(tmp_path, "path: C:\\x\ntrain: images\nnames: [a]\n")
    with pytest.raises(ValueError) as refusal:
        read_data_yaml(file).sources("train")
    assert str(refusal.value).endswith(
        f"'path' is C:\\x, {here}; {tmp_path}/images exists: remove 'path' from the YAML, or "
        "correct it"
    )


@pytest.mark.skipif(os.name == "nt", reason="backslashes separate folders there")
def test_backslashes_between_folders_are_read(tmp_path):
    (tmp_path / "images" / "train").mkdir(parents=True)
    spec = read_data_yaml(write(tmp_path, "train: images\\train\nval: no\\val\nnames: [a]\n"))
    assert spec.train == (tmp_path / "images" / "train",)
    assert spec.val == (tmp_path / "no\\val",)


def test_keys_of_other_programs_are_said_and_not_used(tmp_path):
    text = "train: images\nnames: [a]\nchannels: 3\nkpt_names:\n  0: [nose]\nlicense: MIT\n"
    file = write(tmp_path, text)
    spec = read_data_yaml(file)
    assert spec.names == ("a",)
    assert spec.notes == (
        f"{file}: keys of other programs, not used: channels, kpt_names, license",
    )


@pytest.mark.parametrize(
    ("text", "keypoints"), [("", None), ("kpt_shape: [17, 3]\nflip_idx: [0]\n", (17, 3))]
)
def test_keypoints_are_read(tmp_path, text, keypoints):
    file = tmp_path / "data.yaml"
    file.write_text(f"train: .\nnames: [a]\n{text}")
    assert read_data_yaml(file).keypoints == keypoints


@pytest.mark.parametrize("value", ["17", "[17]", "[17, 4]", "[0, 2]", "[a, 2]", "[[1], 2]", "{}"])
def test_keypoints_that_cannot_be_are_refused(tmp_path, value):
    file = tmp_path / "data.yaml"
    file.write_text(f"names: [a]\nkpt_shape: {value}\n")
    with pytest.raises(
        ValueError, match=r"line 2: 'kpt_shape' must be \[number of keypoints, 2 or 3"
    ):
        read_data_yaml(file)


def test_merged_classes_keep_the_order_of_a_source_that_has_its_own(tmp_path):
    """Source b numbers dog 0 and cat 1."""
    file = tmp_path / "data.yaml"
    file.write_text(
        "train: [a, b]\nnames: [cat, dog]\nmerge: {dog: animal}\n"
        "label_names: {b: {dog: dog, cat: cat}}\n"
    )
    spec = read_data_yaml(file)
    assert list(spec.names) == ["cat", "animal"]
    assert list(spec.label_names[tmp_path / "a"].items()) == [("cat", "cat"), ("dog", "animal")]
    assert list(spec.label_names[tmp_path / "b"].items()) == [("dog", "animal"), ("cat", "cat")]
