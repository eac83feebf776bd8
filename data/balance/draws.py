"""How often each sample is drawn in a pass over the data, in exact arithmetic.

A sample of factor 2.25 is drawn twice in each pass, and a third time in a quarter of them. Which
samples are drawn once more depends on the generator of the pass only. Factors are whole multiples
of 1 / UNIT: sums of them are exact, so that all processes and machines count the same samples.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

UNIT = 1 << 20
MAX_TOTAL = 1 << 62
# In a pass: each process holds its order, 12 bytes a sample, and 50 while it is drawn.
MOST_SAMPLES = 100_000_000


class Draws:
    """The factors of N samples, each the number of times that it is drawn in a pass, on average.

    `mean_per_pass`: samples in a pass, a fraction. Pass k ends where k + 1 times this number of
    samples are drawn, rounded down: the lengths of passes differ by one at most.
    """

    def __init__(self, factors: NDArray[np.float64]) -> None:
        """Raise ValueError unless all factors are positive, and a pass has 1 to MOST_SAMPLES."""
        if not (np.isfinite(factors) & (factors > 0)).all() or factors.sum() >= MAX_TOTAL / UNIT:
            given = f"{factors.min():g} to {factors.max():g}"
            raise ValueError(f"factors are {given}: they must be finite and above 0")
        multiples = np.rint(factors * UNIT).astype(np.int64).clip(1)  # [N]

        self._whole, self._part = np.divmod(multiples, UNIT)  # each [N]
        self._until = np.cumsum(multiples)  # [N]
        self._total = int(multiples.sum())
        self._is_uniform = bool((multiples == multiples[:1]).all())
        if 0 < self._total < UNIT:
            samples = self._total / UNIT
            raise ValueError(f"a pass over the data has {samples:.2g} samples: raise the weights")
        if self._total > MOST_SAMPLES * UNIT:
            samples = self._total // UNIT
            raise ValueError(
                f"a pass over the data has {samples:,} samples, and {MOST_SAMPLES:,} at most are "
                "possible: lower the weights, all by one factor for the same mixture"
            )

    @classmethod
    def once(cls, count: int) -> "Draws":
        """Return the factors of `count` samples that are each drawn once."""
        return cls(np.ones(count))

    def __len__(self) -> int:
        """Return the number of samples, N."""
        return len(self._whole)

    @property
    def factors(self) -> NDArray[np.float64]:
        """The factor of each sample, [N]."""
        return self._whole + self._part / UNIT

    @property
    def mean_per_pass(self) -> float:
        return self._total / UNIT

    @property
    def least_per_pass(self) -> int:
        """The number of samples in the shortest pass."""
        return self._total // UNIT

    def before(self, number: int) -> int:
        """Return how many samples are drawn in all passes before pass `number`."""
        return number * self._total // UNIT

    def pass_of(self, sample: int) -> int:
        """Return the pass that a sample of the endless stream of passes is in.

        >>> draws = Draws(np.array([1.0, 1.5]))
        >>> [draws.before(number) for number in range(4)]
        [0, 2, 5, 7]
        >>> [draws.pass_of(sample) for sample in range(7)]
        [0, 0, 1, 1, 1, 2, 2]
        """
        return ((sample + 1) * UNIT - 1) // self._total

    def counts(self, number: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Return how often pass `number` draws each sample, [N]: its factor, rounded up or down.

        random: the generator of the pass.

        The fractions of all factors lie one after another on a line, on which every UNIT a sample
        is drawn once more, from a random point on: each with the probability of its fraction, and
        together as many as the pass needs (systematic sampling).
        """
        whole_sum = int(self._whole.sum())
        extra = self.before(number + 1) - self.before(number) - whole_sum
        length = self._total - whole_sum * UNIT
        if length == 0:
            return self._whole

        # The first point: one for which `extra` points fit on the line.
        remainder = length % UNIT
        is_longer = extra > length // UNIT
        low, high = (0, remainder) if is_longer else (remainder, UNIT)
        first = int(random.integers(low, high))

        # A generator orders the samples: neighbors in a folder are often alike.
        order = random.permutation(len(self))
        until = np.cumsum(self._part[order])
        points_before_end = -(-(until - first) // UNIT)  # rounded up
        points = np.diff(points_before_end.clip(0), prepend=0)
        counts = self._whole.copy()
        counts[order] += points
        return counts

    def choose(self, random: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Return `size` samples, chosen with probabilities in proportion to the factors."""
        if self._is_uniform:  # the same samples as without factors
            return random.integers(len(self), size=size)
        points = random.integers(self._total, size=size)
        return np.searchsorted(self._until, points, side="right")

    def digest(self) -> str:
        """Return a text that is equal for equal factors."""
        return hashlib.sha256(self._until.tobytes()).hexdigest()[:16]
