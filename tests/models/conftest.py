"""The models that the tests of models/ share."""

import pytest


@pytest.fixture
def small_table() -> dict:
    """A table with two levels, strides 2 and 4."""
    return {
        "nc": 2,
        "depth_multiple": 1.0,
        "width_multiple": 1.0,
        "anchors": [[4, 4], [8, 8]],
        "backbone": [
            [-1, 1, "Conv", [8, 3, 2]],
            [-1, 2, "Conv", [16, 3, 1]],
            [-1, 1, "Conv", [16, 3, 2]],
        ],
        "head": [
            [-1, 1, "nn.Upsample", ["None", 2, "nearest"]],
            [[-1, 1], 1, "Concat", [1]],
            [[-1, 2], 1, "Detect", ["nc", "anchors"]],
        ],
    }
