"""How often each sample is drawn: hand-worked passes, exact sums, and frequencies."""

import numpy as np
import pytest

from data.balance.draws import UNIT, Draws


def pass_of(draws: Draws, number: int) -> list[int]:
    return draws.counts(number, np.random.default_rng(number)).tolist()  # type: ignore[no-any-return]


def test_lengths_of_passes_by_hand() -> None:
    draws = Draws(np.array([1.0, 2.25, 1.5]))
    # 4.75 in a pass: 0, 4.75, 9.5, 14.25, 19 samples in 0 to 4 passes.
    assert [draws.before(number) for number in range(5)] == [0, 4, 9, 14, 19]
    assert (draws.mean_per_pass, draws.least_per_pass, len(draws)) == (4.75, 4, 3)
    for number, length in enumerate([4, 5, 5, 5]):
        counts = pass_of(draws, number)
        assert sum(counts) == length
        assert counts[0] == 1
        assert counts[1] in (2, 3)
        assert counts[2] in (1, 2)


def test_whole_factors_need_no_random_numbers() -> None:
    draws = Draws(np.array([1.0, 3.0]))
    assert draws.counts(7, None).tolist() == [1, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "factors",
    [[0.3, 0.7], [0.5], [0.999, 1.001, 2.5], [0.25] * 7, [1, 1.3, 2.7, 0.25, 0.5]],
    ids=str,
)
def test_each_sample_is_drawn_as_often_as_its_factor_says(factors: list[float]) -> None:
    wanted = np.array(factors)
    if wanted.sum() < 1:
        wanted = np.append(wanted, 1.0)
    draws = Draws(wanted)
    passes = np.array([pass_of(draws, number) for number in range(4000)])
    assert (passes >= np.floor(wanted)).all()
    assert (passes <= np.ceil(wanted)).all()
    lengths = np.diff([draws.before(number) for number in range(4001)])
    assert (passes.sum(1) == lengths).all()
    # deviation of a mean of 4000: at most sqrt(0.25 / 4000) = 0.008
    assert np.abs(passes.mean(0) - wanted).max() < 0.032


def test_samples_belong_to_the_pass_in_which_they_are_drawn() -> None:
    draws = Draws(np.random.default_rng(0).uniform(0.1, 3, 11))
    for sample in range(500):
        number = draws.pass_of(sample)
        assert draws.before(number) <= sample < draws.before(number + 1)


def test_sums_are_exact_after_many_passes() -> None:
    draws = Draws(np.full(1000, 1 + 1 / 3))
    multiple = round((1 + 1 / 3) * UNIT)
    assert draws.before(10**9) == 10**9 * 1000 * multiple // UNIT


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        ([1.0, 0.0], "factors are 0 to 1: they must be finite and above 0"),
        ([1.0, np.nan], "factors are nan to nan: they must be finite and above 0"),
        ([1.0, np.inf], "factors are 1 to inf: they must be finite and above 0"),
        ([0.25, 0.25], "a pass over the data has 0.5 samples: raise the weights"),
    ],
)
def test_factors_that_cannot_be_used_are_refused(factors: list[float], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Draws(np.array(factors))


def test_no_sample_has_empty_passes() -> None:
    draws = Draws.once(0)
    assert (len(draws), draws.before(5), draws.least_per_pass) == (0, 0, 0)


def test_digest_differs_for_other_factors() -> None:
    assert Draws.once(3).digest() == Draws(np.ones(3)).digest()
    others = [[1.0, 1, 1.5], [1.0, 1.5, 1], [1.0, 1]]
    assert len({Draws(np.array(factors)).digest() for factors in others}) == 3


def test_a_pass_that_no_memory_holds_is_refused() -> None:
    """A million images of the highest weight; a hundredth of it is still possible."""
    sentence = (
        r"^a pass over the data has 1,000,000,000 samples, and 100,000,000 at most are possible: "
        r"lower the weights, all by one factor for the same mixture$"
    )
    with pytest.raises(ValueError, match=sentence):
        Draws(np.full(1_000_000, 1000.0))
    assert Draws(np.full(1_000_000, 100.0)).least_per_pass == 100_000_000
