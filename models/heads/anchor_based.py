"""The anchor-based head: feature maps -> raw maps -> boxes_xyxy in pixels, scores.

B images, L levels, A anchors per level, C classes, H W cells of a level, N predictions per image
over all levels.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.heads.base import CellPredictions, Head
from models.heads.cells import OutputConv, grid_cells, joint_logit, levels_by_image
from models.tables.entries import Anchors
from utils.metrics.anchors import check_anchors


class AnchorBasedHead(Head):
    """4 box values, an objectness logit and C class logits for each cell and anchor.

    YOLOv5's head, `Detect` in tables. `anchors_px` [L, A, 2] (width, height in pixels) is a buffer
    and part of the state. If the levels of the given anchors are in the opposite order of the
    strides, they are reversed.
    """

    fitted = ("anchors_px",)
    is_one_layer = True

    anchors_px: Tensor

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        anchors: Anchors,
        *,
        strides: Sequence[Fraction],
    ) -> None:
        super().__init__(num_classes, strides)
        sizes = square_anchors(anchors, self.strides) if isinstance(anchors, int) else anchors
        ordered = torch.tensor(order_anchors(sizes, self.strides), dtype=torch.float32)
        anchors_px = ordered.view(len(strides), -1, 2)
        self.register_buffer("anchors_px", anchors_px)

        outputs = anchors_px.shape[1] * (5 + num_classes)
        # named as in YOLOv5's checkpoints
        self.m = nn.ModuleList(OutputConv(channels, outputs, 1) for channels in in_channels)
        self.init_biases()

    @torch.no_grad()
    def init_biases(self) -> None:
        """Initialize the biases for about 8 objects in a 640 px image.

        Class probabilities sum to about 0.6. Added to torch's own random initial values. Source:
        focal loss, arXiv 1708.02002, section 3.3.
        """
        for conv, stride in zip(self.m, self.strides, strict=True):
            bias = self._by_output(conv.get_parameter("bias"))
            bias[:, 4] += log(8 / (640 / stride) ** 2)
            bias[:, 5:] += log(0.6 / (self.num_classes - 0.99999))

    def _by_output(self, values: Tensor) -> Tensor:
        """Return a weight or bias of an output convolution as a view [A, 5 + C, ...].

        The outputs are box, objectness, classes.
        """
        return values.view(self.anchors_px.shape[1], 5 + self.num_classes, *values.shape[1:])

    def split_classes(self, key: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the box and objectness rows of an output convolution, and its class rows.

        They are [A, 5, ...] and [C, A, ...]. All classes share the anchors.
        """
        if key in self.fitted:
            return values, None
        outputs = self._by_output(values)
        return outputs[:, :5], outputs[:, 5:].movedim(1, 0)

    def box_rows(self, key: str, values: Tensor) -> Tensor:
        """Return the box rows of an output convolution, [A, 4, ...], or the anchors."""
        return values if key in self.fitted else self._by_output(values)[:, :4]

    def set_anchors(self, anchors_px: Tensor) -> None:
        """Replace the anchors by these sizes in pixels, [L, A, 2].

        The levels are put in the order of the strides.

        Raises: ValueError if the shape differs from that of the head's anchors.
        """
        if anchors_px.shape != self.anchors_px.shape:
            levels, per_level, _ = self.anchors_px.shape
            raise ValueError(
                f"the head has {levels} levels of {per_level} anchors, got anchors of shape "
                f"{list(anchors_px.shape)}"
            )
        ordered = order_anchors(anchors_px.flatten(1).tolist(), self.strides)
        self.anchors_px.copy_(torch.tensor(ordered).view_as(self.anchors_px))

    def table_entries(self) -> dict[str, Any]:
        """Return the anchors in pixels, one list w, h, w, h, ... per level."""
        return {"anchors": self.anchors_px.flatten(1).tolist()}

    def fit_to_boxes(
        self,
        sizes: NDArray[np.float64],
        *,
        anchor_t: float,
        seed: int,
        placeholders: bool,
        broadcast: Callable[[Any], Any],
    ) -> str | None:
        """Fit new anchors if the present ones do not match enough boxes.

        Args: see `Head.fit_to_boxes`.
        """
        current = self.anchors_px.double().numpy()
        anchors, sentence = check_anchors(
            sizes, current, anchor_t, seed=seed, placeholders=placeholders
        )
        # rank 0's: all processes hold the same bits
        anchors_of_rank_0 = broadcast(anchors.tolist())
        self.set_anchors(torch.tensor(anchors_of_rank_0))
        return sentence

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Return raw maps [B, A, H, W, 5 + C], one per level.

        The values are x, y, w, h, objectness, class logits.
        """
        parts = (self.anchors_px.shape[1], 5 + self.num_classes)
        raw = [conv(x) for conv, x in zip(self.m, maps, strict=True)]
        return [x.unflatten(1, parts).permute(0, 1, 3, 4, 2) for x in raw]

    def decode(self, maps: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] in [0, 1], float32.

        N runs over levels, anchors, rows, columns. A score is sigma(objectness) * sigma(class);
        with a single class, whose logit the loss does not train, it is sigma(objectness).
        """
        boxes = []
        scores = []
        for raw, anchors, stride in zip(maps, self.anchors_px, self.strides, strict=True):
            raw = raw.float()
            level_boxes = decode_boxes(raw[..., :4], anchors, stride)
            boxes.append(level_boxes.flatten(1, 3))

            level_scores = raw[..., 4:5].sigmoid()
            if self.num_classes > 1:
                level_scores = level_scores * raw[..., 5:].sigmoid()
            scores.append(level_scores.flatten(1, 3))
        return torch.cat(boxes, dim=1), torch.cat(scores, dim=1)

    def predict_cells(self, maps: list[Tensor]) -> list[CellPredictions]:
        """Return the predictions of each cell and anchor of each level."""
        levels = []
        for raw, anchors, stride in zip(maps, self.anchors_px, self.strides, strict=True):
            boxes = decode_boxes(raw[..., :4], anchors, stride)
            logits = raw[..., 4:5]
            if self.num_classes > 1:
                logits = joint_logit(logits, raw[..., 5:])
            levels.append(CellPredictions(boxes.movedim(1, 3), logits.movedim(1, 3)))
        return levels

    def decode_candidates(self, maps: list[Tensor], confidence: float) -> tuple[Tensor, Tensor]:
        """Return the predictions of `decode` whose objectness is above `confidence`.

        A score is never higher than the objectness.
        """
        levels = []
        for raw, anchors, stride in zip(maps, self.anchors_px, self.strides, strict=True):
            objectness = raw[..., 4].float().sigmoid()  # [B, A, H, W]
            image, anchor, y, x = (objectness > confidence).nonzero(as_tuple=True)  # [K] each

            rows = raw[image, anchor, y, x].float()  # [K, 5 + C]
            cells = torch.stack([x, y], -1)
            boxes = boxes_at(rows[:, :4], cells, anchors[anchor], stride)

            scores = objectness[image, anchor, y, x, None]
            if self.num_classes > 1:
                scores = scores * rows[:, 5:].sigmoid()
            levels.append((boxes, scores, image))
        return levels_by_image(levels, len(maps[0]))


def decode_boxes(raw: Tensor, anchors_px: Tensor, stride: int) -> Tensor:
    """Return boxes_xyxy [B, A, H, W, 4] in pixels for one level's raw x, y, w, h.

    Center = (2 sigma - 0.5 + cell) * stride, size = (2 sigma)^2 * anchor, so at most 4 times the
    anchor. raw: [B, A, H, W, 4] float32; anchors_px: [A, 2]. Source: YOLOv5's documented box
    equations; sigma offsets after YOLOv4, arXiv 2004.10934, section 3.4.

    >>> decode_boxes(torch.zeros(1, 1, 1, 1, 4), torch.tensor([[10.0, 20.0]]), 8).flatten().tolist()
    [-1.0, -6.0, 9.0, 14.0]
    """
    _, num_anchors, height, width, _ = raw.shape
    cells = grid_cells(height, width, raw)
    anchors = anchors_px.to(raw.dtype).view(num_anchors, 1, 1, 2)
    return boxes_at(raw, cells, anchors, stride)


def boxes_at(raw: Tensor, cells: Tensor, anchors_px: Tensor, stride: int) -> Tensor:
    """Return boxes_xyxy [..., 4] in pixels for raw x, y, w, h [..., 4].

    cells: [..., 2], x and y. anchors_px: [..., 2].
    """
    doubled = 2 * raw.sigmoid()
    centers = (doubled[..., :2] - 0.5 + cells) * stride
    halves = doubled[..., 2:] ** 2 * anchors_px / 2
    return torch.cat([centers - halves, centers + halves], dim=-1)


def order_anchors(
    anchors: Sequence[Sequence[float]], strides: Sequence[int]
) -> list[Sequence[float]]:
    """Return the levels of anchors with small anchors at small strides.

    They are reversed if they are in the opposite order. anchors: pixels w, h, w, h, ... per level.

    Raises: ValueError unless there is one level per stride.

    >>> order_anchors([[8, 8], [4, 4]], (8, 16))
    [[4, 4], [8, 8]]
    """
    if len(anchors) != len(strides):
        raise ValueError(
            f"anchors are given for {len(anchors)} levels, but the head has {len(strides)}"
        )

    growth = _total_area(anchors[-1]) - _total_area(anchors[0])
    opposite = growth * (strides[-1] - strides[0]) < 0
    return list(reversed(anchors)) if opposite else list(anchors)


def _total_area(sizes: Sequence[float]) -> float:
    """Return the sum of the areas of anchors w, h, w, h, ..."""
    return sum(w * h for w, h in zip(sizes[::2], sizes[1::2], strict=True))


def square_anchors(number: int, strides: Sequence[int]) -> list[list[float]]:
    """Return `number` square anchors per level as pixels w, h, w, h, ..., to be fitted to data.

    They are 2 to 8 strides wide.

    >>> square_anchors(1, (8, 16))
    [[32.0, 32.0], [64.0, 64.0]]
    """
    factors = [2 * 4 ** ((index + 0.5) / number) for index in range(number)]
    levels = []
    for stride in strides:
        level = []
        for factor in factors:
            side = stride * factor
            level += [side, side]
        levels.append(level)
    return levels
