"""AP against box size: COCO's AP of any ranges of size, as of its small, medium and large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from utils.metrics.coco import mean_of_known, precision_and_recall
from utils.metrics.matching import MAX_DETECTIONS, match_detections
from utils.metrics.records import Detections, GroundTruth, Ids

# Pixels, doubling, and COCO's limits 32 and 96.
SIZE_EDGES = (0.0, 8.0, 16.0, 32.0, 64.0, 96.0, 128.0, 256.0, 512.0, math.inf)
RANGES_AT_ONCE = 4  # as in COCO's evaluation, so that no more memory is needed


@dataclass(frozen=True)
class SizeBin:
    """AP of the objects of a range of sizes. A size is the square root of an area, in pixels.

    Both ends belong to a range, as in COCO.
    """

    low: float
    high: float  # may be infinite
    instances: int  # ground truths of that size, without crowds
    ap: float  # mean over classes and IoU 0.50:0.95; -1 without ground truth
    ap50: float  # at IoU 0.50

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; `high` is None if it is infinite."""
        high = None if math.isinf(self.high) else self.high
        return {
            "low": self.low,
            "high": high,
            "instances": self.instances,
            "AP": self.ap,
            "AP50": self.ap50,
        }


def size_bins(
    truth: GroundTruth,
    detections: Detections,
    *,
    image_ids: Ids,
    class_ids: Ids,
    edges: Sequence[float] = SIZE_EDGES,
) -> list[SizeBin]:
    """Return AP of the objects of each range of sizes, as COCO for small, medium and large ones.

    A ground truth of another size is ignored: a detection that finds it does not count. Neither
    does one that finds nothing and is itself of another size.

    Args:
        truth, detections: rows of other images and classes are left out.
        image_ids, class_ids: those to evaluate.
        edges: of the ranges, ascending, in pixels.

    Raises: ValueError if the edges do not ascend or there are fewer than two.
    """
    ranges = list(pairwise(edges))
    ascending = all(low < high for low, high in ranges)
    if not ranges or not ascending or edges[0] < 0:
        raise ValueError(
            f"The edges of the sizes are {list(edges)}, but must be two or more ascending numbers "
            "from 0 on."
        )

    bins = []
    for first in range(0, len(ranges), RANGES_AT_ONCE):
        some_ranges = ranges[first : first + RANGES_AT_ONCE]
        matches = match_detections(
            truth,
            detections,
            image_ids=image_ids,
            class_ids=class_ids,
            area_ranges=[(low**2, high**2) for low, high in some_ranges],
        )
        precision, _ = precision_and_recall(matches, limits=MAX_DETECTIONS[-1:])

        for a, (low, high) in enumerate(some_ranges):
            of_range = precision[:, :, :, a]  # [T, R, K, 1]
            bins.append(
                SizeBin(
                    low=float(low),
                    high=float(high),
                    instances=int(matches.truths[a].sum()),
                    ap=mean_of_known(of_range),
                    ap50=mean_of_known(of_range[0]),
                )
            )
    return bins
