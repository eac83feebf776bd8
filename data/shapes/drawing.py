"""Draw the planned shapes on a textured background.

S: side of the image in pixels; colors are BGR in [0, 255].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.shapes.outlines import outline_of
from data.shapes.plan import NAMES, Shape, plan_shapes
from utils.images.opencv import cv2

SPLITS = ("train", "val")
MIN_VISIBLE = 0.4  # min visible fraction of a shape's pixels for a label
MIN_CONTRAST = 100.0  # min distance in BGR between a shape and its background
FAVORITE_SHARE = 0.95  # fraction of shapes with the hue of their class; the others have any color
SUPERSAMPLING = 4  # edges are averaged from 4 x 4 points per pixel
SUBPIXEL_BITS = 4  # OpenCV draws with 1/16 pixel precision


@dataclass(frozen=True)
class Drawing:
    """A finished image with the labels and outlines of its visible shapes."""

    image: np.ndarray  # uint8 [S, S, 3]
    labels: tuple[int, ...]
    outlines: tuple[np.ndarray, ...]  # each [P, 2] float64, inside [0, S]


def image_generator(seed: int, split: str, index: int) -> np.random.Generator:
    """Return the generator of all random numbers of one image, and of no other image."""
    image_key = (SPLITS.index(split) << 32) + index
    return np.random.Generator(np.random.Philox(key=[seed, image_key]))


def draw_image(seed: int, split: str, index: int, size: int) -> Drawing:
    """Draw image `index` of a split, `size` x `size` pixels: a pure function of its arguments."""
    random = image_generator(seed, split, index)
    shapes = plan_shapes(random, size)
    image = draw_background(random, size)
    owner = np.full((size, size), -1, np.int16)  # the topmost shape at each pixel, -1 for none
    areas = []
    for number, shape in enumerate(shapes):
        areas.append(_draw_shape(image, owner, number, shape, random))
    image = _add_noise(image, random)

    # The labels of shapes that are visible enough.
    labels = []
    outlines = []
    for number, shape in enumerate(shapes):
        visible = owner == number
        if visible.sum() >= max(MIN_VISIBLE * areas[number], 1):
            labels.append(shape.label)
            outlines.append(outline_of(visible))
    return Drawing(image, tuple(labels), tuple(outlines))


def draw_background(random: np.random.Generator, size: int) -> np.ndarray:
    """Return a textured image, uint8 [S, S, 3]: clouds, bands or a gradient, lines and blobs."""
    # A gray texture in [0, 1].
    values = _clouds(random, size)
    kind = random.choice(["clouds", "bands", "slope"])
    if kind != "clouds":
        angle = random.uniform(0, 2 * np.pi)
        ramp = np.linspace(-0.5, 0.5, size, dtype=np.float32)
        slope = ramp * np.cos(angle) + ramp[:, None] * np.sin(angle)
        if kind == "bands":
            slope = 0.5 * np.sin(slope * random.uniform(15, 70))
        values = 0.3 * values + 0.7 * (slope + 0.5)

    # The color of each gray level, between three colors.
    base = random.uniform(40, 215, 3)
    stops = np.clip(base + random.normal(0, 32, (3, 3)), 0, 255)  # [3, BGR]
    steps = np.arange(256)
    channels = [np.interp(steps, [0, 128, 255], stop) for stop in stops.T]
    table = np.stack(channels, 1).astype(np.uint8)  # [256, BGR]

    levels = np.clip(values * 255, 0, 255).astype(np.uint8)
    image = table[levels]
    _scatter(image, random)
    return image


def _clouds(random: np.random.Generator, size: int) -> np.ndarray:
    """Return noise of several octaves, float32 [S, S], roughly in [0, 1]."""
    total = np.zeros((size, size), np.float32)
    for octave in range(2, 7):
        grid = random.random((2**octave, 2**octave), dtype=np.float32) - 0.5
        noise = cv2.resize(grid, (size, size), interpolation=cv2.INTER_CUBIC)
        total += noise * 0.6 ** (octave - 2)
    return 0.5 + total


def _scatter(image: np.ndarray, random: np.random.Generator) -> None:
    """Draw thin lines and soft blobs that belong to no class."""
    size = len(image)
    for _ in range(random.integers(0, 7)):
        start, end = random.integers(0, size, (2, 2)).tolist()
        color = _color(random)
        width = int(random.integers(1, 3))
        cv2.line(image, start, end, color, width, cv2.LINE_AA)

    for _ in range(random.integers(0, 4)):
        radius = int(size * random.uniform(0.03, 0.14))
        center = random.integers(0, size, 2).tolist()
        change = random.uniform(-70, 70, 3)
        _add_blob(image, center, radius, change)


def _add_blob(image: np.ndarray, center: list[int], radius: int, change: np.ndarray) -> None:
    """Add a color offset around `center` (x, y) that fades out within three radii."""
    center_x, center_y = center
    x1 = max(center_x - 3 * radius, 0)
    y1 = max(center_y - 3 * radius, 0)
    part = image[y1 : center_y + 3 * radius, x1 : center_x + 3 * radius]
    height, width = part.shape[:2]

    # A bell curve: the product of one along x and one along y.
    x = np.arange(width, dtype=np.float32) + x1 - center_x
    y = np.arange(height, dtype=np.float32) + y1 - center_y
    bell_x = np.exp(-(x**2) / radius**2)
    bell_y = np.exp(-(y**2) / radius**2)
    bell = bell_y[:, None] * bell_x  # [height, width]

    changed = part + bell[..., None] * change.astype(np.float32)
    part[:] = np.clip(changed, 0, 255).astype(np.uint8)


def _color(
    random: np.random.Generator, unlike: np.ndarray | None = None, hue: float | None = None
) -> list[float]:
    """Return a random color, near a hue in [0, 6) if given.

    Of twelve random colors, it is the first one at least MIN_CONTRAST away from `unlike`, or the
    farthest.
    """
    candidates = random.uniform(0, 255, (12, 3)) if hue is None else _tints(random, hue)
    if unlike is None:
        return candidates[0].tolist()

    distances = np.linalg.norm(candidates - unlike, axis=1)
    far_enough = np.flatnonzero(distances >= MIN_CONTRAST)
    chosen = far_enough[0] if len(far_enough) else distances.argmax()
    return candidates[chosen].tolist()


def _tints(random: np.random.Generator, hue: float) -> np.ndarray:
    """Return twelve random colors [12, BGR] near a hue: 0 red, 2 green, 4 blue."""
    hues = hue + random.normal(0, 0.12, (12, 1))
    saturation = random.uniform(0.5, 1, (12, 1))
    value = random.uniform(0.4, 1, (12, 1))

    # HSV to BGR: channel = value * (1 - saturation * share), where the hue determines the share.
    sixths = (np.array([1, 3, 5]) + hues) % 6
    share = np.clip(np.minimum(sixths, 4 - sixths), 0, 1)
    return 255 * value * (1 - saturation * share)


def _draw_shape(
    image: np.ndarray, owner: np.ndarray, number: int, shape: Shape, random: np.random.Generator
) -> int:
    """Draw a shape; return its area in pixels, also outside the image.

    Args:
        image: uint8 [S, S, 3], drawn onto.
        owner: int16 [S, S], gets `number` where the shape covers at least half a pixel.
        number: of the shape.
        shape: the shape.
        random: the generator of the image.
    """
    # The tile around the shape, which may extend past the image.
    size = len(image)
    points = np.concatenate(shape.loops)
    low = np.floor(points.min(0)).astype(int) - shape.stroke - 2
    high = np.ceil(points.max(0)).astype(int) + shape.stroke + 2
    mask = _mask(shape, low, high)  # uint8 [tile height, tile width]

    x1, y1 = np.maximum(low, 0)
    x2, y2 = np.minimum(high, size)
    tile_x, tile_y = low
    inside = mask[y1 - tile_y : y2 - tile_y, x1 - tile_x : x2 - tile_x]

    # Blend the shape's colors with what is under it, and round.
    under = image[y1:y2, x1:x2]
    texture = _texture(shape, (x1, y1, x2, y2), under.mean((0, 1)), random)
    alpha = inside[..., None].astype(np.float32) / 255
    under[:] = (under + alpha * (texture - under) + 0.5).astype(np.uint8)

    owner[y1:y2, x1:x2][inside >= 128] = number
    return int((mask >= 128).sum())


def _mask(shape: Shape, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return how much of each pixel of the tile from `low` to `high` the shape covers, 0 to 255."""
    # Drawn larger and downscaled, because OpenCV's antialiased edges make a filled shape half a
    # pixel larger all round.
    width, height = ((high - low) * SUPERSAMPLING).tolist()
    mask = np.zeros((height, width), np.uint8)
    loops = _fixed_point(shape, low, SUPERSAMPLING)
    if shape.stroke:
        stroke = shape.stroke * SUPERSAMPLING
        cv2.polylines(mask, loops, True, 255, stroke, cv2.LINE_8, SUBPIXEL_BITS)
    else:
        cv2.fillPoly(mask, loops, 255, cv2.LINE_8, SUBPIXEL_BITS)

    tile_size = (width // SUPERSAMPLING, height // SUPERSAMPLING)
    return cv2.resize(mask, tile_size, interpolation=cv2.INTER_AREA)


def _fixed_point(shape: Shape, origin: np.ndarray, finer: int = 1) -> list[np.ndarray]:
    """Return the loops for OpenCV: in 1/16 pixels of an image `finer` times larger.

    Integers are pixel centers there.
    """
    loops = []
    for loop in shape.loops:
        pixels = (loop - origin) * finer - 0.5
        loops.append(np.round(pixels * 2**SUBPIXEL_BITS).astype(np.int32))
    return loops


def _texture(
    shape: Shape, tile: tuple[int, int, int, int], under: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Return a shape's colors in the tile (x1, y1, x2, y2), float32 [height, width, 3].

    under: the mean color of the background.
    """
    # Two colors: one unlike the background, the other somewhat unlike the first.
    hue = 6 * shape.label / len(NAMES) if random.random() < FAVORITE_SHARE else None
    first = np.array(_color(random, under, hue), np.float32)
    checker = NAMES[shape.label] == "checker"
    strength = 1.0 if checker else random.uniform(0.15, 0.4)
    unlike_first = np.array(_color(random, unlike=first), np.float32)
    second = first + np.float32(strength) * (unlike_first - first)

    # The weight of the second color at each pixel.
    along, across = _own_frame(shape, tile)
    if checker:
        column = np.floor(along * 2.8284)  # of 4 x 4 fields
        row = np.floor(across * 2.8284)
        weight = ((column + row) % 2).astype(np.float32)
    elif shape.fill == "gradient":
        weight = np.clip(along / 2 + 0.5, 0, 1)
    elif shape.fill == "striped":
        weight = (np.sin(along * random.uniform(8, 16)) > 0).astype(np.float32)
    else:
        weight = np.zeros_like(along)
    texture = first + weight[..., None] * (second - first)

    # A dark edge.
    if shape.edged and not shape.stroke:
        dark = (0.35 * first).tolist()
        width = max(1, round(0.06 * shape.diameter))
        loops = _fixed_point(shape, np.array(tile[:2]))
        cv2.polylines(texture, loops, True, dark, width, cv2.LINE_8, SUBPIXEL_BITS)
    return texture


def _own_frame(shape: Shape, tile: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return each pixel's position along and across the shape, float32 [height, width] each.

    The unit is the shape's radius.
    """
    x1, y1, x2, y2 = tile
    center_x, center_y = shape.center
    columns = np.arange(x1, x2, dtype=np.float32)
    rows = np.arange(y1, y2, dtype=np.float32)[:, None]
    x = (columns + 0.5 - center_x) * (2 / shape.diameter)
    y = (rows + 0.5 - center_y) * (2 / shape.diameter)

    cos = np.float32(np.cos(shape.angle))
    sin = np.float32(np.sin(shape.angle))
    along = x * cos + y * sin
    across = y * cos - x * sin
    return along, across


def _add_noise(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the image with gray noise, blurred in a quarter of images."""
    if random.random() < 0.25:
        image = cv2.GaussianBlur(image, (0, 0), random.uniform(0.4, 0.8))

    noise = random.standard_normal(image.shape[:2], dtype=np.float32)
    strength = np.float32(random.uniform(1, 7))
    noisy = image + (noise * strength)[..., None]
    return np.clip(noisy, 0, 255).astype(np.uint8)
