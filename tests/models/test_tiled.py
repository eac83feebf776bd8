"""models/tiled.py: an object on a seam counts once, two objects count twice, small images are left
alone.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from data import build_evaluation_loader
from data.tiles.labels import tile_labels
from models import build_model, load
from models.backends.in_torch import TorchBackend
from models.predict import Predictor
from models.tiled import MIN_PART_SCORE, MIN_WHOLE_SCORE, TiledPredictor, merge_rows, merge_tiles
from tests.data.test_loader import write_data
from tests.models.test_predict import BrightSpot, assert_detections_close, by_image
from tests.support.convolutions import images_convolved_alone
from tests.support.thread_ranks import run_ranks, thread_worlds
from training.evaluation import predict_split
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.images.decode import read_image
from utils.images.detections import ImageDetections
from utils.images.tiles import CUT_MARGIN, Tiling

TILING = Tiling(100, 0.4)
TILES = Tiling(96, 0.25)
LIMITS = {"confidence": 0.05, "iou": 0.6, "max_detections": 40}
SIZE = (160, 160)  # two by two tiles, which overlap by 40 px: 0-100 and 60-160


def merged(objects, size=SIZE, tiling=TILING, **settings):
    """Merge what a perfect detector finds in each tile of objects (class, score, box), or boxes in
    a tile's view.
    """
    regions = tiling.regions(size)
    values = {"iou": 0.5, "max_detections": 100, **settings}
    return merge_tiles([seen(objects, region) for region in regions], regions, size, **values)


def seen(objects, region):
    """The parts of the objects inside a region, in its pixels."""
    rows = []
    for class_id, score, box in objects:
        low, high = np.maximum(box[:2], region[:2]), np.minimum(box[2:], region[2:])
        if (high > low).all():
            rows.append([class_id, score, *(low - region[:2]), *(high - region[:2])])
    table = np.array(sorted(rows, key=lambda row: -row[1]), float).reshape(-1, 6)
    return ImageDetections(table[:, 2:], table[:, 1], table[:, 0].astype(np.int64))


def rows(found):
    return sorted(
        (int(k), round(s, 6), *b)
        for k, s, b in zip(found.class_ids, found.scores, found.boxes_xyxy.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    "box",
    [
        [70, 10, 90, 30],  # whole in both tiles
        [50, 10, 90, 30],  # cut by the right tile
        [20, 10, 62, 30],  # a sliver of 2 px in the right tile
        [65, 65, 95, 95],  # whole in four tiles
        [50, 50, 90, 90],  # whole in one tile, cut by three
        [58, 10, 102, 30],  # larger than the overlap: cut by both
        [40, 40, 120, 120],  # cut by four tiles
        [0, 0, 160, 160],  # the whole image
        [5, 70, 155, 90],  # longer than a tile
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_object_on_a_seam_counts_once(box, whole):
    found = merged([(1, 0.9, box)], tiling=Tiling(100, 0.4, whole))
    assert rows(found) == [(1, 0.9, *box)]


@pytest.mark.parametrize(
    "boxes",
    [
        [[40, 10, 80, 30], [80, 10, 120, 30]],  # side by side, they touch in the overlap
        [[40, 10, 100, 30], [100, 10, 140, 30]],  # they touch at a tile's border
        [[20, 10, 120, 30], [20, 30, 120, 50]],  # both longer than the overlap, one above the other
        [[40, 40, 80, 80], [80, 80, 120, 120]],  # diagonal, at the corner of four tiles
        [[0, 0, 160, 80], [0, 80, 160, 160]],  # two halves of the image
    ],
)
def test_two_objects_at_a_seam_stay_two(boxes):
    found = merged([(0, 0.9, boxes[0]), (0, 0.8, boxes[1])])
    assert rows(found) == sorted([(0, 0.9, *boxes[0]), (0, 0.8, *boxes[1])])


def test_classes_are_merged_separately_unless_agnostic():
    objects = [(0, 0.9, [40, 10, 120, 30]), (1, 0.8, [40, 10, 120, 30])]
    assert rows(merged(objects)) == [(0, 0.9, 40, 10, 120, 30), (1, 0.8, 40, 10, 120, 30)]
    assert rows(merged(objects, agnostic=True)) == [(0, 0.9, 40, 10, 120, 30)]


def detections(*found):
    table = np.array(found, float).reshape(-1, 6)
    return ImageDetections(table[:, 2:], table[:, 1], table[:, 0].astype(np.int64))


PAIR = [(0, 0, 100, 100), (60, 0, 160, 100)]  # two tiles of an image of 160 x 100


def merge_pair(left, right, **settings):
    return rows(
        merge_tiles(
            [left, right], PAIR, (160, 100), **{"iou": 0.5, "max_detections": 9, **settings}
        )
    )


def test_cut_box_gives_way_to_a_whole_one_with_a_lower_score():
    # The whole box is 50-90. The right tile sees 60-90 of it, and its own box ends at 88: IoU 28/30
    # there.
    left, right = detections([0, 0.5, 50, 10, 90, 30]), detections([0, 0.9, 0, 10, 28, 30])
    assert merge_pair(left, right) == [(0, 0.5, 50, 10, 90, 30)]


def test_noise_does_not_replace_a_cut_box():
    # The same boxes, but the whole one has less than half of the score. Over all of both, IoU is
    # 28/40: the best stays.
    left, right = (
        detections([0, 0.9 * MIN_WHOLE_SCORE - 0.01, 50, 10, 90, 30]),
        detections([0, 0.9, 0, 10, 28, 30]),
    )
    assert merge_pair(left, right) == [(0, 0.9, 60, 10, 88, 30)]


def test_cut_box_without_a_whole_one_stays():
    assert merge_pair(detections(), detections([0, 0.9, 0, 10, 28, 30])) == [
        (0, 0.9, 60, 10, 88, 30)
    ]


def test_parts_are_joined_with_the_highest_score():
    # 40-100 in the left tile and 60-130 in the right one are the same where both see: 60-100.
    left, right = detections([0, 0.6, 40, 10, 100, 30]), detections([0, 0.7, 0, 11, 70, 30])
    assert merge_pair(left, right) == [(0, 0.7, 40, 10, 130, 30)]


def test_parts_that_disagree_are_not_joined():
    # Where both tiles see, one is at y 10-30 and the other at 20-40: IoU 10/30.
    left, right = detections([0, 0.6, 40, 10, 100, 30]), detections([0, 0.7, 0, 20, 70, 40])
    assert len(merge_pair(left, right)) == 2


def test_noise_does_not_widen_a_box():
    left, right = (
        detections([0, 0.9, 40, 10, 100, 30]),
        detections([0, 0.9 * MIN_PART_SCORE - 0.01, 0, 10, 70, 30]),
    )
    assert len(merge_pair(left, right)) == 2


def test_whole_image_contributes_only_boxes_that_no_tile_shows_uncut():
    views, nothing = [*PAIR, (0, 0, 160, 100)], detections()
    small, large = [0, 0.9, 70, 10, 90, 30], [0, 0.8, 50, 40, 110, 90]
    found = merge_tiles(
        [nothing, nothing, detections(small, large)], views, (160, 100), iou=0.5, max_detections=9
    )
    assert rows(found) == [tuple(large)]


def test_best_detections_are_kept_and_come_first():
    objects = [(0, 0.1 * k, [15 * k, 70, 15 * k + 10, 80]) for k in range(1, 10)]
    found = merged(objects, max_detections=4)
    assert found.scores.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.6])


def test_no_detections():
    found = merged([])
    assert (found.boxes_xyxy.shape, found.scores.shape, found.class_ids.shape) == (
        (0, 4),
        (0,),
        (0,),
    )
    assert found.class_ids.dtype == np.int64


# ---------------------------------------------------------------------- a slow oracle


def area(box):
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def shared(one, other):
    return area(
        [max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])]
    )


def inside(box, region):
    return [min(max(box[i], region[i % 2]), region[i % 2 + 2]) for i in range(4)]


def iou_of(one, other):
    return shared(one, other) / max(area(one) + area(other) - shared(one, other), 1e-12)


def is_cut(box, region, size):
    margin = CUT_MARGIN * max(region[2] - region[0], region[3] - region[1])
    low = any(region[i] > 0 and box[i] - region[i] <= margin for i in (0, 1))
    return low or any(
        region[i + 2] < size[i] and region[i + 2] - box[i + 2] <= margin for i in (0, 1)
    )


def slow_merge(found, regions, size, iou, max_detections):
    """merge_tiles, pair by pair, as its docstring says."""
    boxes = []
    for t, (each, r) in enumerate(zip(found, regions, strict=True)):
        for box, score, kind in zip(
            each.boxes_xyxy.tolist(), each.scores, each.class_ids, strict=True
        ):
            moved = [box[0] + r[0], box[1] + r[1], box[2] + r[0], box[3] + r[1]]
            boxes.append(
                {
                    "box": moved,
                    "score": score,
                    "kind": kind,
                    "tile": t,
                    "cut": is_cut(moved, r, size),
                }
            )
    image = [0, 0, *size]
    small = [r for r in regions if list(r) != image]
    boxes = [
        b
        for b in boxes
        if list(regions[b["tile"]]) != image or all(is_cut(b["box"], r, size) for r in small)
    ]
    boxes.sort(key=lambda b: -b["score"])

    def suppress(given):
        kept = []
        for b in given:
            if not any(k["kind"] == b["kind"] and iou_of(k["box"], b["box"]) > iou for k in kept):
                kept.append(b)
        return kept

    def shown(part, wholes):
        for w in wholes:
            if w["kind"] == part["kind"] and w["score"] >= MIN_WHOLE_SCORE * part["score"]:
                view = inside(w["box"], regions[part["tile"]])
                common = shared(part["box"], view)
                beyond = not is_cut(part["box"], regions[w["tile"]], size)
                if iou_of(part["box"], view) > iou or (beyond and common > iou * area(part["box"])):
                    return True
        return False

    def agree(a, b):
        region = inside(regions[a["tile"]], regions[b["tile"]])
        near = area(region) > 0 and min(a["score"], b["score"]) >= MIN_PART_SCORE * max(
            a["score"], b["score"]
        )
        return (
            near
            and a["kind"] == b["kind"]
            and iou_of(inside(a["box"], region), inside(b["box"], region)) > iou
        )

    whole = suppress([b for b in boxes if not b["cut"]])
    parts = [b for b in boxes if b["cut"] and not shown(b, whole)]
    joined, single = [], []
    while parts:
        group = [parts.pop(0)]
        for member in group:
            for other in list(parts):
                if other["tile"] not in [g["tile"] for g in group] and agree(member, other):
                    group.append(other)
                    parts.remove(other)
        every = [g["box"] for g in group]
        around = [f(b[i] for b in every) for i, f in enumerate((min, min, max, max))]
        (joined if len(group) > 1 else single).append({**group[0], "box": around})
    single = [b for b in single if not shown(b, joined)]
    left = sorted([*whole, *joined, *single], key=lambda b: -b["score"])
    return sorted(
        (int(b["kind"]), round(b["score"], 6), *b["box"]) for b in suppress(left)[:max_detections]
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("whole", [False, True])
def test_merge_equals_slow_oracle(seed, whole):
    """Random objects, found with errors in each tile, and noise; all scores differ."""
    random = np.random.default_rng(seed)
    size, tiling = (
        (int(random.integers(90, 300)), int(random.integers(90, 300))),
        Tiling(100, 0.3, whole),
    )
    corners = random.uniform(0, np.array(size), (14, 2))
    objects = [
        (
            int(random.integers(2)),
            0.5,
            np.concatenate([c, np.minimum(c + random.uniform(5, 120, 2), size)]),
        )
        for c in corners
    ]
    regions, found = tiling.regions(size), []
    for region in regions:
        exact, limits = (
            seen(objects, region),
            np.array([region[2] - region[0], region[3] - region[1]] * 2),
        )
        noise = np.concatenate([random.uniform(0, limits[:2], (4, 2))] * 2, 1) + [0, 0, 20, 20]
        boxes = np.concatenate(
            [exact.boxes_xyxy + random.normal(0, 2, exact.boxes_xyxy.shape), noise]
        )
        scores, kinds = (
            random.uniform(0, 1, len(boxes)),
            np.append(exact.class_ids, random.integers(0, 2, 4)),
        )
        order = np.argsort(-scores)
        found.append(ImageDetections(boxes.clip(0, limits)[order], scores[order], kinds[order]))
    expected = slow_merge(found, regions, size, 0.5, 50)
    result = merge_tiles(found, regions, size, iou=0.5, max_detections=50)
    np.testing.assert_allclose(rows(result), expected, rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- the predictor


@pytest.fixture(scope="module")
def model(tiny_model):
    torch.manual_seed(0)
    model = build_model(tiny_model, 3)
    with torch.no_grad():
        for conv in model.head.m:
            conv.bias += 4.5  # else all scores would be near 0
    return model


@pytest.fixture(scope="module")
def backend(model):
    return TorchBackend(model)


def noise(width, height, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_detections_above_the_limit_are_counted_over_all_tiles():
    objects = [(0, 0.9, [5, 5, 20, 20]), (0, 0.8, [70, 70, 90, 90]), (1, 0.7, [130, 130, 150, 150])]
    found = merged(objects, max_detections=1)
    assert (len(found), found.left_out, found.capped) == (
        1,
        2,
        False,
    )  # the object in four tiles counts once

    cut = [replace(seen(objects, region), left_out=2) for region in TILING.regions(SIZE)]
    found = merge_tiles(cut, TILING.regions(SIZE), SIZE, iou=0.5, max_detections=9)
    assert (len(found), found.left_out, found.capped) == (3, 8, False)

    capped = [*cut[1:], replace(cut[0], left_out=0, capped=True)]
    assert merge_tiles(capped, TILING.regions(SIZE), SIZE, iou=0.5, max_detections=9).capped


def test_images_not_larger_than_a_tile_are_detected_as_without_tiles(backend):
    images = [noise(96, 96), noise(64, 90), noise(1, 1)]
    plain = Predictor(backend, image_size=96, confidence=0.1)(images, channel_order="bgr")
    tiled = TiledPredictor(backend, Tiling(96, whole=True), image_size=96, confidence=0.1)(
        images, channel_order="bgr"
    )
    for one, other in zip(plain, tiled, strict=True):
        assert len(one) > 0 or one.boxes_xyxy.shape == (0, 4)
        assert np.array_equal(one.boxes_xyxy, other.boxes_xyxy)
        assert np.array_equal(one.scores, other.scores)
        assert np.array_equal(one.class_ids, other.class_ids)
    assert sum(map(len, plain)) > 10


def test_predictor_merges_the_detections_of_each_crop(backend):
    image, tiling = noise(200, 150), Tiling(96, 0.25, whole=True)
    settings = {"image_size": 64, "confidence": 0.1, "iou": 0.5, "max_detections": 30}
    crops = [image[y1:y2, x1:x2].copy() for x1, y1, x2, y2 in tiling.regions((200, 150))]
    each = Predictor(backend, **settings)(crops, channel_order="rgb")
    expected = merge_tiles(each, tiling.regions((200, 150)), (200, 150), iou=0.5, max_detections=30)
    found = TiledPredictor(backend, tiling, **settings)(image, channel_order="rgb")
    np.testing.assert_allclose(found.boxes_xyxy, expected.boxes_xyxy, atol=1e-3)
    assert len(found) > 3


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_batch_is_never_larger_than_batch_size_tiles(batch_size):
    model = BrightSpot()
    predictor = TiledPredictor(
        TorchBackend(model), Tiling(100, 0.2), image_size=64, batch_size=batch_size, confidence=0.1
    )
    image = np.zeros((1000, 1000, 3), np.uint8)
    image[495:520, 300:330] = 255
    found = predictor(image, channel_order="rgb")
    assert max(shape[0] for shape in model.seen) == min(batch_size, 169)
    assert sum(shape[0] for shape in model.seen) == 13 * 13  # (1000 - 100) / 80 = 11.25: 12 steps
    assert {shape[1:] for shape in model.seen} == {(3, 96, 96)}
    np.testing.assert_allclose(found.boxes_xyxy, [[300, 495, 330, 520]], atol=2)


def test_no_images(backend):
    assert TiledPredictor(backend, Tiling(96), image_size=96)([], channel_order="rgb") == []


# ---------------------------------------------------------------------- load


@pytest.fixture(scope="module")
def weights(model, tmp_path_factory):
    def write(name, **config):
        path = tmp_path_factory.mktemp("weights") / name
        entries = {"names": ["a", "b", "c"], "config": {"imgsz": 64, **config}}
        checkpoint_file.save(path, {"model": model.state_dict(), "table": model.table, **entries})
        return path

    return {"plain": write("p.pt"), "tiled": write("t.pt", tile=96, tile_overlap=0.3)}


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("plain", {}, None),
        ("plain", {"tile": 50}, Tiling(50, 0.2)),
        ("plain", {"tile": 50, "tile_overlap": 0.1, "tile_whole": True}, Tiling(50, 0.1, True)),
        ("tiled", {}, Tiling(96, 0.3)),
        ("tiled", {"tile": 0}, None),
        ("tiled", {"tile_overlap": 0.5}, Tiling(96, 0.5)),
        ("tiled", {"tile_whole": True}, Tiling(96, 0.3, True)),
    ],
)
def test_tiles_default_to_those_of_the_training(weights, name, given, expected):
    assert load(weights[name], device="cpu", **given).predictor.tiling == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tile_overlap": 0.2}, "need tiles: give --tile, their side in pixels, too"),
        ({"tile": 0, "tile_whole": True}, "need tiles: give --tile"),
        ({"tile": -3}, "tile -3: choose a side of 32 pixels or more"),
        ({"tile": 64, "tile_overlap": 1.0}, r"tile overlap 1.0: choose a fraction"),
    ],
)
def test_wrong_settings_of_tiles_are_rejected(weights, given, text):
    with pytest.raises(ValueError, match=text):
        load(weights["plain"], device="cpu", **given)


def test_loaded_detector_says_how_it_cuts_images(weights):
    assert load(weights["plain"], device="cpu").size_text == "64 px"
    assert (
        load(weights["tiled"], device="cpu").size_text
        == "64 px, tiles of 96 px with an overlap of 30%"
    )


# ---------------------------------------------------------------------- val.py


SIZES = [(200, 150), (64, 64), (130, 40), (96, 300), (1, 1)]


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("large"), SIZES)


def detect_tiles(backend, labels, world, batch_size=4, workers=0, tiling=TILES):
    """The detections of val.py on each image."""
    loader = build_evaluation_loader(
        tile_labels(labels, tiling),
        batch_size=batch_size,
        image_size=64,
        stride=backend.stride,
        letterbox=backend.letterbox,
        workers=workers,
        rank=world.rank,
        size=world.size,
    )
    found = predict_split(backend, loader, world, active=False, **LIMITS)
    assert found.labels is labels
    return by_image(found.detections, labels)


@pytest.mark.parametrize("tiling", [TILES, Tiling(96, 0.25, whole=True), Tiling(90, 0)])
@images_convolved_alone()
def test_boxes_of_val_equal_those_of_the_predictor(backend, labels, tiling):
    """val.py reads the tiles by another path: planner, drawing and loader."""
    expected = TiledPredictor(backend, tiling, image_size=64, multi_label=True, **LIMITS)(
        [read_image(labels.path(i)) for i in range(len(labels))], channel_order="bgr"
    )
    assert min(map(len, expected)) > 0
    assert_detections_close(
        detect_tiles(backend, labels, World(torch.device("cpu")), tiling=tiling), expected, 1e-3
    )


@images_convolved_alone()
def test_tiles_at_the_top_left_give_the_boxes_of_val(model, labels):
    corner = TorchBackend(model)
    corner.letterbox = "top_left"
    expected = TiledPredictor(corner, TILES, image_size=64, multi_label=True, **LIMITS)(
        [read_image(labels.path(i)) for i in range(len(labels))], channel_order="bgr"
    )
    assert_detections_close(
        detect_tiles(corner, labels, World(torch.device("cpu"))), expected, 1e-3
    )


@pytest.mark.slow
@images_convolved_alone()
def test_boxes_of_val_do_not_depend_on_processes_batches_and_workers(backend, labels):
    alone = detect_tiles(backend, labels, World(torch.device("cpu")))
    for size, batch_size, workers in ((2, 4, 0), (3, 1, 0), (1, 7, 2)):
        worlds = thread_worlds(size)
        works = [
            partial(detect_tiles, backend, labels, world, batch_size, workers) for world in worlds
        ]
        for found in run_ranks(works, worlds):
            assert_detections_close(found, alone, 1e-3)


def test_no_rows_give_no_rows(labels):
    tiles = tile_labels(labels, TILES)
    found = merge_rows(
        np.zeros((0, 7)), World(torch.device("cpu")), **tiles.layout(), iou=0.5, max_detections=9
    )
    assert found.shape == (0, 7)


def test_detections_as_rows_and_back():
    found = detections([1, 0.5, 1, 2, 3, 5], [2, 0.25, 0, 0, 9, 9])
    assert found.rows(7).tolist() == [[7, 1, 1, 2, 2, 3, 0.5], [7, 2, 0, 0, 9, 9, 0.25]]
    assert rows(ImageDetections.from_rows(found.rows(7))) == rows(found)
    assert detections().rows(0).shape == (0, 7)
