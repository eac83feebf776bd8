"""detect.py: the same boxes as val.py, on every kind of source, in every kind of output; wrong
flags; Ctrl-C.
"""

import csv
import io
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import detect
import val
from models import build_model, load
from tests.support.convolutions import images_convolved_alone
from tests.support.exporting import (
    DYNAMIC,
    MICRO,
    WITH_NMS,
    lively_detector,
    micro_table,
    save_checkpoint,
)
from tests.support.launching import forked, wait_until
from tests.support.own_process import start_program
from utils.distributed.world import World
from utils.files import checkpoint_file

ROOT = Path(__file__).parents[1]
CPU = World(torch.device("cpu"))
NAMES = ["disc", "square", "bar"]
DUAL = micro_table("DualDistanceDetect", "nc", 1, True)
SAME = [
    "--conf",
    "0.001",
    "--iou",
    "0.6",
    "--max-det",
    "300",
    "--save-json",
]  # the settings of val.py


@pytest.fixture(scope="module")
def weights(tiny_data, micro_model, tmp_path_factory) -> Path:
    """A checkpoint with random weights: it detects much, anywhere."""
    torch.manual_seed(0)
    model = build_model(micro_model, 3)
    with torch.no_grad():
        for conv in model.head.m:
            conv.bias += 4.5  # else all scores would be near 0
    path = tmp_path_factory.mktemp("weights") / "best.pt"
    entries = {"names": NAMES, "config": {"imgsz": 96}, "data": str(tiny_data)}
    checkpoint_file.save(path, {"model": model.state_dict(), "table": model.table, **entries})
    return path


@pytest.fixture
def run(weights, tmp_path) -> Callable[..., Path]:
    """run("--source", ...) runs detect.py's main; returns the run folder."""

    def call(*flags: str | Path) -> Path:
        given = [
            "--weights",
            weights,
            "--device",
            "cpu",
            "--project",
            tmp_path,
            "--name",
            "d",
            "--exist-ok",
            *flags,
        ]
        detect.main(detect.parse_args(list(map(str, given))))
        return tmp_path / "d"

    return call


@pytest.fixture
def photos(tiny_data) -> Path:
    return tiny_data.parent / "images"


def write_clip(path: Path, frames: int = 7, size: tuple[int, int] = (96, 64)) -> Path:
    """Write a video of a moving bright square, 12 frames per second."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 12, size)
    for number in range(frames):
        image = np.full((size[1], size[0], 3), 60, np.uint8)
        image[20:40, 4 * number : 4 * number + 20] = (0, 220, 240)
        writer.write(image)
    writer.release()
    return path


def rows_by_image(file: Path) -> dict[tuple[str, int], list[list[float]]]:
    """The boxes and scores of predictions.json by image and category, highest score first."""
    rows: dict[tuple[str, int], list[list[float]]] = {}
    for row in json.loads(file.read_text()):
        rows.setdefault((row["file_name"], row["category_id"]), []).append(
            [row["score"], *row["bbox"]]
        )
    return {key: sorted(values, reverse=True) for key, values in rows.items()}


TILES = ["--tile", "64", "--tile-overlap", "0.3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--augment"],
        ["--img", "64", "--batch", "3"],
        TILES,
        [*TILES, "--tile-whole", "--img", "64"],
    ],
)
@images_convolved_alone()
def test_boxes_equal_those_of_val(run, photos, weights, tmp_path, tiny_data, flags):
    folder = run("--source", photos, "--nosave", *SAME, *flags)
    paths = [
        "--project",
        str(tmp_path),
        "--name",
        "v",
        "--cache-dir",
        str(tmp_path / "cache"),
        "--workers",
        "0",
    ]
    given = [
        "--weights",
        str(weights),
        "--data",
        str(tiny_data),
        "--device",
        "cpu",
        "--save-json",
        *paths,
        *flags,
    ]
    with mock.patch.object(val, "draw_results"):  # it takes most of the time
        val.main(val.parse_args(given)[0], CPU)
    found, expected = (
        rows_by_image(path / "predictions.json") for path in (folder, tmp_path / "v")
    )
    assert found.keys() == expected.keys()
    assert sum(map(len, found.values())) > 1000
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=0, atol=1e-3)


def test_all_outputs_hold_the_same_detections(run, photos):
    everything = ["--save-txt", "--save-conf", "--save-csv", "--save-json", "--save-crop"]
    folder = run("--source", photos, "--conf", "0.3", *everything)
    rows = json.loads((folder / "predictions.json").read_text())
    assert len(rows) > 8
    with open(folder / "predictions.csv", newline="") as file:
        table = list(csv.DictReader(file))
    texts = {file.stem: file.read_text().splitlines() for file in (folder / "labels").iterdir()}
    assert set(texts) == {file.stem for file in photos.iterdir()}
    assert (
        len(table)
        == len(rows)
        == sum(map(len, texts.values()))
        == len(list(folder.glob("crops/*/*")))
    )
    assert [NAMES[row["category_id"] - 1] for row in rows] == [row["name"] for row in table]
    first = rows[0]
    cx, cy, w, h, score = (
        float(value) for value in texts[Path(first["file_name"]).stem][0].split()[1:]
    )
    x, y, width, height = (side / 96 for side in first["bbox"])
    np.testing.assert_allclose(
        [cx, cy, w, h, score],
        [x + width / 2, y + height / 2, width, height, first["score"]],
        atol=1e-5,
    )
    for picture in folder.glob("*.png"):
        assert Image.open(picture).size == (96, 96)
    assert len(list(folder.glob("*.png"))) == 8


def test_video_keeps_its_frames_rate_and_size(run, tmp_path):
    clip = write_clip(tmp_path / "clip.mp4")
    folder = run("--source", clip, "--conf", "0.3", "--save-txt")
    (video,) = folder.glob("clip.*")
    capture = cv2.VideoCapture(str(video))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(12)
    frames = 0
    while (image := capture.read()[1]) is not None:
        assert image.shape == (64, 96, 3)
        frames += 1
    assert frames == 7
    assert sorted(file.name for file in (folder / "labels").iterdir()) == [
        f"clip_{i}.txt" for i in range(1, 8)
    ]


def test_vid_stride_uses_every_nth_frame(run, tmp_path):
    clip = write_clip(tmp_path / "clip.mp4")
    folder = run("--source", clip, "--vid-stride", "3", "--save-txt")
    capture = cv2.VideoCapture(str(next(folder.glob("clip.*"))))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(4)
    assert len(list((folder / "labels").iterdir())) == 3  # frames 0, 3 and 6


@pytest.mark.slow
@images_convolved_alone()
def test_number_of_threads_changes_nothing(run, photos, monkeypatch, capsys):
    expected = rows_by_image(run("--source", photos, "--nosave", *SAME) / "predictions.json")
    monkeypatch.setattr(detect, "detecting_threads", lambda *_: 3)
    for flags in ([], ["--batch", "3"]):
        found = rows_by_image(
            run("--source", photos, "--nosave", *SAME, *flags) / "predictions.json"
        )
        assert capsys.readouterr().out.count("threads: 3") == 1
        assert list(found) == list(expected)  # also the order of the images
        for key, values in expected.items():
            np.testing.assert_allclose(found[key], values, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("source", "batch_size", "threads"),
    [
        ("photos", 1, 16),
        ("photos", 4, 8),  # 8 threads with 4 images each are the 32 images that are allowed
        ("photos", 16, 2),
        ("photos", 64, 1),
        ("", 1, 16),  # the validation images
        ("list.txt", 1, 16),
        ("clip.mp4", 1, 16),
        ("a.jpg", 1, 1),
        ("-", 1, 1),
        ("0", 1, 1),
        ("rtsp://camera", 1, 1),
    ],
)
def test_number_of_detecting_threads(source, batch_size, threads, tmp_path, monkeypatch):
    for name in ("a.jpg", "clip.mp4", "list.txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert detect.detecting_threads(source, batch_size, cores=16) == threads
    assert detect.detecting_threads(source, batch_size, cores=1) == 1


def test_classes_are_chosen_by_number_or_name(run, photos):
    both = run(
        "--source", photos, "--nosave", "--save-json", "--conf", "0.1", "--classes", "0", "bar"
    )
    assert {row["category_id"] for row in json.loads((both / "predictions.json").read_text())} <= {
        1,
        3,
    }


@pytest.mark.parametrize("flags", [(), ("--save-json",), ("--agnostic-nms",), TILES])
def test_chosen_classes_have_the_same_boxes(run, photos, flags):
    def texts(*more: str) -> dict[str, list[str]]:
        folder = run(
            "--source",
            photos,
            "--nosave",
            "--save-txt",
            "--save-conf",
            "--conf",
            "0.1",
            *flags,
            *more,
        )
        return {file.name: file.read_text().splitlines() for file in (folder / "labels").iterdir()}

    every, squares = texts(), texts("--classes", "square")
    kept = {name: [row for row in rows if row.startswith("1 ")] for name, rows in every.items()}
    assert squares == kept
    assert 0 < sum(map(len, squares.values())) < sum(map(len, every.values()))


@pytest.mark.slow
def test_chosen_classes_agree_between_a_checkpoint_and_its_nms_file(exports, photos, run):
    """The file has one class for each box, so a checkpoint must not have another one either."""
    flags = ["--nms", "--conf", "0.1", "--iou", "0.45", "--max-det", "300"]
    exported = exports("torchscript", *flags)
    found = []
    for weights in (exported, exported.with_suffix(".pt")):
        flags = [
            "--nosave",
            "--save-txt",
            "--conf",
            "0.1",
            "--img",
            "64",
            "64",
            "--classes",
            "disc",
            "bar",
        ]
        labels = run("--source", photos, "--weights", weights, *flags) / "labels"
        found.append(
            {file.name: sorted(file.read_text().splitlines()) for file in labels.iterdir()}
        )
    assert sum(map(len, found[0].values())) > 8
    assert found[0].keys() == found[1].keys()
    for name, rows in found[0].items():
        of_file, of_checkpoint = (
            np.array([row.split() for row in each], float) for each in (rows, found[1][name])
        )
        assert of_file.shape == of_checkpoint.shape
        np.testing.assert_allclose(of_file, of_checkpoint, rtol=0, atol=1e-4)


@pytest.mark.parametrize("flags", [(), TILES])
def test_reached_limit_of_detections_is_said(run, photos, flags, capsys):
    few = ["--source", photos, "--conf", "0.1", "--nosave", "--save-csv", *flags]
    run(*few)
    assert "--max-det" not in capsys.readouterr().out
    folder = run(*few, "--max-det", "1", "--classes", "0")
    said = capsys.readouterr().out
    sentence = r"^--max-det 1 was reached in \d images: [\d,]+ detections left out, the most in "
    assert re.search(sentence, said, re.MULTILINE)
    assert len((folder / "predictions.csv").read_text().splitlines()) <= 9


def test_broken_files_are_reported_and_skipped(run, photos, tmp_path, capsys):
    mixed = tmp_path / "mixed"
    shutil.copytree(photos, mixed)
    (mixed / "0_broken.jpg").write_bytes(b"\xff\xd8 not a picture")
    (mixed / "0_empty.mp4").touch()
    folder = run("--source", mixed)
    said = capsys.readouterr().out
    assert re.search(r"0_broken\.jpg is damaged, truncated or not an image", said)
    assert "0_empty.mp4" in said
    assert "8 images (2 skipped), " in said
    assert len(list(folder.glob("*.png"))) == 8


def test_paths_from_standard_input(run, photos, monkeypatch):
    names = "".join(f"{photos / name}\n" for name in sorted(os.listdir(photos))[:3])
    monkeypatch.setattr(sys, "stdin", io.StringIO(names))
    assert len(list(run("--source", "-").glob("*.png"))) == 3


@pytest.mark.parametrize("kind", ["folder", "pattern", "list", "input"])
def test_images_with_one_name_can_be_traced_to_their_outputs(
    run, photos, tmp_path, monkeypatch, kind
):
    """a.jpg is black and a.bmp gray, so that each picture shows which one it is of; x.jpg is there
    twice.
    """
    folder = tmp_path / "in"
    shades = {"a.jpg": 0, "a.bmp": 100, "x/b.jpg": 150, "y/b.jpg": 200}
    for name, shade in shades.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / name), np.full((64, 96, 3), shade, np.uint8))
    paths = "".join(f"{folder / name}\n" for name in sorted(shades))
    (tmp_path / "list.txt").write_text(paths)
    monkeypatch.setattr(sys, "stdin", io.StringIO(paths))
    source = {
        "folder": folder,
        "pattern": folder / "**" / "*.*",
        "list": tmp_path / "list.txt",
        "input": "-",
    }[kind]
    flags = [
        "--save-txt",
        "--save-csv",
        "--save-json",
        "--hide-labels",
        "--conf",
        "0.1",
        "--max-det",
        "1",
    ]
    out = run("--source", source, *flags)

    with open(out / "sources.csv", newline="") as file:
        source_of = {row["output"]: row["source"] for row in csv.DictReader(file)}
    assert set(source_of) == {
        str(path.relative_to(out))
        for path in out.rglob("*")
        if path.suffix in (".jpg", ".txt") and "-run" not in path.name
    }
    assert len(source_of) == 8
    for output, path in source_of.items():
        if not output.startswith("labels/"):
            shade = shades[str(Path(path).relative_to(folder))]
            assert abs(float(np.median(cv2.imread(str(out / output)))) - shade) < 4, output
    assert source_of["a.jpg"] == str(folder / "a.jpg")
    assert source_of["a.bmp.jpg"] == str(folder / "a.bmp")
    labels = (
        ["labels/a.txt", "labels/a.jpg.txt"]
        if kind == "input"
        else ["labels/a.bmp.txt", "labels/a.jpg.txt"]
    )
    assert [source_of[name] for name in labels] == [str(folder / "a.bmp"), str(folder / "a.jpg")]

    with open(out / "predictions.csv", newline="") as file:
        table = [(row["image"], row["source"]) for row in csv.DictReader(file)]
    rows = [
        (row["file_name"], row["source"])
        for row in json.loads((out / "predictions.json").read_text())
    ]
    assert rows == table
    assert len({path for _, path in rows}) == 4


def test_default_source_is_the_validation_split_of_the_training(run, photos):
    assert {file.name for file in run().glob("*.png")} == set(os.listdir(photos))


def test_summary_counts_classes_and_times(run, photos, capsys):
    run("--source", photos, "--conf", "0.3")
    said = capsys.readouterr().out
    assert re.search(r"^8 images, \d+ disc, \d+ square|^8 images, \d+ ", said, re.MULTILINE)
    assert re.search(
        r"images/s; for each image .* ms letterbox, .* ms model, .* ms postprocess; threads: [1-9]",
        said,
    )


def test_images_without_detections_give_empty_outputs(run, photos, capsys):
    flags = ["--save-txt", "--save-csv", "--save-json", "--save-crop", "--conf", "1"]
    folder = run("--source", photos, *flags)
    assert "8 images, no detections" in capsys.readouterr().out
    assert json.loads((folder / "predictions.json").read_text()) == []
    assert len((folder / "predictions.csv").read_text().splitlines()) == 1
    assert [file.read_text() for file in (folder / "labels").iterdir()] == [""] * 8


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--source", "nowhere.jpg"], "'nowhere.jpg' does not exist; allowed are an image"),
        (["--source", "screen"], "--source screen is not supported"),
        (["--save-conf"], "--save-conf adds the confidences to the files of --save-txt: give both"),
        (["--nosave"], "--nosave leaves nothing to do: add --save-txt"),
        (["--imgsz", "9"], "--imgsz 9: choose 32 to 8192 pixels"),
        (
            ["--imgsz", "64", "64", "64"],
            "--imgsz 64 64 64: give one side, or height and width",
        ),
        (["--vid-stride", "0"], "--vid-stride 0: choose 1 or more"),
        (["--line-thickness", "-1"], "--line-thickness -1: choose 0 or more"),
        (["--save-format", "2"], r"--save-format 2: choose 0 \(YOLO\) or 1 \(VOC\)"),
        (["--max-det", "0"], "--max-det 0: choose 1 or more"),
        (["--iou", "1.5"], "--iou-thres 1.5: choose a threshold from 0 to 1"),
        (["--conf", "1.5"], "--conf-thres 1.5: choose a threshold from 0 to 1"),
        (["--classes", "cat"], "class 'cat': the model has disc, square, bar"),
        (["--classes", "3"], r"class 3: the model has 3 classes \(0-2\)"),
        (["--batch", "0"], "--batch-size 0: choose 1 or more"),
        (["--tile", "-1"], "tile -1: choose a side of 32 pixels or more"),
        (["--weights", "no.pt"], "no.pt: cannot be read as a checkpoint: No such file"),
        (["--dnn"], "--dnn is not supported: OpenCV's DNN module is not used"),
        (["--update"], "--update is not supported: checkpoints are never rewritten"),
        (["--visualise"], "unknown flag --visualise"),
    ],
)
def test_wrong_flags_are_rejected_before_anything_is_written(run, tmp_path, flags, text):
    with pytest.raises(ValueError, match=text):
        run("--source", ".", *flags) if "--source" not in flags else run(*flags)
    assert not (tmp_path / "d").exists()


def test_project_that_is_no_folder_is_refused_before_the_source_is_opened(run, tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match=r"^--project .*/file is not a folder$"):
        run("--source", "absent.jpg", "--project", file)


def test_files_of_a_pattern_without_quotes_are_explained(run, photos):
    files = sorted(photos.iterdir())
    with pytest.raises(ValueError, match="put a pattern into quotes: 'photos/"):
        run("--source", *files)


def test_images_are_never_overwritten_by_their_pictures(run, photos, weights, tmp_path):
    own = tmp_path / "d"
    shutil.copytree(photos, own)
    before = {file.name: file.read_bytes() for file in own.iterdir()}
    for source in (own, next(own.iterdir())):
        with pytest.raises(
            ValueError, match=r"is in the run folder .*: choose another --project or --name"
        ):
            run("--source", source)
    (tmp_path / "list.txt").write_text("".join(f"{file}\n" for file in own.iterdir()))
    with pytest.raises(
        ValueError, match="would be overwritten by its own picture: choose another --project"
    ):
        run("--source", tmp_path / "list.txt")
    assert {file.name: file.read_bytes() for file in own.iterdir()} == before


def test_several_processes_are_rejected(run, monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ValueError, match=r"detect\.py runs in one process: start one for each part of the images"
    ):
        run("--source", ".")


def test_missing_source_of_an_unknown_data_set_is_asked_for(run, tmp_path, weights):
    state = checkpoint_file.load(weights)
    checkpoint_file.save(tmp_path / "other.pt", state | {"data": "gone.yaml"})
    with pytest.raises(
        ValueError,
        match=r"give --source: an image, .* or a URL; there are no .* because no data set gone",
    ):
        run("--weights", tmp_path / "other.pt")


READ_PIPE = """
import sys
from tests.support.launching import run
sys.stdin = open("paths")
run("detect", sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals and named pipes")
def test_interrupt_ends_a_source_that_waits(weights, photos, tmp_path):
    os.mkfifo(tmp_path / "paths")
    flags = ["--weights", weights, "--source", "-", "--device", "cpu", "--save-csv"]
    pipe = os.open(tmp_path / "paths", os.O_RDWR)  # the process never sees its end
    os.write(pipe, f"{photos / sorted(os.listdir(photos))[0]}\n".encode())
    process = start_program(READ_PIPE, *flags, folder=tmp_path)
    while not list(tmp_path.glob("runs/detect/exp/*.png")) and process.is_alive():
        time.sleep(0.05)
    started = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    os.close(pipe)
    said = (tmp_path / "stderr").read_text()
    assert (process.exitcode, said.strip().endswith("interrupted")) == (130, True), said
    assert time.monotonic() - started < 8  # the limit for threads to end is 10 seconds


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("number", "said_last"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "ended by SIGTERM"),
        (signal.SIGHUP, "ended by SIGHUP"),  # the connection to the terminal is lost
    ],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_interrupted_detection_leaves_whole_files(weights, tmp_path, number, said_last):
    clip = write_clip(tmp_path / "clip.mp4", frames=3000)
    flags = ["--save-csv", "--save-json", "--conf", "0.1", "--max-det", "2", "--device", "cpu"]
    command = ["--weights", str(weights), "--source", str(clip), *flags]
    with forked([{}], command, tmp_path, script="detect") as [job]:
        table = job.folder / "runs/detect/exp/predictions.csv"
        wait_until(
            lambda: (
                job.process.exitcode is not None or (table.exists() and table.stat().st_size > 2000)
            ),
            60,
            "some rows",
        )
        os.kill(job.process.pid, number)
        assert job.end(30) == 128 + number, job.err

    assert job.err.strip().endswith(said_last)
    rows = json.loads((table.parent / "predictions.json").read_text())
    lines = table.read_text().splitlines()
    assert len(lines) - 1 == len(rows) > 10
    assert not list(table.parent.glob("*.tmp*"))
    capture = cv2.VideoCapture(str(next(table.parent.glob("clip.*"))))
    frames = 0
    while capture.read()[0]:
        frames += 1
    assert 1 <= frames < 3000
    assert frames >= max(row["frame"] for row in rows)


def highest_score(folder: Path) -> float:
    """The highest score in predictions.csv."""
    with open(folder / "predictions.csv", newline="") as file:
        return max(float(row["confidence"]) for row in csv.DictReader(file))


BEST = ("--nosave", "--save-csv", "--max-det", "1")  # the best detection of each image


def said_score(said: str) -> float:
    """The highest score that a run without detections said, which it cuts after three digits."""
    sentence = r"^no object found in 8 images: the highest score is (\S+) \(--conf 1\)$"
    (shown,) = re.findall(sentence, said, re.MULTILINE)
    return float(shown)


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--augment", "--batch", "3"],
        ["--half"],
        ["--classes", "bar"],
        ["--classes", "bar", "--multi-label"],
        TILES,
        [*TILES, "--classes", "disc"],
    ],
    ids=" ".join,
)
def test_run_without_detections_says_the_highest_score(run, photos, flags, capsys):
    """It is the score of the best detection that a run without a threshold finds."""
    expected = highest_score(run("--source", photos, *BEST, *flags, "--conf", "0.001"))
    assert "no object" not in capsys.readouterr().out

    run("--source", photos, *BEST, *flags, "--conf", "1")
    said = capsys.readouterr().out.replace(" of the chosen classes", "")
    assert 0 <= expected - said_score(said) < 0.0011


EXPORTED = [  # slow where no other test has exported the file
    pytest.param(kind, marks=pytest.mark.slow) for kind in ("torchscript", "onnx", "openvino")
]


@pytest.mark.parametrize("kind", ["ensemble", "o2o", "o2m", *EXPORTED])
def test_every_kind_of_model_says_the_highest_score(run, photos, kind, exports, tmp_path, capsys):
    if kind in ("o2o", "o2m"):
        file = save_checkpoint(tmp_path / "dual.pt", lively_detector(DUAL))
        flags = ["--weights", file, "--head", kind]
    elif kind == "ensemble":
        files = [tmp_path / "0.pt", tmp_path / "1.pt"]
        for seed, file in enumerate(files):
            save_checkpoint(file, lively_detector(str(MICRO), seed))
        flags = ["--weights", *files]
    else:
        flags = ["--weights", exports(kind, *DYNAMIC)]
    expected = highest_score(run("--source", photos, *BEST, *flags, "--conf", "0.3"))
    capsys.readouterr()

    run("--source", photos, *BEST, *flags, "--conf", "1")  # no score is above it
    assert 0 <= expected - said_score(capsys.readouterr().out) < 0.0011


@pytest.mark.slow
def test_file_with_suppression_inside_says_the_scores_that_it_keeps(exports, photos, run, capsys):
    file = exports("onnx", *WITH_NMS)
    expected = highest_score(run("--source", photos, *BEST, "--weights", file))
    run("--source", photos, *BEST, "--weights", file, "--conf", "1")
    assert 0 <= expected - said_score(capsys.readouterr().out) < 0.0011
    # Of lower scores it says that they are not known: tests/models/test_highest_score.py
    assert load(file, device="cpu").highest_score().model_confidence == pytest.approx(0.3)


def test_frames_in_flight_are_bounded_by_their_bytes_too(monkeypatch):
    """Each has 12 bytes: of 24 bytes, two are in flight, whatever the number of threads."""
    monkeypatch.setattr(detect, "MAX_BYTES", 24)
    asked = []

    def frames():
        for number in range(6):
            asked.append(number)
            yield SimpleNamespace(image=np.zeros((2, 2, 3), np.uint8), number=number)

    def detect_arrays(pixels, **_):
        return list(pixels)

    detector = SimpleNamespace(threads=4, detect_arrays=detect_arrays)
    results = detect.detect_frames(detector, frames(), 1, 4, None, None)
    for number in range(4):
        assert next(results)[0].number == number
        assert asked == list(range(number + 2))
    assert [frame.number for frame, _ in results] == [4, 5]
