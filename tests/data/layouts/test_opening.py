"""data/layouts/opening.py: the YAML and the lists of a data set that had none; and all exports of
annotation tools in ../shared, from the path given as --data to the boxes.
"""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from data import open_data
from data.layouts import images_to_detect_in
from tests.support.data_sets import image_folder, opened

EXPORTS = Path(__file__).parents[4] / "shared" / "fixtures" / "annotation_tools"
needs_exports = pytest.mark.skipif(not EXPORTS.is_dir(), reason=f"{EXPORTS} is missing")
WHOLE_NUMBERS = 1.0  # pixels by which formats with whole numbers may differ
NO_IMAGES = {"ls_yolo"}
NUMBERED = {"plain": "0, 1, 2", "plain_images_labels": "0, 1, 2"}
CLASSES = ("RBC", "WBC", "Platelets")


# ---------------------------------------------------------------------- what is written


def test_held_out_images_are_said_and_kept_for_the_run(tmp_path, monkeypatch):
    said = []
    folder = image_folder(tmp_path / "photos")
    dataset = opened(folder, cache=tmp_path / "cache", said=said)
    train, val = dataset.labels["train"], dataset.labels["val"]
    assert len(train) + len(val) == 10
    assert said == [
        f"{folder}: YOLO; 2 classes from classes.txt: cat, dog; "
        f"no val split: {len(val)} of 10 images held out (--val-split 0.2)",
    ]

    # The copy in the run folder is the same data set.
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.chdir(tmp_path)
    dataset.save(Path("run"))
    assert dataset.file == run / "data.yaml"
    again = opened(run / "data.yaml", cache=tmp_path / "cache", said=said)
    assert [again.labels[split].digest() for split in ("train", "val")] == [
        train.digest(),
        val.digest(),
    ]
    assert not again.is_written
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["classes.txt", *(f"{n}.{kind}" for n in range(10) for kind in ("png", "txt"))]
    )


def test_yaml_without_val_split_gets_one(tmp_path):
    folder = image_folder(tmp_path / "photos")
    file = tmp_path / "data.yaml"
    file.write_text("train: photos\nnames: [cat, dog]\n")
    dataset = opened(file, cache=tmp_path / "cache", val_split=0.5)
    assert dataset.names == ["cat", "dog"]
    held_out = {Path(dataset.labels["val"].path(i)) for i in range(len(dataset.labels["val"]))}
    trained = {Path(dataset.labels["train"].path(i)) for i in range(len(dataset.labels["train"]))}
    assert held_out | trained == set(folder.glob("*.png"))
    assert not held_out & trained


def test_names_flag_names_classes_that_have_only_numbers(tmp_path):
    folder = image_folder(tmp_path / "photos")
    (folder / "classes.txt").unlink()
    assert opened(folder, cache=tmp_path / "cache").names == ["0", "1"]
    assert opened(folder, cache=tmp_path / "cache", names=("a", "b")).names == ["a", "b"]


@pytest.mark.parametrize("val", ["", "val: photos\n"])
def test_names_flag_does_not_change_a_yaml(tmp_path, val):
    image_folder(tmp_path / "photos")
    file = tmp_path / "data.yaml"
    file.write_text(f"train: photos\n{val}names: [cat, dog]\n")
    for path in (file, tmp_path):
        with pytest.raises(ValueError, match=r"data\.yaml names the classes cat, dog: change them"):
            opened(path, cache=tmp_path / "cache", names=("dog", "cat"))


def test_labels_of_a_file_are_divided_by_lists(tmp_path):
    """`labels` in a YAML: the file with the boxes of the images that the splits list."""
    folder = image_folder(tmp_path / "photos", 4)
    (tmp_path / "boxes.csv").write_text(
        "image,xmin,ymin,xmax,ymax,label\n"
        + "".join(f"{n}.png,1,1,{n + 3},5,dog\n" for n in range(3))
    )
    for split, numbers in (("train", (0, 1)), ("val", (2, 3))):
        names = "".join(f"{folder}/{number}.png\n" for number in numbers)
        (tmp_path / f"{split}.txt").write_text(names)
    file = tmp_path / "data.yaml"
    file.write_text("train: train.txt\nval: val.txt\nlabels: boxes.csv\nnames: [cat, dog]\n")
    dataset = opened(file, cache=tmp_path / "cache")
    assert dataset.labels["train"].boxes_xywh.tolist() == [[1, 1, 2, 4], [1, 1, 3, 4]]
    assert dataset.labels["val"].boxes_xywh.tolist() == [[1, 1, 4, 4]]
    assert dataset.reports["val"].problems[-1].reason == f"is not in {tmp_path}/boxes.csv"

    # A change of the labels is noticed.
    assert opened(file, cache=tmp_path / "cache").reports["train"].cache == "from cache"
    csv = (tmp_path / "boxes.csv").read_text()
    (tmp_path / "boxes.csv").write_text(csv.replace("0.png,1,1,3", "0.png,1,1,4"))
    changed = opened(file, cache=tmp_path / "cache")
    assert changed.labels["train"].boxes_xywh.tolist() == [[1, 1, 3, 4], [1, 1, 3, 4]]


@pytest.mark.parametrize("choices", [{}, {"merge": ("cat=kitten",)}])
def test_names_are_compared_with_a_list_whatever_is_written(tmp_path, choices):
    """Also where images are held out, or classes renamed: then lists of images are read."""
    image_folder(tmp_path / "photos", names="dog\ncat\n")
    file = tmp_path / "data.yaml"
    file.write_text("train: photos\nnames: [cat, dog]\n")
    with pytest.raises(ValueError, match=r"classes\.txt lists the classes in another order"):
        opened(file, cache=tmp_path / "cache", **choices)


def test_empty_path_is_not_the_current_folder(tmp_path, monkeypatch):
    """As the shell passes a variable that is not set."""
    monkeypatch.chdir(image_folder(tmp_path / "photos"))
    with pytest.raises(ValueError, match="the name is empty"):
        opened("", cache=tmp_path / "cache")


def test_sources_in_no_split_are_said(tmp_path):
    image_folder(tmp_path / "photos" / "train")
    image_folder(tmp_path / "photos" / "more")
    said = []
    opened(tmp_path / "photos", cache=tmp_path / "cache", said=said)
    (line,) = [line for line in said if "in no split" in line]
    unused = f"not used, because they are in no split: {tmp_path}/photos/more"
    assert re.fullmatch(rf"{re.escape(unused)} \(\d+ images?\)", line)


def test_data_set_without_train_split_is_refused(tmp_path):
    image_folder(tmp_path / "photos" / "val")
    with pytest.raises(ValueError, match=r"photos has no train split \(it has: val\)$"):
        opened(tmp_path / "photos", cache=tmp_path / "cache")


# ---------------------------------------------------------------------- archives


def zipped(folder, file, *, top=None):
    """Pack a folder; top: the folder that names in the archive are relative to."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(top or folder.parent))
    return file


def test_archive_has_the_held_out_images_of_its_folder(tmp_path):
    """However it was packed."""
    folder = image_folder(tmp_path / "photos", 20)
    held_out = []
    for path in (
        folder,
        zipped(folder, tmp_path / "whole.zip"),
        zipped(folder, tmp_path / "contents.zip", top=folder),
    ):
        val = opened(path, cache=tmp_path / "cache").labels["val"]
        held_out.append([Path(val.path(index)).name for index in range(len(val))])
    assert held_out[0] == held_out[1] == held_out[2] != []


def test_folder_of_a_split_is_one_however_it_was_packed(tmp_path):
    image_folder(tmp_path / "photos" / "test")
    archive = zipped(tmp_path / "photos", tmp_path / "export.zip")
    with pytest.raises(ValueError, match=r"has no train split \(it has: test\)"):
        opened(archive, cache=tmp_path / "cache")


def test_archive_is_unpacked_once_below_the_cache(tmp_path):
    archive = zipped(image_folder(tmp_path / "photos"), tmp_path / "export.zip")
    cache = tmp_path / "cache"
    first = opened(archive, cache=cache)
    assert len(first.labels["train"]) + len(first.labels["val"]) == 10
    (unpacked,) = (path for path in (cache / "archives").iterdir() if path.is_dir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "export.zip", "photos"]

    # Unchanged, it is not unpacked again; changed, it is.
    inode = next(unpacked.rglob("*.png")).stat().st_ino
    opened(archive, cache=cache)
    assert next(unpacked.rglob("*.png")).stat().st_ino == inode
    (tmp_path / "photos" / "10.png").write_bytes((tmp_path / "photos" / "9.png").read_bytes())
    said = []
    changed = opened(zipped(tmp_path / "photos", archive), cache=cache, said=said)
    assert len(changed.labels["train"]) + len(changed.labels["val"]) == 11
    assert said[-1] == "1 image nearly identical to another: in its split"


@pytest.mark.slow
def test_images_that_change_their_side_are_said(tmp_path):
    """Also of a changed archive, which is unpacked into another folder, and with --strict."""
    folder = image_folder(tmp_path / "photos", 10)
    cache = tmp_path / "cache"
    opened(folder, cache=cache)
    opened(zipped(folder, tmp_path / "export.zip"), cache=cache)
    for number in range(10):  # copies whose names are the first of their groups
        for kind in ("png", "txt"):
            copy = folder / f"-{number}.{kind}"
            copy.write_bytes((folder / f"{number}.{kind}").read_bytes())
    for path in (folder, zipped(folder, tmp_path / "export.zip")):
        said = []
        opened(path, cache=cache, said=said, strict=True)
        assert "images in another split than the last time: images were added" in said[-1]
        said.clear()
        opened(path, cache=cache, said=said)
        assert "another split" not in " ".join(said)


def test_group_that_is_not_used_is_said(tmp_path):
    image_folder(tmp_path / "photos" / "train")
    image_folder(tmp_path / "photos" / "val")
    file = tmp_path / "data.yaml"
    file.write_text("train: photos/train\nval: photos/val\nnames: [cat, dog]\n")
    for path in (file, tmp_path / "photos"):
        said = []
        opened(path, cache=tmp_path / "cache", said=said, group="[0-9]")
        assert said[-1] == "--group is not used, because no image is held out"


def test_run_whose_data_were_moved_says_what_to_do(tmp_path):
    folder = image_folder(tmp_path / "photos")
    dataset = opened(folder, cache=tmp_path / "cache")
    folder.rename(tmp_path / "moved")
    with pytest.raises(ValueError) as refusal:
        opened(dataset.file, cache=tmp_path / "cache")
    assert str(refusal.value) == (
        f"{dataset.file}: 'labels' is {folder}, which does not exist; if the data were moved, give "
        "their new path as --data"
    )


def test_unsafe_archive_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("../a.txt", "x")
    with pytest.raises(ValueError, match=r"export.zip is not unpacked: .*\.\./a.txt"):
        opened(tmp_path / "export.zip", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "archives").glob("export-*/**/*.txt"))


@pytest.mark.parametrize("path", ["path: /tmp\n", "path: ../..\n"])
def test_yaml_in_an_archive_names_nothing_outside(tmp_path, path):
    image_folder(tmp_path / "photos" / "train")
    (tmp_path / "photos" / "data.yaml").write_text(f"{path}train: .\nval: .\nnames: [cat, dog]\n")
    with pytest.raises(
        ValueError, match=r"its data\.yaml names .*, which is not in the archive: u"
    ):
        opened(zipped(tmp_path / "photos", tmp_path / "export.zip"), cache=tmp_path / "cache")


# ---------------------------------------------------------------------- exports of tools


def expected_boxes():
    return json.loads((EXPORTS / "expected.json").read_text())


def photograph(path):
    """The name of a photograph in expected.json: tools add prefixes and suffixes."""
    return f"{re.search(r'BloodImage_[0-9]+', Path(path).name)[0]}.jpg"


def export_names():
    if not EXPORTS.is_dir():
        return []
    names = [path.name for path in EXPORTS.iterdir() if path.is_dir() or path.suffix == ".zip"]
    return sorted(set(names) - {"real", *NO_IMAGES})


@needs_exports
@pytest.mark.parametrize("name", export_names())
def test_export_of_annotation_tool_gives_the_expected_boxes(name, tmp_path):
    """The split too, where the tool writes one."""
    dataset = opened(EXPORTS / name, cache=tmp_path / "cache")
    one_class = name == "kaggle"
    class_names = ["object"] if one_class else dataset.names
    numbers = {str(index): label for index, label in enumerate(CLASSES)}
    has_split = name.startswith("rf_") or "split" in name

    seen = set()
    for split, labels in dataset.labels.items():
        for index in range(len(labels)):
            image = photograph(labels.path(index))
            seen.add(image)
            expected = expected_boxes()[image]
            if has_split:
                assert split == expected["split"], image
            rows = labels.rows(index)
            boxes = []
            for class_index, (x, y, w, h) in zip(
                labels.classes[rows], labels.boxes_xywh[rows].tolist(), strict=True
            ):
                label = class_names[class_index]
                boxes.append((numbers.get(label, label), x, y, x + w, y + h))
            wanted = [
                ("object" if one_class else label, *box) for label, *box in expected["boxes_xyxy"]
            ]
            assert_same_boxes(boxes, wanted)
    assert len(seen) == (2 if one_class else 3)


def assert_same_boxes(boxes, wanted):
    """Each box is one of those that are wanted, within a pixel, and the other way round."""
    assert len(boxes) == len(wanted)
    found = np.array([box[1:] for box in boxes])
    expected = np.array([box[1:] for box in wanted])
    distance = np.abs(found[:, None] - expected[None]).max(-1)
    other_class = [[box[0] != other[0] for other in wanted] for box in boxes]
    distance[np.array(other_class)] = np.inf
    assert distance.min(0).max() <= WHOLE_NUMBERS + 1e-3
    assert distance.min(1).max() <= WHOLE_NUMBERS + 1e-3


@needs_exports
@pytest.mark.parametrize("name", sorted(NO_IMAGES))
def test_export_without_images_is_refused_with_what_to_do(name, tmp_path):
    with pytest.raises(ValueError, match="3 label files and no image; export it with the images"):
        opened(EXPORTS / name, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["inner.zip"], "it holds another archive, inner.zip: unpack it, and give what is in it"),
        (["deep/inner.7z", "readme.txt"], "it holds another archive, deep/inner.7z: unpack it, "),
        (
            ["README.dataset.txt", "README.roboflow.txt", "train/x.tfrecord"],
            "1 TFRecord file; TFRecord is not read; export the data set as COCO JSON or YOLO",
        ),
        (["a.txt", "b.txt"], "2 label files and no image; export it with the images, put them"),
        (["a.heic", "a.txt"], "photographs as .heic are not read: convert them"),
        (["a.docx"], "it has a.docx"),
        ([], "it is empty"),
    ],
)
def test_an_archive_without_a_data_set_is_refused_with_what_it_has(tmp_path, names, message):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    for _ in range(2):  # what is unpacked stays in the cache
        with pytest.raises(ValueError) as refusal:
            opened(tmp_path / "a.zip", cache=tmp_path / "cache")
        assert str(refusal.value).startswith(f"{tmp_path}/a.zip has no data set: {message}")


def test_messages_name_the_archive_and_not_the_folder_of_its_files(tmp_path):
    image_folder(tmp_path / "photos")
    (tmp_path / "photos" / "0.txt").write_text("1 .5 .5 .5\n")
    (tmp_path / "photos" / "data.yaml").write_text("train: .\nval: .\nnames: [cat, dog]\n")
    packed = tmp_path / "a.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for file in (tmp_path / "photos").iterdir():
            archive.write(file, f"photos/{file.name}")
    said = []
    dataset = opened(packed, cache=tmp_path / "cache")
    dataset.read("train", said.append)
    assert f"the first problem is {packed}/photos/0.txt line 1: " in "".join(said)
    assert str(tmp_path / "cache") not in "".join(said)

    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(tmp_path / "photos" / "0.png", "0.png")
        archive.writestr("data.yaml", "train: .\nval: .\nnames: [a, a]\n")
    with pytest.raises(ValueError) as refusal:
        opened(packed, cache=tmp_path / "cache")
    assert str(refusal.value) == f"{packed}/data.yaml line 3: classes 0 and 1 are both 'a'"


# ---------------------------------------------------------------------- images to detect in


def test_images_to_detect_in_are_a_folder_or_a_list(tmp_path):
    """What detect.py reads without --source, whatever the val split is."""
    one = image_folder(tmp_path / "one", 2)
    two = image_folder(tmp_path / "two", 1)
    rows = "".join(f"{number}.png,1,1,5,5,dog\n" for number in range(2))
    (one / "boxes.csv").write_text(f"image,xmin,ymin,xmax,ymax,label\n{rows}")
    (tmp_path / "list.txt").write_text(f"{two}/0.png\n")
    expected = {
        "one": one,
        "list.txt": tmp_path / "list.txt",
        "one/boxes.csv": [one / "0.png", one / "1.png"],
        "[one/boxes.csv, two]": [one / "0.png", one / "1.png", two / "0.png"],
    }
    for val, source in expected.items():
        file = tmp_path / "data.yaml"
        file.write_text(f"train: one\nval: {val}\nnames: [cat, dog]\n")
        spec = open_data(str(file), splits=("val",))
        found = images_to_detect_in(spec, "val", str(tmp_path / "cache"))
        if isinstance(source, Path):
            assert found == source
        else:
            assert found.read_text() == "".join(f"{path}\n" for path in source)
