"""Ways to predict boxes and scores: one forward pass, test-time augmentation, an ensemble of models.

B images of H x W pixels, N predictions per image, C classes.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.detector import Detector
from utils.images.letterbox import GREY

Predict = Callable[[Tensor], tuple[Tensor, Tensor]]  # images [B, 3, H, W] -> boxes_xyxy [B, N, 4], scores [B, N, C]


def single_view(model: Detector) -> Predict:
    """Return a function that predicts with one forward pass of the model."""
    return lambda images: model.decode(model(images))


def with_test_time_augmentation(model: Detector) -> Predict:
    """Return a function that joins the predictions at scales 1, 0.83 (mirrored) and 0.67, in pixels of its input.

    Source: facts of YOLOv5's behaviour.
    """

    def predict(images: Tensor) -> tuple[Tensor, Tensor]:
        height, width = images.shape[2:]
        step = max(model.strides)
        boxes, scores = [], []
        for scale, mirrored in ((1.0, False), (0.83, True), (0.67, False)):
            small = (max(1, round(height * scale)), max(1, round(width * scale)))
            view = images.flip(3) if mirrored else images
            if scale != 1:
                view = F.interpolate(view, small, mode="bilinear", align_corners=False)
            view = F.pad(view, (0, -small[1] % step, 0, -small[0] % step), value=GREY / 255)
            box, score = model.decode(model(view))
            # Python numbers, not a tensor: the host would wait for the copy of the tensor to the GPU.
            scales = [width / small[1], height / small[0]] * 2
            x1, y1, x2, y2 = (edge * factor for edge, factor in zip(box.unbind(-1), scales, strict=True))
            if mirrored:
                x1, x2 = width - x2, width - x1
            boxes.append(torch.stack([x1, y1, x2, y2], -1))
            scores.append(score)
        return torch.cat(boxes, 1), torch.cat(scores, 1)

    return predict


def ensemble(members: Sequence[Predict]) -> Predict:
    """Return a function that joins the predictions of all members, for non-maximum suppression to merge."""

    def predict(images: Tensor) -> tuple[Tensor, Tensor]:
        parts = [member(images) for member in members]
        return torch.cat([boxes for boxes, _ in parts], 1), torch.cat([scores for _, scores in parts], 1)

    return predict


def merge_classes(predict: Predict) -> Predict:
    """Return a function that predicts the same boxes with a single class, whose score is that of the best class."""

    def predict_one(images: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = predict(images)
        return boxes, scores.amax(-1, keepdim=True)

    return predict_one


def only_classes(predict: Predict, class_ids: Sequence[int]) -> Predict:
    """Return a function that predicts the same boxes with score 0 for all other classes: no threshold keeps these."""

    def predict_some(images: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = predict(images)
        kept = torch.zeros_like(scores)
        for class_id in class_ids:  # one by one: the host would wait for the copy of an index list to the GPU
            kept[..., class_id] = scores[..., class_id]
        return boxes, kept

    return predict_some
