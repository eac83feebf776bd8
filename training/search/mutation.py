"""Hyper-parameters of a next generation: a parent among the best so far, and its mutation.

Pure functions of what is known so far and of (seed, generation), so that all processes compute the
same, and a search that was killed continues as if it had not been.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from training.settings.ranges import RANGES, Range

PARENTS = 5  # the best generations, of which one is the parent
SHARE_CHANGED = 0.8  # probability that a key changes
FACTOR_SPREAD = 0.2  # standard deviation of the logarithm of a factor
STEP_SPREAD = 0.1  # standard deviation of what is added, as a share of the range
DIGITS = 5  # significant ones of a new value


@dataclass(frozen=True)
class Generation:
    """One training of a search.

    hyp: its hyper-parameters. fitness: 0 if it failed. metrics: precision, recall, AP50 and AP.
    failure: the reason, "" if it did not fail.
    """

    number: int
    fitness: float
    metrics: Mapping[str, float]
    hyp: Mapping[str, float]
    failure: str = ""


def best_of(generations: Sequence[Generation]) -> Generation | None:
    """Return the first generation of the highest fitness among those that did not fail, or None."""
    return next(iter(ranked(generations)), None)


def ranked(generations: Sequence[Generation]) -> list[Generation]:
    """Return the generations that did not fail, the best one first, equal ones in their order."""
    finished = [generation for generation in generations if not generation.failure]
    return sorted(finished, key=lambda generation: -generation.fitness)


def next_hyp(
    generations: Sequence[Generation], seed: int, *, fixed: Collection[str] = ()
) -> dict[str, float]:
    """Return the hyper-parameters of the next generation: a mutated parent.

    generations: all so far; the first is the base, which is the parent if all have failed. fixed:
    keys that do not change.
    """
    base = generations[0]
    random = np.random.default_rng([seed, len(generations)])
    candidates = ranked(generations)[:PARENTS] or [base]
    weights = parent_weights([candidate.fitness for candidate in candidates])
    parent = candidates[int(random.choice(len(candidates), p=weights))]

    ranges = {
        name: widened(own, base.hyp[name]) for name, own in RANGES.items() if name not in fixed
    }
    return mutated(parent.hyp, ranges, random)


def parent_weights(fitness: Sequence[float]) -> list[float]:
    """Return the probability of each candidate to be the parent: in proportion to its fitness.

    An expression of --fitness may be negative; then the lowest one counts as 0.

    >>> parent_weights([0.75, 0.25]), parent_weights([1.0, -1.0]), parent_weights([0.0, 0.0])
    ([0.75, 0.25], [1.0, 0.0], [0.5, 0.5])
    """
    lowest = min(0.0, *fitness)
    # of the largest, so that no sum overflows
    largest = max(value - lowest for value in fitness) or 1.0
    shares = [(value - lowest) / largest for value in fitness]
    total = sum(shares)
    if total == 0 or not math.isfinite(total):
        return [1 / len(shares)] * len(shares)
    return [share / total for share in shares]


def widened(own: Range, value: float) -> Range:
    """Return a range that contains the value that the user has started from."""
    return Range(min(own.low, value), max(own.high, value), own.by_factor)


def mutated(
    parent: Mapping[str, float], ranges: Mapping[str, Range], random: np.random.Generator
) -> dict[str, float]:
    """Return a copy of the parent in which at least one of the keys of `ranges` has changed.

    Each changes with probability SHARE_CHANGED, and stays within its range. A value of 0 that
    changes by a factor starts from the lowest value of RANGES.
    """
    hyp = dict(parent)
    while hyp == dict(parent) and ranges:
        for name, own in ranges.items():
            # Both are drawn for each key, so that the numbers of a key do not depend on others.
            changes = random.random() < SHARE_CHANGED
            deviation = float(random.standard_normal())
            if not changes:
                continue
            if own.by_factor:
                value = (parent[name] or RANGES[name].low) * math.exp(FACTOR_SPREAD * deviation)
            else:
                value = parent[name] + STEP_SPREAD * (own.high - own.low) * deviation
            within = min(max(value, own.low), own.high)
            hyp[name] = float(f"{within:.{DIGITS}g}")
    return hyp


def fixed_keys(base: Mapping[str, float], *, noautoanchor: bool, taught: bool) -> set[str]:
    """Return the keys that a search leaves as they are.

    The number of anchors changes only if the user has given one, and anchors may be fitted to the
    data: 0 keeps the model's own, and --noautoanchor does not fit any. The gain of a teacher
    changes only if there is one, as `taught` says.
    """
    fixed = set() if taught else {"distillation"}
    if noautoanchor or not base["anchors"]:
        fixed.add("anchors")
    return fixed
