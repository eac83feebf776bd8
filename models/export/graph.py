"""The modules that are exported: images -> boxes and scores, or -> detections.

B images of H x W pixels, N predictions per image, C classes, D detections per image at most,
K candidates per image, M candidates above the confidence in the whole batch.
"""

import importlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from models.detector import Detector
from models.export.metadata import ExportedModel, Suppression
from models.nms import MAX_CANDIDATES
from utils.distributed.precision import widest_float


@dataclass(frozen=True)
class Export:
    """A detector in eval mode, with its BatchNorm folded, and the metadata of its file."""

    detector: Detector
    model: ExportedModel

    @property
    def example(self) -> Tensor:
        """Images [B, 3, H, W] of a size that the file takes.

        No side is 1, which torch.export would treat as fixed.
        """
        stride = self.model.stride
        height, width = self.model.canvas or (2 * stride, 3 * stride)
        batch_size = self.model.batch_size or 2
        device = next(self.detector.parameters()).device
        return torch.full((batch_size, 3, height, width), 0.5, device=device)


class RawGraph(nn.Module):
    """images [B, 3, H, W] float32 -> boxes_xyxy [B, N, 4] in pixels, scores [B, N, C], float32."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector
        self.dtype = detector.dtype

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.detector.decode(self.detector(images.to(self.dtype)))


class DetectionsGraph(nn.Module):
    """images [B, 3, H, W] float32 -> detections [B, D, 6]: see `non_max_suppression_graph`."""

    def __init__(self, detector: Detector, nms: Suppression) -> None:
        super().__init__()
        self.raw = RawGraph(detector)
        self.nms = nms

    def forward(self, images: Tensor) -> Tensor:
        boxes_xyxy, scores = self.raw(images)
        return non_max_suppression_graph(boxes_xyxy, scores, self.nms)


def non_max_suppression_graph(boxes_xyxy: Tensor, scores: Tensor, nms: Suppression) -> Tensor:
    """Return detections [B, D, 6]: x1, y1, x2, y2, score, class, best first; unused rows are 0.

    They are those of `non_max_suppression` with one class per box. Here only tensors are used, so
    that a trace holds for any images, and one call suppresses the boxes of the whole batch:
    different images and classes do not overlap after a shift, in float64 where the device has it.
    """
    # The best class of each prediction, and of those the best K.
    best, class_id = scores.max(-1)  # [B, N]
    order = best.argsort(stable=True, dim=1, descending=True)[:, :MAX_CANDIDATES]
    best = best.gather(1, order)  # [B, K]
    class_id = class_id.gather(1, order)
    boxes = boxes_xyxy.gather(1, order[..., None].expand(-1, -1, 4))  # [B, K, 4]

    # Of all images together, those above the confidence; only boxes of one group compete.
    image, row = (best > nms.confidence).nonzero().unbind(1)  # [M]
    group = image
    if not nms.agnostic:
        group = image * scores.shape[2] + class_id[image, row]

    # Each group is moved away from the others, by more than any box reaches.
    wide = widest_float(boxes.device)
    steps = group[:, None].to(wide)  # [M, 1]
    reach = boxes.max() - boxes.min() + 1
    shifted = boxes[image, row].to(wide) + steps * reach.to(wide)  # [M, 4]
    kept = torch.ops.torchvision.nms(shifted, best[image, row].to(wide), nms.iou)

    # Rows of candidates that are not kept become 0.
    kept_at = (image[kept], row[kept])
    used = torch.zeros_like(best).index_put(kept_at, torch.ones_like(best[kept_at]))
    columns = [boxes, best[..., None], class_id[..., None].to(best.dtype)]
    rows = torch.cat(columns, 2) * used[..., None]  # [B, K, 6]

    # At least D rows, of which the first D by score are returned.
    rows = pad(rows, (0, 0, 0, nms.max_detections))
    top = rows[..., 4].argsort(stable=True, dim=1, descending=True)[:, : nms.max_detections]
    return rows.gather(1, top[..., None].expand(-1, -1, 6))


def export_graph(detector: Detector, nms: Suppression | None) -> RawGraph | DetectionsGraph:
    """Return the module to export, in eval mode."""
    if nms is None:
        return RawGraph(detector).eval()
    importlib.import_module("torchvision")  # seconds; registers how its nms is traced
    return DetectionsGraph(detector, nms).eval()


def halve(detector: Detector) -> Detector:
    """Return the detector with its parameters converted to float16, in place.

    Buffers, such as anchors, stay as they are.
    """
    for module in detector.modules():
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.half()
    return detector
