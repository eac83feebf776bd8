"""detect.py --save-labels: detections as a data set for an annotation tool, read back as such."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import detect
import train
from data.formats.writers import WRITERS
from data.formats.writers.coco import CocoWriter
from data.formats.writers.detections import DetectionLabels
from tests.support.data_sets import opened
from tests.support.exporting import lively_detector, save_checkpoint
from utils.distributed.world import World
from utils.images.detections import Frame, ImageDetections

CPU = World(torch.device("cpu"))
NAMES = ["disc", "square", "bar"]


@pytest.fixture(scope="module")
def weights(tiny_data, micro_model, tmp_path_factory) -> Path:
    """A checkpoint with random weights: it detects much, anywhere."""
    path = tmp_path_factory.mktemp("weights") / "best.pt"
    return save_checkpoint(path, lively_detector(micro_model), data=str(tiny_data))


@pytest.fixture
def run(weights, tmp_path) -> Callable[..., Path]:
    """run(source, ...) runs detect.py's main; returns the run folder."""

    def call(source: Path, *flags: str) -> Path:
        given = ["--weights", weights, "--source", source, "--device", "cpu", "--max-det", "5"]
        given += ["--project", tmp_path, "--name", "d", "--exist-ok", "--nosave", *flags]
        detect.main(detect.parse_args(list(map(str, given))))
        return tmp_path / "d"

    return call


def boxes_by_image(dataset) -> dict[str, list[tuple[str, list[float]]]]:
    """The class names and boxes of each image file, sorted."""
    found = {}
    for labels in dataset.labels.values():
        for index in range(len(labels)):
            rows = labels.rows(index)
            boxes = []
            for row in range(rows.start, rows.stop):
                box = labels.boxes_xywh[row].round(2).tolist()
                boxes.append((dataset.names[labels.classes[row]], box))
            found[Path(labels.path(index)).name] = sorted(boxes)
    return found


def expected_boxes(run_folder: Path) -> dict[str, list[tuple[str, list[float]]]]:
    """The same of predictions.json; boxes that are equal once, as readers of labels have them."""
    found: dict[str, list[tuple[str, list[float]]]] = {}
    for row in json.loads((run_folder / "predictions.json").read_text()):
        box = np.array(row["bbox"]).round(2).tolist()
        name = NAMES[row["category_id"] - 1]
        boxes = found.setdefault(Path(row["source"]).name, [])
        if (name, box) not in boxes:
            boxes.append((name, box))
    return {image: sorted(boxes) for image, boxes in found.items()}


def accept_predictions(folder: Path) -> None:
    """Do what a person does in Label Studio: make annotations of predictions, and export."""
    file = folder / "tasks.json"
    tasks = json.loads(file.read_text())
    for task in tasks:
        task["annotations"] = task.pop("predictions")
    file.write_text(json.dumps(tasks))


@pytest.mark.parametrize("kind", WRITERS)
def test_labels_that_are_read_back_are_the_detections(run, tiny_data, tmp_path, kind):
    folder = run(tiny_data.parent / "images", "--save-labels", kind, "--save-json")
    annotations = folder / "annotations"
    if kind == "label-studio":
        accept_predictions(annotations)
    dataset = opened(annotations, cache=tmp_path / "cache", val_split=0.5)
    found = boxes_by_image(dataset)
    expected = expected_boxes(folder)
    assert found.keys() == expected.keys()
    assert len(found) == 8
    for image, boxes in expected.items():
        assert [name for name, _ in found[image]] == [name for name, _ in boxes]
        read = np.array([box for _, box in found[image]])
        np.testing.assert_allclose(read, np.array([box for _, box in boxes]), atol=0.011)


def test_labels_that_exist_are_not_overwritten(run, tiny_data, capsys):
    source = tiny_data.parent / "images"
    folder = run(source, "--save-labels", "yolo")
    label = folder / "annotations" / "labels" / "0.txt"
    label.write_text("0 .5 .5 .1 .1\n")  # a person has corrected it
    with pytest.raises(ValueError) as refusal:
        run(source, "--save-labels", "yolo")
    assert str(refusal.value) == (
        f"{folder}/annotations exists, and labels are not overwritten: give another --name"
    )
    assert label.read_text() == "0 .5 .5 .1 .1\n"


def test_images_with_one_stem_and_in_subfolders_have_labels_of_their_own(run, tiny_data, tmp_path):
    source = tmp_path / "photos"
    (source / "street").mkdir(parents=True)
    original = tiny_data.parent / "images" / "0.png"
    for name in ("a.png", "street/a.png"):
        shutil.copy(original, source / name)
    cv2.imwrite(str(source / "a.bmp"), cv2.imread(str(original)))
    folder = run(source, "--save-labels", "yolo") / "annotations"
    images = sorted(file.relative_to(folder).as_posix() for file in folder.glob("images/**/*.*"))
    assert images == ["images/a.bmp.bmp", "images/a.png.png", "images/street/a.png"]
    labels = sorted(file.relative_to(folder).as_posix() for file in folder.glob("labels/**/*.txt"))
    assert labels == ["labels/a.bmp.txt", "labels/a.png.txt", "labels/street/a.txt"]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("place", ["images", "street/JPEGImages"])
def test_labels_of_a_source_with_an_image_folder_are_found(run, tiny_data, tmp_path, kind, place):
    """Readers look for labels beside the last folder called images."""
    shutil.copytree(tiny_data.parent / "images", tmp_path / "photos" / place)
    annotations = run(tmp_path / "photos", "--save-labels", kind, "--save-json") / "annotations"
    if kind == "label-studio":
        accept_predictions(annotations)
    dataset = opened(annotations, cache=tmp_path / "cache", val_split=0.5)
    found = {image: len(boxes) for image, boxes in boxes_by_image(dataset).items()}
    expected = expected_boxes(tmp_path / "d")
    assert found == {image: len(boxes) for image, boxes in expected.items()}


def test_image_that_is_given_twice_is_written_once(tmp_path):
    """As on standard input, where a path keeps its name."""
    labels = DetectionLabels(CocoWriter(tmp_path, NAMES), None)
    frame = Frame(np.zeros((8, 8, 3), np.uint8), "no file", "a.jpg")
    nothing = ImageDetections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))
    for _ in range(2):
        labels.write(frame, nothing)
    labels.close()
    document = json.loads((tmp_path / "annotations" / "instances.json").read_text())
    assert [image["file_name"] for image in document["images"]] == ["a.jpg"]


def test_format_that_cannot_hold_a_class_name_leaves_no_labels(tmp_path):
    """So that the command works with another format."""
    args = detect.parse_args(["--save-labels", "yolo", "--nosave"])
    with pytest.raises(ValueError, match="YOLO cannot hold the class"):
        detect.open_detection_outputs(args, tmp_path, ["two\nlines"], None)
    assert not list(tmp_path.iterdir())


def test_frames_of_a_video_are_written_as_images(run, tmp_path):
    file = tmp_path / "clip.avi"
    video = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*"MJPG"), 5, (64, 48))
    for brightness in (0, 100, 200):
        video.write(np.full((48, 64, 3), brightness, np.uint8))
    video.release()
    folder = run(file, "--save-labels", "coco") / "annotations"
    assert sorted(image.name for image in (folder / "images").iterdir()) == [
        "clip_1.jpg",
        "clip_2.jpg",
        "clip_3.jpg",
    ]
    document = json.loads((folder / "annotations" / "instances.json").read_text())
    assert [image["file_name"] for image in document["images"]] == [
        "clip_1.jpg",
        "clip_2.jpg",
        "clip_3.jpg",
    ]
    assert cv2.imread(str(folder / "images" / "clip_2.jpg")).shape == (48, 64, 3)


def test_image_without_detections_has_empty_labels(run, tiny_data):
    flags = ("--conf", "1")
    folder = run(tiny_data.parent / "images", "--save-labels", "yolo", *flags) / "annotations"
    assert {file.read_text() for file in folder.glob("labels/*.txt")} == {""}
    assert len(list(folder.glob("labels/*.txt"))) == 8


def test_image_without_detections_waits_for_a_person_in_label_studio(run, tiny_data):
    """With an empty annotation it would count as labeled, and nobody would be shown it."""
    flags = ("--save-labels", "label-studio", "--conf", "1")
    folder = run(tiny_data.parent / "images", *flags) / "annotations"
    tasks = json.loads((folder / "tasks.json").read_text())
    assert len(tasks) == 8
    assert all(task.keys() == {"data", "predictions"} for task in tasks)
    assert [task["predictions"][0]["result"] for task in tasks] == [[]] * 8


def test_unknown_format_is_refused(run, tiny_data):
    with pytest.raises(ValueError) as refusal:
        run(tiny_data.parent / "images", "--save-labels", "yol")
    assert str(refusal.value) == (
        "--save-labels yol: choose yolo, coco, voc, labelme, cvat, label-studio (did you mean "
        "yolo?)"
    )


def test_help_names_all_formats(capsys):
    with pytest.raises(SystemExit):
        detect.parse_args(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    *first, last = WRITERS
    assert f"annotation tool: {', '.join(first)} or {last}" in words


@pytest.mark.slow
def test_corrected_detections_are_trained_with_the_first_labels(tiny_data, micro_model, tmp_path):
    """Label some images, train, detect in others, correct, train on all of them."""
    more = tmp_path / "more"
    more.mkdir()
    for number in range(4):
        shutil.copy(tiny_data.parent / "images" / f"{number}.png", more / f"new {number}.png")
    common = ["--device", "cpu", "--workers", "0", "--cache-dir", str(tmp_path / "cache")]
    common += ["--img", "64", "--epochs", "1", "--batch", "4", "--cfg", micro_model, "--noplots"]
    common += ["--weights", "", "--project", str(tmp_path / "runs"), "--exist-ok"]
    train.main(train.parse_args(["--data", str(tiny_data), "--name", "first", *common])[0], CPU)
    best = tmp_path / "runs" / "first" / "weights" / "best.pt"

    flags = ["--weights", str(best), "--source", str(more), "--device", "cpu", "--conf", "0.0001"]
    flags += ["--project", str(tmp_path / "runs"), "--name", "found", "--save-labels", "yolo"]
    detect.main(detect.parse_args([*flags, "--max-det", "3"]))
    corrected = tmp_path / "runs" / "found" / "annotations"

    words = ["--data", str(tiny_data), str(corrected), "--name", "second", *common]
    train.main(train.parse_args(words)[0], CPU)
    report = json.loads((tmp_path / "runs" / "second" / "data_report.json").read_text())
    assert report["train"]["images"] == 8 + 4
