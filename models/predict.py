"""Detect objects in images given as NumPy arrays. Needs no labels, data loader or files.

D detections in an image, B images on canvases of H x W pixels, N predictions per image, C classes.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends import Backend
from models.highest_score import HighestScore
from models.image_inputs import ChannelOrder, three_channels
from models.nms import MAX_CANDIDATES, check_limits, non_max_suppression
from utils.distributed.devices import wait_for
from utils.distributed.host_copies import to_device
from utils.images.detections import ImageDetections
from utils.images.letterbox import (
    Placement,
    base_sizes,
    canvas_shapes,
    draw_letterboxed,
    place,
)
from utils.images.opencv import cv2
from utils.images.tiles import Tiling
from utils.stopwatch import Stopwatch


class Predictor:
    """Detects objects in images of any size, letterboxed as in val.py.

    An image's canvas depends only on that image, so its detections do not depend on the other
    images of the batch, except for rounding in the forward pass. canvas: its (height, width) if all
    images have the same, else None. tiling: how images are cut, None if they are not.
    """

    tiling: Tiling | None = None

    def __init__(
        self,
        backend: Backend,
        *,
        image_size: int = 640,
        canvas: tuple[int, int] | None = None,
        confidence: float = 0.25,
        iou: float = 0.45,
        max_detections: int = 300,
        class_ids: Sequence[int] | None = None,
        agnostic: bool = False,
        multi_label: bool = False,
        batch_size: int = 16,
    ) -> None:
        """A predictor on the device of `backend`, to which it moves images.

        Args:
            backend: runs the model; may be combined of several (models/backends/combined.py).
            image_size: long side in pixels, rounded up to a multiple of the stride.
            canvas: (height, width) for all images, multiples of the stride, instead of one that
                fits the image; a backend may have its own.
            confidence: scores at or below it are dropped.
            iou, agnostic, multi_label, max_detections: as for non_max_suppression, which a backend
                may not need.
            class_ids: return only these classes; the others are detected as well, and then removed.
            batch_size: the most images in one forward pass.

        Raises: ValueError for a number out of range.
        """
        check_limits(confidence, iou, max_detections)
        for name, number in (("image_size", image_size), ("batch_size", batch_size)):
            if number < 1:
                raise ValueError(f"{name} {number}: choose 1 or more")

        self.backend = backend
        self.class_ids = _checked_classes(class_ids, backend.num_classes)
        self.batch_size = batch_size
        self.confidence = confidence
        self.multi_label = multi_label
        self._letterbox = backend.letterbox
        self.canvas = backend.canvas or canvas
        self._shapes = canvas_shapes(image_size, backend.stride, self.canvas)
        self.image_size = self._shapes.image_size
        self._in_images = partial(
            detections_in_images,
            confidence=confidence,
            iou=backend.nms_iou(iou),
            max_detections=max_detections,
            class_ids=self.class_ids,
            agnostic=agnostic,
            multi_label=multi_label,
            model_limit=backend.max_detections,
        )

    @overload
    def __call__(
        self,
        images: NDArray[np.uint8],
        *,
        channel_order: ChannelOrder,
        watch: Stopwatch | None = None,
        highest: HighestScore | None = None,
    ) -> ImageDetections: ...

    @overload
    def __call__(
        self,
        images: Sequence[NDArray[np.uint8]],
        *,
        channel_order: ChannelOrder,
        watch: Stopwatch | None = None,
        highest: HighestScore | None = None,
    ) -> list[ImageDetections]: ...

    def __call__(
        self,
        images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]],
        *,
        channel_order: ChannelOrder,
        watch: Stopwatch | None = None,
        highest: HighestScore | None = None,
    ) -> ImageDetections | list[ImageDetections]:
        """Return the detections of one image, or of each image of a list.

        images: uint8 [H, W, 3]; gray images, [H, W] or [H, W, 1], get three equal channels.
        channel_order: "rgb", or "bgr" as read by OpenCV. watch: measures the stages. highest: takes
        in the scores.

        Raises: ValueError for anything else, before the first forward pass.
        """
        if channel_order not in ("rgb", "bgr"):
            raise ValueError(f"channel_order is '{channel_order}': choose 'rgb' or 'bgr'")
        watch = watch or Stopwatch()

        if isinstance(images, np.ndarray):
            image = three_channels(images, "the image")
            return self._detect([image], channel_order, watch, highest)[0]

        checked = [three_channels(image, f"image {i}") for i, image in enumerate(images)]
        return self._detect(checked, channel_order, watch, highest)

    @torch.inference_mode()
    def _detect(
        self,
        images: Sequence[NDArray[np.uint8]],
        channel_order: ChannelOrder,
        watch: Stopwatch,
        highest: HighestScore | None,
    ) -> list[ImageDetections]:
        """Return the detections of each image. Images of one canvas shape share batches."""
        numbers_by_canvas: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, image in enumerate(images):
            width, height = size_of(image)
            canvas = self._shapes.shape(np.array([height / width]))
            numbers_by_canvas[canvas].append(number)

        by_number: dict[int, ImageDetections] = {}
        for canvas, numbers in numbers_by_canvas.items():
            for start in range(0, len(numbers), self.batch_size):
                batch = numbers[start : start + self.batch_size]
                batch_images = [images[number] for number in batch]
                detections = self._detect_on(canvas, batch_images, channel_order, watch, highest)
                by_number.update(zip(batch, detections, strict=True))
        return [by_number[number] for number in range(len(images))]

    def _detect_on(
        self,
        canvas: tuple[int, int],
        images: Sequence[NDArray[np.uint8]],
        channel_order: ChannelOrder,
        watch: Stopwatch,
        highest: HighestScore | None,
    ) -> list[ImageDetections]:
        """Return the detections of images with the same canvas shape, in one forward pass."""
        sizes = [size_of(image) for image in images]

        with watch("letterbox"):
            sizes_array = np.array(sizes, np.int32)  # [B, 2]
            fitting = base_sizes(sizes_array, self.image_size, canvas=canvas)
            resized_sizes: list[tuple[int, int]] = [tuple(size) for size in fitting.tolist()]
            pixels = np.empty((len(images), *canvas, 3), np.uint8)  # [B, H, W, 3]
            for image, resized_size, out in zip(images, resized_sizes, pixels, strict=True):
                draw_letterboxed(image, resized_size, out, self._letterbox)
                if channel_order == "bgr":
                    cv2.cvtColor(out, cv2.COLOR_BGR2RGB, dst=out)

        with watch("model"):
            inputs = to_device(torch.from_numpy(pixels), self.backend.device, self.backend.dtype)
            lowest_needed = highest.lowest_needed if highest else self.confidence
            predictions = self.backend.predict(inputs, lowest_needed)
            wait_for(self.backend.device)

        with watch("postprocess"):
            if highest:
                highest.add(predictions.scores)
            placements = [
                place(size, resized_size, canvas, self._letterbox)
                for size, resized_size in zip(sizes, resized_sizes, strict=True)
            ]
            return self._in_images(predictions.boxes_xyxy, predictions.scores, placements, sizes)


def _checked_classes(class_ids: Sequence[int] | None, num_classes: int) -> tuple[int, ...] | None:
    """Return the classes in ascending order, None for all.

    Raises: ValueError for a class that the model does not have.
    """
    if class_ids is None:
        return None
    for class_id in class_ids:
        if not 0 <= class_id < num_classes:
            raise ValueError(
                f"class {class_id}: the model has {num_classes} classes (0-{num_classes - 1})"
            )
    return tuple(sorted(set(class_ids)))


def size_of(image: NDArray[np.uint8]) -> tuple[int, int]:
    """Return (width, height) of an image [H, W, 3]."""
    return image.shape[1], image.shape[0]


def detections_in_images(
    boxes_xyxy: Tensor,
    scores: Tensor,
    placements: Sequence[Placement],
    sizes: Sequence[tuple[int, int]],
    *,
    confidence: float,
    iou: float,
    max_detections: int,
    class_ids: Sequence[int] | None = None,
    agnostic: bool = False,
    multi_label: bool = True,
    model_limit: int | None = None,
) -> list[ImageDetections]:
    """Return each image's predictions after non-maximum suppression, in pixels of the image.

    Args:
        boxes_xyxy: [B, N, 4] in canvas pixels.
        scores: [B, N, C].
        placements, sizes: of the B images; a size is (width, height).
        confidence, iou, agnostic, multi_label: as for non_max_suppression.
        max_detections: the best of each image; the others are counted in `left_out`.
        class_ids: return only these classes.
        model_limit: the most detections that the model returns for an image.

    Raises: ValueError as non_max_suppression does.
    """
    check_limits(confidence, iou, max_detections)
    kept = non_max_suppression(
        boxes_xyxy,
        scores,
        confidence=confidence,
        iou=iou,
        max_detections=MAX_CANDIDATES,  # all, to be counted
        agnostic=agnostic,
        multi_label=multi_label,
    )

    results = []
    for of_image, placement, size in zip(kept, placements, sizes, strict=True):
        rows = of_image.cpu().double().numpy()  # [D, 6]
        boxes = placement.to_image(rows[:, :4], size)
        class_ids_found = rows[:, 5].astype(np.int64)
        capped = len(rows) == model_limit
        all_classes = ImageDetections(boxes, rows[:, 4], class_ids_found, capped=capped)

        # Classes are chosen last: a box is of its best class, and suppresses others, whether it is
        # wanted or not. So the boxes are those that are found without class_ids, and only fewer of
        # them.
        results.append(all_classes.best(max_detections, class_ids))
    return results
