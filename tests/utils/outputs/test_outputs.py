"""utils/outputs/run_folder.py: which files there are, one drawing per frame, closing in spite of
errors.
"""

import csv
import json
import os
import signal

import pytest

from tests.support.detected import drawn_frame, found_boxes
from utils.outputs import Outputs, open_outputs, window
from utils.outputs.annotated import Annotator

FOUND = found_boxes([[5, 5, 30, 30], [0, 0, 9, 9]], [1, 0])


def files(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def run(folder, frames=None, **options):
    outputs = open_outputs(folder, ["cat", "dog"], **options)
    for frame in frames or [
        drawn_frame("b/a.jpg"),
        drawn_frame("c.mp4", 1),
        drawn_frame("c.mp4", 2),
    ]:
        outputs.write(frame, FOUND)
    outputs.close()
    return files(folder)


def test_pictures_and_videos_are_the_default(tmp_path):
    assert run(tmp_path) == ["b/a.jpg", "c.mp4", "sources.csv"]


def test_each_option_writes_its_files(tmp_path):
    crops = [
        f"crops/{name}/{file}.jpg" for name in ("cat", "dog") for file in ("b/a", "c_1", "c_2")
    ]
    labels = ["labels/b/a.txt", "labels/c_1.txt", "labels/c_2.txt"]
    expected = {
        "text": labels,
        "csv": ["predictions.csv"],
        "json": ["predictions.json"],
        "crops": crops,
    }
    for option, written in expected.items():
        folder = tmp_path / option
        folder.mkdir()
        written = [*written, "sources.csv"] if option in ("text", "crops") else written
        assert run(folder, pictures=False, **{option: True}) == sorted(written)


def test_every_output_file_is_listed_with_its_source(tmp_path):
    frames = [
        drawn_frame("a.bmp"),
        drawn_frame("a.jpg"),
        drawn_frame("c.mp4", 1),
        drawn_frame("c.mp4", 2),
    ]
    inputs = [("a.bmp", False), ("a.jpg", False), ("c.mp4", True)]
    run(tmp_path, frames, text=True, crops=True, inputs=inputs)
    with (tmp_path / "sources.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert sorted(row["output"] for row in rows) == [
        name for name in files(tmp_path) if name != "sources.csv"
    ]

    listed = {row["output"]: (row["source"], row["frame"]) for row in rows}
    assert (
        listed["a.bmp.jpg"]
        == listed["labels/a.bmp.txt"]
        == listed["crops/cat/a.bmp.jpg"]
        == ("/data/a.bmp", "")
    )
    assert (
        listed["a.jpg"]
        == listed["labels/a.jpg.txt"]
        == listed["crops/dog/a.jpg.jpg"]
        == ("/data/a.jpg", "")
    )
    assert listed["labels/c_2.txt"] == listed["crops/cat/c_2.jpg"] == ("/data/c.mp4", "2")
    assert listed["c.mp4"] == ("/data/c.mp4", "")


def test_all_outputs_agree_on_the_detections(tmp_path):
    run(tmp_path, text=True, text_format=1, scores=True, csv=True, json=True, crops=True)
    with (tmp_path / "predictions.csv").open(newline="") as stream:
        table = [
            (r["image"], r["frame"], int(r["class"]), float(r["x2"]))
            for r in csv.DictReader(stream)
        ]
    results = json.loads((tmp_path / "predictions.json").read_text())
    assert table == [
        (r["file_name"], str(r.get("frame", "")), r["category_id"] - 1, r["bbox"][0] + r["bbox"][2])
        for r in results
    ]
    assert (tmp_path / "labels/c_2.txt").read_text() == "1 5 5 30 30 0.9\n0 0 0 9 9 0.89\n"


def test_run_without_frames(tmp_path):
    open_outputs(tmp_path, [], text=True, csv=True, json=True, crops=True).close()
    assert files(tmp_path) == ["predictions.csv", "predictions.json"]
    assert json.loads((tmp_path / "predictions.json").read_text()) == []


class Recorder:
    def __init__(self, error=None):
        self.error, self.closed = error, 0

    def write(self, frame, found):
        pass

    def close(self):
        self.closed += 1
        if self.error:
            raise self.error


def test_all_outputs_are_closed_even_if_some_raise():
    recorders = [
        Recorder(),
        Recorder(OSError("first")),
        Recorder(),
        Recorder(OSError("second")),
        Recorder(),
    ]
    with pytest.raises(OSError, match=r"first|second"):
        Outputs(recorders).close()
    assert [recorder.closed for recorder in recorders] == [1] * 5


def test_outputs_close_after_a_failed_write(tmp_path):
    outputs = open_outputs(tmp_path, ["cat", "dog"], csv=True, json=True)
    outputs.write(drawn_frame("c.mp4", 1), FOUND)
    (tmp_path / "b").write_text("a file where a folder is needed")
    with pytest.raises(OSError, match="b"):
        outputs.write(drawn_frame("b/a.jpg"), FOUND)
    outputs.close()
    assert files(tmp_path) == ["b", "c.mp4", "predictions.csv", "predictions.json", "sources.csv"]
    assert len(json.loads((tmp_path / "predictions.json").read_text())) == 4


def test_interrupted_write_reaches_all_outputs():
    class Interrupting:
        def write(self, *_):
            os.kill(os.getpid(), signal.SIGINT)

    class Counting:
        frames = 0

        def write(self, *_):
            self.frames += 1

    after = Counting()
    with pytest.raises(KeyboardInterrupt):
        Outputs([Interrupting(), after]).write(drawn_frame("a.jpg"), FOUND)
    assert after.frames == 1


def test_interrupted_close_leaves_whole_files(tmp_path):
    outputs = open_outputs(tmp_path, ["cat", "dog"], pictures=False, json=True)
    outputs.write(drawn_frame("a.jpg"), FOUND)
    written = outputs.outputs[0]
    append = written._append

    def interrupted(text):
        os.kill(os.getpid(), signal.SIGINT)
        append(text)

    written._append = interrupted
    with pytest.raises(KeyboardInterrupt):
        outputs.close()
    assert files(tmp_path) == ["predictions.json"]
    assert len(json.loads((tmp_path / "predictions.json").read_text())) == 2


def test_invalid_option_leaves_no_open_file(tmp_path):
    with pytest.raises(ValueError, match="--save-format 7"):
        open_outputs(tmp_path, [], text=True, text_format=7, csv=True)
    assert files(tmp_path) == []


def test_window_is_checked_before_files_are_created(tmp_path, monkeypatch):
    monkeypatch.setattr(window, "_has_display", lambda: False)
    monkeypatch.setattr(window.sys, "platform", "linux")
    with pytest.raises(ValueError, match="--view-img: there is no display"):
        open_outputs(tmp_path, [], csv=True, json=True, window=True)
    assert files(tmp_path) == []


def test_window_comes_last(tmp_path, monkeypatch):
    monkeypatch.setattr(window, "require_display", lambda: None)
    outputs = open_outputs(tmp_path, [], csv=True, window=True)
    assert isinstance(outputs.outputs[-1], window.Window)
    assert len(outputs.outputs) == 5  # the list of sources, the CSV file, pictures, videos
    for output in outputs.outputs[:-1]:
        output.close()


def test_frame_is_drawn_once_for_all_outputs():
    annotator = Annotator(["cat", "dog"])
    frame = drawn_frame()
    first = annotator.draw(frame, FOUND)
    assert annotator.draw(frame, FOUND) is first
    assert annotator.draw(drawn_frame(), FOUND) is not first
    assert (frame.image == 128).all()
