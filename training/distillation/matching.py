"""What a model and its teacher have in common: levels by their stride, classes by their name."""

from collections.abc import Sequence
from typing import NamedTuple

from models.detector import Detector
from models.heads import Head
from utils.printable import excerpt

NAMED = 10  # classes in an error message


class Common(NamedTuple):
    """Levels and classes that both have, as indices of the one and of the other.

    levels: (of the model, of the teacher). classes: likewise.
    """

    levels: list[tuple[int, int]]
    classes: list[tuple[int, int]]


def match(
    model: Detector, names: Sequence[str], teacher: Detector, teacher_names: Sequence[str]
) -> Common:
    """Return what both have in common, in the model's order.

    Raises ValueError if they have no stride or no class in common, or if one of their heads does
    not say what it predicts in each cell.
    """
    for head in (model.head, teacher.head):
        if type(head).predict_cells is Head.predict_cells:
            raise ValueError(f"a head of class {type(head).__name__} does not predict in cells")

    levels = common_indices(model.strides, teacher.strides)
    if not levels:
        theirs = ", ".join(map(str, teacher.strides))
        ours = ", ".join(map(str, model.strides))
        raise ValueError(
            f"its levels have the strides {theirs}, those of the model {ours}; at least one must "
            "be the same"
        )

    classes = common_indices(names, teacher_names)
    if not classes:
        raise ValueError(
            f"none of its classes ({_listed(teacher_names)}) is a class of the data "
            f"({_listed(names)}); names must be the same"
        )
    return Common(levels, classes)


def common_indices(
    ours: Sequence[str] | Sequence[int], theirs: Sequence[str] | Sequence[int]
) -> list[tuple[int, int]]:
    """Return the indices of equal entries in both, in the order of the first.

    >>> common_indices(["cat", "dog", "cow"], ["dog", "bird", "cat"])
    [(0, 2), (1, 0)]
    """
    places = {entry: index for index, entry in reversed(list(enumerate(theirs)))}
    return [(index, places[entry]) for index, entry in enumerate(ours) if entry in places]


def _listed(names: Sequence[str]) -> str:
    """Return the first names, as text."""
    shown = [excerpt(name) for name in names[:NAMED]]
    more = ["..."] if len(names) > NAMED else []
    return ", ".join([*shown, *more])
