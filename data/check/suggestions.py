"""Suggested --img, --tile and --batch, each by a rule that its reason states.

The rules are rules of thumb: one cell of the finest level of most models has 8 px, and an object of
less than two cells is hardly located to COCO's higher IoU thresholds.
"""

import math

import numpy as np

from data.check.boxes import SMALLEST_STRIDE
from data.check.findings import Suggestion, share
from data.check.reading import Examined, Split
from utils.printable import counted

WANTED_PX = 2 * SMALLEST_STRIDE  # of the side of the objects, but for the smallest tenth
SMALLEST_PERCENT = 10
SMALLEST_IMG, LARGEST_IMG = 320, 1280
STEP = 32  # --img is a multiple of the largest stride
TILE = 640  # the usual one, at its own size
REFERENCE_IMG = 640

# As training/settings/recipe.py chooses, for 100 epochs.
EPOCHS = 100
FEW_STEPS = 500
BATCH, SMALL_BATCHES = 16, (8, 4)


def suggest(examined: Examined) -> list[Suggestion]:
    """Return the flags of train.py for this data set; none without boxes to be learned."""
    splits = [split for split in examined.splits if split.name == "train"] or examined.splits
    split = splits[0]
    if split.labels.crowd.all():  # true also for no boxes at all
        return []
    image_size, wanted = image_size_for(split)
    tile = suggest_tile(split, wanted)
    suggestions = [_img(split, image_size, wanted)]
    if tile is not None:
        suggestions = [Suggestion("--img", str(TILE), "tiles are resized to it")]
        suggestions.append(tile)
    else:
        suggestions.append(Suggestion("--tile", "", _no_tile(split, wanted)))
    suggestions.append(_batch(split))
    return suggestions


def image_size_for(split: Split) -> tuple[int, float]:
    """Return the suggested --img, and the one at which the objects would be large enough."""
    small = smallest_side(split, REFERENCE_IMG)
    wanted = REFERENCE_IMG * WANTED_PX / small
    long_side = float(np.median(split.labels.sizes.max(1)))
    largest = min(LARGEST_IMG, max(_up(long_side), SMALLEST_IMG))
    return min(max(_up(wanted), SMALLEST_IMG), largest), wanted


def smallest_side(split: Split, image_size: int) -> float:
    """Return the side that nine of ten objects exceed, in pixels of resized images."""
    sides = np.sqrt(split.labels.box_sizes(image_size).prod(1))
    return max(float(np.percentile(sides, SMALLEST_PERCENT)), 0.1)


def suggest_tile(split: Split, wanted: float) -> Suggestion | None:
    """Return --tile if objects are too small at LARGEST_IMG, and larger in the images themselves.

    wanted: the --img at which the objects would be large enough.
    """
    long_side = float(np.median(split.labels.sizes.max(1)))
    if wanted <= LARGEST_IMG or long_side < 1.5 * LARGEST_IMG:
        return None
    labels = split.labels
    boxes = labels.boxes_xywh[~labels.crowd, 2:]
    own = float(np.percentile(np.sqrt(boxes.prod(1)), SMALLEST_PERCENT))
    side = _up(min(max(TILE * own / WANTED_PX, SMALLEST_IMG), 2 * TILE))
    large = share(int((boxes.max(1) > side / 5).sum()), len(boxes))
    reason = (
        f"nine of ten objects exceed {own:.0f} px in the images themselves, and only "
        f"{smallest_side(split, LARGEST_IMG):.0f} px in images resized to {LARGEST_IMG}; {large} "
        "of the boxes are longer than the overlap of tiles, a fifth"
    )
    if boxes.max() > side:
        reason += "; --tile-whole for those that are larger than a tile"
    return Suggestion("--tile", str(side), reason)


def _img(split: Split, image_size: int, wanted: float) -> Suggestion:
    sides = np.sqrt(split.labels.box_sizes(image_size).prod(1))
    below = share(int((sides < SMALLEST_STRIDE).sum()), len(sides))
    reason = (
        f"nine of ten objects exceed {smallest_side(split, image_size):.0f} px (wanted: "
        f"{WANTED_PX}, two cells of 8 px), the median is {np.median(sides):.0f} px, and {below} "
        "have less than one cell"
    )
    if wanted > image_size:
        long_side = float(np.median(split.labels.sizes.max(1)))
        limit = "the images are no larger" if _up(long_side) <= image_size else "more takes long"
        reason += f"; {math.ceil(wanted):,} px would be wanted, but {limit}"
    return Suggestion("--img", str(image_size), reason)


def _no_tile(split: Split, wanted: float) -> str:
    long_side = float(np.median(split.labels.sizes.max(1)))
    if wanted <= LARGEST_IMG:
        return f"objects are large enough in whole images of {LARGEST_IMG} px or less"
    return f"the images, {long_side:.0f} px, have no more detail than --img {LARGEST_IMG} keeps"


def _batch(split: Split) -> Suggestion:
    images = len(split.labels)
    batch = BATCH
    for size in SMALL_BATCHES:
        if images * EPOCHS < FEW_STEPS * batch:
            batch = size

    if batch == BATCH:
        reason = (
            f"the default; {counted(images, 'image')} give {-(-images // BATCH):,} batches an "
            "epoch. On a GPU --batch -1 measures what fits"
        )
        return Suggestion("--batch", str(BATCH), reason)
    larger = 2 * batch
    steps = max(images * EPOCHS // larger, 1)
    reason = (
        f"{counted(images, 'image')} x {EPOCHS} epochs are only {steps:,} optimizer steps of "
        f"{larger}; {FEW_STEPS} are wanted"
    )
    return Suggestion("--batch", str(batch), reason)


def _up(side: float) -> int:
    """Return a side rounded up to a multiple of STEP.

    >>> _up(416), _up(417)
    (416, 448)
    """
    return math.ceil(side / STEP) * STEP
