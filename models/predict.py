"""Ways to get boxes and scores of images: one forward pass, several views of an image, several models.

B images of H x W pixels, N predictions of an image, C classes.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.detector import Detector

Predict = Callable[[Tensor], tuple[Tensor, Tensor]]  # images [B, 3, H, W] -> boxes_xyxy [B, N, 4], scores [B, N, C]


def plain(model: Detector) -> Predict:
    """One forward pass."""
    return lambda images: model.decode(model(images))


def with_views(model: Detector) -> Predict:
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
            view = F.pad(view, (0, -small[1] % step, 0, -small[0] % step), value=114 / 255)
            box, score = model.decode(model(view))
            box = box * box.new_tensor([width / small[1], height / small[0]] * 2)
            if mirrored:
                box = torch.stack([width - box[..., 2], box[..., 1], width - box[..., 0], box[..., 3]], -1)
            boxes.append(box)
            scores.append(score)
        return torch.cat(boxes, 1), torch.cat(scores, 1)

    return predict


def ensemble(members: Sequence[Predict]) -> Predict:
    """The predictions of all members together; non-maximum suppression makes them one."""

    def predict(images: Tensor) -> tuple[Tensor, Tensor]:
        parts = [member(images) for member in members]
        return torch.cat([boxes for boxes, _ in parts], 1), torch.cat([scores for _, scores in parts], 1)

    return predict


def one_class(predict: Predict) -> Predict:
    """The same boxes, each with its best class's score as the score of the only class."""

    def predict_one(images: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = predict(images)
        return boxes, scores.amax(-1, keepdim=True)

    return predict_one
