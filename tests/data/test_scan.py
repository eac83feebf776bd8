"""Scanning a split: counts, reports, cache and errors; the user's files do not change."""

import errno
import hashlib
import io
import json
import os
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from data import scan as scan_module
from data import scan_cache
from data.cache import open_base_images
from data.dataset_yaml import read_data_yaml
from data.report import IMAGE_DAMAGED, NO_USABLE_ROW, NOTE, Problem, ProblemLog, report_from_dict
from data.scan import scan
from tests.data.test_labels import assert_same
from utils.distributed.world import World
from utils.files.folders import new_run_folder
from utils.images.decode import UnreadableFileError
from utils.printable import counted

DATASETS = Path(__file__).parents[3] / "shared" / "datasets"
NAMES = ("cat", "dog")


def write_dataset(
    root: Path, labels: dict[str, str | None], size: tuple[int, int] = (40, 20)
) -> Path:
    """Create a folder of images named as the keys, with label files of the given texts; None: no
    label file.
    """
    (root / "images").mkdir(parents=True, exist_ok=True)
    (root / "labels").mkdir(exist_ok=True)
    width, height = size
    for name, text in labels.items():
        cv2.imwrite(str(root / "images" / f"{name}.png"), np.full((height, width, 3), 99, np.uint8))
        if text is not None:
            (root / "labels" / f"{name}.txt").write_text(text)
    return root / "images"


def file_states(root: Path) -> dict[str, tuple[str, int]]:
    """Return the hash and modification time of every file."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {
        str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in files
    }


def test_scan_reports_counts_and_problems_and_changes_no_file(tmp_path: Path) -> None:
    source = write_dataset(
        tmp_path,
        {"a": "0 .5 .5 .5 .5\n1 .1 .1 .3 .1 .2 .4\nx\n", "b": "", "c": None, "d": "0 .5 .5 1 1\n"},
    )
    (source / "e.jpg").write_text("no image")
    cv2.imwrite(str(source / "f.png"), np.zeros((1, 1, 3), np.uint8))
    before = file_states(tmp_path)
    labels, report = scan([source], NAMES, threads=2)
    assert file_states(tmp_path) == before
    assert [Path(labels.path(i)).name for i in range(len(labels))] == [
        "a.png",
        "b.png",
        "c.png",
        "d.png",
    ]
    assert labels.image_ids.tolist() == [1, 2, 3, 4]
    assert labels.category_ids.tolist() == [1, 2]
    assert labels.sizes.tolist() == [[40, 20]] * 4
    assert labels.boxes_xywh[0].tolist() == [10, 5, 20, 10]
    assert (report.images, report.background, report.without_label_file) == (4, 2, 1)
    assert (report.instances, report.polygons, report.crowd) == (3, 1, 0)
    assert report.instances_per_class == (("cat", 2), ("dog", 1))
    assert report.unreadable == (str(source / "e.jpg"), str(source / "f.png"))
    texts = [str(problem) for problem in report.problems]
    assert (
        f"{tmp_path}/labels/a.txt line 3: number of values is 1; "
        "a row is class cx cy w h, or class and at least 3 points x y; this one is 'x'" in texts
    )
    assert f"{source}/e.jpg: is damaged, truncated or not an image that OpenCV can decode" in texts
    assert f"{source}/f.png: is 1x1, smaller than 2 pixels" in texts
    assert (
        f"{source}/c.png: no label file {tmp_path}/labels/c.txt, so the image counts as "
        "background; "
        "images without label file: 1" in texts
    )
    assert report.summary().startswith(
        "4 images (2 background, 1 of them without a label file), 3 boxes in 2 of 2 classes, "
        "1 from polygons; "
    )
    assert report.first_problem() == str(report.problems[0])
    assert "note" not in report.summary()


def test_report_survives_json_round_trip(tmp_path: Path) -> None:
    _, report = scan([write_dataset(tmp_path, {"a": "0 .5 .5 .5 .5\n0\n"})], NAMES)
    assert report_from_dict(json.loads(json.dumps(report.as_dict()))) == report


def test_report_lists_at_most_1000_problems(tmp_path: Path) -> None:
    _, report = scan([write_dataset(tmp_path, {"a": "0 .5 .5 .5 .5\n" + "bad\n" * 1500})], NAMES)
    assert len(report.problems) == 1000
    assert report.problem_counts == (("row dropped", 1500),)
    assert report.as_dict()["not_listed"] == 500


def test_problem_log_counts_all_but_keeps_first_1000(tmp_path: Path) -> None:
    kept = ProblemLog()
    kept.extend(Problem("row dropped", str(number), "") for number in range(5000))
    kept.extend([Problem("note", "x", "")])
    assert (len(kept.first), kept.first[-1].where) == (1000, "999")
    assert kept.counts == {"row dropped": 5000, "note": 1}


def test_images_sharing_a_label_file_are_reported(tmp_path: Path) -> None:
    source = write_dataset(tmp_path, {"a": "0 .5 .5 .5 .5"})
    cv2.imwrite(str(source / "a.bmp"), np.zeros((9, 9, 3), np.uint8))
    labels, report = scan([source], NAMES)
    assert len(labels) == 2
    assert [str(p) for p in report.problems] == [
        f"{source}/a.png: has the same label file as {source}/a.bmp"
    ]


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_named_pipes_as_labels_or_json_do_not_block(tmp_path: Path) -> None:
    source = write_dataset(tmp_path, {"a": "0 .5 .5 .5 .5", "b": None})
    os.mkfifo(tmp_path / "labels" / "b.txt")
    assert scan([source], NAMES)[1].unreadable == (f"{source}/b.png",)
    os.mkfifo(tmp_path / "all.json")
    with pytest.raises(ValueError, match=r"all.json cannot be read: it is not a regular file"):
        scan([tmp_path / "all.json"], NAMES)


def test_folder_and_list_sources_give_the_same_images_without_duplicates(tmp_path: Path) -> None:
    source = write_dataset(tmp_path, {"a": "0 .5 .5 .5 .5", "b": "1 .5 .5 .5 .5"})
    listed = tmp_path / "train.txt"
    listed.write_text("./images/b.png\nimages/a.png\n")
    one, _ = scan([source], NAMES)
    two, _ = scan([listed], NAMES)
    both, report = scan([source, listed], NAMES)
    assert_same(one, two)
    assert_same(one, both)
    assert report.problem_counts == (("note", 2),)


@pytest.mark.parametrize("threads", [1, 3])
def test_scan_result_does_not_depend_on_threads(tmp_path: Path, threads: int) -> None:
    source = write_dataset(
        tmp_path, {f"{i:03}": f"{i % 2} .5 .5 .5 {(i + 1) / 200}" for i in range(150)}
    )
    labels, _ = scan([source], NAMES, threads=threads)
    assert labels.classes.tolist() == [i % 2 for i in range(150)]


def test_scan_rejects_sources_without_images_or_labels_and_bad_classes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no images in .*empty"):
        scan([tmp_path / "empty"], NAMES)
    source = write_dataset(tmp_path / "one", {"a": None, "b": None})
    expected = tmp_path / "one" / "labels" / "a.txt"
    message = (
        f"no labels for 2 images: those of the first image {source}/a.png should be in "
        f"{expected}, which does"
    )
    with pytest.raises(ValueError, match=message):
        scan([source], NAMES)
    source = write_dataset(tmp_path / "blank", {"a": "", "b": ""})
    with pytest.raises(
        ValueError, match=f"should be in {tmp_path}/blank/labels/a.txt, which is empty"
    ):
        scan([source], NAMES)
    source = write_dataset(
        tmp_path / "two", {"a": "0 .5 .5 .1 .1", "b": "0 .5 .5 .1 .1\n2 .5 .5 .1 .1"}
    )
    with pytest.raises(
        ValueError, match=r"labels/b.txt line 2: class 2, but names has 2 classes \(0-1\)"
    ):
        scan([source], NAMES)
    (source / "a.png").write_text("")
    (source / "b.png").write_text("")
    with pytest.raises(
        ValueError, match=r"none of 2 images can be used; the first problem is .*a.png: is empty"
    ):
        scan([source], NAMES)


def test_image_with_unreadable_label_file_is_not_background(tmp_path: Path) -> None:
    source = write_dataset(tmp_path, {"a": "0 .5 .5 .1 .1", "b": None})
    (tmp_path / "labels" / "b.txt").mkdir()
    labels, report = scan([source], NAMES)
    assert len(labels) == 1
    assert report.unreadable == (str(source / "b.png"),)


def test_image_whose_rows_are_all_unusable_is_left_out_and_counted(tmp_path: Path) -> None:
    """As background it would teach that there is nothing; an image with one usable row stays."""
    rows = {
        "a": "0 .5 .5 .5 .5\nx",
        "b": "0,.5,.5,.5,.5\n0 .5 .5 0 0\n",
        "c": "",
        "d": None,
        "e": "x",
    }
    source = write_dataset(tmp_path, rows)
    labels, report = scan([source], NAMES)
    assert [Path(labels.path(i)).stem for i in range(len(labels))] == ["a", "c", "d"]
    assert labels.image_ids.tolist() == [1, 2, 3]
    assert (report.images, report.background, report.without_label_file) == (3, 2, 1)
    assert (report.no_usable_row, report.unreadable) == ((f"{source}/b.png", f"{source}/e.png"), ())
    assert report.as_dict()["no_usable_row"] == [f"{source}/b.png", f"{source}/e.png"]
    assert dict(report.problem_counts) == {"row dropped": 4, NO_USABLE_ROW: 2, "note": 1}
    assert [str(problem) for problem in report.problems if problem.kind == NO_USABLE_ROW] == [
        f"{source}/b.png: all 2 label rows in {tmp_path}/labels/b.txt are unusable, "
        "so the image is neither labeled nor background",
        f"{source}/e.png: its only label row in {tmp_path}/labels/e.txt is unusable, "
        "so the image is neither labeled nor background",
    ]
    assert report.with_cache("no cache").summary() == (
        "3 images (2 background, 1 of them without a label file), 1 box in 1 of 2 classes; "
        "row dropped: 4, image without a usable label row left out: 2 [no cache]"
    )
    again = [scan([source], NAMES, cache_dir=tmp_path / "cache")[1] for _ in range(2)]
    assert [(found.cache, found.no_usable_row) for found in again] == [
        ("cached now", report.no_usable_row),
        ("from cache", report.no_usable_row),
    ]


def test_scan_of_images_without_any_usable_row_is_an_error(tmp_path: Path) -> None:
    source = write_dataset(tmp_path, {"a": "0,.5,.5,.5,.5", "b": "x"})
    first = re.escape(
        f"{tmp_path}/labels/a.txt line 1: '0,.5,.5,.5,.5' has commas between the values"
    )
    with pytest.raises(
        ValueError, match=f"none of 2 images can be used; the first problem is {first}"
    ):
        scan([source], NAMES)


def test_images_without_usable_rows_are_left_out_in_every_format(tmp_path: Path) -> None:
    """One image has a box, one has only unusable rows, one is empty on purpose."""
    names = [f"class {number}" for number in range(10)]
    for folder in ("voc", "drone/images", "drone/annotations", "coco"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("voc", "drone/images", "coco"):
        for stem in "abc":
            cv2.imwrite(str(tmp_path / folder / f"{stem}.png"), np.zeros((20, 40, 3), np.uint8))
    corners = {
        "a": "<xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax>",
        "b": "<xmin>1</xmin>",
    }
    for stem in "abc":
        box = (
            f"<object><name>class 0</name><bndbox>{corners[stem]}</bndbox></object>"
            if stem in corners
            else ""
        )
        (tmp_path / "voc" / f"{stem}.xml").write_text(f"<annotation>{box}</annotation>")
    for stem, row in (("a", "1,1,5,5,1,1,0,0"), ("b", "90,1,5,5,1,1,0,0"), ("c", "")):
        (tmp_path / "drone" / "annotations" / f"{stem}.txt").write_text(row)
    images = [{"id": number, "file_name": f"{stem}.png"} for number, stem in enumerate("abc")]
    boxes = [[1, 1, 5, 5], [1, 1, 0, 0], [90, 1, 5, 5]]
    annotations = [
        {"id": number, "image_id": min(number, 1), "category_id": 1, "bbox": box}
        for number, box in enumerate(boxes)
    ]
    document = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "class 0"}],
    }
    (tmp_path / "coco" / "all.json").write_text(json.dumps(document))
    for source in ("voc", "drone/images", "coco/all.json"):
        labels, report = scan([tmp_path / source], names)
        assert [Path(labels.path(i)).stem for i in range(len(labels))] == ["a", "c"], source
        assert [Path(path).stem for path in report.no_usable_row] == ["b"], source
        assert (
            report.background,
            report.instances,
            dict(report.problem_counts)[NO_USABLE_ROW],
        ) == (1, 1, 1), source


def damaged_jpeg(image: np.ndarray) -> bytes:
    """Return a JPEG that libjpeg decodes with a warning on stderr: bytes are missing before its end
    marker.
    """
    data = cv2.imencode(".jpg", image)[1].tobytes()
    return data[: len(data) * 2 // 3] + b"\xff\xd9"


def test_jpeg_with_damaged_data_is_named_instead_of_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """libjpeg prints "Corrupt JPEG data: premature end of data segment", without the file, from any
    thread.
    """
    rows = dict.fromkeys((f"{number:02}" for number in range(40)), "0 .5 .5 .5 .5")
    source = write_dataset(tmp_path, rows)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    damaged = [str(source / name) for name in ("03.png", "17.png")]
    for path in damaged:
        Path(path).write_bytes(damaged_jpeg(noise))
    labels, report = scan([source], NAMES, threads=4, cache_dir=tmp_path / "cache")
    assert len(labels) == 40
    open_base_images({"train": labels}, 64, World(torch.device("cpu")), where="ram", folder=None)
    assert [(problem.kind, problem.where) for problem in report.problems] == [
        (IMAGE_DAMAGED, path) for path in damaged
    ]
    assert "its decoder says 'Corrupt JPEG data: " in report.problems[0].reason
    assert "damaged image kept: 2" in report.summary()
    assert capfd.readouterr().err == ""
    assert scan([source], NAMES, cache_dir=tmp_path / "cache")[1].problems == report.problems


def test_number_of_images_that_are_decoded_again_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_dataset(tmp_path, dict.fromkeys("abcd", "0 .5 .5 .5 .5"))
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    for name in "abd":
        (source / f"{name}.png").write_bytes(damaged_jpeg(noise))
    monkeypatch.setattr("data.scan.MAX_DECODED_AGAIN", 2)
    labels, report = scan([source], NAMES, threads=1)
    assert len(labels) == 4
    damaged = [problem.where for problem in report.problems if problem.kind == IMAGE_DAMAGED]
    assert damaged == [f"{source}/a.png", f"{source}/b.png"]
    (note,) = [
        problem
        for problem in report.problems
        if problem.kind == NOTE and "looked at again" in problem.reason
    ]
    assert note.where == f"{source}/d.png"
    assert note.reason.startswith("only 2 of 3 images that may be damaged were looked at again")


def write_coco(root: Path, width: int = 40) -> Path:
    images = [
        {"id": 70, "file_name": "b.png", "width": width, "height": 20},
        {"id": 8, "file_name": "a.png"},
    ]
    annotations = [
        {
            "id": 1,
            "image_id": 8,
            "category_id": 2,
            "bbox": [10, 5, 20, 10],
            "area": 77.5,
            "iscrowd": 0,
        },
        {"id": 2, "image_id": 70, "category_id": 5, "bbox": [50, 5, 20, 10], "iscrowd": 0},
        {"id": 3, "image_id": 70, "category_id": 5, "bbox": [30, 5, 20, 10], "iscrowd": 1},
    ]
    categories = [{"id": 5, "name": "cat"}, {"id": 2, "name": "dog"}]
    file = root / "instances_val.json"
    file.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    return file


def test_scan_reads_coco_json(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"a": None, "b": None})
    labels, report = scan([write_coco(tmp_path)], NAMES)
    assert labels.image_ids.tolist() == [70, 8]
    assert labels.category_ids.tolist() == [5, 2]
    assert labels.classes.tolist() == [0, 1]
    assert labels.crowd.tolist() == [True, False]
    assert labels.areas.tolist() == [200, 77.5]
    assert labels.boxes_xywh.tolist() == [[30, 5, 20, 10], [10, 5, 20, 10]]
    assert (report.instances, report.crowd) == (1, 1)
    assert "annotation 2: bbox [50, 5, 20, 10] is outside its image of 40x20" in str(
        report.problems[0]
    )


def test_coco_json_without_images_lists_the_folders_tried(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    file = write_coco(tmp_path / "json")
    tried = (
        r"2 images tried, such as b\.png: not found; "
        rf"folders tried in {tmp_path}/json: \., images, images/val, .*, \.\./val"
    )
    with pytest.raises(
        ValueError, match=rf"none of 2 images can be used; the first problem is {file}: .*{tried}"
    ):
        scan([file], NAMES)
    source = write_dataset(tmp_path / "txt", {"c": "0 .5 .5 .5 .5"})
    labels, report = scan(
        [source, file], NAMES
    )  # another source has images: no error, only a problem in the report
    assert len(labels) == 1
    assert re.search(tried, str(report.problems[0]))
    assert dict(report.problem_counts) == {
        "label file whose images were not found": 1,
        "image left out": 2,
    }


def test_image_whose_size_differs_from_coco_json_is_dropped(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"a": None, "b": None})
    labels, report = scan([write_coco(tmp_path, width=41)], NAMES)
    assert labels.image_ids.tolist() == [8]
    assert "b.png: is 40x20 upright, but its JSON says 41x20" in str(report.problems[0])


def test_mixed_sources_get_new_ids(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "txt", {"c": "0 .5 .5 .5 .5"})
    write_dataset(tmp_path / "json", {"a": None, "b": None})
    labels, _ = scan([source, write_coco(tmp_path / "json")], NAMES)
    assert labels.image_ids.tolist() == [1, 2, 3]
    assert labels.category_ids.tolist() == [1, 2]


# --- the cache ---


def test_scan_cache_matches_fresh_scan_and_detects_changes(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5", "b": None})
    cache = tmp_path / "cache"

    def again(expected: str, names: tuple[str, ...] = NAMES) -> list[int]:
        labels, report = scan([source], names, cache_dir=cache)
        fresh, plain = scan([source], names)
        assert_same(labels, fresh)
        assert report.cache == expected
        assert report.with_cache("") == plain.with_cache("")
        return labels.classes.tolist()

    assert again("cached now") == [0]
    assert again("from cache") == [0]
    label = tmp_path / "set" / "labels" / "a.txt"
    stamp = label.stat().st_mtime_ns
    label.write_text("1 .5 .5 .5 .5")  # the same size as before
    os.utime(label, ns=(stamp, stamp + 1))
    assert again("files changed, cache rebuilt") == [1]
    (tmp_path / "set" / "labels" / "b.txt").write_text("0 .5 .5 .5 .5")
    assert again("files changed, cache rebuilt") == [1, 0]
    write_dataset(tmp_path / "set", {"c": "0 .5 .5 .5 .5"})
    assert again("files changed, cache rebuilt") == [1, 0, 0]
    (source / "a.png").unlink()
    assert again("files changed, cache rebuilt") == [0, 0]
    assert again("cached now", ("dog", "cat")) == [0, 0]
    assert all(file.suffix == ".npz" for file in cache.iterdir())


def pack(root: Path, class_index: int, image: np.ndarray) -> Path:
    """Return a zip with one image and one label, whose times are fixed as reproducible archives
    have them.
    """
    encoded = cv2.imencode(".bmp", image)[1].tobytes()
    file = root / f"{class_index}.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in (
            ("images/a.bmp", encoded),
            ("labels/a.txt", f"{class_index} .5 .5 .5 .5".encode()),
        ):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return file


def unpack(file: Path, root: Path) -> None:
    """Unpack a zip over existing files and restore the times, as `unzip -o` does."""
    with zipfile.ZipFile(file) as archive:
        archive.extractall(root)
    for path in root.rglob("*.*"):
        os.utime(path, (315_532_800, 315_532_800))


def test_scan_cache_notices_archive_with_fixed_times_unpacked_over_another(tmp_path: Path) -> None:
    root, cache = tmp_path / "set", tmp_path / "cache"
    found = []
    for class_index in (0, 1):
        unpack(pack(tmp_path, class_index, np.full((20, 40, 3), class_index, np.uint8)), root)
        labels, report = scan([root / "images"], NAMES, cache_dir=cache)
        found.append((labels.classes.tolist(), report.cache))
    assert found == [([0], "cached now"), ([1], "files changed, cache rebuilt")]
    assert scan([root / "images"], NAMES, cache_dir=cache)[1].cache == "from cache"


def test_scan_cache_notices_lists_and_json_files_of_the_same_size_and_time(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"a": "0 .5 .5 .5 .5", "b": "1 .5 .5 .5 .5"})
    listed, coco, cache = tmp_path / "train.txt", write_coco(tmp_path), tmp_path / "cache"
    listed.write_text("images/a.png")
    for file, old, new in (
        (listed, "a.png", "b.png"),
        (coco, '"category_id": 2', '"category_id": 5'),
    ):
        os.utime(file, ns=(1, 1))
        before, _ = scan([file], NAMES, cache_dir=cache)
        file.write_text(file.read_text().replace(old, new))
        os.utime(file, ns=(1, 1))
        after, report = scan([file], NAMES, cache_dir=cache)
        assert report.cache == "files changed, cache rebuilt"
        assert before.classes.tolist() != after.classes.tolist()


def test_touched_labels_need_no_new_scan(tmp_path: Path) -> None:
    source, cache = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"}), tmp_path / "cache"
    scan([source], NAMES, cache_dir=cache)
    os.utime(tmp_path / "set" / "labels" / "a.txt", ns=(1, 1))
    assert scan([source], NAMES, cache_dir=cache)[1].cache == "from cache"


def test_scan_cache_detects_an_image_that_was_missing(tmp_path: Path) -> None:
    """A CSV file names it; and with labels of their own, the folder gets one more."""
    source, cache = write_dataset(tmp_path, {"a": None}), tmp_path / "cache"
    rows = "".join(f"{name}.png,40,20,cat,1,1,9,9\n" for name in "ab")
    (source / "boxes.csv").write_text(f"filename,width,height,class,xmin,ymin,xmax,ymax\n{rows}")
    for sources, own in (([source / "boxes.csv"], ()), ([source], [source / "boxes.csv"])):
        (source / "b.png").unlink(missing_ok=True)
        before, report = scan(sources, NAMES, labels_from=own, cache_dir=cache)
        assert (len(before), report.cache) == (1, "cached now")
        assert scan(sources, NAMES, labels_from=own, cache_dir=cache)[1].cache == "from cache"
        write_dataset(tmp_path, {"b": None})
        after, report = scan(sources, NAMES, labels_from=own, cache_dir=cache)
        assert (len(after), report.cache) == (2, "files changed, cache rebuilt")


def test_scan_with_a_passing_error_is_not_stored(tmp_path: Path, monkeypatch) -> None:
    rows = dict.fromkeys("ab", "0 .5 .5 .5 .5")
    source, cache = write_dataset(tmp_path, rows), tmp_path / "cache"
    real = scan_module.read_bytes

    def fail_once(path: str) -> bytes:
        monkeypatch.setattr(scan_module, "read_bytes", real)
        raise UnreadableFileError(f"{path} cannot be read: Stale file handle")

    monkeypatch.setattr(scan_module, "read_bytes", fail_once)
    labels, report = scan([source], NAMES, cache_dir=cache, threads=1)
    assert len(labels) == 1
    assert report.cache == "not cached: 1 image could not be read this time"
    assert len(scan([source], NAMES, cache_dir=cache)[0]) == 2


def test_problems_of_a_list_are_said_also_with_labels_elsewhere(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"a": None})
    file = write_coco(tmp_path)
    (tmp_path / "train.txt").write_text("images/a.png\nimages/gone.png\nnotes.pdf\n")
    labels, report = scan([tmp_path / "train.txt"], NAMES, labels_from=[file])
    assert len(labels) == 1
    texts = [str(problem) for problem in report.problems]
    assert f"{tmp_path}/train.txt line 2: {tmp_path}/images/gone.png does not exist" in texts
    assert f"{tmp_path}/train.txt line 3: 'notes.pdf' is not the path of an image file" in texts


def test_coco_image_of_another_sequence_is_no_substitute(tmp_path: Path) -> None:
    """Both are numbered alike; 1.png of the day is missing."""
    entries = [{"id": number, "file_name": f"{number}.png"} for number in (0, 1)]
    boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 9, 9]} for n in (0, 1)]
    content = {
        "images": entries,
        "annotations": boxes,
        "categories": [{"id": 1, "name": NAMES[0]}],
    }
    for sequence, numbers in (("day", (0,)), ("night", (0, 1))):
        folder = tmp_path / "images" / sequence
        folder.mkdir(parents=True)
        for number in numbers:
            cv2.imwrite(str(folder / f"{number}.png"), np.full((20, 40, 3), 99, np.uint8))
    file = tmp_path / "annotations" / "day.json"
    file.parent.mkdir()
    file.write_text(json.dumps(content))
    labels, report = scan([file], NAMES)
    assert [labels.path(index) for index in range(len(labels))] == [
        str(tmp_path / "images" / "day" / "0.png")
    ]
    assert report.problems


def test_coco_scan_cache_detects_removed_images(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"a": None, "b": None})
    file, cache = write_coco(tmp_path), tmp_path / "cache"
    assert scan([file], NAMES, cache_dir=cache)[1].cache == "cached now"
    assert scan([file], NAMES, cache_dir=cache)[1].cache == "from cache"
    (tmp_path / "images" / "b.png").unlink()
    labels, report = scan([file], NAMES, cache_dir=cache)
    assert (len(labels), report.cache) == (1, "files changed, cache rebuilt")


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None])
def test_damaged_scan_cache_is_rebuilt(tmp_path: Path, damage: bytes | None) -> None:
    source, cache = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"}), tmp_path / "cache"
    first, _ = scan([source], NAMES, cache_dir=cache)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:-50] if damage is None else damage)
    second, report = scan([source], NAMES, cache_dir=cache)
    assert_same(first, second)
    assert report.cache == "damaged cache rebuilt: the checksum is wrong"
    assert scan([source], NAMES, cache_dir=cache)[1].cache == "from cache"


def test_scan_cache_with_pickled_objects_is_not_loaded(tmp_path: Path) -> None:
    source, cache = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"}), tmp_path / "cache"
    scan([source], NAMES, cache_dir=cache)
    (file,) = cache.iterdir()
    np.savez(file, report=np.array([{"a": 1}], dtype=object))
    data = file.read_bytes()
    file.write_bytes(data + hashlib.sha256(data).digest())
    assert scan([source], NAMES, cache_dir=cache)[1].cache.startswith(
        "damaged cache rebuilt: not a stored scan: Object arrays cannot be"
    )


def with_checksum(data: bytes) -> bytes:
    """Return the bytes of a stored scan with their correct checksum."""
    return data + hashlib.sha256(data).digest()


@pytest.mark.slow
def test_compressed_scan_cache_is_not_unpacked(tmp_path: Path) -> None:
    source, cache = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"}), tmp_path / "cache"
    first, _ = scan([source], NAMES, cache_dir=cache)
    (file,) = cache.iterdir()
    np.savez_compressed(file, report=np.zeros(10**8, np.uint8))
    file.write_bytes(with_checksum(file.read_bytes()))
    labels, report = scan([source], NAMES, cache_dir=cache)
    assert_same(first, labels)
    assert (
        report.cache
        == "damaged cache rebuilt: not a stored scan: it would unpack to more bytes than it has"
    )


@pytest.mark.parametrize("listed", ["5", "[5]", '{"a": 1}', "[", '"text"'])
def test_scan_cache_with_valid_checksum_but_bad_contents_is_rebuilt(
    tmp_path: Path, listed: str
) -> None:
    source, cache = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"}), tmp_path / "cache"
    first, _ = scan([source], NAMES, cache_dir=cache)
    (file,) = cache.iterdir()
    with np.load(io.BytesIO(file.read_bytes()[:-32])) as archive:
        arrays = dict(archive)
    np.savez(file, **(arrays | {"listed": np.frombuffer(listed.encode(), np.uint8)}))
    file.write_bytes(with_checksum(file.read_bytes()))
    labels, report = scan([source], NAMES, cache_dir=cache)
    assert_same(first, labels)
    assert report.cache.startswith("damaged cache rebuilt: not a stored scan: ")


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_named_pipe_as_scan_cache_is_replaced(tmp_path: Path) -> None:
    source, cache = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"}), tmp_path / "cache"
    scan([source], NAMES, cache_dir=cache)
    (file,) = cache.iterdir()
    file.unlink()
    os.mkfifo(file)
    assert (
        scan([source], NAMES, cache_dir=cache)[1].cache
        == "damaged cache rebuilt: not a regular file"
    )
    assert scan([source], NAMES, cache_dir=cache)[1].cache == "from cache"


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_scan_cache_file_mode_follows_umask(tmp_path: Path) -> None:
    """In a folder shared by a group, a file with mode 0600 would look damaged to all other
    members.
    """
    source, before = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"}), os.umask(0o027)
    try:
        scan([source], NAMES, cache_dir=tmp_path / "cache")
    finally:
        os.umask(before)
    (file,) = (tmp_path / "cache").iterdir()
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.slow
def test_concurrent_scan_cache_writes_leave_one_valid_file(tmp_path: Path) -> None:
    source, cache = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"}), tmp_path / "cache"
    scan([source], NAMES, cache_dir=cache)
    (file,) = cache.iterdir()
    stored = scan_cache.load(file)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(scan_cache.store, file, stored) for _ in range(200)]:
            done.result()
            assert_same(scan_cache.load(file).labels, stored.labels)
    assert list(cache.iterdir()) == [file]


def test_failed_scan_cache_write_keeps_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, cache = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"}), tmp_path / "cache"
    scan([source], NAMES, cache_dir=cache)
    (file,) = cache.iterdir()
    file.write_bytes(b"")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert (
        scan([source], NAMES, cache_dir=cache)[1].cache
        == f"not cached: {cache}: No space left on device"
    )
    assert list(cache.iterdir()) == [file]


def test_scan_works_without_writable_cache_folder(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "set", {"a": "0 .5 .5 .5 .5"})
    (tmp_path / "file").touch()
    labels, report = scan([source], NAMES, cache_dir=tmp_path / "file" / "cache")
    assert len(labels) == 1
    assert "cache" in report.cache


# --- real data ---


@pytest.mark.parametrize("name", ["bccd", "chess_pieces", "coco128"])
def test_txt_and_json_labels_of_real_dataset_agree(name: str) -> None:
    root = DATASETS / name
    if not root.is_dir():
        pytest.skip(f"the data set {name} does not exist")
    spec = read_data_yaml(root / "dataset.yaml")
    txt, report = scan(spec.sources("val"), spec.names, threads=2)
    coco, _ = scan([root / "instances_val.json"], spec.names, threads=2)
    order = np.argsort([coco.path(i) for i in range(len(coco))], kind="stable")
    coco = coco.subset(order)
    assert [txt.path(i) for i in range(len(txt))] == [coco.path(i) for i in range(len(coco))]
    assert np.array_equal(txt.offsets, coco.offsets)
    assert np.array_equal(txt.classes, coco.classes)
    assert np.abs(txt.boxes_xywh - coco.boxes_xywh).max() < 1e-3
    assert report.problems == ()


def test_16_bit_and_gray_images_are_reported_once_also_from_cache(tmp_path: Path) -> None:
    """One note for all 16-bit images, with their bit depths, and one for all gray ones."""
    source = write_dataset(tmp_path, dict.fromkeys("abcde", "0 .5 .5 .5 .5"))
    for name, most in (("b", 4095), ("c", 4000), ("d", 65535)):
        cv2.imwrite(str(source / f"{name}.png"), np.full((20, 40), most, np.uint16))
    cv2.imwrite(str(source / "e.png"), np.full((20, 40), 7, np.uint8))
    _, report = scan([source], NAMES)
    scaled = "each is scaled to 8 bits from the smallest usual bit depth that holds its values"
    expected = [
        f"{source}/b.png: has 16-bit values; {scaled}; images with 16-bit values: 2 of 12 bits, 1 "
        "of 16 bits",
        f"{source}/b.png: has one channel, which is used for all three; images with one channel: 4",
    ]
    assert [str(problem) for problem in report.problems] == expected
    assert report.problem_counts == (("note", 2),)
    for state in ("cached now", "from cache"):
        again = scan([source], NAMES, cache_dir=tmp_path / "cache")[1]
        assert (again.cache, again.problems) == (state, report.problems)


def test_results_of_runs_are_no_images_and_do_not_outdate_the_cache(tmp_path: Path) -> None:
    """`train: .` in a folder where runs are written: each training would add the pictures of those
    before it.
    """
    root = tmp_path / "data"
    write_dataset(root, {"a": "0 .5 .5 .5 .5\n", "b": "1 .5 .5 .5 .5\n"})
    states = []
    for number in range(3):
        labels, report = scan([root], NAMES, cache_dir=tmp_path / "cache")
        states.append((len(labels), report.cache))
        left_out = (
            f"{root}: {counted(number, 'image')} left out in {counted(number, 'run folder')}, "
        )
        assert len(report.sentences) == min(1, number)
        assert "".join(report.sentences).startswith(left_out if number else "")
        assert report_from_dict(report.as_dict()) == report
        run = new_run_folder(root / "runs" / "train", "exp", exist_ok=False)
        cv2.imwrite(str(run / "train_batch0.jpg"), np.zeros((9, 9, 3), np.uint8))
    assert states == [(2, "cached now"), (2, "from cache"), (2, "from cache")]

    for image in (root / "images").iterdir():
        image.unlink()
    with pytest.raises(
        ValueError,
        match=r"no images in .*; the first problem is .*: 3 images left out in 3 run folders",
    ):
        scan([root], NAMES)
