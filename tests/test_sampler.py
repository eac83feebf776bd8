"""Which samples make up which batch, for any number of processes."""

from itertools import pairwise

import numpy as np
import pytest

from data.sampler import BatchShapes, EvaluationSampler, Key, TrainSampler

RECT = BatchShapes(320, 32)


def sampler(count: int, batch_size: int, **changes: object) -> TrainSampler:
    ratios = np.random.default_rng(1).uniform(0.4, 2.5, count)
    values = {"batch_size": batch_size, "image_size": 320, "seed": 0} | changes
    return TrainSampler(ratios, **values)  # type: ignore[arg-type]


def epoch_of(made: TrainSampler, epoch: int) -> list[list[Key]]:
    made.set_epoch(epoch)
    batches = list(made)
    assert len(batches) == len(made)
    return batches


@pytest.mark.parametrize("shapes", [None, RECT], ids=["square", "rect"])
@pytest.mark.parametrize("size", [2, 4])
def test_batches_are_the_same_for_any_number_of_processes(size: int, shapes: BatchShapes | None) -> None:
    alone = sampler(37, 8, shapes=shapes)
    ranks = [sampler(37, 8, shapes=shapes, rank=rank, size=size) for rank in range(size)]
    for epoch in range(4):
        shares = [epoch_of(rank, epoch) for rank in ranks]
        for batch, *parts in zip(epoch_of(alone, epoch), *shares, strict=True):
            assert [len(part) for part in parts] == [8 // size] * size
            together = [key for group in zip(*parts, strict=True) for key in group]
            assert together == batch  # in the same order too, taken in turns


@pytest.mark.parametrize("shapes", [None, RECT], ids=["square", "rect"])
@pytest.mark.parametrize(("count", "batch_size"), [(37, 8), (8, 8), (5, 2), (9, 8), (16, 4), (3, 1)])
def test_every_pass_holds_every_image_once(count: int, batch_size: int, shapes: BatchShapes | None) -> None:
    made = sampler(count, batch_size, shapes=shapes)
    epochs = 9
    seen = [(key.epoch, key.index) for epoch in range(epochs) for batch in epoch_of(made, epoch) for key in batch]
    assert len(seen) == len(set(seen))
    assert epochs * count - len(seen) < batch_size  # what waits for the next epoch
    everything = {(epoch, index) for epoch in range(epochs) for index in range(count)}
    assert set(seen) <= everything
    assert {epoch for epoch, _ in everything - set(seen)} <= {epochs - 1}


def test_epoch_lengths() -> None:
    made = sampler(37, 8)
    # 37, 74, 111, 148 images fill 4, 9, 13, 18 batches of 8.
    assert [made.batches_before(epoch) for epoch in range(5)] == [0, 4, 9, 13, 18]
    assert [len(epoch_of(made, epoch)) for epoch in range(4)] == [4, 5, 4, 5]
    # The five images over open the next epoch, as samples of their own pass.
    assert [key.epoch for key in epoch_of(made, 1)[0]] == [0] * 5 + [1] * 3


def test_epochs_differ_and_repeat() -> None:
    made = sampler(40, 8)
    orders = [[key.index for batch in epoch_of(made, epoch) for key in batch] for epoch in (0, 1, 2, 1)]
    assert orders[1] == orders[3]
    assert orders[0] != orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])
    assert [key.index for batch in sampler(40, 8, seed=1) for key in batch] != orders[0]


def test_an_iteration_does_not_depend_on_those_before() -> None:
    made = sampler(37, 8)
    fresh = epoch_of(sampler(37, 8), 6)
    for epoch in range(4):
        next(iter(made))
        epoch_of(made, epoch)
    assert epoch_of(made, 6) == fresh


def test_rect_batches_are_alike_and_shuffled() -> None:
    made = sampler(200, 8, shapes=RECT)
    batches = epoch_of(made, 0)
    low = [made.ratios[[key.index for key in batch]].min() for batch in batches]
    high = [made.ratios[[key.index for key in batch]].max() for batch in batches]
    order = np.argsort(low)
    assert order.tolist() != list(range(len(batches)))
    assert all(high[a] <= low[b] for a, b in pairwise(order))
    for batch in batches:
        assert len({(key.height, key.width) for key in batch}) == 1
        key = batch[0]
        assert key.height % 32 == key.width % 32 == 0
        assert max(key.height, key.width) == 320
        for ratio in made.ratios[[k.index for k in batch]]:
            wide, high_side = (320, 320 * ratio) if ratio < 1 else (320 / ratio, 320)
            assert wide <= key.width + 1e-6
            assert high_side <= key.height + 1e-6
    second = [[key.index for key in batch] for batch in epoch_of(made, 1)]
    assert second != [[key.index for key in batch] for batch in batches]


def test_square_canvases() -> None:
    assert {(key.height, key.width) for batch in sampler(37, 8) for key in batch} == {(320, 320)}


def test_mosaic_closes_with_the_epoch_also_for_what_is_left_of_the_one_before() -> None:
    made = sampler(37, 8, mosaic_until=1)
    assert all(key.mosaic for batch in epoch_of(made, 0) for key in batch)
    last = epoch_of(made, 1)
    assert last[0][0].epoch == 0
    assert not any(key.mosaic for batch in last for key in batch)
    assert all(key.mosaic for batch in epoch_of(sampler(37, 8), 99) for key in batch)


def test_rect_has_no_mosaic() -> None:
    assert not any(key.mosaic for batch in sampler(37, 8, shapes=RECT) for key in batch)


@pytest.mark.parametrize(
    ("count", "values", "text"),
    [
        (3, {"batch_size": 8}, "batch size 8 is larger than the 3 training images"),
        (30, {"batch_size": 8, "size": 3}, "batch size 8 is not a multiple of the 3 processes"),
        (30, {"batch_size": 0}, "batch size 0 is not a multiple of the 1 processes"),
        (0, {"batch_size": 1}, "batch size 1 is larger than the 0 training images"),
    ],
)
def test_refusals(count: int, values: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        sampler(count, **values)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("count", [7, 1, 0])
def test_evaluation_covers_every_image_once(count: int, size: int) -> None:
    ratios = np.random.default_rng(0).uniform(0.5, 2, count)
    values = {"batch_size": 2, "shapes": BatchShapes(320, 32, 0.5)}
    alone = list(EvaluationSampler(ratios, **values))
    shares = [EvaluationSampler(ratios, **values, rank=rank, size=size) for rank in range(size)]
    assert all(len(list(share)) == len(share) for share in shares)
    together = [batch for share in shares for batch in share]
    assert sorted(key.index for batch in together for key in batch) == list(range(count))
    assert all(batch in alone for batch in together)  # whole batches, of the shapes they have with one process
    assert len(together) == len(alone) == -(-count // 2)


@pytest.mark.parametrize(
    ("ratios", "pad", "shape"),
    [
        ([1.0], 0.0, (320, 320)),
        ([0.75], 0.0, (256, 320)),  # 240 / 32 = 7.5 strides
        ([0.8], 0.0, (256, 320)),  # exactly 8 strides, not 9 for rounding
        ([0.75], 0.5, (256, 352)),  # 8 and 10.5 strides
        ([2.0], 0.0, (320, 160)),
        ([0.5, 2.0], 0.0, (320, 320)),
        ([0.0005], 0.0, (32, 320)),
        ([0.0005], 0.5, (32, 352)),
    ],
)
def test_batch_shapes(ratios: list[float], pad: float, shape: tuple[int, int]) -> None:
    assert BatchShapes(320, 32, pad).shape(np.array(ratios)) == shape
