"""What the curves of a training say: learned by heart, statistics that lag, few images.

E epochs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from utils.log import Row
from utils.printable import counted

FEW_IMAGES = 100  # below it the result depends on which images were labeled, and on the seed
FEW_VAL_IMAGES = 30
FEWEST_EPOCHS = 3  # from which a curve says something
SPLITS = ("train", "val")
MAP = "metrics/mAP_0.5:0.95"

# Shares of a loss or of mAP; each is far from the noise of one epoch.
BY_HEART = 1.1  # of the least val loss, at the end
COLLAPSED = 2.0  # of the least val loss before, at its peak
CAME_BACK = 0.75  # of the peak, at the end
FELL = 0.5  # of the best mAP before


class Losses(NamedTuple):
    """Sums of the loss terms of each validated epoch [E], and its mAP50-95 [E]."""

    epochs: list[int]
    train: list[float]
    val: list[float]
    map: list[float]


def curve_advice(rows: Sequence[Row], train_images: int, val_images: int) -> list[str]:
    """Return a sentence for each thing that the curves of a training say.

    rows: of results.csv, one for each epoch. train_images, val_images: of the splits.
    """
    sentences = []
    losses = _losses(rows)
    if len(losses.epochs) >= FEWEST_EPOCHS:
        sentence = _of_statistics(losses) or _of_overfitting(losses)
        if sentence:
            sentences.append(sentence)
    if rows and train_images < FEW_IMAGES:
        sentences.append(
            f"There are {counted(train_images, 'training image')}: a result changes with the seed "
            "and with every image. Start from trained weights (--weights), and label more."
        )
    if rows and val_images < FEW_VAL_IMAGES:
        sentences.append(
            f"There are {counted(val_images, 'val image')}: differences of a few hundredths of mAP "
            "are chance."
        )
    return sentences


def _of_statistics(losses: Losses) -> str:
    """Return a sentence if val collapsed while the learning rate was high, otherwise "".

    A model that learns by heart gets worse slowly, and does not recover.
    """
    val = losses.val
    peak = max(range(1, len(val)), key=lambda index: val[index])
    least_before = min(val[:peak])
    came_back = val[-1] < CAME_BACK * val[peak]
    map_fell = min(losses.map[peak:]) < FELL * max(losses.map[:peak])
    if val[peak] < COLLAPSED * least_before or not (came_back or map_fell):
        return ""

    after = "and falls again later" if came_back else "and mAP falls with it"
    return (
        f"The loss of val rises to {val[peak] / least_before:.1f} times its value until epoch "
        f"{losses.epochs[peak]}, {after}, while the model learns: it does not learn by heart, but "
        "its weights change faster than the statistics of BatchNorm can follow. A lower learning "
        "rate (lr0 of --hyp), more epochs or more images help."
    )


def _of_overfitting(losses: Losses) -> str:
    """Return a sentence if the model learns the training images by heart, otherwise ""."""
    lowest = min(range(len(losses.val)), key=lambda index: losses.val[index])
    val_rose = losses.val[-1] > BY_HEART * losses.val[lowest]
    train_fell = losses.train[-1] < losses.train[lowest]
    if not val_rose or not train_fell:
        return ""
    return (
        f"The loss of val rises from epoch {losses.epochs[lowest]} on while that of train falls: "
        "the model learns the training images by heart. More data or more augmentation helps; "
        "more epochs do not."
    )


def _losses(rows: Sequence[Row]) -> Losses:
    """Return the losses of the validated epochs.

    Terms that are not there in all of them, as YOLOX's l1, are left out.
    """
    validated = [row for row in rows if math.isfinite(row.get(MAP, math.nan))]
    names = []
    for name in validated[0] if validated else ():
        if name.startswith("train/") and name.endswith("_loss"):
            names.append(name.removeprefix("train/"))

    terms = []
    for name in names:
        values = [row.get(f"{split}/{name}", 0.0) for row in validated for split in SPLITS]
        if all(value > 0 for value in values):
            terms.append(name)
    if not terms:
        return Losses([], [], [], [])

    sums: dict[str, list[float]] = {}
    for split in SPLITS:
        sums[split] = [sum(row[f"{split}/{term}"] for term in terms) for row in validated]
    epochs = [round(row["epoch"]) for row in validated]
    return Losses(epochs, sums["train"], sums["val"], [row[MAP] for row in validated])
