"""What a search for hyper-parameters asks of one training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


class TrialPrunedError(Exception):
    """A search ends a training early, because others were better after as many epochs."""


def ignore(epoch: int, fitness: float) -> None:
    """Do nothing with the result of a validation."""


@dataclass(frozen=True)
class Trial:
    """What a search asks of one training; by default nothing.

    hyp: values that replace those of the hyper-parameter file, or of the recipe. continue_with:
    what to type to continue the search, "" for the training itself. validated: called on all
    processes after each validation, with the number of the epoch, from 1, and its fitness; it may
    raise TrialPrunedError, on all processes.
    """

    hyp: Mapping[str, float] = field(default_factory=dict)
    continue_with: str = ""
    validated: Callable[[int, float], None] = ignore


NO_SEARCH = Trial()
