"""--class-weights: the weight of each class in the classification loss."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from yaml.nodes import MappingNode, ScalarNode

from data import Draws, Labels
from data.balance.class_weights import boxes_per_class, inverse_root_weights
from utils.files.yaml_tree import pairs, read_tree, where
from utils.printable import counted, did_you_mean, excerpt, printable

AUTO = "auto"
MAX_BYTES = 4 * 1024 * 1024  # of a file
SHOWN_CLASSES = 6
# Weights are multiples of 2^-20 in a loss, and a batch's sum of them must be a number.
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
ALLOWED = f"choose a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"


def choose_class_weights(
    given: Sequence[str],
    names: Sequence[str],
    labels: Labels,
    draws: Draws,
    known: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the weights as NAME=WEIGHT for each class in `names`; () without weights.

    Args:
        given: "auto"; or a YAML file of `name: weight`; or NAME=WEIGHT words, as this returns.
        names: of the classes that are trained.
        labels: of the training images, for "auto".
        draws: how often an epoch draws each, for "auto".
        known: further classes of the data, which may have weights, too.

    Raises ValueError if a class is unknown, or a weight is not an allowed number.
    """
    if not given:
        return ()
    all_names = list(dict.fromkeys([*names, *known]))
    if tuple(given) == (AUTO,):
        boxes = boxes_per_class(labels, draws.factors, len(names))
        weights = inverse_root_weights(boxes).clip(MIN_WEIGHT, MAX_WEIGHT)
        of_class = dict(zip(names, weights.tolist(), strict=True))
    elif file := file_of(given):
        of_class = _read_file(Path(file), all_names)
    else:
        of_class = _read_words(given, all_names)
    return tuple(f"{name}={of_class.get(name, 1.0)!r}" for name in names)


def weights_in_order(words: Sequence[str], names: Sequence[str]) -> tuple[float, ...]:
    """Return the weight of each class in `names`, () without weights.

    words: of `choose_class_weights`.

    >>> weights_in_order(["cat=2.0", "big dog=0.5"], ["big dog", "cat"])
    (0.5, 2.0)
    """
    if not words:
        return ()
    of_class = _read_words(words, names)
    return tuple(of_class.get(name, 1.0) for name in names)


def describe_class_weights(words: Sequence[str]) -> str:
    """Return a sentence with the largest and smallest weights. words: as `weights_in_order`."""
    by_weight = sorted(words, key=lambda word: -float(word.rpartition("=")[2]))
    texts = []
    for word in by_weight:
        name, _, weight = word.rpartition("=")
        texts.append(f"{excerpt(name)} {float(weight):.3g}")
    if len(texts) > SHOWN_CLASSES:
        half = SHOWN_CLASSES // 2
        texts = [*texts[:half], "...", *texts[-half:]]
    return f"--class-weights: {', '.join(texts)}"


def file_of(given: Sequence[str]) -> str:
    """Return the file that the value of --class-weights names; "" if it names none."""
    names_one = len(given) == 1 and given[0] != AUTO and _is_file(given[0])
    return given[0] if names_one else ""


def _is_file(word: str) -> bool:
    return word.lower().endswith((".yaml", ".yml")) or os.path.isfile(word)


def _read_file(file: Path, names: Sequence[str]) -> dict[str, float]:
    """Return the weights in a YAML file. Raises ValueError with file and line."""
    document = read_tree(file, file, "class weights", MAX_BYTES)
    if not isinstance(document, MappingNode) or not document.value:
        raise ValueError(f"{printable(file)}: class weights are lines of name: weight")
    of_class: dict[str, float] = {}
    for name, node in pairs(document, file, "the file"):
        text = node.value if isinstance(node, ScalarNode) else ""
        try:
            of_class |= _checked(name, text, names)
        except ValueError as error:
            raise ValueError(f"{where(file, node)}: {error}") from None
    return of_class


def _read_words(words: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Return the weights in NAME=WEIGHT words. Raises ValueError for another word."""
    of_class: dict[str, float] = {}
    for word in words:
        name, separator, text = word.rpartition("=")
        if not (separator and name):
            raise ValueError(
                f"--class-weights {excerpt(word)}: give auto, a YAML file of name: weight, or "
                "NAME=WEIGHT words"
            )
        try:
            weight = _checked(name, text, names)
        except ValueError as error:
            raise ValueError(f"--class-weights: {error}") from None
        if name in of_class:
            raise ValueError(f"--class-weights: class '{excerpt(name)}' has two weights")
        of_class |= weight
    return of_class


def _checked(name: str, text: str, names: Sequence[str]) -> Mapping[str, float]:
    """Return the weight of a class by its name.

    Raises ValueError if the class is not in `names`, or the weight is not an allowed number.
    """
    if name not in names:
        classes = counted(len(names), "class")
        near = did_you_mean(name, names)
        raise ValueError(f"class '{excerpt(name)}' is none of the {classes} of the data{near}")
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"the weight of class '{excerpt(name)}' is '{excerpt(text)}': {ALLOWED}")
    return {name: weight}
