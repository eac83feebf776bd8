"""models/export/compare.py: the largest differences, of predictions and of detections, worked out
by hand.
"""

import pytest
import torch

from models.export.compare import Differences, compare, drawn_images
from models.export.metadata import ExportedModel, Suppression
from tests.models.export.test_exported_backend import Fixed, numbered

NMS = Suppression(0.25, 0.45, 2, False)
BOXES, SCORES = torch.tensor([[[0.0, 0, 10, 100]]]), torch.tensor([[[0.5, 0.25]]])


def differences(ours, theirs, **fields):
    return compare(Fixed(*ours, **fields), Fixed(*theirs, **fields), [numbered(1)])


def test_equal_outputs_do_not_differ():
    found = differences((BOXES, SCORES), (BOXES, SCORES))
    assert (found.boxes_px, found.scores, found.images, found.acceptable) == (0, 0, 1, True)
    assert str(found) == "boxes differ from torch by at most 0 px, scores by 0, in 1 image"


@pytest.mark.parametrize(
    ("boxes", "scores", "acceptable"),
    [
        (0.0155, 0, True),
        (0.0165, 0, False),
        (0, 0.0009, True),
        (0, 0.0011, False),
        (float("nan"), 0, False),
    ],
)
def test_limits_are_a_number_and_shares_of_coordinate_and_side(boxes, scores, acceptable):
    """The coordinate that changes is 100 px, as the side: 0.005 px + (1e-5 + 1e-4) * 100 px = 0.016
    px are allowed.
    """
    changed = BOXES + torch.tensor([0, 0, 0, boxes])
    assert differences((changed, SCORES + scores), (BOXES, SCORES)).acceptable is acceptable


def test_side_is_that_of_the_box():
    """Of a box of 10 x 5 px at 1,000 px 0.005 px + 1e-5 * 1,005 px + 1e-4 * 10 px = 0.016 px are
    allowed.
    """
    boxes = torch.tensor([[[1000.0, 1000, 1010, 1005]]])
    for change, acceptable in ((0.0155, True), (0.0168, False)):
        changed = boxes + torch.tensor([0, 0, 0, change])
        assert differences((changed, SCORES), (boxes, SCORES)).acceptable is acceptable


def test_inverted_boxes_have_sides_too():
    """Of -1,000 x -1,000 px: they may differ as much as others, and equal ones do not differ."""
    boxes = torch.tensor([[[1000.0, 1000, 0, 0]]])
    assert differences((boxes, SCORES), (boxes, SCORES)).acceptable
    for change, acceptable in ((0.104, True), (0.106, False)):  # 0.005 + 1e-4 * 1,000 = 0.105 px
        changed = boxes + torch.tensor([0, 0, change, 0])
        assert differences((changed, SCORES), (boxes, SCORES)).acceptable is acceptable


@pytest.mark.parametrize(
    ("score", "change", "acceptable"),
    [
        (0.5, 4.9, True),
        (0.5, 5.1, False),
        (0.01, 50, True),
        (float("nan"), 0, False),
        (0.005, float("nan"), True),
    ],
)
def test_16_bit_boxes_are_compared_above_a_score(score, change, acceptable):
    """1 px + 4 % of the side of 100 px + 1e-5 * 100 px are allowed, and anything for scores up to
    0.01.
    """
    changed, scores = BOXES + torch.tensor([0, 0, 0, change]), torch.tensor([[[0.001, score]]])
    assert (
        differences((changed, scores), (BOXES, scores), precision="fp16").acceptable is acceptable
    )
    if score == 0.005:  # in 32 bits every box is compared
        assert not differences((changed, scores), (BOXES, scores)).acceptable


def test_detections_are_matched_in_any_order():
    rows = torch.tensor([[[0.0, 0, 10, 10, 0.9, 1], [50, 50, 60, 60, 0.9, 1]]])
    found = differences((rows.flip(1),), (rows,), nms=NMS)
    assert (found.boxes_px, found.unmatched, found.detections, found.acceptable) == (0, 0, 2, True)


def test_missing_detections_are_counted():
    rows = torch.tensor([[[0.0, 0, 10, 10, 0.9, 1], [50, 50, 60, 60, 0.8, 1]]])
    other = torch.tensor(
        [[[0.0, 0, 10, 10, 0.9, 0], [0, 0, 0, 0, 0, 0]]]
    )  # another class, and nothing
    found = differences((other,), (rows,), nms=NMS)
    assert (found.unmatched, found.detections, found.acceptable) == (3, 2, False)
    assert "3 of 2 detections differ" in str(found)
    assert Differences("fp32", unmatched=1).acceptable
    for precision, limit in (("fp32", 3), ("fp16", 11)):  # 1 + 1 % and 1 + 5 % of 200
        for unmatched in (limit, limit + 1):
            assert Differences(precision, unmatched=unmatched, detections=200).acceptable is (
                unmatched == limit
            )


def test_detections_match_within_a_share_of_their_side():
    """In 16 bits 1 px + 1 px + 4 % of 100 px + 1e-5 * 100 px."""
    rows = torch.tensor([[[0.0, 0, 100, 100, 0.9, 1]]])
    for change, unmatched in ((5.9, 0), (6.1, 2)):
        moved = rows + torch.tensor([0, 0, 0, change, 0, 0])
        assert differences((moved,), (rows,), nms=NMS, precision="fp16").unmatched == unmatched


def test_drawn_images_have_the_size_of_the_file():
    images = drawn_images(ExportedModel(("a",), 32, 64, canvas=(32, 64)), 2)
    assert [tuple(image.shape) for image in images] == [(1, 3, 32, 64)] * 2
    assert images[0].std() > 0.1
    assert drawn_images(ExportedModel(("a",), 32, 64), 1)[0].shape == (1, 3, 64, 64)
