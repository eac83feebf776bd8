"""training/search/mutation.py: which parent, and what becomes of its hyper-parameters."""

from collections import Counter
from dataclasses import fields

import numpy as np
import pytest

from training.search.mutation import (
    DIGITS,
    PARENTS,
    Generation,
    best_of,
    fixed_keys,
    mutated,
    next_hyp,
    parent_weights,
    widened,
)
from training.settings.hyperparameters import Hyp
from training.settings.ranges import RANGES, Range

BASE = Hyp().as_dict()


def generation(number, fitness, failure="", **hyp):
    return Generation(number, fitness, {}, BASE | hyp, failure)


def test_every_hyper_parameter_has_a_range_that_is_allowed():
    assert list(RANGES) == [field.name for field in fields(Hyp)]
    for name, own in RANGES.items():
        assert own.low < own.high
        assert own.low > 0 or not own.by_factor
        Hyp(**{name: own.low})
        Hyp(**{name: own.high})


def test_same_seed_and_generation_give_the_same_hyper_parameters():
    known = [generation(0, 0.5), generation(1, 0.25, lr0=0.02)]
    first = next_hyp(known, seed=3)
    np.random.seed(1)  # noqa: NPY002 - the state of others has no influence
    assert next_hyp(known, seed=3) == first
    assert next_hyp(known, seed=4) != first
    assert next_hyp([*known, generation(2, 0.0)], seed=3) != first
    assert list(first) == list(BASE)


def test_every_key_changes_and_stays_in_its_range():
    """From a base at the lowest, and at the highest values; also those that are 0 move."""
    for end in ("low", "high"):
        base = {name: float(getattr(own, end)) for name, own in RANGES.items()}
        children = [next_hyp([Generation(0, 0.5, {}, base)], seed) for seed in range(60)]
        for name, own in RANGES.items():
            values = [child[name] for child in children]
            assert len(set(values)) > 10, name
            assert own.low <= min(values) < max(values) <= own.high
            assert all(value == float(f"{value:.{DIGITS}g}") for value in values)
        for child in children:
            Hyp(**child)


def test_changes_have_the_size_that_is_documented():
    """80 % of the keys change: rates by a factor of about e^0.2, others by a tenth of the range."""
    ranges = {"lr0": Range(1e-9, 1e9, by_factor=True), "mosaic": Range(-1e9, 1e9)}
    parent = {"lr0": 0.01, "mosaic": 0.0}
    random = np.random.default_rng(0)
    children = [mutated(parent, ranges, random) for _ in range(4000)]
    changed = [child["lr0"] for child in children if child["lr0"] != 0.01]
    # of all pairs 4 % have no change, and are drawn again: 0.8 / 0.96 = 0.83
    assert len(changed) / 4000 == pytest.approx(0.8 / 0.96, abs=0.02)
    assert np.std(np.log(changed)) == pytest.approx(0.2, rel=0.05)
    steps = [child["mosaic"] for child in children if child["mosaic"]]
    assert np.std(steps) == pytest.approx(0.1 * 2e9, rel=0.05)


def test_value_of_0_that_changes_by_a_factor_starts_at_the_lowest_one():
    children = [next_hyp([generation(0, 0.5, weight_decay=0.0)], seed) for seed in range(40)]
    moved = [child["weight_decay"] for child in children if child["weight_decay"]]
    assert len(moved) > 20
    assert max(moved) < 2 * RANGES["weight_decay"].low


def test_parent_is_among_the_best_in_proportion_to_fitness():
    """Without a mutation of `fixed` keys, lr0 tells the parent."""
    fitness = [0.1, 0.5, 0.0, 0.4, 0.3, 0.2, 0.6]
    known = [generation(n, value, lr0=0.01 + n / 1000) for n, value in enumerate(fitness)]
    parents = Counter(
        round((next_hyp(known, seed, fixed={"lr0"})["lr0"] - 0.01) * 1000) for seed in range(2000)
    )
    best = sorted(range(7), key=lambda n: -fitness[n])[:PARENTS]
    assert set(parents) == set(best) == {6, 1, 3, 4, 5}
    for number in best:
        assert parents[number] / 2000 == pytest.approx(fitness[number] / 2.0, abs=0.04)


def test_failed_generations_are_no_parents_and_not_the_best():
    known = [generation(0, -2.0, lr0=0.02), generation(1, 0.0, "not finite", lr0=0.05)]
    assert best_of(known) is known[0]
    assert {next_hyp(known, seed, fixed={"lr0"})["lr0"] for seed in range(20)} == {0.02}
    all_failed = [generation(0, 0.0, "not finite"), generation(1, 0.0, "not finite", lr0=0.05)]
    assert best_of(all_failed) is None
    assert best_of([]) is None
    assert {next_hyp(all_failed, seed, fixed={"lr0"})["lr0"] for seed in range(20)} == {0.01}


def test_first_of_equal_generations_is_the_best():
    assert best_of([generation(0, 0.1), generation(1, 0.5), generation(2, 0.5)]).number == 1


def test_weights_of_extreme_fitness_are_probabilities():
    assert parent_weights([-3.0]) == [1.0]
    assert parent_weights([1e308, 1e308]) == [0.5, 0.5]
    assert sum(parent_weights([-1e308, 1e308, 0.0])) == pytest.approx(1)


def test_range_contains_the_value_of_the_base():
    assert widened(Range(0.1, 1.0), 0.05) == Range(0.05, 1.0)
    assert widened(Range(0.1, 1.0, by_factor=True), 2.0) == Range(0.1, 2.0, by_factor=True)
    children = [next_hyp([generation(0, 0.5, momentum=0.999)], seed) for seed in range(40)]
    assert max(child["momentum"] for child in children) == 0.999


def test_number_of_anchors_changes_only_if_it_is_given_and_fitted():
    assert fixed_keys(BASE, noautoanchor=False, taught=True) == {"anchors"}  # 0: the model's own
    given = BASE | {"anchors": 3.0}
    assert fixed_keys(given, noautoanchor=False, taught=True) == set()
    assert fixed_keys(given, noautoanchor=True, taught=True) == {"anchors"}


def test_gain_of_a_teacher_changes_only_if_there_is_one():
    assert fixed_keys(BASE | {"anchors": 3.0}, noautoanchor=False, taught=False) == {"distillation"}


def test_nothing_to_change_is_a_copy():
    assert mutated({"lr0": 0.01}, {}, np.random.default_rng(0)) == {"lr0": 0.01}
