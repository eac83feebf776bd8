"""Training samples that are tiles: where they are cut, what they show, and laws 1 and 2 for
them.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data import Augmentation, Loader, build_train_loader
from data.balance.image_weights import image_weights
from data.base_images import decoded
from data.cache import DeviceImages, open_base_images
from data.labels import Labels
from data.loader import Batch
from data.tiles.labels import TiledLabels, tile_labels
from data.tiles.plan import TilePlanner
from tests.data.augment.test_plan import BOXES, box, labels_of, polygon, visible_objects
from tests.data.test_loader import ALL_AUGMENTATIONS, contents, epochs_of, write_data
from utils.boxes import IGNORE_CLASS
from utils.distributed.world import World
from utils.images.tiles import Tiling

SIDE = 64
TILING = Tiling(96, 0.25)
SIZES = [(200, 150), (64, 64), (130, 40), (96, 300), (1, 1)]


def planner_of(
    labels: Labels, tiling: Tiling, image_size: int = SIDE, **augmentation: float
) -> TilePlanner:
    return TilePlanner(tile_labels(labels, tiling), image_size, Augmentation(**augmentation), 0)


def tile_of(planner: TilePlanner, index: int, epoch: int = 0) -> tuple[int, ...]:
    """Return the image and the region that a plain plan shows."""
    (tile,) = planner.plan(epoch, index, (SIDE, SIDE), mosaic=False).layers[0].patches
    return (tile.index, *tile.region)


# ---------------------------------------------------------------------- positions


def test_tiles_are_shifted_by_up_to_half_their_distance() -> None:
    # 192 x 64 at half size is 96 x 32. Tiles of 64 px at x = 0, 64, 128, so at 0, 32, 64 in base
    # pixels, 32 px wide.
    planner = planner_of(labels_of([(192, 64)], [[]]), Tiling(64, 0), 32)
    assert len(planner) == 3
    lefts = [{tile_of(planner, index, epoch)[1] for epoch in range(400)} for index in range(3)]
    assert lefts == [set(range(17)), set(range(16, 49)), set(range(48, 65))]
    assert {tile_of(planner, 1, epoch)[2:] for epoch in range(400)} == {
        (0, left + 32, 32) for left in range(16, 49)
    }


def test_image_not_larger_than_a_tile_is_never_shifted() -> None:
    planner = planner_of(labels_of([(96, 64), (32, 32)], [[], []]), Tiling(96, 0.5))
    # Resized as without tiles, to a long side of 64 px.
    assert {tile_of(planner, 0, epoch) for epoch in range(20)} == {(0, 0, 0, 64, 43)}
    assert {tile_of(planner, 1, epoch) for epoch in range(20)} == {(1, 0, 0, 64, 64)}


def test_position_depends_only_on_seed_epoch_and_index() -> None:
    tiles = tile_labels(BOXES, Tiling(40, 0.2))
    planners = [TilePlanner(tiles, SIDE, Augmentation(), seed) for seed in (0, 0, 1)]
    one, same, other = (
        [tile_of(p, i, e) for e in (0, 7) for i in range(len(tiles))] for p in planners
    )
    assert one == same != other
    assert one[: len(tiles)] != one[len(tiles) :]


@pytest.mark.parametrize("size", [(20000, 10), (10, 20000), (1, 1), (641, 479), (97, 96)])
def test_regions_lie_in_the_base_image(size: tuple[int, int]) -> None:
    planner = planner_of(labels_of([size], [[box(0, 0, 0, *size)]]), TILING)
    width, height = planner.base_size(0)
    for index in range(len(planner)):
        _, x1, y1, x2, y2 = tile_of(planner, index)
        assert 0 <= x1 < x2 <= width
        assert 0 <= y1 < y2 <= height
        assert (x2 - x1, y2 - y1) == (min(SIDE, width), min(SIDE, height))


# ---------------------------------------------------------------------- boxes


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (86, [[5.0, 86, 10, 96, 30]]),
        (89, [[5.0, 89, 10, 96, 30]]),  # 7 of 10 px are visible
        (93, [[5.0, 93, 10, 96, 30]]),  # 3 of 10 px: exactly the share that makes it a target
        (93.5, [[-1.0, 93.5, 10, 96, 30]]),  # 2.5 of 10 px: an ignore region
        (95, []),  # 1 of 10 px
    ],
)
def test_cut_box_is_target_ignored_or_absent_by_its_visible_share(
    x: float, expected: list[list[float]]
) -> None:
    planner = planner_of(labels_of([(192, 96)], [[box(5, x, 10, 10, 20)]]), Tiling(96, 0), 96)
    planner._steps[:] = 0  # no shift: the first tile is x 0-96
    assert planner.plan(0, 0, (96, 96), mosaic=False).targets.tolist() == expected


@pytest.mark.parametrize(
    "flags", [{}, {"mosaic": 1.0, "translate": 0.1, "fliplr": 0.5}, {"mosaic": 1.0, "mixup": 1.0}]
)
def test_targets_match_the_pixels(flags: dict[str, float]) -> None:
    """Objects drawn one by one: those of which the sample shows enough are targets, smaller parts
    are ignored.
    """
    planner = planner_of(BOXES, Tiling(SIDE, 0.2), **flags)  # base images are the images themselves
    found: Counter[str] = Counter()
    for index in range(0, len(planner), 2):
        plan = planner.plan(3, index, (SIDE, SIDE), mosaic=True)
        targets = plan.targets.tolist()
        for class_index, hull, fraction in visible_objects(plan, BOXES):
            if targets and np.abs(np.array(targets[0][1:]) - hull).max() <= 2:
                kind = targets.pop(0)[0]
                # The fraction is that of whole pixels.
                assert kind == (
                    class_index if fraction > 0.35 else kind if fraction > 0.25 else IGNORE_CLASS
                )
                found["ignored" if kind == IGNORE_CLASS else "targets"] += 1
            else:
                assert fraction < 0.15 or (hull[2:] - hull[:2]).min() < 4, (
                    class_index,
                    hull,
                    fraction,
                )
        assert not targets, "targets without pixels"
    assert min(found["targets"], found["ignored"]) >= 5


def test_visible_share_of_a_polygon_is_that_of_its_box() -> None:
    # The box is 20 x 20 px, of which the tile shows 8 x 20, but the polygon's part in it is only 8
    # x 4 px: 0.08.
    shape = np.array(
        [[88, 10], [98, 10], [98, 0], [108, 0], [108, 20], [98, 20], [98, 14], [88, 14]], np.float32
    )
    planner = planner_of(labels_of([(192, 96)], [[polygon(5, shape)]]), Tiling(96, 0), 96)
    planner._steps[:] = 0
    assert planner.plan(0, 0, (96, 96), mosaic=False).targets.tolist() == [[-1, 88, 10, 96, 14]]
    assert planner.plan(0, 1, (96, 96), mosaic=False).targets.tolist() == [[5, 0, 0, 12, 20]]


def test_partners_of_a_mosaic_are_tiles() -> None:
    planner = planner_of(labels_of([(640, 640), (64, 64)], [[], []]), Tiling(64, 0), mosaic=1.0)
    shown = Counter(
        tile.index
        for epoch in range(60)
        for tile in planner.plan(epoch, 0, (SIDE, SIDE), mosaic=True).layers[0].patches
    )
    assert shown[1] < 10 < shown[0]  # the small image is one of 101 tiles


# ---------------------------------------------------------------------- laws 1 and 2


def large_data(folder: Path, tiling: Tiling = TILING) -> TiledLabels:
    return tile_labels(write_data(folder, SIZES), tiling)


def tile_loader(labels: Labels, **changes: object) -> Loader:
    values = {
        "batch_size": 4,
        "image_size": SIDE,
        "stride": 32,
        "augmentation": ALL_AUGMENTATIONS,
        "seed": 0,
    } | changes
    return build_train_loader(labels, **values)  # type: ignore[arg-type]


def test_epoch_is_a_pass_over_all_tiles(tmp_path: Path) -> None:
    tiles = large_data(tmp_path)
    loader = tile_loader(tiles, batch_size=1)
    assert Counter(int(batch.indices) for batch in epochs_of(loader, 1)) == Counter(
        tiles.owners.tolist()
    )
    assert loader.labels is tiles.images


@pytest.mark.slow
@pytest.mark.parametrize("rect", [False, True])
def test_tiles_do_not_depend_on_number_of_workers(tmp_path: Path, rect: bool) -> None:
    labels = large_data(tmp_path)
    runs = [epochs_of(tile_loader(labels, workers=workers, rect=rect), 2) for workers in (0, 1, 2)]
    alone, one, two = ([contents(batch) for batch in run] for run in runs)
    assert len(alone) == 2 * len(labels) // 4 > 5
    assert alone == one == two


def test_ranks_together_load_the_tiles_of_one_process(tmp_path: Path) -> None:
    labels = large_data(tmp_path)
    alone = epochs_of(tile_loader(labels), 2)
    ranks = [epochs_of(tile_loader(labels, rank=rank, size=2), 2) for rank in (0, 1)]
    for batch, *parts in zip(alone, *ranks, strict=True):
        assert torch.stack([part.images for part in parts], 1).flatten(0, 1).equal(batch.images)
        assert sorted(torch.cat([part.targets[:, 1:] for part in parts]).tolist()) == sorted(
            batch.targets[:, 1:].tolist()
        )


def test_starting_mid_epoch_gives_the_remaining_tiles(tmp_path: Path) -> None:
    loader = tile_loader(large_data(tmp_path))
    complete = [contents(batch) for batch in epochs_of(loader, 2)]
    before = loader.sampler.batches_before(1)  # type: ignore[union-attr]
    loader.sampler.set_epoch(1, 2)  # type: ignore[union-attr]
    assert [contents(batch) for batch in loader] == complete[before + 2 :]


def test_repeated_draws_of_a_tile_are_cut_elsewhere(tmp_path: Path) -> None:
    labels = large_data(tmp_path)
    loader = tile_loader(labels, mosaic_until=0, augmentation=Augmentation())
    loader.sampler.weights = np.eye(len(labels))[4]  # type: ignore[union-attr]
    (batch, *_) = epochs_of(loader, 1)
    assert batch.indices.tolist() == [0] * 4
    assert len({image.numpy().tobytes() for image in batch.images}) == 4


def test_image_weights_are_those_of_tiles(tmp_path: Path) -> None:
    labels = large_data(tmp_path)
    weights = image_weights(labels, 2, np.zeros(2))
    assert weights.shape == (len(labels),)
    tile_loader(labels).sampler.weights = weights  # type: ignore[union-attr]


# ---------------------------------------------------------------------- caches


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_cached_images_give_the_same_samples(tmp_path: Path, where: str) -> None:
    labels, world = large_data(tmp_path), World(torch.device("cpu"))
    folder = tmp_path / "cache"
    images = open_base_images(
        {"train": labels, "val": labels}, SIDE, world, where=where, folder=folder
    )
    cached, plain = (
        epochs_of(tile_loader(labels, images=given), 1) for given in (images["train"], None)
    )
    assert [contents(batch) for batch in cached] == [contents(batch) for batch in plain]
    read, own = images["val"], decoded(labels, SIDE)
    assert not isinstance(read, DeviceImages)
    assert all((read(index) == own(index)).all() for index in range(len(labels)))
    if where == "disk":
        again = open_base_images(
            {"train": labels.images}, SIDE, world, where=where, folder=folder
        )  # without tiles
        assert not isinstance(again["train"], DeviceImages)
        assert again["train"](0).shape == (48, 64, 3)
        assert len([file for file in folder.glob("images-*/*") if file.name != "lock"]) == 3


def test_device_draws_the_same_tiles(tmp_path: Path) -> None:
    labels, world = large_data(tmp_path), World(torch.device("cpu"))
    upright = replace(ALL_AUGMENTATIONS, degrees=0, shear=0, perspective=0, copy_paste=0)
    images = open_base_images({"train": labels}, SIDE, world, where="ram", folder=None)["train"]
    on_device = DeviceImages(images, torch.device("cpu"))  # type: ignore[arg-type]
    by_host, by_device = (
        epochs_of(tile_loader(labels, images=given, augmentation=upright), 1)
        for given in (images, on_device)
    )
    one: Batch
    for one, other in zip(by_host, by_device, strict=True):
        assert one.targets.equal(other.targets)
        assert ((one.images.int() - other.images.int()).abs() <= 1).float().mean() > 0.95
