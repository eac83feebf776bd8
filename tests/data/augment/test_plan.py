"""Plans: boxes against the drawn pixels of one white object at a time; rules, random keys and
distributions.
"""

from collections.abc import Callable
from dataclasses import replace

import cv2
import numpy as np
import pytest

from data.augment import polygons
from data.augment.geometry import area_scale as _area_scale
from data.augment.geometry import keep_mask as _keep_mask
from data.augment.geometry import transformed
from data.augment.plan import Planner, generator_for
from data.augment.records import Augmentation, CanvasLayer, Patch, Plan
from data.balance.draws import Draws
from data.labels import LabelRow, Labels, LabelsBuilder
from tests.support.drawn import draw
from utils.boxes import IGNORE_CLASS

SIDE = 128
SIZES = (
    (128, 96),
    (96, 128),
    (128, 128),
    (128, 40),
    (64, 128),
)  # width, height; the long side is never resized
U = np.array(
    [[0, 0], [30, 0], [30, 10], [10, 10], [10, 30], [30, 30], [30, 40], [0, 40]], np.float32
)


def labels_of(sizes: list[tuple[int, int]], rows: list[list[LabelRow]]) -> Labels:
    builder = LabelsBuilder()
    for i, (size, image_rows) in enumerate(zip(sizes, rows, strict=True)):
        builder.add_image(f"{i}.png", size, i + 1, image_rows)
    return builder.build(range(1, 91))


def box(
    class_index: int, x: float, y: float, w: float, h: float, *, crowd: bool = False
) -> LabelRow:
    return LabelRow(class_index, (x, y, w, h), w * h, crowd, None, 1)


def polygon(class_index: int, points: np.ndarray) -> LabelRow:
    x, y = points.min(0).tolist()
    w, h = np.ptp(points, axis=0).tolist()
    return LabelRow(class_index, (x, y, w, h), w * h, False, points.astype(np.float32), 1)


def marker_labels(*, outlined: bool) -> Labels:
    """Return labels of 20 images with two or three objects, each with its own class; the last image
    is empty.
    """
    random = np.random.default_rng(5)
    sizes = [SIZES[i % len(SIZES)] for i in range(20)]
    rows: list[list[LabelRow]] = []
    for width, height in sizes[:-1]:
        image_rows: list[LabelRow] = []
        for _ in range(2 + len(rows) % 2):
            w, h = random.integers(16, 33, 2)
            x, y = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
            shape = U * [w / 30, h / 40] + [x, y]
            image_rows.append(polygon(0, shape) if outlined else box(0, x, y, int(w), int(h)))
        rows.append(image_rows)
    rows.append([])
    classes = iter(range(90))
    return labels_of(
        sizes,
        [[row._replace(class_index=next(classes)) for row in image_rows] for image_rows in rows],
    )


BOXES, POLYGONS = marker_labels(outlined=False), marker_labels(outlined=True)


def white_object(labels: Labels, row: int, index: int) -> np.ndarray:
    """Return a black image in which the box or polygon of row `row` is white."""
    width, height = labels.sizes[index]
    fine = np.zeros((height * 8, width * 8), np.uint8)
    x, y, w, h = labels.boxes_xywh[row]
    points = (
        labels.row_points(row)
        if len(labels.row_points(row))
        else [[x, y], [x + w, y], [x + w, y + h], [x, y + h]]
    )
    cv2.fillPoly(fine, [np.round(np.array(points) * 8 - 0.5).astype(np.int32)], 255)
    return cv2.merge(
        [cv2.resize(fine, (int(width), int(height)), interpolation=cv2.INTER_AREA)] * 3
    )


def hull_of_white(image: np.ndarray) -> np.ndarray | None:
    ys, xs = np.nonzero(
        image[:, :, 0] > 184
    )  # more than halfway from the gray of the canvas to white
    return np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]) if len(xs) else None


def visible_objects(plan: Plan, labels: Labels) -> list[tuple[int, np.ndarray, float]]:
    """Return (class, box, fraction of the object's box) of all visible objects, in the order of the
    targets.

    Each object is drawn separately, with the patch or paste that contains it.
    """
    found = []
    for layer in plan.layers:
        alone = [(t, CanvasLayer((t,)), labels.rows(t.index)) for t in layer.patches]
        for paste in layer.pastes:
            rows = labels.rows(paste.index)
            pasted = [
                r
                for r in range(rows.start, rows.stop)
                if np.allclose(labels.row_points(r), paste.outline)
            ]
            alone.append((paste, CanvasLayer((), (paste,)), slice(pasted[0], pasted[0] + 1)))
        for part, single, rows in alone:
            for row in range(rows.start, rows.stop):
                only = replace(plan, layers=(single,), mix=1.0, hsv=None)
                image = draw(only, lambda index, row=row: white_object(labels, row, index))
                hull = hull_of_white(image)
                if hull is not None:
                    w, h = labels.boxes_xywh[row, 2:]
                    area = w * h * abs(np.linalg.det(part.matrix[:2, :2]))
                    found.append(
                        (int(labels.classes[row]), hull, float(np.prod(hull[2:] - hull[:2]) / area))
                    )
    return found


def compare(plan: Plan, labels: Labels, slack: float = 1.5) -> int:
    """Match targets and pixels in order; return how many boxes agree.

    No pixel is more than 1.5 px outside its box; a box extends at most `slack` px past its pixels.
    `slack` is larger for rotated patches, whose corners may be too thin to fill half a pixel.
    """
    targets = plan.targets.tolist()
    minimum = (
        0.02 if len(labels.points) else 0.2
    )  # visible fraction that must be a target; slightly less may be one
    agreed = 0
    for class_index, hull, fraction in visible_objects(plan, labels):
        if targets and targets[0][0] == class_index:
            excess = (np.array(targets[0][1:]) - hull) * [-1, -1, 1, 1]
            assert -1.5 <= excess.min() <= excess.max() <= slack, (class_index, targets[0], hull)
            targets.pop(0)
            agreed += 1
        else:
            assert fraction < minimum or (hull[2:] - hull[:2]).min() < 4, (
                class_index,
                hull,
                fraction,
            )
    assert not targets, "targets without pixels"
    return agreed


AUGMENTATIONS = {
    "nothing": Augmentation(),
    "translate": Augmentation(translate=0.3),
    "scale": Augmentation(scale=0.9),
    "degrees": Augmentation(degrees=45),
    "half a turn": Augmentation(degrees=180),
    "shear": Augmentation(shear=10),
    "perspective": Augmentation(perspective=0.001),
    "flipud": Augmentation(flipud=1),
    "fliplr": Augmentation(fliplr=1),
    "mosaic": Augmentation(mosaic=1, translate=0.1, scale=0.5),
    "mosaic turned": Augmentation(mosaic=1, degrees=20, translate=0.1, scale=0.5),
    "mixup": Augmentation(mosaic=1, mixup=1, fliplr=0.5),
    "copy-paste": Augmentation(mosaic=1, copy_paste=1),
    "all": Augmentation(0.02, 0.7, 0.4, 15, 0.1, 0.5, 5, 0.0005, 0.5, 0.5, 0.8, 0.3, 0.5),
}


@pytest.mark.parametrize("labels", [BOXES, POLYGONS], ids=["boxes", "polygons"])
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_targets_match_drawn_pixels(name: str, labels: Labels) -> None:
    planner = Planner(labels, SIDE, AUGMENTATIONS[name], seed=3)
    plans = [planner.plan(0, i, (SIDE, SIDE), mosaic=True) for i in range(12)]
    slack = 1.5 if AUGMENTATIONS[name].axis_aligned else 3.0
    agreed = sum(compare(plan, labels, slack) for plan in plans)
    assert agreed >= 12
    if name == "copy-paste" and labels is POLYGONS:
        assert sum(len(layer.pastes) for plan in plans for layer in plan.layers) >= 12


@pytest.mark.parametrize("size", [(128, 128), (96, 128), (160, 64), (64, 160), (33, 47)])
def test_targets_match_pixels_on_canvases_of_any_shape(size: tuple[int, int]) -> None:
    moved = Planner(
        BOXES, SIDE, Augmentation(translate=0.2, scale=0.4, fliplr=0.5, flipud=0.5), seed=1
    )
    still = Planner(BOXES, SIDE, Augmentation(), seed=1)
    plans = [moved.plan(2, i, size, mosaic=False) for i in range(5)] + [
        still.plain(i, size) for i in range(5)
    ]
    assert all(
        draw(plan, lambda i: np.zeros((*BOXES.sizes[i][::-1], 3), np.uint8)).shape == (*size, 3)
        for plan in plans
    )
    assert sum(compare(plan, BOXES) for plan in plans) >= 10


@pytest.mark.slow
def test_strong_perspective_keeps_patches_in_front_of_horizon() -> None:
    side = 1280
    labels = labels_of(
        [(side, side)] * 4, [[box(i, 0, 0, 300, 300), box(i, 900, 900, 300, 300)] for i in range(4)]
    )
    planner = Planner(labels, side, Augmentation(perspective=0.001, scale=0.9), seed=0)
    for i in range(200):
        plan = planner.plan(i, 0, (side, side), mosaic=True)
        mosaic, _ = planner._mosaic(generator_for(0, i, 1), 0)
        for patch in plan.layers[0].patches + mosaic.patches:
            corners = np.array([[x, y, 1] for x in (0, side) for y in (0, side)])
            assert (corners @ patch.matrix[2]).min() > 0.09


# --------------------------------------------------------------- a warp against a crop and a resize


def always_warped(augmentation: Augmentation) -> Augmentation:
    """Return the same strengths, but always drawn with a warp."""

    class Warped(Augmentation):
        axis_aligned = property(lambda self: False)  # type: ignore[assignment]

    return Warped(*(getattr(augmentation, name) for name in Augmentation.__dataclass_fields__))


def blurred_noise(index: int) -> np.ndarray:
    width, height = BOXES.sizes[index]
    noise = np.random.default_rng(index).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return cv2.GaussianBlur(noise, (0, 0), 4)


def test_warp_draws_the_same_patch_as_crop_and_resize() -> None:
    planner = Planner(BOXES, SIDE, Augmentation(translate=0.1, scale=0.5, mosaic=1), seed=0)
    for i in range(20):
        plan = planner.plan(0, i, (SIDE, SIDE), mosaic=True)
        warped = replace(
            plan,
            layers=tuple(
                CanvasLayer(tuple(replace(t, target=None) for t in x.patches)) for x in plan.layers
            ),
        )
        difference = np.abs(draw(plan, blurred_noise).astype(int) - draw(warped, blurred_noise))
        assert difference.mean() < 0.5  # of 256


def test_upright_patch_target_equals_its_transformed_region() -> None:
    planner = Planner(BOXES, SIDE, Augmentation(translate=0.1, scale=0.5, mosaic=1), seed=0)
    patches = [
        t
        for i in range(20)
        for t in planner.plan(0, i, (SIDE, SIDE), mosaic=True).layers[0].patches
    ]
    for patch in patches:
        assert patch.target is not None
        corners = transformed(np.array(patch.region, float).reshape(2, 2), patch.matrix)
        assert corners.reshape(-1) == pytest.approx(np.array(patch.target), abs=1e-9)
        assert 0 <= min(patch.target) < max(patch.target) <= SIDE


def test_rounding_patch_edges_moves_boxes_by_at_most_one_pixel() -> None:
    strengths = Augmentation(translate=0.1, scale=0.5, mosaic=1)
    rounded = Planner(BOXES, SIDE, strengths, seed=0)
    exact = Planner(BOXES, SIDE, always_warped(strengths), seed=0)
    for i in range(20):
        one, two = (p.plan(0, i, (SIDE, SIDE), mosaic=True) for p in (rounded, exact))
        pixels = [draw(plan, blurred_noise).astype(int) for plan in (one, two)]
        assert np.abs(pixels[0] - pixels[1]).mean() < 4
        both = set(one.targets[:, 0]) & set(two.targets[:, 0])
        if len(both) == len(one.targets) == len(two.targets):
            assert np.abs(one.targets - two.targets).max() < 1.01


def test_mosaic_patches_have_no_gaps() -> None:
    turned = Planner(BOXES, SIDE, Augmentation(degrees=30, scale=0.2, mosaic=1), seed=0)
    square = labels_of([(SIDE, SIDE)] * 4, [[]] * 4)
    turned.labels = square
    for i in range(10):
        plan = turned.plan(i, 0, (SIDE, SIDE), mosaic=True)
        image = draw(plan, lambda _: np.full((SIDE, SIDE, 3), 255, np.uint8))
        assert set(np.unique(image)) <= {114, 255}
        closed = cv2.morphologyEx(image[:, :, 0], cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
        assert (closed == image[:, :, 0]).mean() > 0.999  # closing would fill a seam


# ---------------------------------------------------------------------- polygons


def test_rotated_polygon_has_tighter_box_than_rotated_box() -> None:
    diamond = np.array([[64, 24], [104, 64], [64, 104], [24, 64]], np.float32)
    both = labels_of([(128, 128)], [[polygon(0, diamond), box(1, 24, 24, 80, 80)]])
    sides = []
    for seed in range(30):
        plan = Planner(both, SIDE, Augmentation(degrees=45), seed).plan(
            0, 0, (SIDE, SIDE), mosaic=False
        )
        sides.append(plan.targets[:, 3:] - plan.targets[:, 1:3])
    # Rotated by 45 degrees the diamond is a square of side 40 sqrt(2) = 56.6; its box would be 113
    # > 80 and be clipped.
    assert min(s[0].max() for s in sides) < 58
    assert all(s[0].max() <= 80.01 <= s[1].min() + 0.01 for s in sides)


def test_polygon_box_without_augmentation_is_its_bounding_box() -> None:
    labels = labels_of([(64, 32)], [[polygon(3, U * 0.5 + 4)]])
    # The base image is twice the source: 15 x 20 px at (4, 4) become 30 x 40 at (8, 8); the canvas
    # adds 32 px above.
    (target,) = Planner(labels, SIDE, Augmentation(), 0).plain(0, (SIDE, SIDE)).targets.tolist()
    assert target == [3, 8, 40, 38, 80]


# ---------------------------------------------------------------------- which boxes are kept


@pytest.mark.parametrize(
    ("width", "height", "whole", "share", "kept"),
    [
        (10, 10, 100, 0.1, True),
        (2, 10, 20, 0.1, False),  # 2 px is not more than 2 px
        (2.1, 10, 21, 0.1, True),
        (10, 1.9, 19, 0.1, False),
        (300, 3, 900, 0.1, False),  # aspect 100
        (299, 3, 897, 0.1, True),
        (10, 10, 1000, 0.1, False),  # 100 of 1000 is not more than a tenth
        (10, 10, 999, 0.1, True),
        (10, 10, 9999, 0.01, True),
        (10, 10, 10000, 0.01, False),
    ],
)
def test_keep_mask_thresholds_by_hand(
    width: float, height: float, whole: float, share: float, kept: bool
) -> None:
    boxes = np.array([[5, 5, 5 + width, 5 + height]])
    assert _keep_mask(np.array([whole]), boxes, np.array([share])).tolist() == [kept]


def test_small_and_thin_boxes_are_dropped_but_crowds_are_kept() -> None:
    rows = [
        box(0, 0, 0, 1.5, 50),
        box(1, 0, 0, 128, 1.2),
        box(2, 8, 8, 16, 16),
        box(3, 0, 0, 64, 1, crowd=True),
    ]
    plan = Planner(labels_of([(128, 128)], [rows]), SIDE, Augmentation(), 0).plain(0, (SIDE, SIDE))
    assert plan.targets.tolist() == [[2, 8, 8, 24, 24], [IGNORE_CLASS, 0, 0, 64, 1]]


def test_area_scale_equals_measured_area_ratio() -> None:
    matrix = np.array([[1.2, 0.3, 5], [-0.2, 0.9, 7], [0.001, 0.002, 1.1]])
    small = np.array([[40.0, 60.0, 40.01, 60.01]])
    x, y = transformed(polygons.rectangle(*small[0]), matrix).T
    area = abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
    assert _area_scale(small, matrix) == pytest.approx(area / 0.01**2, rel=1e-4)


def test_pasted_objects_cover_less_than_30_percent_of_each_other() -> None:
    outline = np.array([[20, 20], [108, 20], [108, 108], [20, 108]], np.float32)
    labels = labels_of(
        [(128, 128)] * 4, [[polygon(0, outline), polygon(1, outline - 15)], [], [], []]
    )
    planner = Planner(labels, SIDE, Augmentation(mosaic=1, copy_paste=1), 0)
    counts = []
    for epoch in range(60):
        layer, _ = planner._mosaic(generator_for(0, epoch, 0), 0)
        boxes = [
            polygons.visible_box(
                transformed(p.outline, p.matrix),
                transformed(polygons.rectangle(*p.region), p.matrix),
            )
            for p in layer.pastes
        ]
        for number, upper in enumerate(boxes):
            for lower in boxes[:number]:
                shared = (
                    (np.minimum(upper[2:], lower[2:]) - np.maximum(upper[:2], lower[:2]))
                    .clip(0)
                    .prod()
                )
                assert shared < 0.3 * (lower[2:] - lower[:2]).prod()
        counts.append(len(boxes))
    assert max(counts) >= 1


def test_crowds_are_ignore_regions_in_mosaics_and_never_pasted() -> None:
    crowd = polygon(5, U + 20)._replace(crowd=True)
    labels = labels_of([(128, 128)] * 3, [[crowd, box(1, 90, 90, 30, 30)]] * 3)
    strengths = Augmentation(mosaic=1, copy_paste=1, mixup=1)
    plans = [
        Planner(labels, SIDE, strengths, s).plan(0, 0, (SIDE, SIDE), mosaic=True) for s in range(10)
    ]
    classes = np.concatenate([plan.targets[:, 0] for plan in plans])
    assert set(classes.tolist()) == {-1, 1}
    assert not any(layer.pastes for plan in plans for layer in plan.layers)


def test_boxes_larger_than_image_are_clipped_or_dropped() -> None:
    labels = labels_of([(128, 64)], [[box(0, -20, -20, 500, 500)]])
    assert (
        Planner(labels, SIDE, Augmentation(), 0).plain(0, (SIDE, SIDE)).targets.tolist() == []
    )  # most is outside
    labels = labels_of([(128, 64)], [[box(0, -20, -20, 160, 160)]])
    assert Planner(labels, SIDE, Augmentation(), 0).plain(0, (SIDE, SIDE)).targets.tolist() == [
        [0, 0, 32, 128, 96]
    ]
    turned = Planner(labels, SIDE, Augmentation(degrees=10, mosaic=1), 0)
    for i in range(10):
        targets = turned.plan(i, 0, (SIDE, SIDE), mosaic=True).targets
        assert ((targets[:, 1:] >= 0) & (targets[:, 1:] <= SIDE)).all()


@pytest.mark.parametrize("size", [(20000, 10), (10, 20000), (1, 1), (3, 2), (641, 479)])
@pytest.mark.parametrize("degrees", [0, 30])
def test_extreme_image_sizes_give_valid_plans(size: tuple[int, int], degrees: float) -> None:
    labels = labels_of([size, (128, 96)], [[box(0, 0, 0, *size)], [box(1, 9, 9, 50, 50)]])
    planner = Planner(
        labels,
        SIDE,
        Augmentation(degrees=degrees, translate=0.1, scale=0.9, mosaic=1, mixup=0.5),
        0,
    )

    def read(index: int) -> np.ndarray:
        return np.full((*planner.base_size(index)[::-1], 3), 255, np.uint8)

    for i in range(20):
        plan = planner.plan(i, 0, (SIDE, SIDE), mosaic=bool(i % 2))
        assert draw(plan, read).shape == (SIDE, SIDE, 3)
        assert plan.targets.dtype == np.float32
        assert np.isfinite(plan.targets).all()
        assert ((plan.targets[:, 1:] >= 0) & (plan.targets[:, 1:] <= SIDE)).all()


def test_dataset_without_labels_gives_empty_targets() -> None:
    planner = Planner(labels_of([(128, 96)] * 2, [[], []]), SIDE, AUGMENTATIONS["all"], 0)
    for i in range(10):
        plan = planner.plan(i, 0, (SIDE, SIDE), mosaic=True)
        assert plan.targets.shape == (0, 5)
        draw(plan, blurred_noise)


# ---------------------------------------------------------------------- keys and distributions


def same_sample(one: Plan, two: Plan) -> bool:
    images = [draw(plan, blurred_noise).tobytes() for plan in (one, two)]
    return images[0] == images[1] and one.targets.tobytes() == two.targets.tobytes()


@pytest.mark.parametrize("mosaic", [True, False])
def test_plan_depends_only_on_its_key(mosaic: bool) -> None:
    def at(epoch: int, index: int, seed: int = 0) -> Plan:
        return Planner(BOXES, SIDE, AUGMENTATIONS["all"], seed).plan(
            epoch, index, (SIDE, SIDE), mosaic=mosaic
        )

    planner = Planner(BOXES, SIDE, AUGMENTATIONS["all"], 0)
    forward = {i: planner.plan(4, i, (SIDE, SIDE), mosaic=mosaic) for i in range(8)}
    for i in reversed(range(8)):
        assert same_sample(forward[i], at(4, i))
    assert not same_sample(at(4, 1), at(5, 1))
    assert not same_sample(at(4, 1), at(4, 2))
    assert not same_sample(at(4, 1), at(4, 1, seed=1))
    again = [planner.plan(4, 1, (SIDE, SIDE), mosaic=mosaic, repeat=repeat) for repeat in (0, 1, 2)]
    assert same_sample(again[0], forward[1])
    assert not same_sample(again[0], again[1])
    assert not same_sample(again[1], again[2])


def test_generators_differ_by_every_part_of_the_key() -> None:
    keys = [
        (seed, epoch, index)
        for seed in (-1, 0, 1, 2**63)
        for epoch in (0, 1, 300)
        for index in (0, 1, 2**40 - 1)
    ]
    assert len({generator_for(*key).random() for key in keys}) == len(keys)
    repeats = [generator_for(0, 1, 2, repeat).random(100) for repeat in (0, 1, 2, 255, 256, 2**40)]
    assert len(np.unique(repeats)) == 600
    plain = np.random.Generator(np.random.Philox(key=[0, (1 << 40) | 2]))
    assert (
        plain.random(100) == repeats[0]
    ).all()  # the first draw is the one of an epoch without repeats


def test_mosaic_partners_and_quadrants_are_uniformly_distributed() -> None:
    planner = Planner(BOXES, SIDE, Augmentation(mosaic=1), 0)
    placed: list[list[int]] = []
    quadrant: Callable[..., Patch] = planner._quadrant
    planner._quadrant = lambda i, r, q, x, y: placed.append([i, q]) or quadrant(i, r, q, x, y)  # type: ignore
    for epoch in range(400):
        planner.plan(epoch, 7, (SIDE, SIDE), mosaic=True)
    pairs = np.array(placed)
    partners = np.bincount(pairs[:, 0], minlength=20)
    assert len(pairs) == 1600
    # 1200 partners over 20 images: 60 each, deviation sqrt(1200 * .05 * .95) = 7.5; image 7 is also
    # in every mosaic.
    assert abs(partners[7] - 460) < 40
    assert np.abs(np.delete(partners, 7) - 60).max() < 40
    # Image 7 is in each quadrant equally often, 115 times.
    assert np.abs(np.bincount(pairs[pairs[:, 0] == 7, 1]) - 115).max() < 50


def test_partners_are_chosen_by_their_factors() -> None:
    factors = np.ones(20)
    factors[3] = 5.5
    planner = Planner(BOXES, SIDE, Augmentation(mosaic=1, mixup=1), 0, Draws(factors))
    random = np.random.default_rng(0)
    chosen = np.bincount(planner._others(random, 4900), minlength=20)
    # 24.5 in all: 1100 of 4900 for image 3, 200 for each other; deviations 29 and 14.
    assert abs(chosen[3] - 1100) < 150
    assert np.abs(np.delete(chosen, 3) - 200).max() < 70

    # Without factors, and with factors of 1: the same plans.
    plain = Planner(BOXES, SIDE, AUGMENTATIONS["all"], 0)
    ones = Planner(BOXES, SIDE, AUGMENTATIONS["all"], 0, Draws.once(20))
    for epoch in range(5):
        expected = plain.plan(epoch, 2, (SIDE, SIDE), mosaic=True)
        found = ones.plan(epoch, 2, (SIDE, SIDE), mosaic=True)
        assert (found.targets == expected.targets).all()
        assert found.mix == expected.mix


def test_mixup_ratios_follow_beta_32_32() -> None:
    planner = Planner(BOXES, SIDE, Augmentation(mosaic=1, mixup=1), 0)
    mixes = np.array([planner.plan(e, 0, (SIDE, SIDE), mosaic=True).mix for e in range(400)])
    # Mean 1/2; variance 1 / (4 * 65), standard deviation 0.062.
    assert abs(mixes.mean() - 0.5) < 0.012
    assert abs(mixes.std() - 0.062) < 0.008


def test_augmentation_probabilities_are_respected() -> None:
    planner = Planner(BOXES, SIDE, Augmentation(mosaic=0.5, mixup=0.25, fliplr=0.75, flipud=0.1), 0)
    plans = [planner.plan(e, 0, (SIDE, SIDE), mosaic=True) for e in range(400)]
    assert abs(np.mean([p.flip_left for p in plans]) - 0.75) < 0.08
    assert abs(np.mean([p.flip_up for p in plans]) - 0.1) < 0.06
    assert (
        abs(np.mean([len(p.layers) == 2 for p in plans]) - 0.125) < 0.06
    )  # mixup is only applied to mosaics
    assert not any(
        len(planner.plan(e, 0, (SIDE, SIDE), mosaic=False).layers) == 2 for e in range(50)
    )


def test_color_gains_stay_within_their_strengths() -> None:
    planner = Planner(BOXES, SIDE, Augmentation(hsv_h=0.015, hsv_s=0.7, hsv_v=0.4), 0)
    gains = np.array([planner.plan(e, 0, (SIDE, SIDE), mosaic=True).hsv for e in range(300)])
    assert (np.abs(gains - 1).max(0) <= [0.015, 0.7, 0.4]).all()
    assert (np.abs(gains - 1).max(0) > [0.0145, 0.68, 0.39]).all()
    assert Planner(BOXES, SIDE, Augmentation(), 0).plan(0, 0, (SIDE, SIDE), mosaic=True).hsv is None


def test_planning_does_not_change_labels() -> None:
    before = {name: array.copy() for name, array in POLYGONS.arrays().items()}
    planner = Planner(POLYGONS, SIDE, AUGMENTATIONS["all"], 0)
    for i in range(20):
        planner.plan(0, i, (SIDE, SIDE), mosaic=True)
    assert all((array == before[name]).all() for name, array in POLYGONS.arrays().items())


def test_patches_outside_canvas_are_left_out_of_plans() -> None:
    planner = Planner(BOXES, SIDE, Augmentation(degrees=40, scale=0.3, translate=0.2, mosaic=1), 0)
    plans = [planner.plan(e, 0, (SIDE, SIDE), mosaic=True) for e in range(60)]
    patches: list[Patch] = [t for plan in plans for t in plan.layers[0].patches]
    assert len(patches) < 240
