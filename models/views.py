"""Ways to get boxes and scores of images: one forward pass, several views of an image, several models.

B images of H x W pixels, N predictions of an image, C classes.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.detector import Detector
from utils.letterbox import GREY

Predict = Callable[[Tensor], tuple[Tensor, Tensor]]  # images [B, 3, H, W] -> boxes_xyxy [B, N, 4], scores [B, N, C]


def single_view(model: Detector) -> Predict:
    """One forward pass."""
    return lambda images: model.decode(model(images))


def with_test_time_augmentation(model: Detector) -> Predict:
    """Predictions at scales 1, 0.83 (mirrored) and 0.67 together, in pixels of the images given.

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
            # Scaled by Python's numbers: the host would wait while a tensor of them is copied to a GPU.
            scales = [width / small[1], height / small[0]] * 2
            x1, y1, x2, y2 = (edge * factor for edge, factor in zip(box.unbind(-1), scales, strict=True))
            if mirrored:
                x1, x2 = width - x2, width - x1
            boxes.append(torch.stack([x1, y1, x2, y2], -1))
            scores.append(score)
        return torch.cat(boxes, 1), torch.cat(scores, 1)

    return predict


def ensemble(members: Sequence[Predict]) -> Predict:
    """The predictions of all members together; non-maximum suppression makes them one."""

    def predict(images: Tensor) -> tuple[Tensor, Tensor]:
        parts = [member(images) for member in members]
        return torch.cat([boxes for boxes, _ in parts], 1), torch.cat([scores for _, scores in parts], 1)

    return predict


def merge_classes(predict: Predict) -> Predict:
    """The same boxes, each with its best class's score as the score of the only class."""

    def predict_one(images: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = predict(images)
        return boxes, scores.amax(-1, keepdim=True)

    return predict_one


def only_classes(predict: Predict, class_ids: Sequence[int]) -> Predict:
    """The same boxes; all other classes have score 0, which no confidence threshold lets through."""

    def predict_some(images: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = predict(images)
        kept = torch.zeros_like(scores)
        for class_id in class_ids:  # not all at once: the host would wait while a list of them is copied to a GPU
            kept[..., class_id] = scores[..., class_id]
        return boxes, kept

    return predict_some
