"""Placement of images on a canvas against hand-computed numbers, and the inverse mapping."""

from pathlib import Path

import numpy as np
import pytest

from utils.images.letterbox import (
    EVALUATION_PAD,
    GRAY,
    LETTERBOXES,
    CanvasShapes,
    Placement,
    base_sizes,
    canvas_region,
    draw_letterboxed,
    place,
    resized,
)

# of RTMDet's own preprocessing
FIXTURE = Path(__file__).parents[4] / "shared" / "fixtures" / "rtmdet" / "preprocess.npz"
each_letterbox = pytest.mark.parametrize("at", LETTERBOXES)
SHAPES = CanvasShapes(64, 32, EVALUATION_PAD)
SIZES = [
    (640, 480),
    (641, 479),
    (479, 641),
    (61, 200),
    (64, 64),
    (30, 20),
    (20000, 10),
    (10, 20000),
    (1, 1),
    (3, 1),
]


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def base_size(size: tuple[int, int], image_size: int = 64) -> tuple[int, int]:
    width, height = base_sizes(np.array([size], np.int32), image_size)[0].tolist()
    return width, height


def canvas_of(size: tuple[int, int]) -> tuple[int, int]:
    return SHAPES.shape(np.array([size[1] / size[0]]))


@pytest.mark.parametrize(
    ("size", "base", "canvas", "scale", "shift"),
    [
        # Height 479 * 64 / 641 = 47.8, so 48; canvas ceil(2 + 0.5) = 3 strides wide, ceil(1.49 +
        # 0.5) = 2 strides high; (96 - 64) / 2 = 16 columns left, (64 - 48) / 2 = 8 rows above.
        ((641, 479), (64, 48), (64, 96), (64 / 641, 48 / 479), (16, 8)),
        # Width 61 * 64 / 200 = 19.52, so 20; (64 - 20) / 2 = 22, (96 - 64) / 2 = 16; ceil(0.61 +
        # 0.5) = 2 strides wide.
        ((61, 200), (20, 64), (96, 64), (20 / 61, 64 / 200), (22, 16)),
        # Height 10 * 64 / 20000 = 0.03, but at least 1; ceil(0.001 + 0.5) = 1 stride high; (32 - 1)
        # // 2 = 15.
        ((20000, 10), (64, 1), (32, 96), (64 / 20000, 1 / 10), (16, 15)),
        ((1, 1), (64, 64), (96, 96), (64, 64), (16, 16)),
    ],
)
def test_placements_by_hand(size, base, canvas, scale, shift):
    assert base_size(size) == base
    assert canvas_of(size) == canvas
    placement = place(size, base, canvas)
    assert placement.scale_xy == pytest.approx(scale, rel=1e-15)
    assert placement.shift_xy.tolist() == list(shift)


def test_mapped_boxes_by_hand():
    """A 640 x 480 image on a 320 x 320 canvas: scale 0.5, 40 rows below the top."""
    placement = place((640, 480), (320, 240), (320, 320))
    box = np.array([[100.0, 60, 200, 160]])
    assert placement.to_canvas(box).tolist() == [[50, 70, 100, 120]]
    assert placement.to_image(np.array([[50.0, 70, 100, 120]]), (640, 480)).tolist() == box.tolist()
    beyond = np.array(
        [[-8.0, 30, 400, 300], [0, 0, 320, 39]]
    )  # beyond every edge; entirely above the image
    assert placement.to_image(beyond, (640, 480)).tolist() == [[0, 0, 640, 480], [0, 0, 640, 0]]


@each_letterbox
@pytest.mark.parametrize("size", SIZES)
def test_box_mapping_round_trip_is_identity(size, at):
    placement = place(size, base_size(size), canvas_of(size), at)
    corners = np.random.default_rng(0).uniform(0, 1, (100, 2, 2)) * size
    boxes = np.concatenate([corners.min(1), corners.max(1)], 1)
    on_canvas = placement.to_canvas(boxes)
    assert np.abs(placement.to_image(on_canvas, size) - boxes).max() < 1e-9
    height, width = canvas_of(size)
    assert (on_canvas >= 0).all()
    assert (on_canvas <= [width, height, width, height]).all()


@pytest.mark.parametrize("size", SIZES)
def test_mapping_no_boxes_gives_empty_arrays(size):
    placement = place(size, base_size(size), canvas_of(size))
    for found in (
        placement.to_canvas(np.zeros((0, 4))),
        placement.to_image(np.zeros((0, 4)), size),
    ):
        assert (found.shape, found.dtype) == ((0, 4), np.float64)


def test_flattened_placement_round_trip():
    placement = place((641, 479), (64, 48), (64, 96))
    row = np.concatenate(placement)
    assert [part.tolist() for part in Placement(*row.reshape(2, 2))] == [
        part.tolist() for part in placement
    ]


@pytest.mark.parametrize(
    ("base", "canvas", "region"),
    [
        ((20, 10), (10, 20), (0, 0, 20, 10)),
        (
            (20, 9),
            (12, 23),
            (1, 1, 21, 10),
        ),  # 3 columns and 3 rows left over: the larger part right and below
        ((20, 10), (5, 20), (5, 0, 15, 5)),  # half as large
        ((20, 10), (20, 5), (0, 9, 5, 11)),  # a quarter of the size: 2.5 rows, so 2
        ((1000, 1), (8, 8), (0, 3, 8, 4)),  # 0.008 rows, but at least 1
    ],
)
def test_regions_by_hand(base, canvas, region):
    """The default is the center. At the top left they have the same sides."""
    x1, y1, x2, y2 = region
    assert canvas_region(base, canvas) == canvas_region(base, canvas, "center") == region
    assert canvas_region(base, canvas, "top_left") == (0, 0, x2 - x1, y2 - y1)


@each_letterbox
@pytest.mark.parametrize("size", SIZES)
def test_image_is_drawn_at_its_placement(size, at):
    canvas = np.full((*canvas_of(size), 3), 7, np.uint8)
    draw_letterboxed(np.full((size[1], size[0], 3), 255, np.uint8), base_size(size), canvas, at)
    rows, columns = np.nonzero((canvas == 255).all(2))
    drawn = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    placement = place(size, base_size(size), canvas_of(size), at)
    assert placement.to_canvas(np.array([[0.0, 0, *size]]))[0] == pytest.approx(drawn, abs=1e-9)
    assert len(rows) == (drawn[2] - drawn[0]) * (drawn[3] - drawn[1])
    assert ((canvas == 255) | (canvas == GRAY)).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pad", [0.0, 0.5])
@pytest.mark.parametrize("image_size", [64, 96, 100, 640])
def test_canvas_is_large_enough_for_base_image(size, pad, image_size):
    height, width = CanvasShapes(image_size, 32, pad).shape(np.array([size[1] / size[0]]))
    wide, high = base_size(size, image_size)
    assert wide <= width
    assert high <= height


@pytest.mark.parametrize(
    ("ratios", "pad", "shape"),
    [
        ([1.0], 0.0, (320, 320)),
        ([0.75], 0.0, (256, 320)),  # 240 / 32 = 7.5 strides
        ([0.8], 0.0, (256, 320)),  # exactly 8 strides, not 9 because of rounding errors
        ([0.75], 0.5, (256, 352)),  # 8 and 10.5 strides
        ([2.0], 0.0, (320, 160)),
        ([0.5, 2.0], 0.0, (320, 320)),
        ([0.0005], 0.0, (32, 320)),
        ([0.0005], 0.5, (32, 352)),
    ],
)
def test_canvas_shapes_by_hand(ratios: list[float], pad: float, shape: tuple[int, int]) -> None:
    assert CanvasShapes(320, 32, pad).shape(np.array(ratios)) == shape


def test_resized_averages_pixels_when_shrinking() -> None:
    image = noise(8, 12)
    assert resized(image, 12, 8) is image
    small = resized(image, 6, 4)
    assert np.abs(small - image.reshape(4, 2, 6, 2, 3).mean((1, 3))).max() <= 0.51
    assert resized(image, 24, 16).shape == (16, 24, 3)


@pytest.mark.parametrize(
    ("source", "base"), [((20000, 10), (320, 1)), ((1, 1), (320, 320)), ((1, 3), (107, 320))]
)
def test_resized_handles_extreme_shapes(source: tuple[int, int], base: tuple[int, int]) -> None:
    image = np.full((source[1], source[0], 3), 77, np.uint8)
    assert (resized(image, *base) == np.full((base[1], base[0], 3), 77)).all()


@pytest.mark.skipif(not FIXTURE.is_file(), reason="../shared/fixtures/rtmdet is missing")
@pytest.mark.parametrize(
    ("name", "most", "mean"),
    [("exact", 0, 0), ("landscape_up", 1, 0.1), ("portrait_down", 8, 1), ("long", 8, 1)],
)
def test_images_at_the_top_left_are_placed_as_by_rtmdet(name, most, mean):
    """Regions, factors and border are equal. Where an image shrinks, RTMDet interpolates, and
    Kestrel averages: the mean differences of the last two are 0.79 and 0.74 levels.
    """
    arrays = np.load(FIXTURE)
    image, expected = (arrays[f"{name}/{key}_u8_bgr_hwc"] for key in ("image", "padded"))
    side = 96
    size = (image.shape[1], image.shape[0])
    base = base_size(size, side)
    height, width = arrays[f"{name}/resized_hw"].tolist()
    assert canvas_region(base, (side, side), "top_left") == (0, 0, width, height)

    scale, shift = place(size, base, (side, side), "top_left")
    assert scale.tolist() == arrays[f"{name}/scale_factor_wh"].tolist()
    assert shift.tolist() == [0, 0]

    canvas = np.empty((side, side, 3), np.uint8)
    draw_letterboxed(image, base, canvas, "top_left")
    assert canvas.shape[:2] == tuple(arrays[f"{name}/img_shape_after_pad"])
    for drawn in (canvas, expected):
        assert (drawn[height:] == GRAY).all()
        assert (drawn[:, width:] == GRAY).all()
    difference = np.abs(canvas[:height, :width].astype(int) - expected[:height, :width])
    assert difference.max() <= most
    assert difference.mean() <= mean


@pytest.mark.skipif(not FIXTURE.is_file(), reason="../shared/fixtures/rtmdet is missing")
def test_sides_of_odd_images_are_those_of_rtmdet():
    arrays = np.load(FIXTURE)
    height, width = arrays["odd_640/original_hw"].tolist()
    base = base_size((width, height), 640)
    assert list(base) == arrays["odd_640/resized_hw"].tolist()[::-1]
    scale, _ = place((width, height), base, (640, 640), "top_left")
    assert scale.tolist() == arrays["odd_640/scale_factor_wh"].tolist()
