"""The teacher of a run: a frozen detector, which looks at each batch once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.detector import Detector
from models.losses.distillation import Taught, indices_of_some, of_classes
from utils.distributed.replica import Replica
from utils.distributed.world import World


class Teacher:
    """What a trained detector finds in images, on the levels and of the classes that a model has.

    It is no part of the training state: its weights never change.

    Args:
        detector: is fused, and moved to the device.
        levels: indices of its levels [L], in the model's order.
        classes: indices of its classes [K], in the model's order.
        dtype: of the weights of the model.
    """

    def __init__(
        self,
        detector: Detector,
        levels: Sequence[int],
        classes: Sequence[int],
        dtype: torch.dtype,
        world: World,
    ) -> None:
        if "o2m" in detector.head.outputs:
            detector.choose_output("o2m")  # that of `predict_cells`
        detector.fuse().requires_grad_(False)
        detector.to(dtype).to(memory_format=torch.channels_last).to(world.device)
        self.detector = detector
        self.levels = levels
        self.classes = indices_of_some(classes, detector.num_classes, world.device)
        self.replica = Replica(_WithMaps(detector), world)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Taught:
        """Return what it finds in images [B, 3, H, W] in [0, 1], in the precision of autocast."""
        raw, all_maps = self.replica(images)
        all_cells = self.detector.head.predict_cells(raw)

        maps = []
        cells = []
        for level in self.levels:
            maps.append(all_maps[level])
            cells.append(of_classes(all_cells[level], self.classes))
        return Taught(maps, cells)


class _WithMaps(nn.Module):
    """A detector whose forward pass also returns the maps that its head reads."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> tuple[Any, list[Tensor]]:
        return self.detector.forward_with_maps(images)
