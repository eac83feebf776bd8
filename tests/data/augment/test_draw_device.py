"""Plans drawn with torch: hand-made numbers, a slow oracle, OpenCV, batches, and no waiting for the
device.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from data.augment import draw_device
from data.augment.draw_device import (
    POOL_PADDING,
    Locate,
    _hsv,
    draw_packed,
    pack,
    with_fixed_shapes,
)
from data.augment.geometry import transformed, translation
from data.augment.plan import Planner
from data.augment.records import Augmentation, CanvasLayer, Paste, Patch, Plan
from data.labels import LabelsBuilder
from tests.support.drawn import draw
from tests.support.meta_device import COPIED_TO_DEVICE, META, OneDevice
from utils.distributed.torch_compile import compile_or_fall_back
from utils.images.letterbox import GRAY

EYE = np.eye(3)
NO_TARGETS = np.zeros((0, 5), np.float32)
HSV_GAINS = (0.985, 0.4, 0.7)  # gains


def pool_of(images: Sequence[np.ndarray]) -> tuple[torch.Tensor, Locate]:
    """Return the pool of the images, and the function that locates an image in it."""
    starts = np.cumsum([0, *(image.size for image in images)])
    flat = np.concatenate(
        [*(image.reshape(-1) for image in images), np.full(POOL_PADDING, 255, np.uint8)]
    )
    return torch.from_numpy(flat), lambda i: (int(starts[i]), *images[i].shape[:2])


def draw_on_device(plans: Sequence[Plan], images: Sequence[np.ndarray]) -> np.ndarray:
    pool, locate = pool_of(images)
    return draw_packed(pack(plans, locate), pool).numpy()


def draw_with_opencv(plans: Sequence[Plan], images: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack([draw(plan, lambda i: images[i]) for plan in plans])


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def gray(*rows: Sequence[int]) -> np.ndarray:
    return np.array(rows, np.uint8)[:, :, None].repeat(3, 2)


def photo_like_image(height: int, width: int, seed: int) -> np.ndarray:
    """Return an image of smooth colors with some fine grain, similar to a photograph."""
    random, image = np.random.default_rng(seed), np.full((height, width, 3), 110.0)
    for step, strength in ((48, 80), (12, 40), (3, 15)):
        coarse = random.standard_normal((height // step + 2, width // step + 2, 3))
        image += strength * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return image.clip(0, 255).astype(np.uint8)


def upright_patch(
    index: int, region: tuple[int, int, int, int], target: tuple[int, int, int, int]
) -> Patch:
    """Return a patch with the matrix that maps its region to its target."""
    scale = [(target[i + 2] - target[i]) / (region[i + 2] - region[i]) for i in (0, 1)]
    matrix = np.diag([*scale, 1.0])
    matrix[:2, 2] = [target[i] - region[i] * scale[i] for i in (0, 1)]
    return Patch(index, region, matrix, target)


def plan_of(size: tuple[int, int], *patches: Patch, **changes: object) -> Plan:
    return replace(Plan(size, (CanvasLayer(patches),), NO_TARGETS), **changes)  # type: ignore[arg-type]


def identity_plan(image: np.ndarray, **changes: object) -> Plan:
    """Return a plan that draws image 0 unchanged."""
    height, width = image.shape[:2]
    return plan_of(
        (height, width), upright_patch(0, (0, 0, width, height), (0, 0, width, height)), **changes
    )


# ---------------------------------------------------------------------- by hand


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_unscaled_image_is_copied_as_rgb(up: bool, left: bool) -> None:
    image = noise(5, 8)
    batch = draw_on_device([identity_plan(image, flip_up=up, flip_left=left)], [image])
    assert (batch[0] == image[:: -1 if up else 1, :: -1 if left else 1, ::-1]).all()
    assert batch.dtype == np.uint8
    assert batch.flags.c_contiguous


def test_device_canvas_without_patches_is_gray() -> None:
    image = noise(4, 6)
    for plans in ([plan_of((4, 6))], [plan_of((4, 6)), identity_plan(image)]):
        assert (draw_on_device(plans, [image])[0] == np.full((4, 6, 3), GRAY)).all()


@pytest.mark.parametrize("plans", [[], [plan_of((32, 64))] * 2])
def test_draw_batch_shape_without_plans_or_patches(plans: list[Plan]) -> None:
    pool, locate = pool_of([noise(1, 1)])
    assert draw_packed(pack(plans, locate), pool).shape == (
        len(plans),
        32 * bool(plans),
        64 * bool(plans),
        3,
    )


def test_upscaling_interpolates_linearly_between_pixel_centers() -> None:
    # Four pixels from two: (x + 0.5) / 2 - 0.5 is -0.25, 0.25, 0.75, 1.25, clipped to 0 and 1 at
    # the borders. So the row 0, 100 becomes 0, 25, 75, 100, and the column 0, 40 becomes 0, 10, 30,
    # 40.
    image = gray([0, 100], [40, 140])
    shown = draw_on_device([plan_of((4, 4), upright_patch(0, (0, 0, 2, 2), (0, 0, 4, 4)))], [image])
    assert (shown[0] == gray(*([a + b for b in (0, 25, 75, 100)] for a in (0, 10, 30, 40)))).all()


def test_downscaling_averages_the_two_nearest_pixels() -> None:
    # Two pixels from four: (x + 0.5) * 2 - 0.5 is 0.5 and 2.5.
    image = gray([10, 20, 90, 110], [10, 20, 90, 110])
    shown = draw_on_device([plan_of((2, 2), upright_patch(0, (0, 0, 4, 2), (0, 0, 2, 2)))], [image])
    assert (shown[0] == gray([15, 100], [15, 100])).all()


def test_crop_does_not_read_pixels_outside_it() -> None:
    # The crop 10, 20 of a white image, at double size in the center of the canvas: 10, 12.5, 17.5,
    # 20.
    image = gray([255] * 4, [255, 10, 20, 255], [255] * 4)
    shown = draw_on_device([plan_of((4, 8), upright_patch(0, (1, 1, 3, 2), (2, 1, 6, 3)))], [image])
    row = [GRAY, GRAY, 10, 13, 18, 20, GRAY, GRAY]
    assert (shown[0] == gray([GRAY] * 8, row, row, [GRAY] * 8)).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("warped", [False, True])
def test_images_one_pixel_wide_or_high_match_opencv(shape: tuple[int, int], warped: bool) -> None:
    image = noise(*shape, seed=3)
    patch = upright_patch(1, (0, 0, shape[1], shape[0]), (0, 0, shape[1] * 2, shape[0] * 2))
    patch = replace(patch, target=None) if warped else patch
    shown = draw_on_device([plan_of((6, 6), patch)], [noise(2, 2), image])[
        0, : shape[0] * 2, : shape[1] * 2
    ]
    assert np.abs(shown - cv2.resize(image, None, fx=2, fy=2)[:, :, ::-1].astype(int)).max() <= 1


def test_device_warp_by_whole_pixels_copies_pixels() -> None:
    image = noise(6, 6)
    expected = np.full((9, 10, 3), GRAY)
    expected[1:7, 2:8] = image[:, :, ::-1]
    assert (
        draw_on_device([plan_of((9, 10), Patch(0, (0, 0, 6, 6), translation(2, 1)))], [image])[0]
        == expected
    ).all()


def test_quarter_turn_equals_rot90() -> None:
    # x, y is mapped to 5 - y, x: the image is rotated clockwise.
    image = noise(5, 7)
    rotation = np.array([[0.0, -1, 5], [1, 0, 0], [0, 0, 1]])
    shown = draw_on_device([plan_of((7, 5), Patch(0, (0, 0, 7, 5), rotation))], [image])
    assert (shown[0] == np.rot90(image, -1)[:, :, ::-1]).all()


@pytest.mark.parametrize("warped", [False, True])
def test_later_patches_cover_earlier_ones(warped: bool) -> None:
    images = [gray([level] * 8).repeat(8, 0) for level in (10, 20, 30, 40, 50)]
    targets = [(0, 0, 6, 6), (4, 0, 8, 8), (2, 2, 7, 7), (3, 3, 5, 5), (0, 6, 8, 8)]
    patches = [
        upright_patch(i, (0, 0, x2 - x1, y2 - y1), (x1, y1, x2, y2))
        for i, (x1, y1, x2, y2) in enumerate(targets)
    ]
    flat = draw_with_opencv([plan_of((8, 8), *patches)], images)
    if warped:
        patches = [replace(patch, target=None) for patch in patches]
    shown = draw_on_device([plan_of((8, 8), *patches)], images)
    assert shown[0, [0, 0, 2, 4, 7], [0, 7, 5, 4, 2], 0].tolist() == [10, 20, 30, 40, 50]
    assert (shown == flat).all()


def test_device_mixup_is_a_weighted_mean_of_mixed_samples_only() -> None:
    # 0.3 * 100 + 0.7 * 201 = 170.7
    images = [gray([100, 100]), gray([201, 201])]
    first, second = (CanvasLayer((upright_patch(i, (0, 0, 2, 1), (0, 0, 2, 1)),)) for i in (0, 1))
    plans = [
        Plan((1, 2), layers, NO_TARGETS, mix=0.3)
        for layers in ((first,), (first, second), (second,))
    ]
    assert draw_on_device(plans, images)[:, 0, 0, 0].tolist() == [100, 171, 201]
    assert draw_on_device([plans[1]] * 2, images)[:, 0, 1, 2].tolist() == [171, 171]


def test_device_hue_wraps_around() -> None:
    # Hue 178 of 180 is red with a little blue; times 1.02 it is 181.56, so 2: red with a little
    # green.
    image = cv2.cvtColor(np.full((2, 2, 3), (178, 255, 255), np.uint8), cv2.COLOR_HSV2BGR)
    red, green, blue = draw_on_device([identity_plan(image, hsv=(1.02, 1.0, 1.0))], [image])[
        0, 0, 0
    ].tolist()
    assert red == 255
    assert 0 < green < 20
    assert blue == 0


# ---------------------------------------------------------------------- against a slow oracle


def slow_pixel(
    image: np.ndarray, box: tuple[int, int, int, int], x: float, y: float
) -> list[float]:
    """Interpolate between the four pixels around (x, y), with integers at pixel centers, clipped to
    the box; RGB.
    """
    x, y = min(max(x, box[0]), box[2] - 1), min(max(y, box[1]), box[3] - 1)
    x1, y1 = int(x), int(y)
    x2, y2 = min(x1 + 1, box[2] - 1), min(y1 + 1, box[3] - 1)
    upper = image[y1, x1] * (1 - x + x1) + image[y1, x2] * (x - x1)
    lower = image[y2, x1] * (1 - x + x1) + image[y2, x2] * (x - x1)
    return (upper * (1 - y + y1) + lower * (y - y1))[::-1].tolist()


def slow_patch(patch: Patch, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a canvas with one patch on gray, [H, W, 3] float; NaN within a pixel of the edges of a
    warped patch.
    """
    canvas = np.full((*size, 3), float(GRAY))
    limits = np.array(patch.region if patch.target else (0, 0, image.shape[1], image.shape[0]))
    for y, x in np.ndindex(*size):
        source = transformed(np.array([[x + 0.5, y + 0.5]]), np.linalg.inv(patch.matrix))[0]
        pixel = slow_pixel(image, tuple(limits.tolist()), *(source - 0.5).tolist())
        around = transformed(
            np.add([[-1, -1], [-1, 1], [1, -1], [1, 1]], [x + 0.5, y + 0.5]),
            np.linalg.inv(patch.matrix),
        )
        inside = (source > patch.region[:2]).all() and (source < patch.region[2:]).all()
        near = ((around > patch.region[:2]) & (around < patch.region[2:])).all(1)
        if patch.target is None and near.any() != near.all():
            canvas[y, x] = np.nan
        elif inside:
            canvas[y, x] = pixel
    return canvas


ROTATED_MATRIX = np.array([[0.8, -0.5, 6.0], [0.6, 0.9, -2.0], [0.0, 0.0, 1.0]])
PERSPECTIVE_MATRIX = np.array([[1.1, 0.2, 1.0], [-0.1, 0.8, 3.0], [0.006, 0.004, 1.0]])


@pytest.mark.parametrize(
    "patch",
    [
        upright_patch(0, (2, 1, 11, 10), (3, 0, 16, 5)),
        upright_patch(0, (0, 0, 17, 13), (1, 2, 4, 18)),
        upright_patch(0, (5, 3, 6, 11), (0, 4, 20, 5)),
        Patch(0, (2, 1, 15, 12), ROTATED_MATRIX),
        Patch(0, (0, 0, 17, 13), PERSPECTIVE_MATRIX),
        Patch(0, (3, 2, 17, 13), np.diag([-1.0, 1, 1]) + translation(18, 2) - EYE),
    ],
    ids=["upright", "narrow", "thin", "turned", "tilted", "mirrored"],
)
@pytest.mark.parametrize("flipped", [False, True])
def test_device_patches_equal_slow_interpolation(patch: Patch, flipped: bool) -> None:
    image, size = noise(13, 17, seed=4), (19, 20)
    shown = draw_on_device([plan_of(size, patch, flip_up=flipped, flip_left=flipped)], [image])[0]
    slow = slow_patch(patch, image, size)[:: -1 if flipped else 1, :: -1 if flipped else 1]
    defined = ~np.isnan(slow)
    assert defined.mean() > 0.6
    assert ((slow != GRAY) & defined).sum() > 50
    assert np.abs(shown - slow)[defined].max() <= 0.51


# ---------------------------------------------------------------------- against OpenCV


def test_hsv_conversion_equals_opencv() -> None:
    image = noise(300, 300)
    image[::3] //= 40  # dark pixels, many of which are equal
    image[1::5] = image[1::5, :, :1]
    ours = torch.stack(_hsv(*torch.from_numpy(image).unbind(2)), 2).numpy()
    assert (ours == cv2.cvtColor(image, cv2.COLOR_BGR2HSV)).all()


@pytest.mark.parametrize(
    "gains", [(1.0, 1.0, 1.0), (1.015, 1.7, 1.4), HSV_GAINS, (1.5, 1.0, 0.9), (1.0, 0.0, 1.0)]
)
def test_hsv_gains_match_opencv(gains: tuple[float, float, float]) -> None:
    image = noise(128, 128, seed=1)
    plans = [identity_plan(image, hsv=gains)]
    error = np.abs(draw_on_device(plans, [image]) - draw_with_opencv(plans, [image]).astype(int))
    assert error.max() <= 1
    assert (error > 0).mean() < 0.01


def make_planner(sizes: Sequence[tuple[int, int]], side: int, **strengths: float) -> Planner:
    builder = LabelsBuilder()
    for i, size in enumerate(sizes):
        builder.add_image(f"{i}.png", size, i + 1, [])
    return Planner(builder.build(range(1, 3)), side, Augmentation(**strengths), seed=0)


SIZES = ((96, 72), (60, 96), (96, 96), (96, 20), (1, 96))
IMAGES = [photo_like_image(height, width, i) for i, (width, height) in enumerate(SIZES)]
BASE_STRENGTHS = {"translate": 0.1, "scale": 0.5, "fliplr": 0.5, "flipud": 0.3}
HSV_STRENGTHS = {"hsv_h": 0.015, "hsv_s": 0.7, "hsv_v": 0.4}
WARP_STRENGTHS = {"degrees": 15.0, "shear": 5.0, "perspective": 0.0005}


def random_plans(count: int, **strengths: float) -> list[Plan]:
    made = make_planner(SIZES, 96, **BASE_STRENGTHS, **strengths)
    return [
        made.plan(0, i % len(SIZES), (96, 96), mosaic=True, repeat=i // len(SIZES))
        for i in range(count)
    ]


@pytest.mark.parametrize("strengths", [{}, {"mosaic": 1.0}, {"mosaic": 0.8, "mixup": 0.5}], ids=str)
def test_upright_patches_match_opencv(strengths: dict[str, float]) -> None:
    plans = random_plans(40, **strengths)
    assert (
        np.abs(draw_on_device(plans, IMAGES).astype(int) - draw_with_opencv(plans, IMAGES)).max()
        <= 1
    )


def test_upright_patches_with_hsv_gains_are_close_to_opencv() -> None:
    plans = random_plans(40, mosaic=0.8, mixup=0.3, **HSV_STRENGTHS)
    error = np.abs(draw_on_device(plans, IMAGES).astype(int) - draw_with_opencv(plans, IMAGES))
    assert error.mean() < 0.25
    assert (error > 8).mean() < 0.001
    assert error.max() <= 40


@pytest.mark.parametrize("strengths", [{}, {"mosaic": 1.0}, {"mosaic": 0.8, "mixup": 0.5}], ids=str)
def test_warped_patches_match_opencv_except_at_edges(strengths: dict[str, float]) -> None:
    plans = random_plans(40, **strengths, **WARP_STRENGTHS)
    error = np.abs(draw_on_device(plans, IMAGES).astype(int) - draw_with_opencv(plans, IMAGES)).max(
        -1
    )
    # Total length of a mosaic's edges, of which a quarter may be drawn one pixel further in or out.
    edges = 6 * 96
    assert (error > 2).mean() < 0.25 * edges / 96**2
    assert np.median(error) <= 1


def test_all_augmentations_combined_are_close_to_opencv() -> None:
    plans = random_plans(40, mosaic=0.8, mixup=0.5, **WARP_STRENGTHS, **HSV_STRENGTHS)
    error = np.abs(draw_on_device(plans, IMAGES).astype(int) - draw_with_opencv(plans, IMAGES)).max(
        -1
    )
    assert (error > 8).mean() < 0.02
    assert np.median(error) <= 1


@pytest.mark.parametrize("size", [(96, 96), (64, 96), (128, 160), (32, 32)])
def test_letterboxed_images_match_opencv(size: tuple[int, int]) -> None:
    plans = [make_planner(SIZES, 96).plain(i, size) for i in range(len(SIZES))]
    assert (
        np.abs(draw_on_device(plans, IMAGES).astype(int) - draw_with_opencv(plans, IMAGES)).max()
        <= 1
    )


# ---------------------------------------------------------------------- batches


def plans_of_all_kinds() -> list[Plan]:
    """Return upright and warped plans, single and mosaic, mixed, flipped, with and without gains,
    and an empty one.
    """
    plans = [
        *random_plans(3),
        *random_plans(3, mosaic=1.0, mixup=0.5),
        *random_plans(3, mosaic=1.0, **HSV_STRENGTHS),
    ]
    return [
        *plans,
        *random_plans(4, mosaic=0.5, mixup=1.0, **WARP_STRENGTHS, **HSV_STRENGTHS),
        plan_of((96, 96)),
    ]


def test_drawn_sample_does_not_depend_on_its_batch() -> None:
    plans = plans_of_all_kinds()
    alone = np.concatenate([draw_on_device([plan], IMAGES) for plan in plans])
    assert (draw_on_device(plans, IMAGES) == alone).all()
    assert (draw_on_device(plans[::-1], IMAGES) == alone[::-1]).all()


def test_sample_without_hsv_gains_keeps_colors_in_mixed_batch() -> None:
    image = noise(16, 16)
    shown = draw_on_device([identity_plan(image, hsv=HSV_GAINS), identity_plan(image)], [image])
    assert (shown[1] == image[:, :, ::-1]).all()
    assert (shown[0] != shown[1]).any()


def test_draw_batch_does_not_change_its_inputs() -> None:
    pool, locate = pool_of(IMAGES)
    packed, before = pack(plans_of_all_kinds(), locate), pool.clone()
    parts = [part.clone() for part in packed[:4]]
    first = draw_packed(packed, pool)
    assert pool.equal(before)
    assert all(a.equal(b) for a, b in zip(parts, packed[:4], strict=True))
    assert draw_packed(packed, pool).equal(first)


def test_pool_offsets_beyond_32_bits_are_supported() -> None:
    pool = torch.tensor([77], dtype=torch.uint8).expand(2**33)
    packed = pack(
        [plan_of((4, 4), upright_patch(0, (0, 0, 8, 8), (0, 0, 4, 4)))],
        lambda _: (2**33 - 195, 8, 8),
    )
    assert (draw_packed(packed, pool) == 77).all()


def test_packed_plans_survive_transfer_from_loader_process() -> None:
    _, locate = pool_of(IMAGES)
    plans = plans_of_all_kinds()
    forked = {"num_workers": 1, "multiprocessing_context": "fork"}
    (sent,) = DataLoader(plans, len(plans), collate_fn=lambda some: pack(some, locate), **forked)  # type: ignore[arg-type]
    packed = pack(plans, locate)
    assert type(sent) is type(packed)
    assert all(a.equal(b) for a, b in zip(sent[:4], packed[:4], strict=True))
    assert sent[4:] == packed[4:] == (96, 96, False)


class OperatorCounter(TorchDispatchMode):
    """Counts the calls of each operator, with indexing by a mask counted separately."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = function.overloadpacket.__name__
        masks = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.calls["index by mask" if masks else name] += 1
        return function(*args, **(kwargs or {}))


SYNCING_OPERATORS = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "nonzero_static",
    "masked_select",
    "is_nonzero",
    "equal",
    "unique",
}
SYNCING_OPERATORS |= {
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "repeat_interleave",
    "index by mask",
    "allclose",
}


def test_draw_batch_uses_no_syncing_operators() -> None:
    pool, locate = pool_of(IMAGES)
    packed = pack(plans_of_all_kinds(), locate)
    with OperatorCounter() as record:
        draw_packed(packed, pool)
    assert not SYNCING_OPERATORS & set(record.calls)
    assert record.calls["gather"] > 5
    with OperatorCounter() as record:  # the recorder does see such calls
        pool[pool > 200].sum().item()
    assert {"index by mask", "_local_scalar_dense"} <= set(record.calls)


@pytest.mark.parametrize("kinds", ["upright", "all"])
def test_draw_batch_stays_on_device_without_reading_values(kinds: str) -> None:
    pool, locate = pool_of(IMAGES)
    plans = (
        random_plans(4, mosaic=1.0, **HSV_STRENGTHS) if kinds == "upright" else plans_of_all_kinds()
    )
    packed, pool_on_device = pack(plans, locate), pool.to(META)
    on_device = packed.sent(lambda part: part.to(META))
    with OneDevice() as device:
        batch = draw_packed(on_device, pool_on_device)
    assert batch.shape == (len(plans), 96, 96, 3)
    assert batch.device == META
    assert not device.calls[COPIED_TO_DEVICE]
    for mixed in (
        packed._replace(tables=on_device.tables),
        on_device._replace(tables=packed.tables),
    ):
        with OneDevice(), pytest.raises(RuntimeError, match="mixes tensors of cpu and meta"):
            draw_packed(mixed, pool_on_device)
    with OneDevice(), pytest.raises(RuntimeError, match="mixes tensors of cpu and meta"):
        draw_packed(on_device, pool)


def test_meta_device_check_detects_reading_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, locate = pool_of(IMAGES)
    on_device = pack(plans_of_all_kinds(), locate).sent(lambda part: part.to(META))
    monkeypatch.setattr(draw_device, "_mixed", lambda plane, mixes: plane[: int(mixes.sum())])
    with (
        OneDevice(),
        pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"),
    ):
        draw_packed(on_device, pool.to(META))


def test_operator_count_does_not_depend_on_batch_size() -> None:
    pool, locate = pool_of(IMAGES)
    counts = []
    for plans in (random_plans(4, mosaic=1.0), random_plans(20, mosaic=1.0)):
        with OperatorCounter() as record:
            draw_packed(packed := pack(plans, locate), pool)
        counts.append(record.calls.total())
        assert packed.lines.shape[1] == 5
    assert counts[0] == counts[1] < 200


# ------------------------------------------------------------------ fixed shapes, for torch.compile


def batches_with_every_number_of_mixed_samples(count: int, **strengths: float) -> list[list[Plan]]:
    """Batches of `count` plans, of which 0, 1 ... count are mixed."""
    plans = random_plans(12 * count, mosaic=1.0, mixup=0.5, **strengths)
    mixed = [plan for plan in plans if len(plan.layers) > 1][:count]
    plain = [plan for plan in plans if len(plan.layers) == 1][:count]
    assert len(mixed) == len(plain) == count
    order = random.Random(0)
    batches = [mixed[:number] + plain[number:] for number in range(count + 1)]
    for batch in batches:
        order.shuffle(batch)
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5, 8, 16])
@pytest.mark.parametrize(
    "strengths", [{}, HSV_STRENGTHS | WARP_STRENGTHS], ids=["upright", "warped"]
)
def test_fixed_shapes_are_few_and_draw_the_same_pixels(
    count: int, strengths: dict[str, float]
) -> None:
    pool, locate = pool_of(IMAGES)
    shapes = set()
    for number, batch in enumerate(batches_with_every_number_of_mixed_samples(count, **strengths)):
        packed = pack(batch, locate)
        fixed = with_fixed_shapes(packed)
        shapes.add((*(part.shape for part in fixed[:4]), *fixed[4:]))
        assert number <= len(fixed.mixes) <= count
        assert len(fixed.lines) == len(fixed.places) == count + len(fixed.mixes)
        assert fixed.mixes[:, 0].unique().numel() == len(fixed.mixes)
        assert draw_packed(fixed, pool).equal(draw_packed(packed, pool))
    assert len(shapes) == {1: 2, 2: 3, 5: 4}.get(count, 5)  # of 5: none, 2, 4 and 5 mixed samples


def test_fixed_shapes_of_no_plans() -> None:
    packed = pack([], lambda _: (0, 0, 0))
    assert with_fixed_shapes(packed) is packed


@pytest.mark.slow
def test_compiled_drawing_is_compiled_once_for_each_fixed_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without fixed shapes torch compiled for 0, 1, 2 ... mixed samples, until it gave up."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda call, **settings: real(call, backend=counter, **settings)
    )
    draw = compile_or_fall_back(draw_packed, pytest.fail)
    pool, locate = pool_of(IMAGES)
    batches = [pack(batch, locate) for batch in batches_with_every_number_of_mixed_samples(8)]
    torch._dynamo.reset()
    try:
        for _ in range(2):
            for packed in batches:
                assert draw(with_fixed_shapes(packed), pool).equal(draw_packed(packed, pool))
    finally:
        torch._dynamo.reset()
    assert counter.frame_count == 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_drawing_matches_cpu(compiled: bool) -> None:
    pool, locate = pool_of(IMAGES)
    packed, device = pack(plans_of_all_kinds(), locate), torch.device("cuda", 0)
    on_device, pool_on_device = packed.sent(lambda part: part.to(device)), pool.to(device)
    draw = torch.compile(draw_packed) if compiled else draw_packed
    draw(on_device, pool_on_device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = draw(on_device, pool_on_device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    error = (batch.cpu().int() - draw_packed(packed, pool).int()).abs()
    assert (error > 1).float().mean() < 1e-3


# ---------------------------------------------------------------------- refusals


def test_copy_paste_on_device_is_rejected() -> None:
    paste = Paste(0, (0, 0, 8, 8), np.array([[1.0, 1], [5, 1], [5, 5]]), EYE)
    with pytest.raises(
        ValueError, match=r"^copy-paste cannot be drawn on the device, only by OpenCV$"
    ):
        pack(
            [Plan((8, 8), (CanvasLayer(()), CanvasLayer((), (paste,))), NO_TARGETS)],
            lambda _: (0, 8, 8),
        )


def test_plans_of_different_sizes_are_rejected() -> None:
    with pytest.raises(
        ValueError, match=r"^the plans of a batch must have one size, not \[\(4, 8\), \(8, 8\)\]$"
    ):
        pack([plan_of((8, 8)), plan_of((4, 8))], lambda _: (0, 8, 8))


@pytest.mark.parametrize("region", [(0, 0, 9, 8), (0, 0, 8, 9), (-1, 0, 8, 8), (0, 4, 8, 4)])
def test_patch_regions_outside_their_image_are_rejected(region: tuple[int, int, int, int]) -> None:
    with pytest.raises(
        ValueError, match=r"^a tile has region \(.*\) of image 5, which has 8 x 8 pixels$"
    ):
        pack([plan_of((8, 8), Patch(5, region, EYE))], lambda _: (0, 8, 8))
