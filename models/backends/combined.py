"""Backends made of others: test-time augmentation, ensembles, merged and reordered classes.

B images of H x W pixels, N predictions per image, C classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.backends.base import Backend, Prediction
from utils.images.letterbox import GRAY

# scale of the image, and whether it is mirrored, of each view of `AugmentedViews`
VIEWS = ((1.0, False), (0.83, True), (0.67, False))


class Combined(Backend):
    """The base class: the same inputs and classes as the first of its members."""

    def __init__(self, members: Sequence[Backend]) -> None:
        self.members = list(members)
        first = self.members[0]
        self.num_classes = first.num_classes
        self.device = first.device
        self.dtype = first.dtype
        self.canvas = first.canvas
        self.letterbox = first.letterbox
        self.stride = max(member.stride for member in members)
        self.min_confidence = max(member.min_confidence for member in members)
        self.needs_nms = len(members) > 1 or first.needs_nms
        self.max_detections = first.max_detections if len(members) == 1 else None
        breaking = [each.breaks_after_fork for each in members if each.breaks_after_fork]
        self.breaks_after_fork = breaking[0] if breaking else ""
        self.threads = min(member.threads for member in members)


class AugmentedViews(Combined):
    """Test-time augmentation: joins the predictions at scales 1, 0.83 (mirrored) and 0.67.

    Boxes are in pixels of the input. Raises ValueError if the member takes images of one size only.
    Source: facts of YOLOv5's behavior.
    """

    def __init__(self, member: Backend) -> None:
        super().__init__([member])
        self.needs_nms = True
        self.max_detections = None  # three views, which are merged
        if member.canvas:
            height, width = member.canvas
            raise ValueError(
                "test-time augmentation needs a model for images of any size, this one is for "
                f"{width} x {height} only"
            )

    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        height, width = images.shape[2:]
        boxes = []
        scores = []
        for scale, mirrored in VIEWS:
            # The view: mirrored, smaller, and gray up to multiples of the stride.
            small_height = max(1, round(height * scale))
            small_width = max(1, round(width * scale))
            view = images.flip(3) if mirrored else images
            if scale != 1:
                small = (small_height, small_width)
                view = F.interpolate(view, small, mode="bilinear", align_corners=False)
            right = -small_width % self.stride
            bottom = -small_height % self.stride
            view = F.pad(view, (0, right, 0, bottom), value=GRAY / 255)

            # Its boxes in pixels of the input. The factors are Python numbers: for the copy of a
            # tensor to the GPU the host would wait.
            part = self.members[0].predict(view, confidence)
            x_factor = width / small_width
            y_factor = height / small_height
            left, top, right_edge, bottom_edge = part.boxes_xyxy.unbind(-1)
            x1 = left * x_factor
            y1 = top * y_factor
            x2 = right_edge * x_factor
            y2 = bottom_edge * y_factor
            if mirrored:
                x1, x2 = width - x2, width - x1
            boxes.append(torch.stack([x1, y1, x2, y2], -1))
            scores.append(part.scores)
        return Prediction(torch.cat(boxes, 1), torch.cat(scores, 1))


class Ensemble(Combined):
    """Joins the predictions of all members, for non-maximum suppression to merge.

    Raises ValueError if two members take images of different sizes only, or place them differently.
    """

    def __init__(self, members: Sequence[Backend]) -> None:
        super().__init__(members)
        letterboxes = {member.letterbox for member in members}
        if len(letterboxes) > 1:
            raise ValueError(
                "models of an ensemble must take images at the same place of the canvas: one of "
                "these takes them in the center, another one at the top left"
            )
        sizes = {member.canvas for member in members if member.canvas}
        if len(sizes) > 1:
            shown = " and ".join(f"{width} x {height}" for height, width in sorted(sizes))
            raise ValueError(
                f"models of an ensemble must take the same image size, these take {shown}"
            )
        self.canvas = next(iter(sizes), None)
        if self.canvas is None:
            return
        height, width = self.canvas
        if height % self.stride or width % self.stride:
            raise ValueError(
                f"one model takes images of {width} x {height} only, another one multiples of "
                f"{self.stride}"
            )

    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        parts = [member.predict(images, confidence) for member in self.members]
        boxes = torch.cat([part.boxes_xyxy for part in parts], 1)
        scores = torch.cat([part.scores for part in parts], 1)
        return Prediction(boxes, scores)


class MergedClasses(Combined):
    """Predicts the same boxes with a single class, whose score is that of the best class."""

    def __init__(self, member: Backend) -> None:
        super().__init__([member])
        self.num_classes = 1

    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        boxes_xyxy, scores, _ = self.members[0].predict(images, confidence)
        return Prediction(boxes_xyxy, scores.amax(-1, keepdim=True))


class ReorderedClasses(Combined):
    """Predicts the same boxes with classes in another order, or only some of them.

    Class k is the member's order[k].
    """

    def __init__(self, member: Backend, order: Sequence[int]) -> None:
        super().__init__([member])
        self.num_classes = len(order)
        self._order = torch.tensor(list(order), device=member.device)

    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        boxes_xyxy, scores, _ = self.members[0].predict(images, confidence)
        return Prediction(boxes_xyxy, scores.index_select(-1, self._order))
