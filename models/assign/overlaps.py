"""The overlaps of targets with all predictions of their images.

B images, N predictions per image over all levels.
"""

import torch
from torch import Tensor


class PredictedBoxes:
    """The predicted boxes of all images, laid out to be compared with some targets at a time.

    boxes_xyxy: [B, N, 4].
    """

    def __init__(self, boxes_xyxy: Tensor) -> None:
        left, top, right, bottom = [side.contiguous() for side in boxes_xyxy.unbind(-1)]
        self.sides = left, top, right, bottom  # [B, N] each
        self.area = (right - left) * (bottom - top)

    def ious(self, image: Tensor, target_boxes: Tensor) -> Tensor:
        """Return the IoU of each target with each prediction of its image, [rows, N]; a new tensor.

        It is 0 for an inverted prediction. image: of each target, [rows]. target_boxes: xyxy, not
        inverted, [rows, 4].
        """
        left, top, right, bottom = self.sides
        x1, y1, x2, y2 = target_boxes[:, :, None].unbind(1)  # [rows, 1] each

        # All predictions of each target's own image.  [rows, N]
        # index_select copies whole rows, and is faster than indexing. The steps below overwrite
        # these copies, which saves the allocation of as many again.
        image_left = left.index_select(0, image)
        image_right = right.index_select(0, image)
        image_top = top.index_select(0, image)
        image_bottom = bottom.index_select(0, image)
        image_area = self.area.index_select(0, image)

        # Overlap of each target with each of them.
        overlap_right = image_right.clamp_(max=x2)
        overlap_left = image_left.clamp_(min=x1)
        overlap_width = overlap_right.sub_(overlap_left).clamp_(min=0)
        overlap_bottom = image_bottom.clamp_(max=y2)
        overlap_top = image_top.clamp_(min=y1)
        overlap_height = overlap_bottom.sub_(overlap_top).clamp_(min=0)

        overlap = overlap_width.mul_(overlap_height)
        union = image_area.add_((x2 - x1) * (y2 - y1)).sub_(overlap)
        union.clamp_(min=torch.finfo(union.dtype).tiny)
        return overlap.div_(union)
