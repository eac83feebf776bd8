"""data/convert/: each format written and read back, names that collide, links, and what happens to
a folder that exists.
"""

import json
import os
import shutil
import signal
import time
import unicodedata

import cv2
import numpy as np
import pytest
import yaml

from data.convert.__main__ import main, run_script
from data.convert.conversion import ImageNames
from data.formats.writers import WRITERS
from tests.support.data_sets import opened
from utils.terminal import exit_code_of

NAMES = ["zebra", "cat & <dog>", 'a "b"', "never seen"]
WITH_CROWDS = ("coco", "voc")  # formats that have ignore regions
WITHOUT_POLYGONS = ("voc",)
WITHOUT_A_LIST = ("label-studio",)  # formats that do not list the classes


def coco_set(root, seed=0):
    """A COCO data set with two splits: boxes, polygons, crowds, an image without any.

    Two images of each split have the same file name as one of the other.
    """
    rng = np.random.default_rng(seed)
    for split, count in (("train", 4), ("val", 3)):
        folder = root / split
        folder.mkdir(parents=True)
        images, boxes = [], []
        for number in range(count):
            width, height = rng.integers(40, 90, 2).tolist()
            noise = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
            cv2.imwrite(str(folder / f"photo {number}.png"), noise)
            images.append(
                {"id": number, "file_name": f"photo {number}.png", "width": width, "height": height}
            )
            for _ in range(rng.integers(1, 5) if number else 0):
                boxes.append(random_annotation(rng, number, len(boxes), width, height))
        categories = [{"id": number, "name": name} for number, name in enumerate(NAMES)]
        contents = {"images": images, "annotations": boxes, "categories": categories}
        (folder / f"instances_{split}.json").write_text(json.dumps(contents))
    return root


def random_annotation(rng, image, number, width, height):
    """A box, a polygon whose extent is the box, or an ignore region."""
    left = float(rng.uniform(0, width - 20))
    top = float(rng.uniform(0, height - 20))
    w, h = rng.uniform(5, 19, 2).tolist()
    annotation = {
        "id": number,
        "image_id": image,
        "category_id": int(rng.integers(3)),
        "bbox": [left, top, w, h],
        "area": w * h,
        "iscrowd": int(rng.random() < 0.2),
    }
    if rng.random() < 0.4 and not annotation["iscrowd"]:
        corners = [left, top, left + w, top, left + w / 2, top + h]
        annotation["segmentation"] = [corners]
    return annotation


def converted(*words):
    """Convert with these words of a command line."""
    return main(list(map(str, words)))


def contents(dataset, crowds=True):
    """The boxes of all images by split: [class name, crowd, rounded box], sorted."""
    found = {}
    for split, labels in dataset.labels.items():
        for index in range(len(labels)):
            rows = labels.rows(index)
            boxes = []
            for row in range(rows.start, rows.stop):
                if labels.crowd[row] and not crowds:
                    continue
                name = dataset.names[labels.classes[row]]
                box = labels.boxes_xywh[row].round(3).tolist()
                boxes.append((name, bool(labels.crowd[row]), box))
            size = tuple(labels.sizes[index].tolist())
            found[split, size] = sorted(boxes)
    return found


def polygons(dataset):
    return sum(int((np.diff(labels.point_offsets) > 0).sum()) for labels in dataset.labels.values())


@pytest.mark.parametrize("kind", WRITERS)
def test_each_format_is_read_back_with_equal_boxes(tmp_path, kind):
    source = coco_set(tmp_path / "source")
    cache = tmp_path / "cache"
    result = converted(source, tmp_path / "out", "--to", kind, "--cache-dir", cache)
    assert (result.images, result.is_new) == (7, True)

    before = opened(source, cache=cache)
    after = opened(tmp_path / "out", cache=cache)
    in_use = {name for boxes in contents(before).values() for name, *_ in boxes}
    assert after.names == (sorted(in_use) if kind in WITHOUT_A_LIST else NAMES)
    expected = contents(before, crowds=kind in WITH_CROWDS)
    found = contents(after)
    assert found.keys() == expected.keys()
    for image, boxes in expected.items():
        for (name, crowd, box), (name_found, crowd_found, box_found) in zip(
            boxes, found[image], strict=True
        ):
            assert (name, crowd) == (name_found, crowd_found)
            np.testing.assert_allclose(box_found, box, atol=2e-3)
    if kind == "yolo":  # boxes in a file with a polygon are polygons, too
        assert polygons(after) >= polygons(before) - result.lost["polygon"]
    else:
        assert polygons(after) == polygons(before) - result.lost["polygon"]
    assert result.lost["polygon"] <= (polygons(before) if kind in WITHOUT_POLYGONS else 1)


def test_coco_json_keeps_boxes_and_areas_bit_for_bit(tmp_path):
    source = coco_set(tmp_path / "source")
    converted(source, tmp_path / "out", "--to", "coco", "--cache-dir", tmp_path / "cache")
    before = opened(source, cache=tmp_path / "cache").labels["train"]
    after = opened(tmp_path / "out", cache=tmp_path / "cache").labels["train"]
    for name in ("boxes_xywh", "areas", "crowd", "classes", "points"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


def test_a_chain_of_conversions_keeps_the_boxes(tmp_path):
    """Through all formats, and back to the first."""
    cache = tmp_path / "cache"
    first = source = coco_set(tmp_path / "source", seed=3)
    for kind in (*WRITERS, "coco"):
        out = tmp_path / f"out-{kind}-{source.name}"
        converted(source, out, "--to", kind, "--cache-dir", cache, "--images", "link")
        source = out
    before = contents(opened(first, cache=cache), crowds=False)
    after = contents(opened(source, cache=cache))
    assert before.keys() == after.keys()
    for image, boxes in before.items():
        boxes_before = np.array([box for *_, box in boxes]).reshape(-1, 4)
        boxes_after = np.array([box for *_, box in after[image]]).reshape(-1, 4)
        np.testing.assert_allclose(boxes_after, boxes_before, atol=5e-3)
        assert [name for name, *_ in after[image]] == [name for name, *_ in boxes]


def test_polygon_of_another_extent_is_written_as_its_box(tmp_path):
    """The box is what is trained; most formats have only one of the two."""
    source = coco_set(tmp_path / "source")
    file = source / "train" / "instances_train.json"
    document = json.loads(file.read_text())
    document["annotations"] = [
        {
            "id": 1,
            "image_id": 1,
            "category_id": 0,
            "bbox": [1, 2, 30, 20],
            "area": 5,
            "iscrowd": 0,
            "segmentation": [[5, 5, 9, 5, 9, 9]],
        }
    ]
    file.write_text(json.dumps(document))
    converted(source, tmp_path / "out", "--to", "yolo", "--cache-dir", tmp_path / "cache")
    labels = opened(tmp_path / "out", cache=tmp_path / "cache").labels["train"]
    np.testing.assert_allclose(labels.boxes_xywh, [[1, 2, 30, 20]], atol=1e-6)


def test_boxes_over_the_border_are_not_lost_in_yolo(tmp_path, capsys):
    source = coco_set(tmp_path / "source")
    file = source / "train" / "instances_train.json"
    document = json.loads(file.read_text())
    width, height = (document["images"][1][side] for side in ("width", "height"))
    boxes = [[-10, -5, 30, 20], [width - 5, 10, 20, 20], [-5, -5, 200, 200]]
    document["annotations"] = [
        {"id": number, "image_id": 1, "category_id": 0, "bbox": box}
        for number, box in enumerate(boxes)
    ]
    file.write_text(json.dumps(document))
    converted(source, tmp_path / "out", "--to", "yolo", "--cache-dir", tmp_path / "cache")
    assert "not in this format: 3 out-of-bounds boxes" in capsys.readouterr().out
    labels = opened(tmp_path / "out", cache=tmp_path / "cache").labels["train"]
    expected = [[0, 0, 20, 15], [width - 5, 10, 5, 20], [0, 0, width, height]]
    np.testing.assert_allclose(labels.boxes_xywh, expected, atol=1e-6)


# ---------------------------------------------------------------------- the folder


def files(folder):
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            found[file.relative_to(folder).as_posix()] = file.read_bytes()
    return found


def test_splits_and_names_stay_and_images_do_not_collide(tmp_path):
    source = coco_set(tmp_path / "source")
    converted(source, tmp_path / "out", "--to", "voc", "--cache-dir", tmp_path / "cache")
    images = sorted(file.name for file in (tmp_path / "out" / "JPEGImages").iterdir())
    assert images == [
        "photo 0.png",
        "photo 0_2.png",
        "photo 1.png",
        "photo 1_2.png",
        "photo 2.png",
        "photo 2_2.png",
        "photo 3.png",
    ]
    lists = {file.stem for file in (tmp_path / "out" / "ImageSets" / "Main").iterdir()}
    assert lists == {"train", "val"}


@pytest.mark.parametrize("kind", WRITERS)
def test_odd_file_names_become_names_that_every_reader_finds(tmp_path, kind):
    """Hidden, with spaces at its ends, or too long for a.json beside a.png."""
    source = coco_set(tmp_path / "source")
    file = source / "train" / "instances_train.json"
    document = json.loads(file.read_text())
    odd = [".hidden.png", "end .png", " start.png", f"{'x' * 251}.png"]
    for image, name in zip(document["images"], odd, strict=True):
        (source / "train" / image["file_name"]).rename(source / "train" / name)
        image["file_name"] = name
    file.write_text(json.dumps(document))
    cache = tmp_path / "cache"
    converted(source, tmp_path / "out", "--to", kind, "--cache-dir", cache)
    before = contents(opened(source, cache=cache), crowds=False)
    after = contents(opened(tmp_path / "out", cache=cache), crowds=False)
    assert {image: len(boxes) for image, boxes in after.items()} == {
        image: len(boxes) for image, boxes in before.items()
    }


def test_outlines_of_which_only_the_box_is_kept_are_counted(tmp_path, capsys):
    source = coco_set(tmp_path / "source")
    file = source / "train" / "instances_train.json"
    document = json.loads(file.read_text())
    first, second, *_ = document["annotations"]
    first["segmentation"] = [[1, 1, 5, 1, 5, 5], [6, 6, 8, 6, 8, 8]]
    second["segmentation"] = {"counts": [3, 4], "size": [7, 1]}
    file.write_text(json.dumps(document))
    converted(source, tmp_path / "out", "--to", "coco", "--cache-dir", tmp_path / "cache")
    said = capsys.readouterr().out
    assert ", 1 from multi-part outlines, 1 from run-length masks" in said
    assert "written as its box only: 1 multi-part outline\n" in said
    assert "written as its box only: 1 run-length mask\n" in said


def test_many_images_with_one_name_take_no_quadratic_time():
    names = ImageNames()
    found = {names.name("frame.jpg") for _ in range(20_000)}  # a minute, if it were
    assert len(found) == 20_000
    assert names.name("Frame.png") == "Frame_20001.png"


def test_names_of_images_differ_on_systems_that_ignore_the_kind_of_unicode():
    names = ImageNames()
    assert names.name("\u00e9.png") != unicodedata.normalize("NFC", names.name("e\u0301.png"))


def test_split_of_images_whose_name_has_two_suffixes_stays_in_voc(tmp_path):
    """Lists of VOC have a.jpg for a.jpg.png, which looks like the path of an image."""
    source = coco_set(tmp_path / "source")
    for split in SPLITS:
        file = source / split / f"instances_{split}.json"
        document = json.loads(file.read_text())
        for image in document["images"]:
            old = image["file_name"]
            image["file_name"] = old.replace("photo ", f"{split}").replace(".png", ".jpg.png")
            (source / split / old).rename(source / split / image["file_name"])
        file.write_text(json.dumps(document))
    cache = tmp_path / "cache"
    converted(source, tmp_path / "out", "--to", "voc", "--cache-dir", cache)
    val = opened(tmp_path / "out", cache=cache).labels["val"]
    names = [os.path.basename(val.path(index)) for index in range(len(val))]
    assert names == ["val0.jpg.png", "val1.jpg.png", "val2.jpg.png"]


def test_same_command_again_changes_nothing(tmp_path, capsys):
    source = coco_set(tmp_path / "source")
    words = [source, tmp_path / "out", "--to", "yolo", "--cache-dir", tmp_path / "cache"]
    converted(*words)
    before = files(tmp_path / "out")
    capsys.readouterr()
    assert not converted(*words).is_new
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith(f"{tmp_path / 'out'} has all of it already: 7 images, ")
    )
    assert files(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir() if ".tmp." in path.name] == []


@pytest.mark.parametrize("change", ["label", "image", "more", "less"])
def test_folder_that_holds_something_else_is_refused(tmp_path, change):
    source = coco_set(tmp_path / "source")
    out = tmp_path / "out"
    words = [source, out, "--to", "yolo", "--cache-dir", tmp_path / "cache"]
    converted(*words)
    label = out / "labels" / "train" / "photo 1.txt"
    if change == "label":
        label.write_text("0 .5 .5 .1 .1\n")  # a person has corrected it
    if change == "image":
        (out / "images" / "train" / "photo 1.png").write_bytes(b"")
    if change == "more":
        (out / "notes.txt").write_text("mine")
    if change == "less":
        label.unlink()
    before = files(out)
    with pytest.raises(ValueError, match=r"exists and differs in 1 file, such as .*: choose "):
        converted(*words)
    assert files(out) == before


def test_image_that_was_changed_in_the_same_number_of_bytes_is_noticed(tmp_path):
    source = coco_set(tmp_path / "source")
    words = [source, tmp_path / "out", "--to", "yolo", "--cache-dir", tmp_path / "cache"]
    converted(*words)
    image = tmp_path / "out" / "images" / "train" / "photo 1.png"
    image.write_bytes(image.read_bytes()[::-1])
    with pytest.raises(ValueError, match=r"differs in 1 file, such as images/train/photo 1\.png"):
        converted(*words)


def test_current_folder_can_be_out_again(tmp_path, monkeypatch):
    source = coco_set(tmp_path / "source")
    words = ("--to", "yolo", "--cache-dir", tmp_path / "cache")
    converted(source, tmp_path / "out", *words)
    monkeypatch.chdir(tmp_path / "out")
    assert not converted(source, ".", *words).is_new


def test_folder_that_another_process_has_written_meanwhile_is_left(tmp_path, monkeypatch):
    source = coco_set(tmp_path / "source")
    out = tmp_path / "out"

    def written_meanwhile(*_arguments):
        out.mkdir()
        (out / "a.txt").write_text("of another process")
        return False

    monkeypatch.setattr("data.convert.conversion._place_images", written_meanwhile)
    with pytest.raises(ValueError, match="out was written by another process meanwhile"):
        converted(source, out, "--to", "yolo", "--cache-dir", tmp_path / "cache")
    assert files(out) == {"a.txt": b"of another process"}


@pytest.mark.parametrize("place", ["file", "file/out", "link"])
def test_out_that_cannot_be_made_is_refused_before_the_labels_are_read(tmp_path, capsys, place):
    source = coco_set(tmp_path / "source")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"^OUT .* is not a folder$"):
        converted(source, tmp_path / place, "--to", "yolo", "--cache-dir", tmp_path / "cache")
    assert capsys.readouterr().out == ""


def test_folder_inside_an_image_folder_of_a_yaml_is_refused(tmp_path):
    words = ("--to", "yolo", "--cache-dir", tmp_path / "cache")
    converted(coco_set(tmp_path / "source"), tmp_path / "yolo", *words)
    out = tmp_path / "yolo" / "images" / "train" / "out"
    with pytest.raises(ValueError, match="which is read: choose a folder outside of it"):
        converted(tmp_path / "yolo" / "data.yaml", out, *words)


@pytest.mark.parametrize("place", ["", "out"])
@pytest.mark.parametrize("given", ["", "train/instances_train.json"])
def test_folder_inside_the_source_is_refused(tmp_path, given, place):
    source = coco_set(tmp_path / "source")
    out = (source / given).parent / place if given else source / place
    with pytest.raises(ValueError, match="which is read: choose a folder outside of it"):
        converted(source / given, out, "--to", "yolo", "--cache-dir", tmp_path / "cache")


def test_split_without_boxes_and_data_without_a_train_split_are_converted(tmp_path):
    source = coco_set(tmp_path / "source")
    shutil.rmtree(source / "train")
    file = source / "val" / "instances_val.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"annotations": []}))
    out = tmp_path / "out"
    result = converted(source, out, "--to", "yolo", "--cache-dir", tmp_path / "cache")
    assert (result.images, result.boxes) == (3, 0)
    assert yaml.safe_load((out / "data.yaml").read_text())["val"] == "images/val"


@pytest.mark.parametrize("images", ["link", "none"])
def test_images_are_linked_or_left(tmp_path, images):
    source = coco_set(tmp_path / "source")
    out = tmp_path / "out"
    words = [source, out, "--to", "yolo", "--images", images, "--cache-dir", tmp_path / "cache"]
    converted(*words)
    image = out / "images" / "train" / "photo 0.png"
    if images == "none":
        assert not (out / "images").exists()
    else:
        assert image.samefile(source / "train" / "photo 0.png")
    assert not converted(*words).is_new


def test_folder_without_splits_gets_none(tmp_path):
    folder = coco_set(tmp_path / "source") / "train"
    (folder / "instances_train.json").rename(folder / "boxes.json")
    source = folder.rename(tmp_path / "photos")
    cache = ("--cache-dir", tmp_path / "cache")
    converted(source, tmp_path / "yolo", "--to", "yolo", *cache)
    assert not (tmp_path / "yolo" / "data.yaml").exists()
    assert (tmp_path / "yolo" / "classes.txt").is_file()
    converted(source, tmp_path / "split", "--to", "yolo", "--val-split", "0.5", *cache)
    document = yaml.safe_load((tmp_path / "split" / "data.yaml").read_text())
    assert document.keys() == {"path", "train", "val", "names"}


def test_several_sources_are_joined_and_classes_renamed(tmp_path):
    one = coco_set(tmp_path / "one", seed=1)
    two = coco_set(tmp_path / "two", seed=2)
    cache = ("--cache-dir", tmp_path / "cache")
    result = converted(one, two, tmp_path / "out", "--to", "coco", "--merge", "zebra=horse", *cache)
    assert result.images == 14
    dataset = opened(tmp_path / "out", cache=tmp_path / "cache")
    assert dataset.names == ["horse", *NAMES[1:]]


def test_lost_ignore_regions_are_said(tmp_path, capsys):
    source = coco_set(tmp_path / "source")
    result = converted(source, tmp_path / "out", "--to", "cvat", "--cache-dir", tmp_path / "cache")
    count = result.lost["ignore region"]
    crowds = [opened(source, cache=tmp_path / "cache").labels[split].crowd for split in SPLITS]
    assert count == sum(int(crowd.sum()) for crowd in crowds) > 1
    said = capsys.readouterr().out
    assert f"not in this format: {count} ignore regions" in said
    # those that were written
    file = tmp_path / "out" / "annotations_train.xml"
    texts = [file.read_text(), file.with_name("annotations_val.xml").read_text()]
    written = sum(text.count("<box ") + text.count("<polygon ") for text in texts)
    assert f"7 images, {written} boxes" in said


SPLITS = ("train", "val")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "out", "--to", "yolo"], "error: no data set nowhere: "),
        (["a", "out"], "error: the following arguments are required: --to"),
        (["a", "out", "--to", "tfrecord"], "error: --to: invalid choice: 'tfrecord'"),
        (["a", "out", "--to", "voc", "--val-split", "1"], "error: --val-split 1: choose 0 (none)"),
    ],
)
def test_wrong_command_line_exits_with_2_and_one_sentence(words, message, capsys):
    assert exit_code_of(lambda: main(words)) == 2
    assert capsys.readouterr().err.startswith(message)


def _convert_slowly(source, out, cache):
    """Convert, and stop before the folder gets its name."""
    import data.convert.conversion as conversion

    place = conversion._place_images

    def then_wait(*arguments):
        place(*arguments)
        time.sleep(60)

    conversion._place_images = then_wait
    run_script(list(map(str, (source, out, "--to", "yolo", "--cache-dir", cache))))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ended_conversion_leaves_no_folder(tmp_path, number):
    source = coco_set(tmp_path / "source")
    out = tmp_path / "out"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = exit_code_of(lambda: _convert_slowly(source, out, tmp_path / "cache"))
        finally:
            os._exit(code)
    while not list(tmp_path.glob("out.tmp.*/contents/images/val/*_2.png")):
        time.sleep(0.05)
    os.kill(child, number)
    _, status = os.waitpid(child, 0)
    assert not out.exists()
    if number != signal.SIGKILL:
        assert os.WEXITSTATUS(status) == 128 + number
        assert not list(tmp_path.glob("out.tmp.*"))
    result = converted(source, out, "--to", "yolo", "--cache-dir", tmp_path / "cache")
    assert result.is_new
