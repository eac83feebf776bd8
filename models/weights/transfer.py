"""Copy weights from one detector to another."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from models.detector import Detector
from models.heads import Head


class Copied(NamedTuple):
    """Numbers of tensors copied, tensors of the model and classes copied; and the share of its
    values, 0 to 1.
    """

    tensors: int
    total: int
    classes: int
    share: float


def transfer(
    model: Detector, names: Sequence[str], given: Detector, given_names: Sequence[str]
) -> Copied:
    """Copy the weights of `given` into `model`; return what was copied.

    A layer is copied if all of its tensors fit, a convolution with its BatchNorm. Outside the head
    they fit if names and shapes are the same. Of a head of the same kind, the part that all classes
    share is copied, and the rows of the classes that both models have by name. What a head fits to
    the data (`Head.fitted`) is neither copied nor counted: that of `model` is fitted to the present
    data.
    """
    own_prefix, given_prefix = (
        f"layers.{len(detector.layers) - 1}." for detector in (model, given)
    )
    state = given.state_dict()
    body = {
        key: value for key, value in model.state_dict().items() if not key.startswith(own_prefix)
    }
    unfit = {
        _layer(key)
        for key, value in body.items()
        if key not in state or state[key].shape != value.shape
    }
    fitting = {key: state[key] for key in body if _layer(key) not in unfit}
    model.load_state_dict(fitting, strict=False)
    head = [value for key, value in model.head.state_dict().items() if key not in model.head.fitted]
    tensors, values, classes = len(fitting), _count(fitting.values()), 0
    if own_prefix == given_prefix and type(model.head) is type(given.head):
        common = [
            (own, given_names.index(name)) for own, name in enumerate(names) if name in given_names
        ]
        parts, has_classes = _transfer_head(model.head, given.head, common)
        tensors, values = tensors + sum(part > 0 for part in parts), values + sum(parts)
        classes = len(common) if has_classes else 0
    return Copied(
        tensors, len(body) + len(head), classes, values / (_count(body.values()) + _count(head))
    )


def _transfer_head(
    head: Head, given: Head, common: Sequence[tuple[int, int]]
) -> tuple[list[int], bool]:
    """Copy the weights of a head; return how many values of each tensor, and whether any of them
    are of classes.

    common: (index in `head`, index in `given`) of each class that both heads have.
    """
    rows, given_rows = [own for own, _ in common], [other for _, other in common]
    pairs = _pairs(head, given)
    unfit = {_layer(key) for key, pair in pairs.items() if pair is None}
    copied, has_classes = [], False
    for key, pair in pairs.items():
        if pair is None or _layer(key) in unfit:
            continue
        shared, given_shared, classes, given_classes = pair
        shared.copy_(given_shared)
        copied.append(shared.numel())
        if classes is not None and given_classes is not None:
            known = given_classes[given_rows]
            classes[rows] = known
            copied[-1] += known.numel()
            has_classes = True
    return copied, has_classes


def _count(values: Iterable[Tensor]) -> int:
    """Return the number of values in all tensors together."""
    return sum(value.numel() for value in values)


def _pairs(
    head: Head, given: Head
) -> dict[str, tuple[Tensor, Tensor, Tensor | None, Tensor | None] | None]:
    """Return views of each tensor of both heads: shared part, that of `given`, class part, that of
    `given`.

    None for a tensor whose parts do not have the shapes of those in `given`.
    """
    state = given.state_dict()
    pairs: dict[str, tuple[Tensor, Tensor, Tensor | None, Tensor | None] | None] = {}
    for key, values in head.state_dict().items():
        if key in head.fitted:
            continue
        pairs[key] = None
        if key in state:
            (shared, classes), (other, other_classes) = (
                head.split_classes(key, values),
                given.split_classes(key, state[key]),
            )
            shapes = [None if part is None else part.shape[1:] for part in (classes, other_classes)]
            if shared.shape == other.shape and shapes[0] == shapes[1]:
                pairs[key] = (shared, other, classes, other_classes)
    return pairs


def _layer(key: str) -> str:
    """Return the layer of a tensor; a convolution and its BatchNorm are one.

    A bias or a BatchNorm without its convolution's weight would be worse than initial ones.

    >>> _layer("layers.0.conv.weight"), _layer("layers.0.bn.running_mean"), _layer("m.0.bias")
    ('layers.0', 'layers.0', 'm.0')
    """
    module = key.rpartition(".")[0]
    parent, _, last = module.rpartition(".")
    return parent if last in ("conv", "bn") else module
