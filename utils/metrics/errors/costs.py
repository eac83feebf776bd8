"""The AP that each kind of error costs, after TIDE: what correcting the errors of a kind gains.

Legend: n detections, K classes, R recall points.

Source: arXiv 2008.08115, sections 2.3 and 2.4; behavior as of tidecv 1.0.1, MIT License.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from utils.metrics.coco import hits_needed, precision_envelope

SPECIAL_KINDS = ("false_positive", "false_negative")
UNKNOWN_AP = -1.0  # without ground truth
# Quotients, unlike COCO's, which are multiples of 0.01 and differ in the last bit.
RECALL_POINTS = tuple((np.arange(101) / 100).tolist())


class Marked(NamedTuple):
    """Detections and what they are, sorted by image, class, descending score, row."""

    classes: np.ndarray  # int64 [n], index of the class
    scores: np.ndarray  # float64 [n]
    kind: np.ndarray  # int8 [n], number of the kind of error, or `right`
    in_crowd: np.ndarray  # bool [n], those that do not count
    claims: np.ndarray  # bool [n], those that find a ground truth once they are corrected
    corrected: np.ndarray  # int64 [n], index of the class of claims once they are corrected


def error_costs(
    marked: Marked, truths: np.ndarray, missed: np.ndarray, kinds: Sequence[str], right: int
) -> tuple[float, dict[str, float]]:
    """Return the mean AP at IoU 0.5, in [0, 1], and how much each kind and special kind costs.

    A kind of error is corrected like this:

    - classification, localization: the most confident error that claims a ground truth finds it,
      the others are removed.
    - both, duplicate, background: the errors are removed.
    - missed: the ground truths are removed.
    - false positive: all errors rank below all right detections.
    - false negative: all ground truths that were not found are removed.

    The mean is over the classes that have a ground truth or a detection; a class with detections
    only has AP 0. If a correction leaves none of them, AP is 1. Without any ground truth AP is -1
    and nothing has a cost.

    Args:
        marked: the detections.
        truths: int64 [K], the number of ground truths.
        missed: int64 [K], the number of missed ones.
        kinds: the names of the kinds. The last one is of ground truths.
        right: the kind of a detection without an error.
    """
    cost = dict.fromkeys([*kinds, *SPECIAL_KINDS], 0.0)
    if not truths.any():
        return UNKNOWN_AP, cost

    is_right = marked.kind == right
    is_counted = ~marked.in_crowd
    order = _best_first(marked.classes, marked.scores)
    order = order[is_counted[order]]
    ap = _mean_ap(marked.classes[order], is_right[order], truths)

    # The kinds of detections. Of equal scores errors come first now, as in tidecv.
    errors_first = _best_first(marked.classes, marked.scores, is_right)
    for number, name in enumerate(kinds[:-1]):
        is_kind = marked.kind == number
        is_fixed = is_kind & marked.claims
        is_kept = (is_counted & ~is_kind) | is_fixed
        classes = np.where(is_fixed, marked.corrected, marked.classes)
        order = errors_first
        if (classes != marked.classes).any():
            order = _best_first(classes, marked.scores, is_right)

        order = order[is_kept[order]]
        is_true = is_right | is_fixed
        corrected_ap = _mean_ap(classes[order], is_true[order], truths)
        cost[name] = max(corrected_ap - ap, 0.0)

    # Without the missed ground truths, and without all that were not found.
    order = errors_first[is_counted[errors_first]]
    classes = marked.classes[order]
    is_true = is_right[order]
    corrected_ap = _mean_ap(classes, is_true, truths - missed)
    cost[kinds[-1]] = max(corrected_ap - ap, 0.0)
    found = np.bincount(classes[is_true], minlength=len(truths))
    cost["false_negative"] = _mean_ap(classes, is_true, found) - ap

    # With all errors behind all right detections.
    order = np.lexsort((~is_true, classes))
    cost["false_positive"] = _mean_ap(classes[order], is_true[order], truths) - ap
    return ap, cost


def _best_first(
    classes: np.ndarray, scores: np.ndarray, last: np.ndarray | None = None
) -> np.ndarray:
    """Return the order by class, descending score, and of equal scores those of `last` last."""
    if last is None:
        return np.lexsort((-scores, classes))
    return np.lexsort((last, -scores, classes))


def _mean_ap(classes: np.ndarray, is_right: np.ndarray, truths: np.ndarray) -> float:
    """Return the mean AP over the classes with ground truths or detections; 1 if there are none.

    Args:
        classes: int64 [n], ascending; the detections of a class are in order of descending score.
        is_right: bool [n].
        truths: int64 [K].
    """
    K = len(truths)
    has_any = (truths > 0) | (np.bincount(classes, minlength=K) > 0)
    if not has_any.any():
        return 1.0

    best, _ = precision_envelope(
        is_right,
        np.ones(len(classes), bool),
        classes,
        np.searchsorted(classes, np.arange(K)),
        hits_needed(truths, RECALL_POINTS),
    )  # [K, R]
    ap = np.where(truths > 0, best.mean(axis=1), 0.0)
    return float(ap[has_any].mean())
