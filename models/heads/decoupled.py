"""YOLOX's decoupled head: feature maps -> raw maps -> boxes_xyxy in pixels, scores.

B images, L levels, C classes, H W cells of a level, N predictions per image over all levels.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import log

import torch
from torch import Tensor, nn

from models.blocks.convolutions import Conv, SeparableConv
from models.heads.base import CellPredictions, Head
from models.heads.cells import OutputConv, grid_cells, joint_logit, levels_by_image

PRIOR = 0.01  # initial objectness, and initial probability of each class
MAX_LOG_SIDE = 11  # exponent of a side, in cells


class DecoupledHead(Head):
    """A box, an objectness logit and C class logits for each cell, from two branches.

    `DecoupledDetect` in tables. One branch is for the classes, one for box and objectness; both are
    as wide as the first level's map. separable: depthwise separable 3x3 convolutions. The attribute
    names are those of YOLOX's checkpoints.

    Source: YOLOX, arXiv 2107.08430, section 2.1 and figure 2.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        separable: bool = False,
        *,
        strides: Sequence[Fraction],
    ) -> None:
        super().__init__(num_classes, strides)
        width = in_channels[0]
        conv = SeparableConv if separable else Conv

        def branches() -> nn.ModuleList:
            return nn.ModuleList(
                nn.Sequential(conv(width, width, 3), conv(width, width, 3)) for _ in in_channels
            )

        def outputs(channels: int) -> nn.ModuleList:
            return nn.ModuleList(OutputConv(width, channels, 1) for _ in in_channels)

        self.stems = nn.ModuleList(Conv(channels, width, 1) for channels in in_channels)
        self.cls_convs = branches()
        self.reg_convs = branches()
        self.cls_preds = outputs(num_classes)
        self.reg_preds = outputs(4)
        self.obj_preds = outputs(1)

        for output in (*self.cls_preds, *self.obj_preds):
            nn.init.constant_(output.get_parameter("bias"), -log((1 - PRIOR) / PRIOR))

    def split_classes(self, key: str, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the class outputs as rows per class [C, ...]; everything else is shared."""
        if key.startswith("cls_preds."):
            return values[:0], values
        return values, None

    def box_rows(self, key: str, values: Tensor) -> Tensor:
        """Return everything but the outputs of classes and objectness."""
        if key.startswith("obj_preds."):
            return values[:0]
        return super().box_rows(key, values)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Return raw maps [B, H, W, 5 + C], one per level: x, y, w, h, objectness, class logits."""
        raw = []
        for level, x in enumerate(maps):
            x = self.stems[level](x)
            class_features = self.cls_convs[level](x)
            box_features = self.reg_convs[level](x)

            boxes = self.reg_preds[level](box_features)
            objectness = self.obj_preds[level](box_features)
            classes = self.cls_preds[level](class_features)
            raw.append(torch.cat([boxes, objectness, classes], 1).permute(0, 2, 3, 1))
        return raw

    def decode(self, raw: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] in [0, 1], float32.

        N runs over levels, rows, columns. A score is sigma(objectness) * sigma(class).
        """
        boxes = []
        scores = []
        for values, stride in zip(raw, self.strides, strict=True):
            values = values.float()
            level_boxes = boxes_in_cells(values) * stride
            level_scores = values[..., 4:5].sigmoid() * values[..., 5:].sigmoid()
            boxes.append(level_boxes.flatten(1, 2))
            scores.append(level_scores.flatten(1, 2))
        return torch.cat(boxes, 1), torch.cat(scores, 1)

    def predict_cells(self, raw: list[Tensor]) -> list[CellPredictions]:
        """Return the prediction of each cell of each level."""
        levels = []
        for values, stride in zip(raw, self.strides, strict=True):
            boxes = boxes_in_cells(values) * stride
            logits = joint_logit(values[..., 4:5], values[..., 5:])
            levels.append(CellPredictions(boxes.unsqueeze(3), logits.unsqueeze(3)))
        return levels

    def decode_candidates(self, raw: list[Tensor], confidence: float) -> tuple[Tensor, Tensor]:
        """Return the predictions of `decode` whose objectness is above `confidence`.

        A score is never higher than the objectness.
        """
        levels = []
        for values, stride in zip(raw, self.strides, strict=True):
            objectness = values[..., 4].float().sigmoid()  # [B, H, W]
            image, row, column = (objectness > confidence).nonzero(as_tuple=True)  # [K] each

            chosen = values[image, row, column].float()  # [K, 5 + C]
            cells = torch.stack([column, row], -1)
            boxes = boxes_at(chosen, cells) * stride
            scores = chosen[:, 4:5].sigmoid() * chosen[:, 5:].sigmoid()
            levels.append((boxes, scores, image))
        return levels_by_image(levels, len(raw[0]))


def boxes_in_cells(raw: Tensor) -> Tensor:
    """Return boxes_xyxy [B, H, W, 4], in cells of a level, for raw maps [B, H, W, 4 or more]."""
    return boxes_at(raw, grid_cells(raw.shape[1], raw.shape[2], raw))


def boxes_at(raw: Tensor, cells: Tensor) -> Tensor:
    """Return boxes_xyxy [..., 4] in cells, for raw x, y, w, h [..., 4 or more] of `cells`.

    Center = cell + raw_xy, size = exp(raw_wh), at most exp(11), 60,000 cells, so that boxes and
    gradients stay finite. cells: [..., 2], x and y.

    >>> boxes_at(torch.zeros(1, 4), torch.tensor([[3.0, 5.0]])).tolist()
    [[2.5, 4.5, 3.5, 5.5]]
    """
    centers = raw[..., :2] + cells
    halves = raw[..., 2:4].clamp(max=MAX_LOG_SIDE).exp() / 2
    return torch.cat([centers - halves, centers + halves], -1)
