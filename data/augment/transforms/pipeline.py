"""Apply the transforms of a file to a finished sample: its pixels, and its boxes with them.

The random numbers of a sample come from its plan, so they depend on (seed, epoch, index) only. All
transforms share two generators, as the library draws from both; its own `Compose.set_random_seed`
would give each transform the same numbers, so that all of equal probability came together.

H W height and width of the canvas, T targets.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.augment.geometry import keep_mask
from data.augment.plan import MIN_AREA_BOX
from data.augment.transforms.file import Step, TransformFile, parse_transforms
from data.augment.transforms.library import (
    boxes_processor,
    build_transform,
    import_albumentations,
)
from data.augment.transforms.names import BOX_TRANSFORMS, BOXES_STAY, COVERING, ONE_OF, SOME_OF
from utils.boxes import IGNORE_CLASS
from utils.images.boxes import box_areas, clip_boxes
from utils.images.letterbox import Image, draw_letterboxed, place
from utils.printable import counted, one_line

Targets = NDArray[np.float32]  # [T, 5]: class (-1 ignore region), x1, y1, x2, y2 in pixels


class TransformsError(ValueError):
    """A transform cannot be applied to a sample. The message has the file and the line."""


class Sample:
    """A sample between two transforms: its image, always of the canvas's size, and its targets."""

    def __init__(self, image: Image, targets: Targets, seed: int) -> None:
        self.size: tuple[int, int] = image.shape[:2]
        self.image = image
        self.targets = targets
        self.numbers = np.random.default_rng(seed)
        self.python_numbers = random.Random(seed)


@dataclass(frozen=True)
class Leaf:
    """A transform of the library."""

    transform: Any
    name: str
    where: str
    moves_boxes: bool

    @property
    def weight(self) -> float:
        return float(self.transform.p)

    @property
    def title(self) -> str:
        """The name and the line, for a picture."""
        return f"{self.name}, line {self.where.rpartition(' ')[2]}"

    def apply(self, sample: Sample, *, force: bool = False) -> None:
        """Apply the transform with its probability, or if `force` in any case."""
        boxes = _normalized(sample)
        data = {"image": sample.image}
        if self.moves_boxes:
            data["bboxes"] = boxes
        self.transform.set_random_state(sample.numbers, sample.python_numbers)
        try:
            result = self.transform(force_apply=force, **data)
        except Exception as error:
            height, width = sample.size
            reason = one_line(error) or type(error).__name__
            raise TransformsError(
                f"{self.where}: {self.name} fails on an image of {width} x {height} px: {reason}"
            ) from error

        image = result["image"]
        self._check(image)
        if self.moves_boxes and result["bboxes"] is not boxes:
            after = _remaining if self.name in COVERING else _moved
            sample.targets = after(sample, result["bboxes"], image.shape[:2])
        sample.image = _on_canvas(image, sample.size)

    def _check(self, image: Any) -> None:
        """Raise TransformsError unless the image is one of 8-bit RGB."""
        is_array = isinstance(image, np.ndarray)
        if is_array and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
            return
        got = f"{image.dtype} {list(image.shape)}" if is_array else type(image).__name__
        raise TransformsError(
            f"{self.where}: {self.name} returns {got}, expected uint8 [height, width, 3]"
        )


@dataclass(frozen=True)
class Group:
    """Several steps, of which all, one or some are applied."""

    step: Step
    children: tuple["Leaf | Group", ...]

    @property
    def weight(self) -> float:
        return self.step.chance

    def apply(self, sample: Sample, *, force: bool = False) -> None:
        """Apply the group with its probability, or if `force` in any case.

        OneOf chooses by the probabilities of its steps, and applies the chosen one. SomeOf chooses
        uniformly, keeps the order, and applies each with its probability, as Sequential does.
        """
        if not force and sample.numbers.random() >= self.step.chance:
            return

        count = len(self.children)
        if self.step.name == ONE_OF:
            weights = np.array([child.weight for child in self.children])
            chosen = sample.numbers.choice(count, p=weights / weights.sum())
            self.children[int(chosen)].apply(sample, force=True)
            return

        order = range(count)
        if self.step.name == SOME_OF:
            several = sample.numbers.choice(count, self.step.count, replace=self.step.repeats)
            order = np.sort(several).tolist()
        for number in order:
            self.children[number].apply(sample)


class Transforms:
    """The transforms of a file, ready to be applied.

    They are not sent to worker processes: each builds its own from the text of the file.

    notes: what the library warns of, with file and line.
    """

    def __init__(self, text: str, name: str) -> None:
        """Build the transforms. Raises ValueError with file and line, or if the package is missing.

        text: of the file. name: what errors call the file.
        """
        self.file: TransformFile = parse_transforms(text, name)
        self._library = import_albumentations()
        self._processor = boxes_processor(self._library, MIN_AREA_BOX)
        self.notes: list[str] = []
        self.leaves: list[Leaf] = []  # also those in groups, in the order of the file
        self._steps = [self._built(step) for step in self.file.steps]

    def __reduce__(self) -> tuple[type["Transforms"], tuple[str, str]]:
        return Transforms, (self.file.text, self.file.name)

    def describe(self) -> str:
        """Return a line for the log."""
        count = counted(len(self.leaves), "transform")
        return (
            f"--augmentations {self.file.name}: {count} of Albumentations "
            f"{self._library.__version__}, after mosaic, colors and flips"
        )

    def apply(self, image: Image, targets: Targets, seed: int) -> Targets:
        """Transform the image [H, W, 3] in place, uint8 RGB, and return its targets.

        seed: the plan's. Raises TransformsError if a transform fails.
        """
        return self._apply(self._steps, image, targets, seed)

    def apply_one(self, leaf: Leaf, image: Image, targets: Targets, seed: int) -> Targets:
        """Apply one transform of `leaves`, whatever its probability, as `apply` does."""
        return self._apply([leaf], image, targets, seed, force=True)

    def check(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Apply each transform to canvases of these sizes (height, width).

        So a mistake that the library's validation does not find is reported before the training.
        Raises TransformsError.
        """
        for height, width in sizes:
            canvas = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
            box = np.array([[0, 0, 0, width / 2, height / 2]], np.float32)
            for number, leaf in enumerate(self.leaves):
                self.apply_one(leaf, canvas.copy(), box, number)

    def _apply(
        self,
        steps: Sequence[Leaf | Group],
        image: Image,
        targets: Targets,
        seed: int,
        *,
        force: bool = False,
    ) -> Targets:
        sample = Sample(image, targets, seed)
        for step in steps:
            step.apply(sample, force=force)
        if sample.image is not image:
            image[:] = sample.image
        return sample.targets

    def _built(self, step: Step) -> Leaf | Group:
        """Return a step with the library's transforms. Raises ValueError with file and line."""
        if step.children:
            group = Group(step, tuple(self._built(child) for child in step.children))
            if step.name == ONE_OF and not any(child.weight for child in group.children):
                raise ValueError(f"{step.where}: all transforms of OneOf have p 0")
            return group

        try:
            transform, warned = build_transform(self._library, step.name, step.arguments)
        except ValueError as error:
            raise ValueError(f"{step.where}: {error}") from None
        self.notes.extend(f"{step.where}: {step.name}: {text}" for text in warned)
        transform.set_processors({"bboxes": self._processor})
        moves_boxes = step.name in BOX_TRANSFORMS - BOXES_STAY
        leaf = Leaf(transform, step.name, step.where, moves_boxes)
        self.leaves.append(leaf)
        return leaf


def _normalized(sample: Sample) -> NDArray[np.float32]:
    """Return x1, y1, x2, y2 in [0, 1], class and number of each box [T, 6], for the library."""
    height, width = sample.size
    boxes = np.empty((len(sample.targets), 6), np.float32)
    boxes[:, :4] = sample.targets[:, 1:] / np.array([width, height, width, height], np.float32)
    boxes[:, 4] = sample.targets[:, 0]
    boxes[:, 5] = np.arange(len(boxes))
    return boxes


def _moved(sample: Sample, boxes: NDArray[Any], shape: tuple[int, int]) -> Targets:
    """Return the targets of the boxes that a transform returns, clipped to the canvas.

    The rules are those of the plan: of a box a tenth must stay visible, and its sides must be long
    enough; of an ignore region any part stays.

    Args:
        sample: before the transform.
        boxes: normalized, [M, 6]; they may be outside of [0, 1].
        shape: height and width of the transformed image.
    """
    if len(boxes) == 0:
        return np.zeros((0, 5), np.float32)

    # From fractions of the transformed image to the canvas.
    height, width = shape
    pixels = boxes[:, :4].astype(np.float64) * [width, height, width, height]
    whole = pixels
    region = (0, 0, width, height)
    visible = clip_boxes(pixels, region)
    if shape != sample.size:
        placement = place((width, height), _fitted(shape, sample.size), sample.size)
        whole = placement.to_canvas(whole)
        visible = placement.to_canvas(visible)

    classes = sample.targets[boxes[:, 5].astype(int), 0]
    share = np.full(len(boxes), MIN_AREA_BOX)
    kept = np.where(
        classes == IGNORE_CLASS,
        box_areas(visible) > 0,
        keep_mask(box_areas(whole), visible, share),
    )
    return np.concatenate([classes[kept, None], visible[kept]], 1).astype(np.float32)


def _remaining(sample: Sample, boxes: NDArray[Any], _: object) -> Targets:
    """Return the targets whose boxes a transform that covers parts of the image still returns.

    Of a box a tenth must stay uncovered. The library returns the box of the uncovered part, in
    whole pixels; the object is where it was, so its box stays. Ignore regions stay, too.
    """
    kept = sample.targets[:, 0] == IGNORE_CLASS
    if len(boxes):
        kept[boxes[:, 5].astype(int)] = True
    return sample.targets[kept]


def _fitted(shape: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Return the (width, height) that an image of `shape` is resized to, to fill a canvas.

    shape, size: height and width of the image and of the canvas.

    >>> _fitted((50, 100), (640, 640))
    (640, 320)
    """
    height, width = shape
    ratio = min(size[0] / height, size[1] / width)
    return max(1, round(width * ratio)), max(1, round(height * ratio))


def _on_canvas(image: Image, size: tuple[int, int]) -> Image:
    """Return the image if it has the canvas's size (height, width), else letterboxed to it."""
    if image.shape[:2] == size:
        return image
    canvas = np.empty((*size, 3), np.uint8)
    draw_letterboxed(image, _fitted(image.shape[:2], size), canvas)
    return canvas
