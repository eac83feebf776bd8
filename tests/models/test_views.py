"""models/views.py: test-time augmentation, ensembles and class filters."""

import torch

from models.views import ensemble, merge_classes, only_classes, with_test_time_augmentation


def test_augmented_views_map_boxes_back_to_the_image():
    """A model that predicts a box at the brightest pixel finds the same point in each view."""

    class Brightest:
        strides = (32,)

        def __call__(self, images):
            return images

        def decode(self, images):
            width = images.shape[3]
            index = images.mean(1).flatten(1).argmax(1)
            x, y = (index % width).float() + 0.5, (index // width).float() + 0.5
            return torch.stack([x - 2, y - 2, x + 2, y + 2], -1)[:, None], torch.ones(len(images), 1, 1)

    images = torch.zeros(1, 3, 96, 160)
    images[0, :, 30:36, 50:56] = 1  # centre (53, 33)
    boxes, scores = with_test_time_augmentation(Brightest())(images)
    assert boxes.shape == (1, 3, 4)
    assert scores.shape == (1, 3, 1)
    centers = (boxes[0, :, :2] + boxes[0, :, 2:]) / 2
    assert (centers - torch.tensor([53.0, 33.0])).abs().max() < 4


def constant_model(boxes, scores):
    return lambda images: (
        torch.tensor(boxes).expand(len(images), -1, 4),
        torch.tensor(scores).expand(len(images), -1, 2),
    )


def test_ensemble_concatenates_predictions():
    first = constant_model([[0.0, 0, 1, 1]], [[0.1, 0.9]])
    second = constant_model([[0.0, 0, 2, 2], [0, 0, 3, 3]], [[0.2, 0.3], [0.5, 0.4]])
    boxes, scores = ensemble([first, second])(torch.zeros(2, 3, 8, 8))
    assert boxes[1].tolist() == [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]]
    torch.testing.assert_close(scores[0], torch.tensor([[0.1, 0.9], [0.2, 0.3], [0.5, 0.4]]))


def test_merge_classes_keeps_the_best_score():
    boxes, scores = merge_classes(constant_model([[0.0, 0, 1, 1]], [[0.1, 0.9]]))(torch.zeros(1, 3, 8, 8))
    assert boxes.shape == (1, 1, 4)
    torch.testing.assert_close(scores, torch.tensor([[[0.9]]]))


def test_only_classes_zeroes_scores_of_other_classes():
    predict = constant_model([[0.0, 0, 1, 1]], [[0.1, 0.9]])
    for class_ids, expected in (([0], [0.1, 0]), ([1], [0, 0.9]), ([0, 1], [0.1, 0.9]), ([], [0, 0])):
        boxes, scores = only_classes(predict, class_ids)(torch.zeros(1, 3, 8, 8))
        assert boxes.shape == (1, 1, 4)
        torch.testing.assert_close(scores, torch.tensor([[expected]], dtype=torch.float32))
