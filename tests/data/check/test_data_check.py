"""python -m data.check: what it finds in a data set with planted faults, and what it writes."""

import json
import os
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.check import __main__ as data_check
from data.check.anchors import DEFAULT_ANCHORS
from data.check.copies import COPY, EQUAL, MIRRORED, SAME_FILE, SCENE, Pair, find_copies
from data.check.findings import Diagnosis, Example, Finding, Mark
from data.check.page import MOST_PICTURE_BYTES, page_of
from data.check.pictures import Thumbnails, draw, view_of
from data.check.reading import Examined, Split
from data.check.suggestions import image_size_for, suggest
from data.check.text import lines_of
from data.check.unlabeled import guess_unlabeled
from data.labels import LabelRow, LabelsBuilder
from data.layouts.similar import thumbnail_of
from data.scan import scan
from models.tables.read import read_table
from training.settings.recipe import choose_recipe

ROOT = Path(__file__).parents[3]
SIDE = 96
EVIL = '<b onclick="x">cat</b>&\x1b[31m'


def photograph(seed: int, side: int = SIDE) -> np.ndarray:
    """A smooth picture of random blobs."""
    blobs = np.random.default_rng(seed).integers(0, 256, (6, 6, 3)).astype(np.uint8)
    return cv2.resize(blobs, (side, side), interpolation=cv2.INTER_CUBIC)


def write_data(root: Path, splits: dict[str, dict[str, tuple[np.ndarray, str | None]]]) -> Path:
    """Write images and label files by split and name; None for no label file. Returns the YAML."""
    for split, images in splits.items():
        for name, (picture, rows) in images.items():
            image = root / "images" / split / name
            label = (root / "labels" / split / name).with_suffix(".txt")
            for file in (image, label):
                file.parent.mkdir(parents=True, exist_ok=True)
            quality = [cv2.IMWRITE_JPEG_QUALITY, 95] if image.suffix == ".jpg" else []
            assert cv2.imwrite(str(image), picture, quality)
            if rows is not None:
                label.write_text(rows)
    file = root / "data.yaml"
    names = json.dumps([EVIL, "dog", "never"])
    file.write_text(f"train: images/train\nval: images/val\nnames: {names}\n")
    return file


def check(file: Path, tmp_path: Path, *flags: str) -> Diagnosis:
    return data_check.main([str(file), "--cache-dir", str(tmp_path / "cache"), *flags])


ROW = "0 0.5 0.5 0.4 0.4\n"
DOG = "1 0.3 0.3 0.2 0.2\n"


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Diagnosis, Path, Path, str]:
    """A data set with one fault of each kind: its diagnosis, folder, outputs, and the text."""
    root = tmp_path_factory.mktemp("faulty")
    out = tmp_path_factory.mktemp("out")
    base = photograph(1, 2 * SIDE)
    train = {f"good{seed}.png": (photograph(seed), ROW) for seed in range(10, 16)}
    train |= {
        "base.png": (base, ROW),
        "twice.png": (photograph(2), ROW + DOG + "0 0.505 0.5 0.4 0.4\n"),
        "both.png": (photograph(3), ROW + "1 0.505 0.5 0.4 0.4\n"),
        "tiny.png": (photograph(4), ROW + f"0 0.2 0.2 {1 / SIDE} {1 / SIDE}\n"),
        "long.png": (photograph(5), "0 0.5 0.5 0.9 0.03\n"),
        "outside.png": (photograph(6), ROW + "0 0.9 0.5 0.6 0.3\n"),
        "nofile.png": (photograph(7), None),
        "again.png": (base, ROW),
    }
    val = {
        "equal.png": (base, ROW),
        "mirrored.jpg": (np.ascontiguousarray(base[:, ::-1]), DOG),
        "small.jpg": (cv2.resize(base, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA), ROW),
        "other.png": (photograph(8), ROW),
    }
    file = write_data(root, {"train": train, "val": val})
    (root / "images/train/broken.png").write_bytes(b"\x89PNG\r\n\x1a\nx")
    (root / "labels/train/broken.txt").write_text(ROW)

    flags = ["--json", str(out / "found.json"), "--html", str(out / "found.html")]
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("data.check.command_line.print_lines", printed.append)
        diagnosis = check(file, out, *flags, "--img", str(SIDE))
    return diagnosis, root, out, "\n".join(printed)


EXPECTED = {
    "images-unreadable": ["images/train/broken.png"],
    "rows-clipped": ["labels/train/outside.txt line 2"],
    "rows-dropped": [],
    "copies-across-splits": [
        f"images/val/{name}" for name in ("equal.png", "mirrored.jpg", "small.jpg")
    ],
    "copies-in-split": ["images/train/base.png"],
    "copies-with-other-boxes": ["images/val/mirrored.jpg"],
    "images-without-label-file": ["images/train/nofile.png"],
    "images-unlabeled": [],
    "classes-without-boxes": ["class 2"],
    "classes-not-in-val": [],
    "boxes-tiny": ["labels/train/tiny.txt line 2"],
    "boxes-extreme": ["labels/train/long.txt line 1"],
    "boxes-twice": ["labels/train/twice.txt line 3"],
    "boxes-of-two-classes": ["labels/train/both.txt line 2"],
}


@pytest.mark.parametrize("check_name", EXPECTED)
def test_each_planted_fault_is_found_with_file_and_line(faulty, check_name):
    """And nothing else: copies are named once, with the earlier image."""
    diagnosis, root, _, _ = faulty
    finding = {found.check: found for found in diagnosis.findings}.get(check_name)
    places = [example.where for example in finding.examples] if finding else []
    assert places == [
        place if " " in place and "/" not in place else f"{root}/{place}"
        for place in EXPECTED[check_name]
    ]
    assert (finding.count if finding else 0) == len(places)


def test_copies_name_what_was_changed(faulty):
    diagnosis, root, _, _ = faulty
    (found,) = [found for found in diagnosis.findings if found.check == "copies-across-splits"]
    first = f"{root}/images/train/again.png (val and train)"
    kinds = [example.what.removesuffix(f" {first}") for example in found.examples]
    assert kinds == [EQUAL, MIRRORED, COPY]
    assert found.title == "also in an earlier split, or nearly (75% of val)"


def test_nothing_is_written_beside_the_data(faulty):
    _, root, _, _ = faulty
    files = {path.name for path in root.rglob("*") if path.is_file()}
    assert {Path(name).suffix for name in files} == {".png", ".jpg", ".txt", ".yaml"}
    assert not list(root.glob("*.cache"))


def test_json_has_all_of_it(faulty):
    diagnosis, root, out, _ = faulty
    values = json.loads((out / "found.json").read_text())
    assert values == json.loads(json.dumps(diagnosis.as_dict()))
    assert values["splits"] == {"train": 14, "val": 4}
    assert values["folder"] == str(root)
    twice = next(found for found in values["findings"] if found["check"] == "boxes-twice")
    assert twice["examples"][0]["box_xywh"] == [29.28, 28.8, 38.4, 38.4]
    levels = [found["level"] for found in values["findings"]]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)


def test_text_lists_the_first_places_and_escapes_names(faulty):
    diagnosis, _, _, text = faulty
    assert "error: 3 images also in an earlier split, or nearly (75% of val)" in text
    assert "    labels/train/twice.txt line 3: " in text  # without the folder
    assert "\x1b" not in text
    few = "\n".join(lines_of(diagnosis, shown=1))
    assert "and 2 more" in few
    assert "suggested: --img " in text


def test_page_runs_nothing_and_loads_nothing(faulty):
    _, _, out, _ = faulty
    page = (out / "found.html").read_text()
    assert "<script" not in page
    assert "<b onclick" not in page
    assert "&lt;b onclick=&quot;x&quot;&gt;cat&lt;/b&gt;&amp;" in page
    assert "\x1b" not in page
    assert "default-src 'none'" in page
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(sources) > 8
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert "prefers-color-scheme: dark" in page


def test_strict_refuses_warnings_after_the_files_are_written(faulty, tmp_path):
    _, root, _, _ = faulty
    found = tmp_path / "new" / "found.json"
    with pytest.raises(
        ValueError, match=r"^--strict: .*data\.yaml: 1 image left out as unusable; "
    ):
        check(root / "data.yaml", tmp_path, "--strict", "--json", str(found))
    assert found.exists()


def test_strict_passes_clean_data(tmp_path, capsys):
    pictures = {
        split: {f"{seed}.png": (photograph(seed), ROW) for seed in range(first, first + 3)}
        for split, first in (("train", 0), ("val", 3))
    }
    diagnosis = check(write_data(tmp_path / "data", pictures), tmp_path, "--strict")
    assert diagnosis.faults() == []
    assert "0 errors, 0 warnings, 2 notes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--img", "8"], r"^--imgsz 8: choose 32 to 8192 pixels$"),
        (["--img", "0"], r"^--imgsz 0: choose 32 to 8192 pixels$"),
        (["--shown", "-1"], r"^--shown -1: choose 0 or more$"),
        (["--json", "."], r"^--json \. is a folder: give the name of a file$"),
        (["--html", f"{__file__}/found.html"], r"^--html .*: .*\.py is not a folder$"),
        (["--json", __file__], r"^--json .*: exists, and is no earlier check; name another$"),
        (["--html", os.devnull], r"^--html .*: exists, and is no earlier check; name another$"),
        (["--json", "a", "--html", "./a"], r"^--json and --html both name a: give two files$"),
        (["--imgs", "64"], r"^unknown flag --imgs"),
    ],
)
def test_wrong_flags_are_refused(flags, message, tiny_data):
    with pytest.raises(ValueError, match=message):
        data_check.main([str(tiny_data), *flags])


def test_an_earlier_check_is_replaced(tiny_data, tmp_path):
    """And the data set's own YAML is not."""
    outputs = ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    for _ in range(2):
        check(tiny_data, tmp_path, *outputs)
    with pytest.raises(ValueError, match="exists, and is no earlier check; name another"):
        check(tiny_data, tmp_path, "--json", str(tiny_data))


def test_missing_data_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no data set "):
        data_check.main([str(tmp_path / "none.yaml")])


def test_data_without_a_box_are_looked_at(tmp_path):
    """Tables of sizes and suggestions are left out."""
    pictures = {f"{seed}.png": (photograph(seed), None) for seed in range(3)}
    file = write_data(tmp_path / "data", {"train": pictures})
    file.write_text("train: images/train\nnames: [cat]\n")
    diagnosis = check(file, tmp_path)
    assert diagnosis.splits == {"train": 3}
    assert diagnosis.suggestions == []
    assert [table.title for table in diagnosis.tables] == ["Splits", "Boxes of each class"]
    refusal, unused = diagnosis.findings
    assert (refusal.check, refusal.level) == ("splits-without-objects", "error")
    assert unused.check == "classes-without-boxes"

    # train.py refuses them with the same reason.
    (example,) = refusal.examples
    with pytest.raises(ValueError) as caught:
        scan([file.parent / "images" / "train"], ["cat"])
    assert example.what == str(caught.value)
    with pytest.raises(ValueError, match=r"--strict: .*: 1 split without an object to learn from"):
        check(file, tmp_path, "--strict")


def test_data_with_ignore_regions_only_are_looked_at(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), photograph(1))
    region = {"id": 1, "image_id": 5, "category_id": 7, "bbox": [10, 10, 30, 30], "area": 900}
    content = {
        "images": [{"id": 5, "file_name": "a.png", "width": SIDE, "height": SIDE}],
        "annotations": [{**region, "iscrowd": 1}],
        "categories": [{"id": 7, "name": "cat"}],
    }
    file = tmp_path / "coco.json"
    file.write_text(json.dumps(content))
    diagnosis = check(file, tmp_path)
    assert diagnosis.suggestions == []
    assert [table.title for table in diagnosis.tables] == ["Splits", "Boxes of each class"]
    found = {finding.check: finding.examples[0].what for finding in diagnosis.findings}
    assert "1 of 1 object marked as ignored" in found["splits-without-objects"]
    assert "1 of 1 object marked as ignored" in found["labels-suspicious"]


def test_classes_whose_long_names_begin_alike_are_two(tmp_path):
    """Names are cut where they are shown, not where they are compared."""
    rows = "0 0.5 0.5 0.4 0.4\n1 0.5 0.5 0.4 0.4\n"
    file = write_data(tmp_path / "data", {"train": {"a.png": (photograph(1), rows)}})
    names = json.dumps(["x" * 500 + "a", "x" * 500 + "b"])
    file.write_text(f"train: images/train\nnames: {names}\n")
    checks = [found.check for found in check(file, tmp_path).findings]
    assert "boxes-of-two-classes" in checks
    assert "boxes-twice" not in checks


def test_all_boxes_are_counted_though_few_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr("data.check.boxes.MOST_LISTED", 2)
    rows = "".join(f"0 0.{place} 0.5 0.01 0.4\n" for place in range(1, 6))
    file = write_data(tmp_path / "data", {"train": {"a.png": (photograph(1), rows)}})
    file.write_text("train: images/train\nnames: [cat]\n")
    (tiny,) = [found for found in check(file, tmp_path).findings if found.check == "boxes-tiny"]
    assert (tiny.count, len(tiny.examples)) == (5, 2)


def test_coco_places_are_annotation_ids(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), photograph(1))
    box = {"image_id": 5, "category_id": 7, "iscrowd": 0}
    annotations = [
        {**box, "id": 70, "bbox": [10, 10, 30, 30], "area": 900},
        {**box, "id": 71, "bbox": [90, 10, 30, 30], "area": 900},
        {**box, "id": 72, "bbox": [10, 10, 30, 29], "area": 870},
    ]
    images = [{"id": 5, "file_name": "a.png", "width": SIDE, "height": SIDE}]
    content = {"images": images, "annotations": annotations}
    file = tmp_path / "coco.json"
    file.write_text(json.dumps({**content, "categories": [{"id": 7, "name": "cat"}]}))
    diagnosis = check(file, tmp_path)
    places = {found.check: found.examples[0].where for found in diagnosis.findings}
    assert places["boxes-outside"] == f"{file} annotation 71"
    assert places["boxes-twice"] == f"{file} annotation 72"


# ----------------------------------------------------------------------------------------- copies


def thumbnails(paths: list[Path]) -> list[bytes]:
    return [thumbnail_of(path.read_bytes()) for path in paths]


@pytest.mark.parametrize("width", [160, 427, 640, 1100])
def test_changed_copies_are_found_at_all_sizes(width, tmp_path):
    """Also where JPEGs are decoded at a part of their size; other photographs are not."""
    rng = np.random.default_rng(0)
    detail = rng.integers(0, 256, (60, 80, 3)).astype(np.uint8)
    picture = cv2.resize(detail, (width, width * 3 // 4), interpolation=cv2.INTER_CUBIC)
    half = cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    files = {
        "a": (picture, 95),
        "half": (half, 90),
        "mirrored": (picture[:, ::-1], 90),
        "coarse": (picture, 30),
        "other": (picture[::-1], 95),
    }
    paths = []
    for name, (pixels, quality) in files.items():
        paths.append(tmp_path / f"{name}.jpg")
        cv2.imwrite(str(paths[-1]), pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])
    names = [str(path) for path in paths]
    within, across = find_copies(names, [0, 1, 1, 1, 1], thumbnails(paths), 1)
    assert [(pair.image, pair.earlier, pair.kind) for pair in across] == [
        (1, 0, COPY),
        (2, 0, MIRRORED),
        (3, 0, COPY),
    ]
    assert within == []  # they are reported already


def test_a_small_change_of_a_scene_is_no_copy(tmp_path):
    scene = photograph(1, 320)
    moved = scene.copy()
    y, x = np.unravel_index(scene.mean(2).argmin(), (320, 320))
    moved[y : y + 3, x : x + 3] = (
        255  # 9 of 377 pixels of a thumbnail's cell, 9 of 44 in the second
    )
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, picture in zip(paths, (scene, moved), strict=True):
        cv2.imwrite(str(path), picture)
    _, across = find_copies([str(path) for path in paths], [0, 1], thumbnails(paths), 1)
    assert [pair.kind for pair in across] == [SCENE]


def test_pages_of_text_are_not_alike(tmp_path):
    """Their gray levels hardly differ, but for their contrast they do."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(4):
        page = np.full((400, 300), 250, np.uint8)
        page[rng.integers(0, 400, 600), rng.integers(0, 300, 600)] = 0
        paths.append(tmp_path / f"{number}.png")
        cv2.imwrite(str(paths[-1]), page)
    within, across = find_copies([str(path) for path in paths], [0] * 4, thumbnails(paths), 1)
    assert within == across == []


def test_the_same_file_in_two_splits_and_no_images(tmp_path):
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), photograph(1))
    shutil.copy(path, tmp_path / "b.png")
    paths = [str(path), str(path), str(tmp_path / "b.png")]
    within, across = find_copies(paths, [0, 1, 1], thumbnails([Path(name) for name in paths]), 1)
    assert [pair.kind for pair in across] == [SAME_FILE, EQUAL]
    assert within == []
    assert find_copies([], [], [], 1) == ([], [])


# --------------------------------------------------------------------------------------- unlabeled


def test_empty_images_are_ranked_by_how_sure_it_is():
    """A copy with boxes; four of four like it; a far one, where 5 of 8 have boxes: no guess."""
    flat = [bytes([level]) * 272 for level in (100, 100, 100, 101, 102, 103, 30, 200)]
    objects = np.array([0, 2, 1, 3, 1, 0, 0, 0])
    pairs = [Pair(1, 0, False, COPY)]
    guesses = guess_unlabeled(objects, flat, pairs)
    assert [(guess.image, guess.like) for guess in guesses] == [(0, 1)]  # 5: 4 of 5 like it

    guesses = guess_unlabeled(np.array([0, 2, 1, 3, 1, 1, 0, 0]), flat, [])
    assert [(guess.image, round(guess.score, 4)) for guess in guesses] == [
        (0, 0.8182)
    ]  # 0.9 * 5/5.5
    assert guess_unlabeled(np.zeros(0, int), [], []) == []
    assert guess_unlabeled(np.array([1, 2]), flat[:2], []) == []


def test_empty_images_of_data_that_are_rarely_empty_are_guesses():
    levels = np.random.default_rng(0).integers(1, 255, (40, 272)).astype(np.uint8)
    objects = np.ones(40, int)
    objects[7] = 0
    (guess,) = guess_unlabeled(objects, [row.tobytes() for row in levels], [])
    assert (guess.image, guess.score) == (7, 0.5 * 39 / 40)
    assert guess.reason == "98% of all images have boxes"


# ------------------------------------------------------------------------- suggestions and anchors


def examined(sides: list[float], size: tuple[int, int], images: int = 1) -> Examined:
    """A train split of equal images with square boxes of these sides."""
    builder = LabelsBuilder()
    rows = [LabelRow(0, (0, 0, side, side), side * side, False, None, 1) for side in sides]
    for number in range(images):
        builder.add_image(f"{number}.jpg", size, number + 1, rows)
    split = Split("train", (), builder.build([1]), report=None)
    return Examined(spec=None, splits=[split], names=["cat"], image_size=640)


@pytest.mark.parametrize(
    ("side", "size", "chosen"),
    [
        (32.0, (640, 480), 320),  # 32 px at 640: 320 px are enough for 16
        (20.0, (1900, 1080), 1280),  # 6.7 px at 640: 1520 px wanted, but 1280 is the largest
        (25.0, (1280, 720), 832),  # 12.5 px at 640: 819.2, rounded up to a multiple of 32
        (10.0, (640, 480), 640),  # 1024 px wanted, but the images are no larger
        (300.0, (4000, 3000), 320),
    ],
)
def test_suggested_image_size(side, size, chosen):
    data = examined([side] * 10, size)
    assert image_size_for(data.splits[0])[0] == chosen
    assert suggest(data)[0].value == str(chosen)


def test_suggested_tile():
    """12 px in images of 4000 have 3.8 px at 1280; tiles of 480 px at 640 show them with 16."""
    flags = {entry.flag: entry for entry in suggest(examined([12.0] * 10, (4000, 3000)))}
    assert flags["--tile"].value == "480"
    assert flags["--img"].value == "640"
    assert suggest(examined([], (640, 480))) == []


def test_suggested_tile_is_that_of_the_objects_without_ignored_regions():
    data = examined([12.0] * 10 + [2000.0] * 5, (4000, 3000))
    labels = data.splits[0].labels
    labels.crowd[10:] = True
    tile = next(entry for entry in suggest(data) if entry.flag == "--tile")
    assert tile == suggest(examined([12.0] * 10, (4000, 3000)))[1]
    assert "--tile-whole" not in tile.reason


@pytest.mark.parametrize("images", [10, 39, 40, 79, 80, 500])
def test_suggested_batch_is_that_of_the_recipe(images):
    flags = {entry.flag: entry for entry in suggest(examined([50.0], (640, 480), images))}
    recipe = choose_recipe(
        "auto", images=images, epochs=100, classes=1, trained=None, sharded=False
    )
    assert int(flags["--batch"].value) == (recipe.batch_size or 16)


@pytest.mark.parametrize("table", ["yolov5.yaml", "yolov3.yaml"])
def test_default_anchors_are_those_of_the_tables(table):
    anchors = np.array(read_table(ROOT / "models" / table)["anchors"], float).reshape(-1, 2)
    order = np.lexsort(anchors.T)
    np.testing.assert_array_equal(anchors[order], DEFAULT_ANCHORS[np.lexsort(DEFAULT_ANCHORS.T)])


# ------------------------------------------------------------------------------------------- page


@pytest.mark.slow
def test_pictures_stay_below_their_limit(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3)).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), noise)
    example = Example("a", "b", pictures=(pictured(tmp_path / "a.png"),) * 2)
    finding = Finding("c", "note", "image", "t", 24, "a", (example,) * 24)
    findings = [finding] * 10
    page = page_of(Diagnosis("d", {"train": 1}, 640, findings=findings))
    assert 0.5 * MOST_PICTURE_BYTES < len(page) < 5 * 2**20
    assert Thumbnails(10).of(example) == []


def pictured(path: Path, *marks: Mark):
    from data.check.findings import Picture

    return Picture(str(path), marks)


def test_picture_shows_the_boxes(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((100, 200, 3), np.uint8))
    mark = Mark((90.0, 40.0, 20.0, 20.0), "detection")
    image = cv2.imdecode(np.frombuffer(draw(pictured(tmp_path / "a.png", mark)), np.uint8), 1)
    # 96 px of the image at least, around (100, 50): 52 to 148, 2 to 98, drawn at 200 px
    assert image.shape == (200, 200, 3)
    orange = np.argwhere(image[..., 2] > 150)
    np.testing.assert_allclose(orange.min(0), (38 * 200 / 96,) * 2, atol=2.5)
    np.testing.assert_allclose(orange.max(0), (58 * 200 / 96,) * 2, atol=2.5)
    with pytest.raises(ValueError, match=r"none\.png cannot be read"):
        draw(pictured(tmp_path / "none.png"))


def test_view_of_a_box_outside_is_inside_the_image():
    left, top, right, bottom = view_of((Mark((500.0, 10.0, 10.0, 10.0), "label"),), 100, 80)
    assert 0 <= left < right <= 100
    assert 0 <= top < bottom <= 80
