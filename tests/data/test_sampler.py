"""Samplers: which samples make up which batch, for any number of processes."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from data.balance.draws import Draws
from data.sampler import ORDER, EvaluationSampler, Key, TrainSampler, repeats
from utils.images.letterbox import CanvasShapes

RECT = CanvasShapes(320, 32)


def sampler(
    count: int, batch_size: int, *, weighted: bool = False, factors: bool = False, **changes: object
) -> TrainSampler:
    ratios = np.random.default_rng(1).uniform(0.4, 2.5, count)
    values = {"batch_size": batch_size, "image_size": 320, "seed": 0} | changes
    if factors:
        values["draws"] = Draws(some_factors(count))
    result = TrainSampler(ratios, **values)  # type: ignore[arg-type]
    result.weights = some_weights(count) if weighted else None
    return result


def some_weights(count: int) -> NDArray[np.float64]:
    """Return weights with ratios up to 40 to 1; every fifth is 0."""
    return np.random.default_rng(2).uniform(0.5, 20, count) * (np.arange(count) % 5 > 0)


def some_factors(count: int) -> NDArray[np.float64]:
    """Return factors from 0.4 to 3; every fifth is 1."""
    random = np.random.default_rng(3).uniform(0.4, 3, count)
    return np.where(np.arange(count) % 5 == 0, 1, random)


def epoch_of(made: TrainSampler, epoch: int, first_batch: int = 0) -> list[list[Key]]:
    made.set_epoch(epoch, first_batch)
    batches = list(made)
    assert len(batches) == len(made)
    return batches


MODES = {
    "square": {},
    "rect": {"shapes": RECT},
    "weighted": {"weighted": True},
    "weighted rect": {"weighted": True, "shapes": RECT},
    "factors": {"factors": True},
    "factors rect": {"factors": True, "shapes": RECT},
    "factors weighted": {"factors": True, "weighted": True},
}
each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@each_mode
@pytest.mark.parametrize("first_batch", [0, 3])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_global_batches_do_not_depend_on_number_of_processes(
    size: int, first_batch: int, mode: dict[str, object]
) -> None:
    alone = sampler(37, 8, **mode)
    ranks = [sampler(37, 8, **mode, rank=rank, size=size) for rank in range(size)]
    for epoch in range(4):
        shares = [epoch_of(rank, epoch, first_batch) for rank in ranks]
        for batch, *parts in zip(epoch_of(alone, epoch)[first_batch:], *shares, strict=True):
            assert [len(part) for part in parts] == [8 // size] * size
            together = [key for group in zip(*parts, strict=True) for key in group]
            assert together == batch  # in the same order, interleaved by rank
            assert len(set(together)) == 8  # no sample is on two ranks


@each_mode
def test_first_batch_skips_batches_without_changing_the_rest(mode: dict[str, object]) -> None:
    made = sampler(37, 8, **mode)
    for epoch in range(3):
        complete = epoch_of(made, epoch)
        for first_batch in range(len(complete) + 1):
            assert epoch_of(made, epoch, first_batch) == complete[first_batch:]
            assert made.first_batch == first_batch
        made.set_epoch(epoch)
        assert (made.first_batch, len(made)) == (0, len(complete))


@pytest.mark.parametrize("first_batch", [-1, 5])
def test_first_batch_outside_epoch_is_rejected_without_side_effect(first_batch: int) -> None:
    made = sampler(37, 8)
    made.set_epoch(1, 2)
    with pytest.raises(
        ValueError, match=rf"^first batch {first_batch}: epoch 2 has 4 batches, choose 0 to 4$"
    ):
        made.set_epoch(2, first_batch)
    assert (made.epoch, made.first_batch, len(made)) == (1, 2, 3)


def test_sample_stream_equals_concatenated_permutations() -> None:
    def shuffled(epoch: int) -> list[tuple[int, int]]:
        generator = np.random.Generator(np.random.Philox(key=[0, (epoch << 40) | ORDER]))
        return [(epoch, index) for index in generator.permutation(37).tolist()]

    passes = shuffled(0) + shuffled(1) + shuffled(2)
    keys = [Key(epoch, index, 320, 320, True, repeat=0) for epoch, index in passes]
    made = sampler(37, 8)
    assert [key for epoch in range(3) for batch in epoch_of(made, epoch) for key in batch] == keys[
        :104
    ]


@pytest.mark.parametrize("shapes", [None, RECT], ids=["square", "rect"])
@pytest.mark.parametrize(
    ("count", "batch_size"), [(37, 8), (8, 8), (5, 2), (9, 8), (16, 4), (3, 1)]
)
def test_every_pass_contains_every_image_once(
    count: int, batch_size: int, shapes: CanvasShapes | None
) -> None:
    made = sampler(count, batch_size, shapes=shapes)
    epochs = 9
    seen = [
        (key.epoch, key.index)
        for epoch in range(epochs)
        for batch in epoch_of(made, epoch)
        for key in batch
    ]
    assert len(seen) == len(set(seen))
    assert epochs * count - len(seen) < batch_size  # samples left for the next epoch
    everything = {(epoch, index) for epoch in range(epochs) for index in range(count)}
    assert set(seen) <= everything
    assert {epoch for epoch, _ in everything - set(seen)} <= {epochs - 1}


@pytest.mark.parametrize("shapes", [None, RECT], ids=["square", "rect"])
def test_every_pass_contains_every_image_as_often_as_its_factor_says(
    shapes: CanvasShapes | None,
) -> None:
    made = sampler(37, 8, factors=True, shapes=shapes)
    factors = made.draws.factors
    epochs = 40
    seen: list[Key] = []
    for epoch in range(epochs):
        seen += [key for batch in epoch_of(made, epoch) for key in batch]
    assert len(seen) == len(set(seen))  # a repeat has random numbers of its own
    assert made.draws.before(epochs) - len(seen) < 8

    counts = np.zeros((epochs, 37), int)
    for key in seen:
        counts[key.epoch, key.index] += 1
        assert key.repeat < np.ceil(factors[key.index])
    complete = counts[:-1]
    assert (complete >= np.floor(factors)).all()
    assert (complete <= np.ceil(factors)).all()
    # A binomial of 39 draws has a deviation of at most sqrt(0.25 / 39) = 0.08.
    assert np.abs(complete.mean(0) - factors).max() < 0.32


def test_epochs_with_factors_are_longer_and_carry_fractions_over() -> None:
    made = TrainSampler(
        np.ones(4),
        batch_size=2,
        image_size=320,
        seed=0,
        draws=Draws(np.array([1.0, 1.0, 1.25, 2.0])),
    )
    # 5.25 samples in a pass: 5, 10, 15, 21, 26 in 1 to 5 passes: 2, 5, 7, 10, 13 batches of 2.
    assert [made.batches_before(epoch) for epoch in range(6)] == [0, 2, 5, 7, 10, 13]
    passes = [made._pass(number) for number in range(4)]
    assert [len(rows) for rows in passes] == [5, 5, 5, 6]
    assert sorted(passes[3][:, 1].tolist()) == [0, 1, 2, 2, 3, 3]
    stream = np.concatenate(passes)
    keys = [key for epoch in range(4) for batch in epoch_of(made, epoch) for key in batch]
    found = [[key.epoch, key.index, key.repeat] for key in keys]
    assert found == stream[:20].tolist()


def test_factors_of_one_change_no_key() -> None:
    plain = sampler(37, 8)
    made = sampler(37, 8, draws=Draws(np.ones(37)))
    for epoch in range(3):
        assert epoch_of(made, epoch) == epoch_of(plain, epoch)


def test_image_weights_are_multiplied_by_factors() -> None:
    made = sampler(3, 3, draws=Draws(np.array([1.0, 2.0, 1.0])))
    made.weights = np.array([1.0, 1.0, 0.0])
    drawn = [key.index for epoch in range(600) for batch in epoch_of(made, epoch) for key in batch]
    counts = np.bincount(drawn, minlength=3)
    # 2400 draws, 1 to 2: 800 and 1600, deviation sqrt(2400 * 2 / 9) = 23.
    assert counts.sum() == 2400
    assert abs(counts[0] - 800) < 100
    assert counts[2] == 0


def test_epoch_lengths() -> None:
    made = sampler(37, 8)
    # 37, 74, 111, 148 images fill 4, 9, 13, 18 batches of 8.
    assert [made.batches_before(epoch) for epoch in range(5)] == [0, 4, 9, 13, 18]
    assert [len(epoch_of(made, epoch)) for epoch in range(4)] == [4, 5, 4, 5]
    # The five images left over start the next epoch, as samples of their own pass.
    assert [key.epoch for key in epoch_of(made, 1)[0]] == [0] * 5 + [1] * 3


def test_epoch_order_differs_by_epoch_and_is_reproducible() -> None:
    made = sampler(40, 8)
    orders = [
        [key.index for batch in epoch_of(made, epoch) for key in batch] for epoch in (0, 1, 2, 1)
    ]
    assert orders[1] == orders[3]
    assert orders[0] != orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])
    assert [key.index for batch in sampler(40, 8, seed=1) for key in batch] != orders[0]


def test_iteration_does_not_depend_on_earlier_iterations() -> None:
    made = sampler(37, 8)
    fresh = epoch_of(sampler(37, 8), 6)
    for epoch in range(4):
        next(iter(made))
        epoch_of(made, epoch)
    assert epoch_of(made, 6) == fresh


def test_rect_batches_group_similar_ratios_and_are_shuffled() -> None:
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


def test_canvases_are_square_by_default() -> None:
    assert {(key.height, key.width) for batch in sampler(37, 8) for key in batch} == {(320, 320)}


def test_mosaic_until_also_applies_to_samples_left_from_last_epoch() -> None:
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
        (3, {"batch_size": 8}, "batch size 8: choose 1 to 3, the number of training images"),
        (
            30,
            {"batch_size": 8, "size": 3},
            "batch size 8: choose a multiple of the 3 processes",
        ),
        (30, {"batch_size": 0}, "batch size 0: choose 1 to 30, the number of training images"),
        (0, {"batch_size": 1}, "batch size 1: choose 1 to 0, the number of training images"),
    ],
)
def test_train_sampler_rejects_invalid_batch_sizes(
    count: int, values: dict[str, int], text: str
) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        sampler(count, **values)


# ---------------------------------------------------------------------- weights


def test_images_are_drawn_in_proportion_to_weights() -> None:
    made = sampler(40, 8, weighted=True)
    drawn = np.bincount(
        [key.index for epoch in range(500) for batch in epoch_of(made, epoch) for key in batch]
    )
    weights = some_weights(40)
    expected = 20_000 * weights / weights.sum()
    assert drawn[weights == 0].tolist() == [0] * 8
    # The sum over 32 images has mean 31 and standard deviation sqrt(62) = 7.9; uniform draws would
    # give thousands.
    squares = (drawn - expected)[weights > 0] ** 2 / expected[weights > 0]
    assert abs(squares.sum() - 31) < 24


def test_weighted_epochs_keep_their_length_and_differ() -> None:
    made, without = sampler(37, 8, weighted=True), sampler(37, 8)
    epochs = [epoch_of(made, epoch) for epoch in range(4)]
    assert (
        [len(epoch) for epoch in epochs]
        == [len(epoch_of(without, epoch)) for epoch in range(4)]
        == [4, 5, 4, 5]
    )
    indices = [[key.index for batch in epoch for key in batch] for epoch in epochs]
    assert len({tuple(drawn[:32]) for drawn in indices}) == 4
    assert epoch_of(sampler(37, 8, weighted=True, seed=1), 0) != epochs[0]
    assert {key.epoch for batch in epochs[1] for key in batch} == {1}
    made.weights = None
    assert epoch_of(made, 1) == epoch_of(without, 1)


@pytest.mark.parametrize("shapes", [None, RECT], ids=["square", "rect"])
def test_repeated_draws_of_an_image_are_numbered(shapes: CanvasShapes | None) -> None:
    made = sampler(37, 8, weighted=True, shapes=shapes)
    keys = [key for batch in epoch_of(made, 3) for key in batch]
    assert len({key.index for key in keys}) < len(keys) == 40
    for index in {key.index for key in keys}:
        numbers = sorted(key.repeat for key in keys if key.index == index)
        assert numbers == list(range(len(numbers)))


def test_repeats_equals_slow_counting() -> None:
    values = np.random.default_rng(0).integers(0, 6, 50)
    assert repeats(values).tolist() == [
        values[:i].tolist().count(value) for i, value in enumerate(values)
    ]
    assert repeats(values[:0]).tolist() == []


def test_image_with_all_the_weight_is_drawn_every_time() -> None:
    made = sampler(9, 3)
    for weight in (5e-324, 1.0, 1e308):  # the smallest float works, and the sum of the largest
        for index in (0, 4, 8):
            made.weights = np.where(np.arange(9) == index, weight, 0.0)
            assert [(key.index, key.repeat) for batch in made for key in batch] == [
                (index, k) for k in range(9)
            ]
    made.weights = np.full(9, 1e308)
    assert len({key.index for batch in made for key in batch}) > 1


def test_zero_weight_images_are_never_drawn_at_interval_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Edges:
        """Random numbers at the boundaries between images, and the smallest and largest possible
        ones.
        """

        def random(self, count: int) -> NDArray[np.float64]:
            return np.array([0.0, 0.25, 0.5, 0.75, 1 - 2**-53])[:count]

    made = sampler(5, 5)
    monkeypatch.setattr("data.sampler.generator_for", lambda *key: Edges())
    made.weights = np.array([0.0, 0.5, 0.0, 0.5, 0.0])  # intervals [0, 0.5) and [0.5, 1)
    assert [key.index for batch in made for key in batch] == [1, 1, 3, 3, 3]


def test_sampler_copies_its_weights() -> None:
    given = np.ones(9)
    made = sampler(9, 3)
    made.weights = given
    given[:] = 0
    assert made.weights is not None
    assert made.weights.tolist() == [1.0] * 9


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (
            [1.0, 2.0],
            r"image weights have shape \(2,\): give one for each of the 3 training images",
        ),
        (
            [[1.0, 2.0, 3.0]],
            r"image weights have shape \(1, 3\): give one for each of the 3 training images",
        ),
        (
            [1.0, -2.0, 3.0],
            "image weights are -2 to 3: they must be finite and at least 0, and not all 0",
        ),
        (
            [1.0, np.inf, 3.0],
            "image weights are 1 to inf: they must be finite and at least 0, and not all 0",
        ),
        (
            [1.0, np.nan, 3.0],
            "image weights are nan to nan: they must be finite and at least 0, and not all 0",
        ),
        (
            [0.0, 0.0, 0.0],
            "image weights are 0 to 0: they must be finite and at least 0, and not all 0",
        ),
    ],
)
def test_invalid_image_weights_are_rejected(weights: list[float], text: str) -> None:
    made = sampler(3, 1, weighted=True)
    before = epoch_of(made, 0)
    with pytest.raises(ValueError, match=f"^{text}$"):
        made.weights = np.array(weights)
    assert epoch_of(made, 0) == before


# ---------------------------------------------------------------------- evaluation

VALIDATION = CanvasShapes(320, 32, 0.5)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("count", [50, 7, 1, 0])
def test_evaluation_covers_every_image_once(count: int, size: int) -> None:
    ratios = np.random.default_rng(0).uniform(0.5, 2, count)
    alone = list(EvaluationSampler(ratios, batch_size=2, shapes=VALIDATION))
    shares = [
        EvaluationSampler(ratios, batch_size=2, shapes=VALIDATION, rank=rank, size=size)
        for rank in range(size)
    ]
    assert [(share.rank, share.size) for share in shares] == [(rank, size) for rank in range(size)]
    assert all(len(list(share)) == len(share) for share in shares)
    together = {
        number: batch
        for share in shares
        for number, batch in zip(share.numbers, share, strict=True)
    }
    assert [share.numbers for share in shares] == [
        range(rank, len(alone), size) for rank in range(size)
    ]
    assert [
        together[number] for number in range(len(alone))
    ] == alone  # with the numbers they have in one process
    assert sorted(key.index for batch in alone for key in batch) == list(range(count))


def test_evaluation_canvas_depends_only_on_the_image() -> None:
    ratios = np.random.default_rng(0).choice([0.5, 0.56, 0.66, 0.75, 1.0, 1.33, 1.5, 2.0], 60)
    for batch_size in (1, 2, 7, 100):
        batches = list(EvaluationSampler(ratios, batch_size=batch_size, shapes=VALIDATION))
        for batch in batches:
            assert 1 <= len(batch) <= batch_size
            assert {(key.height, key.width) for key in batch} == {
                VALIDATION.shape(ratios[[batch[0].index]])
            }
        keys = [key for batch in batches for key in batch]
        assert all(VALIDATION.shape(ratios[[key.index]]) == (key.height, key.width) for key in keys)
        # All batches are full except the last of each shape.
        counts = [
            [(k.height, k.width) for k in keys].count(shape)
            for shape in {(k.height, k.width) for k in keys}
        ]
        assert len(batches) == sum(-(-count // batch_size) for count in counts)
        assert [key.index for key in keys] == np.argsort(ratios, kind="stable").tolist()
