"""The modules that are exported: images -> boxes and scores, or -> detections.

B images of H x W pixels, N predictions per image, C classes, D detections per image at most.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from models.detector import Detector
from models.export.metadata import Suppression
from utils.distributed.precision import widest_float

MAX_CANDIDATES = 3000  # per image, as in models/nms.py


class RawGraph(nn.Module):
    """images [B, 3, H, W] float32 -> boxes_xyxy [B, N, 4] in pixels, scores [B, N, C], float32."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector, self.dtype = detector, detector.dtype

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.detector.decode(self.detector(images.to(self.dtype)))


class DetectionsGraph(nn.Module):
    """images [B, 3, H, W] float32 -> detections [B, D, 6]: see `non_max_suppression_graph`."""

    def __init__(self, detector: Detector, nms: Suppression) -> None:
        super().__init__()
        self.raw, self.nms = RawGraph(detector), nms

    def forward(self, images: Tensor) -> Tensor:
        boxes_xyxy, scores = self.raw(images)
        return non_max_suppression_graph(boxes_xyxy, scores, self.nms)


def non_max_suppression_graph(boxes_xyxy: Tensor, scores: Tensor, nms: Suppression) -> Tensor:
    """Return detections [B, D, 6]: x1, y1, x2, y2, score, class, best first; unused rows are 0.

    They are those of `non_max_suppression` with one class per box. Here only tensors are used, so
    that a trace holds for any images, and one call suppresses the boxes of the whole batch:
    different images and classes do not overlap after a shift, in float64 where the device has it.
    """
    best, class_id = scores.max(-1)
    order = best.argsort(stable=True, dim=1, descending=True)[:, :MAX_CANDIDATES]
    best, class_id = best.gather(1, order), class_id.gather(1, order)
    boxes = boxes_xyxy.gather(1, order[..., None].expand(-1, -1, 4))
    image, row = (best > nms.confidence).nonzero().unbind(1)
    group = image if nms.agnostic else image * scores.shape[2] + class_id[image, row]
    wide = widest_float(boxes.device)
    shift = group[:, None].to(wide) * (boxes.max() - boxes.min() + 1).to(wide)
    kept = torch.ops.torchvision.nms(
        boxes[image, row].to(wide) + shift, best[image, row].to(wide), nms.iou
    )
    used = torch.zeros_like(best).index_put(
        (image[kept], row[kept]), torch.ones_like(best[image[kept], row[kept]])
    )
    rows = (
        torch.cat([boxes, best[..., None], class_id[..., None].to(best.dtype)], 2) * used[..., None]
    )
    rows = pad(rows, (0, 0, 0, nms.max_detections))
    top = rows[..., 4].argsort(stable=True, dim=1, descending=True)[:, : nms.max_detections]
    return rows.gather(1, top[..., None].expand(-1, -1, 6))


def export_graph(detector: Detector, nms: Suppression | None) -> RawGraph | DetectionsGraph:
    """Return the module to export, in eval mode."""
    graph = RawGraph(detector) if nms is None else DetectionsGraph(detector, nms)
    return graph.eval()


def halve(detector: Detector) -> Detector:
    """Convert the parameters to float16, in place; buffers, such as anchors, stay as they are.
    Return the detector.
    """
    for module in detector.modules():
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.half()
    return detector
