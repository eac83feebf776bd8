"""Copy weights from one detector to another."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from torch import Tensor, nn

from models.build import require_fitting_rows
from models.detector import Detector
from models.heads import Head, JoinedHead
from models.tables.entries import without_distillation
from models.tables.rows import without_auxiliary


class Copied(NamedTuple):
    """What was copied: numbers of tensors, of tensors in the model, and of classes.

    share: of the values of the model without its auxiliary branch, 0 to 1.
    """

    tensors: int
    total: int
    classes: int
    share: float


class PairedTensor(NamedTuple):
    """A tensor of a head and the same one of another: views of the shared and the class part.

    The class parts, one row per class, are None for a tensor that has none.
    """

    shared: Tensor
    given_shared: Tensor
    classes: Tensor | None
    given_classes: Tensor | None


def transfer(
    model: Detector, names: Sequence[str], given: Detector, given_names: Sequence[str]
) -> Copied:
    """Copy the weights of `given` into `model`; return what was copied.

    A layer is copied if all of its tensors fit, a convolution with its BatchNorm. Outside the head
    they fit if names and shapes are the same. Of a head of the same kind, the part that all classes
    share is copied, and the rows of the classes that both models have by name. A joined head has
    such a part for each group of classes, whose rows mean nothing beside another one's: the part
    with most of the classes is taken. What a head fits to the data (`Head.fitted`) is neither
    copied nor counted: that of `model` is fitted to the present data.
    """
    common = []
    for index, name in enumerate(names):
        if name in given_names:
            common.append((index, given_names.index(name)))

    # All layers but the heads.
    heads = _heads(model)
    state = given.state_dict()
    body = {}
    for key, value in model.state_dict().items():
        if not key.startswith(tuple(heads)):
            body[key] = value
    fitting = _fitting(body, state)
    model.load_state_dict(fitting, strict=False)
    tensors = len(fitting)
    total = len(body)

    # Values of the layers that detect: those up to the head.
    after_head = range(model.head_position + 1, len(model.layers))
    auxiliary = tuple(f"layers.{position}." for position in after_head)
    values = _count(value for key, value in fitting.items() if not key.startswith(auxiliary))
    all_values = _count(value for key, value in body.items() if not key.startswith(auxiliary))

    # The heads.
    classes = 0
    given_heads = _heads(given)
    for prefix, head in heads.items():
        head_tensors = [value for key, value in head.state_dict().items() if key not in head.fitted]
        total += len(head_tensors)

        given_part, shared_classes = _part_with_most(given_heads.get(prefix), common)
        copied: list[int] = []
        has_classes = False
        if type(head) is type(given_part):
            copied, has_classes = _transfer_head(head, given_part, shared_classes)
        tensors += sum(count > 0 for count in copied)

        if head is model.head:
            all_values += _count(head_tensors)
            values += sum(copied)
            classes = len(shared_classes) if has_classes else 0

    return Copied(tensors=tensors, total=total, classes=classes, share=values / all_values)


def with_added_classes(old: Detector, count: int) -> Detector:
    """Return a detector that has the classes of `old`, and `count` new ones after them.

    It has the weights of `old`, bit for bit, and another head for the new classes, with an adapter
    if the kind of head is one layer. The head starts from the weights of the first old head that
    tell where boxes are; the others are random. An auxiliary branch and projections are left out.

    Raises ValueError if the head of `old` cannot be built with another number of classes.
    """
    groups = [*old.table.get("class_groups", [old.num_classes]), count]
    table = without_distillation(without_auxiliary(old.table))
    table |= {"class_groups": groups, "nc": sum(groups)}
    require_fitting_rows(table)
    model = Detector(table)

    # The old model. Its head, unless it is joined already, becomes the first part.
    joined = cast(JoinedHead, model.head)
    kept = [*model.layers[:-1], *joined.older]
    given = [*old.layers[: old.head_position], *_parts_and_adapters(old.head)]
    for own_module, given_module in zip(kept, given, strict=True):
        own_module.load_state_dict(given_module.state_dict())

    copy_box_rows(joined.heads[-1], joined.heads[0])
    return model


def _parts_and_adapters(head: Head) -> list[nn.Module]:
    """Return the parts of a joined head and then its adapters, or the only head."""
    return [*head.parts, *head.adapters] if isinstance(head, JoinedHead) else [head]


def _heads(detector: Detector) -> dict[str, Head]:
    """Return the head, and that of an auxiliary branch, by what their tensors' names start with."""
    heads = {f"layers.{detector.head_position}.": detector.head}
    if detector.auxiliary_head is not None:
        heads[f"layers.{len(detector.layers) - 1}."] = detector.auxiliary_head
    return heads


def _part_with_most(
    head: Head | None, common: Sequence[tuple[int, int]]
) -> tuple[Head | None, list[tuple[int, int]]]:
    """Return the head, or of a joined one the part that has most of `common`, and those it has.

    common: (index, index in `head`) of each class; the second becomes that in the part.
    """
    if not isinstance(head, JoinedHead):
        return head, list(common)
    parts: list[tuple[Head, list[tuple[int, int]]]] = []
    for part, first in zip(head.heads, head.first_classes, strict=True):
        inside = range(first, first + part.num_classes)
        parts.append((part, [(index, own - first) for index, own in common if own in inside]))
    return max(parts, key=lambda part_and_classes: len(part_and_classes[1]))


def _fitting(body: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of `state` for the layers of `body` all of whose tensors fit."""
    unfit = set()
    for key, value in body.items():
        if key not in state or state[key].shape != value.shape:
            unfit.add(_layer(key))
    return {key: state[key] for key in body if _layer(key) not in unfit}


def _transfer_head(
    head: Head, given: Head, common: Sequence[tuple[int, int]]
) -> tuple[list[int], bool]:
    """Copy the weights of a head; return how many values of each tensor, and whether of classes.

    common: (index in `head`, index in `given`) of each class that both heads have.
    """
    rows = [index for index, _ in common]
    given_rows = [index for _, index in common]
    pairs = _pairs(head, given)
    unfit = {_layer(key) for key, pair in pairs.items() if pair is None}

    copied = []
    has_classes = False
    for key, pair in pairs.items():
        if pair is None or _layer(key) in unfit:
            continue
        pair.shared.copy_(pair.given_shared)
        count = pair.shared.numel()
        if pair.classes is not None and pair.given_classes is not None:
            known = pair.given_classes[given_rows]
            pair.classes[rows] = known
            count += known.numel()
            has_classes = True
        copied.append(count)
    return copied, has_classes


def copy_box_rows(head: Head, given: Head) -> None:
    """Copy what tells where boxes are from a head of the same kind, which may have other classes.

    A layer is copied if all of its tensors fit.
    """
    state = given.state_dict()
    pairs = {}
    for key, values in head.state_dict().items():
        pairs[key] = head.box_rows(key, values), given.box_rows(key, state[key])
    unfit = {_layer(key) for key, (own, theirs) in pairs.items() if own.shape != theirs.shape}
    for key, (own, theirs) in pairs.items():
        if _layer(key) not in unfit:
            own.copy_(theirs)


def _pairs(head: Head, given: Head) -> dict[str, PairedTensor | None]:
    """Return each tensor of both heads; None for one whose parts differ in shape."""
    state = given.state_dict()
    pairs: dict[str, PairedTensor | None] = {}
    for key, values in head.state_dict().items():
        if key in head.fitted:
            continue
        pairs[key] = None
        if key not in state:
            continue

        shared, classes = head.split_classes(key, values)
        given_shared, given_classes = given.split_classes(key, state[key])
        same_shared = shared.shape == given_shared.shape
        if same_shared and _row_shape(classes) == _row_shape(given_classes):
            pairs[key] = PairedTensor(shared, given_shared, classes, given_classes)
    return pairs


def _row_shape(classes: Tensor | None) -> tuple[int, ...] | None:
    """Return the shape of each class's row, None without classes."""
    return None if classes is None else classes.shape[1:]


def _count(tensors: Iterable[Tensor]) -> int:
    """Return the number of values in all tensors together."""
    return sum(tensor.numel() for tensor in tensors)


def _layer(key: str) -> str:
    """Return the layer of a tensor; a convolution and its BatchNorm are one.

    A bias or a BatchNorm without its convolution's weight would be worse than initial ones.

    >>> _layer("layers.0.conv.weight"), _layer("layers.0.bn.running_mean"), _layer("m.0.bias")
    ('layers.0', 'layers.0', 'm.0')
    """
    module = key.rpartition(".")[0]
    parent, _, last = module.rpartition(".")
    return parent if last in ("conv", "bn") else module
