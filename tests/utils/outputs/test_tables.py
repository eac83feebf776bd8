"""predictions.csv and predictions.json, read back with Python's own readers and with
pycocotools.
"""

import contextlib
import csv
import io
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pycocotools.coco import COCO

from tests.support.detected import drawn_frame, found_boxes
from utils.outputs.csv_file import COLUMNS, CsvFile, as_cell
from utils.outputs.json_file import JsonFile

ROOT = Path(__file__).parents[3]
ODD_NAMES = ["a,b", 'say "hi"', "two\nlines", "=cmd|' /C calc'!A0", "ä", "", "\udcff"]


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv_rows_by_hand(tmp_path):
    output = CsvFile(tmp_path / "p.csv", ["cat", "dog"])
    output.write(drawn_frame("b/a.jpg"), found_boxes([[1, 2, 3.5, 100 / 3]], [1]))
    output.write(drawn_frame("c.mp4", 7), found_boxes([[0, 0, 1, 1]], [5]))
    output.write(drawn_frame("none.jpg"), found_boxes())
    output.close()
    output.close()
    assert (tmp_path / "p.csv").read_text() == (
        "image,frame,class,name,confidence,x1,y1,x2,y2,source\n"
        "b/a.jpg,,1,dog,0.9,1,2,3.5,33.3333,/data/b/a.jpg\n"
        "c.mp4,7,5,5,0.9,0,0,1,1,/data/c.mp4\n"
    )


def test_odd_names_are_read_back_from_csv(tmp_path):
    output = CsvFile(tmp_path / "p.csv", ODD_NAMES)
    output.write(drawn_frame("-x,\n.jpg"), found_boxes([[0, 0, 1, 1]] * 7, range(7)))
    output.close()
    rows = read_csv(tmp_path / "p.csv")
    assert [row["name"] for row in rows] == [
        *ODD_NAMES[:3],
        "'" + ODD_NAMES[3],
        *ODD_NAMES[4:6],
        "\\udcff",
    ]
    assert {row["image"] for row in rows} == {"'-x,\n.jpg"}
    assert all(tuple(row) == COLUMNS for row in rows)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"])
def test_formulas_are_written_as_text(start):
    assert as_cell(f"{start}1") == f"'{start}1"


def test_csv_without_detections_has_only_a_header(tmp_path):
    CsvFile(tmp_path / "p.csv", []).close()
    assert (tmp_path / "p.csv").read_text() == ",".join(COLUMNS) + "\n"


def test_csv_has_each_row_before_it_is_closed(tmp_path):
    output = CsvFile(tmp_path / "p.csv", ["cat"])
    output.write(drawn_frame(), found_boxes([[0, 0, 1, 1]] * 3))
    assert len(read_csv(tmp_path / "p.csv")) == 3
    output.close()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.support.detected import drawn_frame, found_boxes
from utils.outputs.csv_file import CsvFile

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
output = CsvFile(Path(sys.argv[1]), ["cat"])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    for _ in range(50):
        output.write(drawn_frame(), found_boxes([[0, 0, 1, 1]] * 7))
except OSError as error:
    print(error.filename == sys.argv[1])
output.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of processes")
def test_full_disk_leaves_whole_csv_rows(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "p.csv")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    rows = read_csv(tmp_path / "p.csv")
    assert len(rows) > 7
    assert len(rows) % 7 == 0
    assert all(row["y2"] == "1" for row in rows)


def test_tables_in_a_missing_folder_are_named_in_the_error(tmp_path):
    for make in (lambda path: CsvFile(path, []), JsonFile):
        with pytest.raises(FileNotFoundError, match=r"gone/p"):
            make(tmp_path / "gone" / "p")


def test_json_rows_by_hand(tmp_path):
    output = JsonFile(tmp_path / "p.json")
    output.write(drawn_frame("none.jpg"), found_boxes())
    output.write(drawn_frame("b/ä\n.jpg"), found_boxes([[1, 2, 4, 2 + 1 / 3]], [1]))
    output.write(drawn_frame("c.mp4", 7), found_boxes([[0, 0, 1, 1]]))
    assert not (tmp_path / "p.json").exists()
    output.close()
    output.close()
    rows = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    first = {
        "image_id": 2,
        "category_id": 2,
        "bbox": [1, 2, 3, 2 + 1 / 3 - 2],
        "score": 0.9,
        "file_name": "b/ä\n.jpg",
    }
    second = {
        "image_id": 3,
        "category_id": 1,
        "bbox": [0, 0, 1, 1],
        "score": 0.9,
        "file_name": "c.mp4",
        "frame": 7,
    }
    assert rows == [first | {"source": "/data/b/ä\n.jpg"}, second | {"source": "/data/c.mp4"}]
    assert [file.name for file in tmp_path.iterdir()] == ["p.json"]


def test_json_without_detections_is_an_empty_list(tmp_path):
    JsonFile(tmp_path / "p.json").close()
    assert json.loads((tmp_path / "p.json").read_text()) == []


def test_json_escapes_names_that_are_not_utf8(tmp_path):
    output = JsonFile(tmp_path / "p.json")
    output.write(drawn_frame(os.fsdecode(b"\xff.jpg")), found_boxes([[0, 0, 1, 1]] * 2, [1, 0]))
    output.close()
    rows = json.loads((tmp_path / "p.json").read_text())
    assert [(row["category_id"], row["file_name"]) for row in rows] == [
        (2, "\\xff.jpg"),
        (1, "\\xff.jpg"),
    ]


def test_pycocotools_reads_the_json(tmp_path):
    output = JsonFile(tmp_path / "p.json")
    for name in ("a.jpg", "b.jpg"):
        output.write(drawn_frame(name), found_boxes([[1, 2, 11, 22], [0, 0, 5, 5]], [0, 1]))
    output.close()
    truth = {
        "info": {},
        "images": [{"id": k, "width": 64, "height": 48, "file_name": f"{k}.jpg"} for k in (1, 2)],
        "annotations": [],
        "categories": [{"id": k, "name": str(k)} for k in (1, 2)],
    }
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    with contextlib.redirect_stdout(io.StringIO()):
        read = COCO(str(tmp_path / "truth.json")).loadRes(str(tmp_path / "p.json"))
    assert [(a["image_id"], a["category_id"], a["bbox"]) for a in read.anns.values()] == [
        (image, category, box)
        for image in (1, 2)
        for category, box in ((1, [1, 2, 10, 20]), (2, [0, 0, 5, 5]))
    ]


def test_old_json_stays_until_the_new_one_is_whole(tmp_path):
    (tmp_path / "p.json").write_text("old")
    output = JsonFile(tmp_path / "p.json")
    output.write(drawn_frame(), found_boxes([[0, 0, 1, 1]]))
    assert (tmp_path / "p.json").read_text() == "old"
    output.close()
    assert len(json.loads((tmp_path / "p.json").read_text())) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_killed_process_leaves_whole_csv_rows_but_the_last_and_no_json(tmp_path):
    child = os.fork()
    if child == 0:
        outputs = CsvFile(tmp_path / "p.csv", ["cat"]), JsonFile(tmp_path / "p.json")
        for number in range(10**6):
            for output in outputs:
                output.write(drawn_frame("c.mp4", number), found_boxes([[0, 0, 1, 1]] * 5))
        os._exit(0)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (
        not (tmp_path / "p.csv").exists() or len(read_csv(tmp_path / "p.csv")) < 99
    ):
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    text = (tmp_path / "p.csv").read_text()
    rows = read_csv(tmp_path / "p.csv")
    assert len(rows) >= 99
    if len(text) % mmap.PAGESIZE == 0 and not text.endswith(
        "\n"
    ):  # killed within a write, between two pages of memory
        rows.pop()
    else:
        assert text.endswith("\n")
        assert len(rows) % 5 == 0
    assert all(row["y2"] == "1" for row in rows)
    assert not (tmp_path / "p.json").exists()
