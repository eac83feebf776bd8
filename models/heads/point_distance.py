"""The base of heads that predict the distances from a cell's point to the sides of its box.

B images, L levels, C classes, H W cells of a level, N predictions per image over all levels, S raw
values of the sides.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from models.heads.base import CellPredictions, Head
from models.heads.cells import grid_cells, levels_by_image

Levels = list[Tensor]  # raw maps [B, H, W, S + C], one per level: the sides' values, class logits


class PointDistanceHead(Head):
    """Base class of heads with four distances and C class logits for each cell.

    A head says how its raw values become distances, and from which point they are measured.

    Source: FCOS, arXiv 1904.01355, equation 1.
    """

    offset: ClassVar[float] = 0.5  # of the point from the cell's corner, in cells: the middle
    side_values: int = 4  # S, in front of the class logits

    @abstractmethod
    def distances(self, raw: Tensor) -> Tensor:
        """Return the distances left, top, right, bottom [..., 4] in strides.

        raw: predictions [..., S + C].
        """

    def decode(self, raw: Levels) -> tuple[Tensor, Tensor]:
        """Return boxes_xyxy [B, N, 4] in pixels and scores [B, N, C] in [0, 1], float32.

        N runs over levels, rows, columns.
        """
        boxes = []
        scores = []
        for values, stride in zip(raw, self.strides, strict=True):
            values = values.float()
            cells = grid_cells(values.shape[1], values.shape[2], values)
            level_boxes = boxes_around(self.distances(values), cells, self.offset) * stride
            level_scores = values[..., self.side_values :].sigmoid()
            boxes.append(level_boxes.flatten(1, 2))
            scores.append(level_scores.flatten(1, 2))
        return torch.cat(boxes, 1), torch.cat(scores, 1)

    def predict_cells(self, raw: Levels) -> list[CellPredictions]:
        """Return the prediction of each cell of each level."""
        levels = []
        for values, stride in zip(raw, self.strides, strict=True):
            cells = grid_cells(values.shape[1], values.shape[2], values)
            boxes = boxes_around(self.distances(values), cells, self.offset) * stride
            logits = values[..., self.side_values :]
            levels.append(CellPredictions(boxes.unsqueeze(3), logits.unsqueeze(3)))
        return levels

    def decode_candidates(self, raw: Levels, confidence: float) -> tuple[Tensor, Tensor]:
        """Return the predictions of `decode` whose best class scores above `confidence`."""
        levels = []
        for values, stride in zip(raw, self.strides, strict=True):
            best_logit = values[..., self.side_values :].amax(-1)
            best_score = best_logit.float().sigmoid()  # [B, H, W]
            image, row, column = (best_score > confidence).nonzero(as_tuple=True)  # [K] each

            chosen = values[image, row, column].float()  # [K, S + C]
            cells = torch.stack([column, row], -1)
            boxes = boxes_around(self.distances(chosen), cells, self.offset) * stride
            scores = chosen[:, self.side_values :].sigmoid()
            levels.append((boxes, scores, image))
        return levels_by_image(levels, len(raw[0]))


def boxes_around(distances: Tensor, cells: Tensor, offset: float) -> Tensor:
    """Return boxes_xyxy [..., 4] in cells, for distances [..., 4] from the points of `cells`.

    cells: [..., 2], x and y. offset: of a point from its cell's corner, in cells.

    >>> boxes_around(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([5, 6]), 0.5).tolist()
    [4.5, 4.5, 8.5, 10.5]
    """
    points = cells + offset
    return torch.cat([points - distances[..., :2], points + distances[..., 2:]], -1)
