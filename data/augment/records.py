"""The parts of a plan: augmentation strengths, patches, pastes, layers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from utils.images.letterbox import Image, Region

Matrix = NDArray[np.float64]  # [3, 3]
Reader = Callable[[int], Image]  # index -> base image; callers must not write to it


@dataclass(frozen=True)
class Augmentation:
    """Strengths and probabilities, named as in the hyper-parameter files; 0 is none."""

    hsv_h: float = 0.0
    hsv_s: float = 0.0
    hsv_v: float = 0.0
    degrees: float = 0.0
    translate: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    perspective: float = 0.0
    flipud: float = 0.0
    fliplr: float = 0.0
    mosaic: float = 0.0
    mixup: float = 0.0
    copy_paste: float = 0.0

    @property
    def axis_aligned(self) -> bool:
        """Whether every patch stays an upright rectangle: a crop and a resize can draw it."""
        return self.degrees == self.shear == self.perspective == 0


@dataclass(frozen=True)
class Patch:
    """The part `region` (base pixels) of image `index`, mapped to the canvas by `matrix`."""

    index: int
    region: Region
    matrix: Matrix
    # canvas rectangle that a crop and a resize fill; None: draw with a warp
    target: Region | None = None


@dataclass(frozen=True)
class Paste:
    """The pixels of image `index` inside both `region` and `outline`, mapped by `matrix`."""

    index: int
    region: Region  # in base pixels
    outline: NDArray[np.float64]  # [P, 2] in base pixels
    matrix: Matrix


@dataclass(frozen=True)
class CanvasLayer:
    """The contents of one canvas: patches, and the objects pasted over them."""

    patches: tuple[Patch, ...]
    pastes: tuple[Paste, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A complete description of a sample."""

    size: tuple[int, int]  # canvas height, width
    layers: tuple[CanvasLayer, ...]  # two with mixup
    targets: NDArray[np.float32]  # [T, 5]: class (-1 ignore region), x1, y1, x2, y2 in pixels
    mix: float = 1.0  # weight of the first layer
    hsv: tuple[float, float, float] | None = None  # gains of hue, saturation, value
    flip_up: bool = False
    flip_left: bool = False
    seed: int = 0  # of the random numbers of own transforms, which come last
