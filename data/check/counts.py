"""How many images and boxes each split and class has; classes that are missing."""

import numpy as np

from data.check.findings import ERROR, NOTE, WARNING, Example, Finding, Table, share
from data.check.reading import Examined
from utils.printable import printable

FEW_BOXES = 10  # of a class in the train split: hardly learned
RARE = 50  # times fewer boxes than the most frequent class


def split_table(examined: Examined) -> Table:
    """Return images, boxes and image sizes of each split."""
    rows = []
    for split in examined.splits:
        labels = split.labels
        objects = labels.objects_per_image()
        sides = labels.sizes.max(1)

        rows.append(
            (
                split.name,
                f"{len(labels):,}",
                f"{int((objects == 0).sum()):,}",
                f"{int(objects.sum()):,}",
                f"{objects.mean():.1f}",
                f"{objects.max()}",
                f"{sides.min()} / {int(np.median(sides))} / {sides.max()}",
            )
        )

    header = ("split", "images", "empty", "boxes", "per image", "most", "long side, px")
    return Table("Splits", header, tuple(rows), "Long side: smallest / median / largest.")


def class_counts_table(examined: Examined) -> Table:
    """Return the boxes of each class in each split, and the share of all."""
    counts = class_counts(examined)
    totals = counts.sum(0)
    rows = []
    for index, name in enumerate(examined.names):
        cells = [f"{count:,}" for count in counts[:, index].tolist()]
        rows.append((printable(name), *cells, share(totals[index], totals.sum())))
    header = ("class", *(split.name for split in examined.splits), "of all")
    return Table("Boxes of each class", header, tuple(rows))


def class_counts(examined: Examined) -> np.ndarray:
    """Return the boxes of each class in each split, int64 [splits, classes].

    Regions to ignore do not count.
    """
    counts = []
    for split in examined.splits:
        labels = split.labels
        classes = labels.classes[~labels.crowd]
        counts.append(np.bincount(classes, minlength=len(examined.names)))
    return np.array(counts, np.int64)


def check_splits(examined: Examined) -> list[Finding]:
    """Return the splits without an object, which train.py and val.py refuse."""
    refused = [split for split in examined.splits if split.report.no_objects]
    if not refused:
        return []
    examples = tuple(Example(split.name, split.report.no_objects) for split in refused)
    advice = "label their images, or see where the labels should be: train.py refuses such data"
    title = "without an object to learn from"
    return [
        Finding("splits-without-objects", ERROR, "split", title, len(refused), advice, examples)
    ]


def check_classes(examined: Examined) -> list[Finding]:
    """Return the classes that a split lacks, or that have few boxes."""
    counts = dict(
        zip((split.name for split in examined.splits), class_counts(examined), strict=True)
    )
    names = [printable(name) for name in examined.names]
    everywhere = np.sum(list(counts.values()), axis=0)
    findings = [_unused(names, np.flatnonzero(everywhere == 0))]
    train = counts.get("train")
    if train is not None:
        for split, in_split in counts.items():
            if split != "train":
                findings.append(_not_in(names, split, (train > 0) & (in_split == 0)))
                findings.append(_only_in(names, split, (train == 0) & (in_split > 0)))
        findings.append(_few(names, train))
    return [finding for finding in findings if finding.count]


def _finding(
    check: str, level: str, title: str, advice: str, names: list[str], chosen: np.ndarray
) -> Finding:
    """Return a finding about classes, each an example.

    Args:
        check, level, title, advice: of the finding.
        names: of all classes, ready to print.
        chosen: the numbers of the classes.
    """
    examples = tuple(Example(f"class {index}", names[index]) for index in chosen.tolist())
    return Finding(check, level, "class", title, len(examples), advice, examples)


def _unused(names: list[str], unused: np.ndarray) -> Finding:
    return _finding(
        "classes-without-boxes",
        NOTE,
        "without a box in any split",
        "remove them from the names, unless boxes will follow: each costs outputs of the model",
        names,
        unused,
    )


def _not_in(names: list[str], split: str, absent: np.ndarray) -> Finding:
    return _finding(
        f"classes-not-in-{split}",
        WARNING,
        f"of train without a box in {split}",
        f"move images of them to {split}: their AP is unknown, and mAP leaves them out",
        names,
        np.flatnonzero(absent),
    )


def _only_in(names: list[str], split: str, untrained: np.ndarray) -> Finding:
    return _finding(
        f"classes-only-in-{split}",
        ERROR,
        f"of {split} without a box in train",
        "they cannot be learned, and their AP is 0: move images of them to train",
        names,
        np.flatnonzero(untrained),
    )


def _few(names: list[str], train: np.ndarray) -> Finding:
    """Return the classes with few boxes for training, or few beside the most frequent one."""
    few = (train > 0) & ((train < FEW_BOXES) | (train * RARE < train.max(initial=0)))
    chosen = np.flatnonzero(few)
    examples = tuple(
        Example(f"class {index}", f"{names[index]}: {train[index]:,} in train")
        for index in chosen[np.argsort(train[chosen], kind="stable")].tolist()
    )
    largest = names[int(train.argmax())] if len(train) else ""
    return Finding(
        "classes-with-few-boxes",
        NOTE,
        "class",
        f"with fewer than {FEW_BOXES} boxes in train, or {RARE} times fewer than {largest}",
        len(examples),
        "label more images of them, or join classes (--merge); expect a low AP",
        examples,
    )
