"""The order of the pictures that show a kind of error, and the boxes that each names."""

import pytest

from tests.support.box_rows import detections_of, truths_of
from utils.metrics.errors import error_kinds, worst_pictures

TRUTH = truths_of(
    (1, 0, 0, 0, 10, 10, False),
    (1, 0, 100, 0, 20, 20, False),
    (2, 1, 0, 0, 10, 10, False),
    (3, 1, 0, 0, 90, 90, False),
    (4, 1, 0, 0, 10, 10, False),  # found as class 0
    (5, 1, 0, 0, 9, 9, True),
)
DETECTIONS = detections_of(
    (2, 0, 500, 0, 10, 10, 0.3),
    (2, 0, 500, 0, 10, 10, 0.6),
    (3, 1, 500, 0, 10, 10, 0.9),
    (1, 0, 500, 0, 10, 10, 0.6),
    (4, 0, 0, 0, 10, 10, 0.5),
    (5, 1, 0, 0, 9, 9, 0.95),  # in a crowd
)
ERRORS = error_kinds(TRUTH, DETECTIONS, image_ids=[1, 2, 3, 4, 5], class_ids=[0, 1])


def pictures(kind, **options):
    return worst_pictures(ERRORS, TRUTH, DETECTIONS, kind, **options)


def test_the_most_confident_error_is_first_then_more_errors():
    found = [(picture.image_id, picture.score) for picture in pictures("background")]
    assert found == [(3, 0.9), (2, 0.6), (1, 0.6)]
    assert pictures("background")[1].detections == (1, 0)
    assert pictures("background")[1].truths == (-1, -1)
    assert [picture.image_id for picture in pictures("background", limit=1)] == [3]


def test_most_missed_objects_are_first_then_the_largest():
    missed = pictures("missed")
    assert [picture.image_id for picture in missed] == [1, 3, 2]
    assert (missed[0].detections, missed[0].truths, missed[0].score) == ((), (1, 0), 0.0)


def test_errors_of_a_class_are_those_of_its_detections_and_of_its_objects():
    assert [picture.image_id for picture in pictures("background", class_id=1)] == [3]
    assert [picture.image_id for picture in pictures("missed", class_id=1)] == [3, 2]
    for class_id in (0, 1):  # detected as 0, and is 1
        (picture,) = pictures("classification", class_id=class_id)
        assert picture.as_dict() == {
            "kind": "classification",
            "image_id": 4,
            "score": 0.5,
            "detections": [4],
            "truths": [4],
        }
    assert pictures("classification", class_id=7) == []


def test_no_errors_no_pictures():
    assert pictures("duplicate") == []
    empty = truths_of(), detections_of()
    errors = error_kinds(*empty, image_ids=[], class_ids=[])
    assert worst_pictures(errors, *empty, "missed") == []
    assert worst_pictures(errors, *empty, "both") == []


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"^The kind of error is 'blur', but must be one of \["):
        pictures("blur")
