"""Weights carried from one detector to another, and classes put in another order."""

from collections.abc import Sequence

import torch

from models.detector import Detector
from models.heads import Head


def transfer(
    model: Detector, names: Sequence[str], given: Detector, given_names: Sequence[str]
) -> tuple[int, int, int]:
    """Copy every entry of `given` that `model` has under the same name and shape: (entries copied, entries wanted,
    classes found).

    Of a head of the same kind what all classes share is copied, and what belongs to the classes that both know by
    name. What a head fits to the data is not wanted: the model's own was chosen for the data at hand.
    """
    own_row, their_row = (f"layers.{len(detector.layers) - 1}." for detector in (model, given))
    state = given.state_dict()
    body = {key: value for key, value in model.state_dict().items() if not key.startswith(own_row)}
    fitting = {key: state[key] for key, value in body.items() if key in state and state[key].shape == value.shape}
    model.load_state_dict(fitting, strict=False)
    wanted = len(body) + len(model.head.state_dict().keys() - set(model.head.fitted))
    if own_row != their_row or type(model.head) is not type(given.head):
        return len(fitting), wanted, 0
    known = [(own, given_names.index(name)) for own, name in enumerate(names) if name in given_names]
    copied, by_class = _transfer_head(model.head, given.head, known)
    return len(fitting) + copied, wanted, len(known) if by_class else 0


def _transfer_head(head: Head, given: Head, known: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """How many entries were copied, and how many of them have rows for each class.

    known: the numbers of each class that both heads have, here and there.
    """
    rows, their_rows = [own for own, _ in known], [other for _, other in known]
    state, copied, with_classes = given.state_dict(), 0, 0
    for key, values in head.state_dict().items():
        if key in head.fitted or key not in state:
            continue
        (shared, classes), (their_shared, theirs) = (
            head.split_classes(key, values),
            given.split_classes(key, state[key]),
        )
        if shared.shape != their_shared.shape or (classes is None) != (theirs is None):
            continue
        if classes is not None and theirs is not None:
            if classes.shape[1:] != theirs.shape[1:]:
                continue
            classes[rows] = theirs[their_rows]
            with_classes += 1
        shared.copy_(their_shared)
        copied += 1
    return copied, with_classes


@torch.no_grad()
def reorder_classes(model: Detector, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Put the classes of a model, `names`, in the order of `wanted`. Raises ValueError unless both hold the same."""
    if list(names) == list(wanted):
        return
    if sorted(names) != sorted(wanted) or len(set(names)) < len(names):
        raise ValueError(f"the classes are {listed(names)}, wanted are {listed(wanted)}")
    order = [list(names).index(name) for name in wanted]
    for key, values in model.head.state_dict().items():
        _, by_class = model.head.split_classes(key, values)
        if by_class is not None:
            by_class.copy_(by_class[order].clone())


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names in words.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
