"""What the authors of RTMDet compute for 23 drawn cases of assignment and loss.

The numbers are not part of the project; the README beside them describes each. Tests without them
are skipped.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

FOLDER = Path(__file__).parents[3] / "shared" / "fixtures" / "rtmdet"
STRIDES = (8, 16, 32)
# Equal costs, where any choice is right: only the numbers of predictions are compared.
WITH_TIES = ("ties", "twins_same_class", "twins_other_class")

needs_cases = pytest.mark.skipif(
    not (FOLDER / "assign_loss.npz").exists(),
    reason="the numbers of RTMDet's authors (shared/fixtures/rtmdet) are not here",
)


@dataclass
class Case:
    """Images of one size, and what becomes of them.

    distances: in pixels, [B, H, W, 4] of each level. classes: logits, [B, H, W, C]. targets:
    [T, 6]. assigned: the row of the target of each prediction, -1 for none, [B, N]. metric: its
    target score, [B, N]. terms: box and cls. The gradients are those of the sum of the terms.
    """

    distances: list[Tensor]
    classes: list[Tensor]
    targets: Tensor
    assigned: Tensor
    metric: Tensor
    terms: dict[str, float]
    distance_gradients: list[Tensor]
    class_gradients: list[Tensor]

    @property
    def grids(self) -> list[tuple[int, int]]:
        return [(level.shape[1], level.shape[2]) for level in self.classes]


def read_cases() -> dict[str, Case]:
    sizes = json.loads((FOLDER / "assign_loss.json").read_text())
    with np.load(FOLDER / "assign_loss.npz") as stored:
        return {name: _read(stored, name, size["images"]) for name, size in sizes.items()}


def _read(stored: np.lib.npyio.NpzFile, name: str, images: int) -> Case:
    def array(key: str) -> Tensor:
        return torch.from_numpy(stored[f"{name}/{key}"])

    def maps(key: str) -> list[Tensor]:
        return [array(f"{key}_{level}").permute(0, 2, 3, 1) for level in range(len(STRIDES))]

    targets, assigned = [torch.zeros(0, 6)], []
    for image in range(images):
        first = sum(len(rows) for rows in targets)
        boxes, labels = array(f"gt_boxes_{image}"), array(f"gt_labels_{image}")
        head = torch.stack([torch.full_like(labels, image), labels], 1).float()
        targets.append(torch.cat([head, boxes], 1))
        rows = array(f"assigned_gt_{image}")
        assigned.append(torch.where(rows < 0, -1, rows + first))

    return Case(
        distances=maps("dist_px"),
        classes=maps("cls"),
        targets=torch.cat(targets),
        assigned=torch.stack(assigned),
        metric=torch.stack([array(f"metric_{image}") for image in range(images)]),
        terms={"box": array("loss_bbox").sum().item(), "cls": array("loss_cls").sum().item()},
        distance_gradients=maps("grad_dist_px"),
        class_gradients=maps("grad_cls"),
    )
