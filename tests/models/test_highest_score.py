"""models/highest_score.py: the highest score of a run in which nothing is found."""

from threading import Thread

import pytest
import torch

from models.highest_score import FLOOR, HighestScore
from tests.support.exporting import MICRO, lively_detector, micro_table

# B = 2 images, N = 3 predictions, C = 2 classes.
SCORES = torch.tensor(
    [
        [[0.10, 0.02], [0.03, 0.125], [0.00, 0.00]],
        [[0.21, 0.20], [0.05, 0.01], [0.00, 0.00]],
    ]
)


def highest(scores: torch.Tensor = SCORES, **settings: object) -> HighestScore:
    """What has taken in these scores, image by image."""
    kept = HighestScore(0.25, **settings)  # type: ignore[arg-type]
    for image in scores:
        kept.add(image[None])
    return kept


def test_highest_score_of_all_images_is_kept():
    assert highest().value == pytest.approx(0.21)
    assert highest(SCORES.flip(0)).value == pytest.approx(0.21)  # in any order
    assert highest(SCORES[:1]).value == pytest.approx(0.125)


def test_chosen_class_counts_where_it_is_the_best_of_its_box():
    """A box is of one class: 0.20 is of a box of class 0, 0.125 of one of class 1."""
    assert highest(class_ids=(1,)).value == pytest.approx(0.125)
    assert highest(class_ids=(0, 1)).value == pytest.approx(0.21)
    assert highest(class_ids=(1,), multi_label=True).value == pytest.approx(0.20)


def test_nothing_is_kept_of_no_predictions():
    assert highest(torch.zeros(0, 3, 2)).value == 0
    assert highest(torch.zeros(2, 0, 2), class_ids=(1,)).value == 0
    assert highest(torch.zeros(2, 0, 2)).sentence(2) == (
        "no object found in 2 images: all scores are below 0.01 (--conf 0.25)"
    )


def test_low_scores_are_needed_until_something_is_found():
    kept = HighestScore(0.25)
    assert kept.lowest_needed == FLOOR
    kept.add(SCORES)
    assert kept.lowest_needed == pytest.approx(0.21)  # only a higher one changes anything
    kept.stop()
    assert kept.lowest_needed == 0.25
    kept.add(2 * SCORES)
    assert kept.value == pytest.approx(0.21)
    assert HighestScore(0.0).lowest_needed == 0  # the user wants all


@pytest.mark.parametrize(
    ("score", "settings", "end"),
    [
        (0.13, {}, "the highest score is 0.13 (--conf 0.25)"),
        (0.2499, {}, "the highest score is 0.249 (--conf 0.25)"),  # not 0.25
        (0.009, {}, "all scores are below 0.01 (--conf 0.25)"),
        (float("nan"), {}, "the model's scores are not numbers (NaN)"),
        (
            0.1,
            {"model_confidence": 0.2},
            "the highest score is not known, because the exported file leaves out scores up to "
            "0.2; export it with a lower --conf-thres",
        ),
        (
            0.3,
            {},
            "the highest score is 0.3 (--conf 0.25), of a box that gives way to one of another "
            "class or to a tile",
        ),
    ],
)
def test_sentence(score, settings, end):
    kept = highest(torch.tensor([[[score, 0.0]], [[0.0, 0.0]]], dtype=torch.float64), **settings)
    assert kept.sentence(1) == f"no object found in 1 image: {end}"


def test_sentence_names_chosen_classes():
    assert highest(class_ids=(1,)).sentence(12) == (
        "no object of the chosen classes found in 12 images: the highest score is 0.125 "
        "(--conf 0.25)"
    )


@pytest.mark.parametrize(
    "head", [("Detect",), ("DistanceDetect", "nc", 16), ("DecoupledDetect", "nc")], ids=str
)
def test_lower_scores_change_no_bit_of_the_others(head):
    """So a run's detections do not depend on when its first one came."""
    table = str(MICRO) if head == ("Detect",) else micro_table(*head)
    detector = lively_detector(table)
    with torch.inference_mode():
        raw = detector(torch.rand(2, 3, 64, 96))
        boxes, scores = detector.decode(raw, 0.4)
        more_boxes, more_scores = detector.decode(raw, FLOOR)
    assert more_scores.shape[1] > scores.shape[1]
    for image in range(2):
        kept = scores[image].amax(-1) > 0.4
        more_kept = more_scores[image].amax(-1) > 0.4
        assert kept.any()
        assert torch.equal(boxes[image, kept], more_boxes[image, more_kept])
        assert torch.equal(scores[image, kept], more_scores[image, more_kept])


def test_threads_share_one_highest_score():
    kept = HighestScore(0.25)
    values = torch.linspace(0, 0.2, 400).reshape(4, 100, 1, 1, 1)
    threads = [Thread(target=lambda part=part: [*map(kept.add, part)]) for part in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept.value == pytest.approx(0.2)
