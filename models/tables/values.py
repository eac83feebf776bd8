"""What kind of value an entry of a table has."""

import math
from collections.abc import Sequence
from typing import Any


def is_whole(value: Any, least: int | None = None) -> bool:
    """Whether `value` is an integer (not a bool), and at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return least is None or value >= least


def is_positive(value: Any) -> bool:
    """Whether `value` is a finite number above 0 (not a bool)."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return 0 < value < math.inf


def is_list(value: Any) -> bool:
    """Whether `value` is a sequence other than text."""
    return isinstance(value, Sequence) and not isinstance(value, str)
