"""Export a detector: the graph, its metadata, and the files of other runtimes.

B images of H x W pixels, N predictions per image, C classes, D detections per image at most.
"""

from dataclasses import dataclass

import torch

from models.detector import Detector
from models.export.metadata import ExportedModel


@dataclass(frozen=True)
class Export:
    """A detector in eval mode, with its BatchNorm folded, and the metadata of the file that is to
    hold it.
    """

    detector: Detector
    model: ExportedModel

    @property
    def example(self) -> torch.Tensor:
        """Images [B, 3, H, W] of a size that the file takes; no side is 1, which torch.export would
        treat as fixed.
        """
        stride = self.model.stride
        height, width = self.model.canvas or (2 * stride, 3 * stride)
        device = next(self.detector.parameters()).device
        return torch.full((self.model.batch_size or 2, 3, height, width), 0.5, device=device)
