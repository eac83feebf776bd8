"""val.py with the arithmetic of a training's own evaluation, for tests that compare the two."""

from typing import Any
from unittest import mock

from models.detector import Detector


def batch_norm_not_folded() -> Any:
    """In this context, or a test with this decorator, val.py does not fold BatchNorm into the
    convolutions, as train.py does not.

    The same operations give the same bits on any processor. Folded, boxes and scores differ by
    rounding: one of them may cross a threshold, which changes the AP of a model that has learned
    little by any amount. tests/models/test_detector.py compares folded models with others.
    """
    return mock.patch.object(Detector, "fuse", Detector.eval)
