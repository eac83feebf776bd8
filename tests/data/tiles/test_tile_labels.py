"""Labels of tiles: which boxes a tile shows, as targets, as ignore regions or not at all; and their
base images.
"""

import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from data.augment.plan import MIN_AREA_BOX
from data.base_images import DecodedImages, DecodedTiles, decoded
from data.tiles.labels import MIN_VISIBLE, tile_labels
from tests.data.augment.test_plan import box, labels_of, polygon
from tests.data.test_loader import write_data
from utils.images.letterbox import base_sizes
from utils.images.tiles import Tiling

TILING = Tiling(100, 0.4)  # two tiles of an image of 160 x 100: x 0-100 and 60-160


def shown(*rows, tiling=TILING, size=(160, 100)):
    """The rows of each tile: class (-1 if it is an ignore region) and box xywh."""
    tiles = tile_labels(labels_of([size], [list(rows)]), tiling)
    classes = np.where(tiles.crowd, -1, tiles.classes).tolist()
    pairs = [(k, *b) for k, b in zip(classes, tiles.boxes_xywh.tolist(), strict=True)]
    return [pairs[tiles.rows(i)] for i in range(len(tiles))]


def test_whole_boxes_belong_to_every_tile_that_shows_them():
    assert shown(box(3, 70, 10, 20, 30)) == [[(3, 70, 10, 20, 30)], [(3, 10, 10, 20, 30)]]
    assert shown(box(3, 10, 10, 20, 30)) == [[(3, 10, 10, 20, 30)], []]


@pytest.mark.parametrize(
    ("x", "right"),
    [
        (57, [(3, 0, 10, 7, 20)]),  # 7 of 10 px are visible: a target, clipped
        (53, [(3, 0, 10, 3, 20)]),  # exactly 0.3
        (52, [(-1, 0, 10, 2, 20)]),  # 0.2: an ignore region
        (51, []),  # 0.1 is not more than 0.1
        (50, []),
    ],
)
def test_cut_box_is_target_ignored_or_absent_by_its_visible_share(x, right):
    assert (MIN_VISIBLE, MIN_AREA_BOX) == (0.3, 0.1)
    assert shown(box(3, x, 10, 10, 20)) == [[(3, x, 10, 10, 20)], right]


def test_share_is_that_of_the_area():
    # At the corner of four tiles 0.6 x 0.4 = 0.24 of the box is visible in one tile, 0.9 in none
    # but the first.
    tiles = shown(box(0, 34, 36, 40, 40), size=(160, 160))
    assert tiles == [
        [(0, 34, 36, 40, 40)],
        [(0, 0, 36, 14, 40)],  # x from 60 to 74: 0.35
        [(0, 34, 0, 40, 16)],  # y from 60 to 76: 0.4
        [(-1, 0, 0, 14, 16)],  # 0.35 * 0.4 = 0.14
    ]


def test_ignore_regions_stay_ignore_regions_however_little_is_visible():
    assert shown(box(3, 51, 10, 10, 20, crowd=True)) == [
        [(-1, 51, 10, 10, 20)],
        [(-1, 0, 10, 1, 20)],
    ]


def test_every_object_not_larger_than_a_tile_is_a_target_somewhere():
    tiling = Tiling(100, 0.2)
    for x in range(0, 201, 5):
        for side in (30, 60, 100):
            tiles = shown(box(0, x, x, side, side), size=(300, 300), tiling=tiling)
            assert any(row[0] == 0 for rows in tiles for row in rows), (x, side)


def test_arrays_of_tiles():
    labels = labels_of(
        [(160, 100), (50, 40)],
        [[box(1, 0, 0, 9, 9)], [polygon(2, np.float32([[1, 2], [9, 2], [9, 30]]))]],
    )
    tiles = tile_labels(labels, Tiling(100, 0.4, whole=True))
    assert len(tiles) == 4
    assert tiles.owners.tolist() == [0, 0, 0, 1]
    assert tiles.sizes.tolist() == [[100, 100], [100, 100], [160, 100], [50, 40]]
    assert [tiles.path(i) for i in range(4)] == ["0.png", "0.png", "0.png", "1.png"]
    assert tiles.image_ids.tolist() == [1, 2, 3, 4]
    assert tiles.part(1) == (1, (60, 0, 160, 100))
    assert tiles.part(3) == (2, (0, 0, 50, 40)) == labels.part(1)
    assert tiles.whole is labels is labels.whole
    assert [tiles.rows(i).stop - tiles.rows(i).start for i in range(4)] == [1, 0, 1, 1]
    assert tiles.boxes_xywh[-1].tolist() == [1, 2, 8, 28]
    # The long side of a tile is 100 px: a box of 9 px is 5.76 px at 64; in the whole image 9 * 64 /
    # 160 = 3.6 px.
    assert tiles.box_sizes(64)[:2, 0].tolist() == pytest.approx([5.76, 3.6])
    some = tiles.subset([1, 3])
    assert some.boxes_xywh.tolist() == [[1, 2, 8, 28]]
    assert [some.part(0), some.part(1)] == [tiles.part(1), tiles.part(3)]
    assert some.whole is labels
    assert tiles.subset([]).regions.shape == (0, 4)


def test_no_images_and_no_boxes():
    tiles = tile_labels(labels_of([], []), TILING)
    assert (len(tiles), len(tiles.classes), tiles.regions.shape) == (0, 0, (0, 4))
    assert shown() == [[], []]


# ---------------------------------------------------------------------- base images


def test_base_images_of_tiles_are_resized_crops(tmp_path):
    labels = write_data(tmp_path, [(160, 100), (50, 40)])
    tiles = tile_labels(labels, Tiling(100, 0.4, whole=True))
    read = decoded(tiles, 64)
    assert isinstance(read, DecodedTiles)
    for index, (owner, region) in enumerate(zip(tiles.owners, tiles.regions, strict=True)):
        image = cv2.imread(labels.path(int(owner)))
        crop = image[region[1] : region[3], region[0] : region[2]]
        size = base_sizes(np.array([crop.shape[1::-1]], np.int32), 64)[0].tolist()
        interpolation = cv2.INTER_AREA if size[0] < crop.shape[1] else cv2.INTER_LINEAR
        assert (cv2.resize(crop, size, interpolation=interpolation) == read(index)).all()
        copy = pickle.loads(pickle.dumps(read))  # noqa: S301
        assert (copy(index) == read(index)).all()


def test_image_is_decoded_once_for_consecutive_tiles(tmp_path, monkeypatch):
    tiles = tile_labels(write_data(tmp_path, [(160, 100), (300, 90)]), TILING)
    read, opened = decoded(tiles, 64), []
    monkeypatch.setattr(
        "data.base_images.read_image", lambda path: opened.append(path) or cv2.imread(path)
    )
    for index in range(len(tiles)):
        read(index)
    assert len(opened) == 2 < len(tiles)


def test_threads_decode_the_image_of_their_tiles_once(tmp_path, monkeypatch):
    tiles = tile_labels(write_data(tmp_path, [(900, 900)]), TILING)
    read, opened = decoded(tiles, 64), []

    def slow(path):
        opened.append(path)
        time.sleep(0.05)
        return cv2.imread(path)

    monkeypatch.setattr("data.base_images.read_image", slow)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(len(tiles))))
    assert len(tiles) > 8
    assert len(opened) == 1


def test_keys_of_caches_differ(tmp_path):
    labels = write_data(tmp_path, [(160, 100)])
    sources = [
        decoded(labels, 64),
        decoded(labels, 64, 100),
        decoded(labels, 64, 90),
        DecodedImages(labels, 32),
        decoded(labels, 64, canvas=(32, 64)),
        decoded(tile_labels(labels, TILING), 64, canvas=(32, 64)),
    ]
    sources += [
        decoded(tile_labels(labels, tiling), 64)
        for tiling in (TILING, Tiling(100, 0.3), Tiling(100, 0.4, True))
    ]
    assert len({tuple(source.key) for source in sources}) == len(sources)
    assert decoded(labels, 64).key == [64]
    assert decoded(labels, 64, 100).sizes.tolist() == [[102, 64]]  # 160 x 100 times 0.64
    assert decoded(labels, 64, 1000).sizes.tolist() == [[64, 40]]
