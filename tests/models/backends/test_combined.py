"""models/backends/combined.py: test-time augmentation, ensembles; merged and reordered classes."""

from functools import partial

import pytest
import torch

from models.backends import Backend, Prediction
from models.backends.combined import AugmentedViews, Ensemble, MergedClasses, ReorderedClasses


class Fake(Backend):
    """A backend of two classes that always predicts the same boxes and scores."""

    def __init__(self, boxes=(), scores=(), *, stride=32, canvas=None):
        self.boxes, self.scores = boxes, scores
        self.num_classes, self.stride, self.device, self.canvas = (
            2,
            stride,
            torch.device("cpu"),
            canvas,
        )

    def predict(self, images, confidence=0.0):
        count = len(images)
        return Prediction(
            torch.tensor(self.boxes).expand(count, -1, 4),
            torch.tensor(self.scores).expand(count, -1, 2),
            "raw",
        )


IMAGES = torch.zeros(2, 3, 8, 8)


def test_augmented_views_map_boxes_back_to_the_image():
    """A model that predicts a box at the brightest pixel finds the same point in each view."""

    class Brightest(Fake):
        def predict(self, images, confidence=0.0):
            width = images.shape[3]
            index = images.mean(1).flatten(1).argmax(1)
            x, y = (index % width).float() + 0.5, (index // width).float() + 0.5
            return Prediction(
                torch.stack([x - 2, y - 2, x + 2, y + 2], -1)[:, None],
                torch.ones(len(images), 1, 1),
            )

    images = torch.zeros(1, 3, 96, 160)
    images[0, :, 30:36, 50:56] = 1  # center (53, 33)
    boxes, scores, raw = AugmentedViews(Brightest()).predict(images)
    assert raw is None
    assert boxes.shape == (1, 3, 4)
    assert scores.shape == (1, 3, 1)
    centers = (boxes[0, :, :2] + boxes[0, :, 2:]) / 2
    assert (centers - torch.tensor([53.0, 33.0])).abs().max() < 4


@pytest.mark.parametrize("width", [160, 100, 33])
def test_mirrored_view_shows_the_canvas_flipped_and_its_boxes_are_flipped_back(width):
    """An image at the top left is at the top right of the mirrored view, whose own border is at its
    right. A box on the whole width of the view comes back as the whole width, whatever its scale.
    """

    class Edges(Fake):
        def __init__(self):
            super().__init__()
            self.letterbox, self.stride, self.views = "top_left", 8, []

        def predict(self, images, confidence=0.0):
            self.views.append(images)
            used = round(width * (1.0, 0.83, 0.67)[len(self.views) - 1])
            box = torch.tensor([[[0.0, 0, used, 1], [0, 0, used / 4, 1]]])
            return Prediction(box, torch.ones(1, 2, 1))

    images = torch.full((1, 3, 64, width), 114 / 255)
    images[..., : width // 2] = 1  # the image, at the left
    views = AugmentedViews(Edges())
    boxes = views.predict(images).boxes_xyxy
    assert views.letterbox == "top_left"

    whole, quarter = boxes[0, ::2], boxes[0, 1::2]
    equal = partial(torch.testing.assert_close, rtol=0, atol=1e-4)
    equal(whole[:, [0, 2]], torch.tensor([[0.0, width]] * 3))
    expected = torch.tensor([[0, 0.25], [0.75, 1], [0, 0.25]]) * width
    equal(quarter[:, [0, 2]], expected)

    mirrored = views.members[0].views[1]
    used = round(width * 0.83)
    bright = (mirrored[0, 0, 0] > 0.9).nonzero().squeeze(1)
    assert abs(int(bright.min()) - used / 2) <= 1
    assert int(bright.max()) == used - 1


def test_ensemble_takes_images_at_one_place_only():
    corner = [Fake(), Fake()]
    for each in corner:
        each.letterbox = "top_left"
    assert Ensemble(corner).letterbox == MergedClasses(corner[0]).letterbox == "top_left"
    assert Ensemble([Fake(), Fake()]).letterbox == "center"
    with pytest.raises(
        ValueError,
        match="must take images at the same place of the canvas: one of these takes them in the "
        "center, another one at the top left",
    ):
        Ensemble([Fake(), AugmentedViews(corner[0])])


def test_ensemble_concatenates_predictions():
    first = Fake([[0.0, 0, 1, 1]], [[0.1, 0.9]])
    second = Fake([[0.0, 0, 2, 2], [0, 0, 3, 3]], [[0.2, 0.3], [0.5, 0.4]], stride=64)
    both = Ensemble([first, second])
    boxes, scores, raw = both.predict(IMAGES)
    assert boxes[1].tolist() == [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]]
    torch.testing.assert_close(scores[0], torch.tensor([[0.1, 0.9], [0.2, 0.3], [0.5, 0.4]]))
    assert (raw, both.stride, both.canvas) == (None, 64, None)


def test_ensemble_takes_the_only_fixed_size_and_refuses_two():
    small, large = Fake(canvas=(96, 64)), Fake(canvas=(128, 128))
    assert Ensemble([Fake(), small]).canvas == (96, 64)
    with pytest.raises(
        ValueError, match="must take the same image size, these take 64 x 96 and 128 x 128"
    ):
        Ensemble([small, large])


def test_ensemble_refuses_a_fixed_size_that_another_stride_does_not_divide():
    with pytest.raises(
        ValueError, match="one model takes images of 96 x 96 only, another one multiples of 64"
    ):
        Ensemble([Fake(canvas=(96, 96)), Fake(stride=64)])


def test_augmented_views_refuse_a_fixed_size():
    with pytest.raises(
        ValueError, match="needs a model for images of any size, this one is for 64 x 96 only"
    ):
        AugmentedViews(Fake(canvas=(96, 64)))


def test_merged_classes_keep_the_best_score():
    merged = MergedClasses(Fake([[0.0, 0, 1, 1]], [[0.1, 0.9]]))
    boxes, scores, _ = merged.predict(IMAGES[:1])
    assert (boxes.shape, merged.num_classes) == ((1, 1, 4), 1)
    torch.testing.assert_close(scores, torch.tensor([[[0.9]]]))


def test_reordered_classes_move_scores():
    _, scores, _ = ReorderedClasses(Fake([[0.0, 0, 1, 1]], [[0.1, 0.9]]), [1, 0]).predict(IMAGES)
    torch.testing.assert_close(scores, torch.tensor([[[0.9, 0.1]]] * 2))


def test_only_joined_predictions_need_suppression():
    """A single model without duplicates stays free of them, whatever happens to its classes."""
    free = Fake()
    free.needs_nms = False
    assert [one.needs_nms for one in (MergedClasses(free), ReorderedClasses(free, [1, 0]))] == [
        False
    ] * 2
    assert [both.needs_nms for both in (Ensemble([free, free]), AugmentedViews(free))] == [True] * 2


def test_only_a_single_model_passes_on_its_own_limit():
    limited = Fake()
    limited.max_detections = 20
    assert [
        one.max_detections for one in (MergedClasses(limited), ReorderedClasses(limited, [1, 0]))
    ] == [20] * 2
    assert [both.max_detections for both in (Ensemble([limited] * 2), AugmentedViews(limited))] == [
        None
    ] * 2
