"""The generated demonstration set: ten kinds of shapes on textured backgrounds, the same bytes from the same seed.

    python -m data.shapes [--root DIR] [--seed N] [--train N] [--val N] [--size PX]

Shape alone does not tell the classes apart: a checker is a square with another texture, and a class has a favourite
hue, which helps where a shape is tiny or half hidden, and misleads where it is not kept. Sizes spread over 1:20, shapes
hide each other and leave the image, one image in twenty is empty. A label is the outline of what is seen of a shape, as
a YOLO polygon row, whose extremes are its box.

An image is planned first (numbers only), then drawn, from a generator keyed by seed, split and index: no image depends
on another one. S side of the image in pixels; colours are BGR in [0, 255], as OpenCV has them; points are (x, y) pixels
in the frame whose pixel i covers [i, i + 1].
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from utils.opencv import cv2

NAMES = ("circle", "square", "triangle", "star", "cross", "ring", "crescent", "arrow", "heart", "checker")
DEFAULT_ROOT = Path(__file__).resolve().parents[1] / "datasets" / "shapes"
SPLITS = ("train", "val")
MARKER = "shapes.json"  # lies in a finished set and says how it was made
RECIPE = 2  # raise it with any change that changes a pixel or a label

# The difficulty: smaller or more shapes, more hiding and less contrast make the set harder.
SMALLEST, LARGEST = 0.04, 0.8  # diameter as a share of the image's side
SMALL_ARE_RARE = 0.4  # diameters are log-uniform for 1, larger on average below 1
MEAN_EXTRA_SHAPES, MOST_SHAPES = 2.3, 7  # 1 + Poisson(mean), at most
EMPTY_SHARE = 0.05  # of the images
LEAST_VISIBLE = 0.4  # of its pixels: a shape that shows less is not labelled
LEAST_CONTRAST = 100.0  # distance in BGR between a shape and what it lies on
FAVOURITE_SHARE = 0.95  # of the shapes have their class's hue, the others any colour
OUTLINED_SHARE = 0.1  # of the shapes that may be outlined
LARGEST_TURN = 0.4  # radians from upright
PLACES_TRIED = 8  # the one furthest from the other shapes is taken: 1 hides most

FINER = 4  # edges are smoothed from 4 x 4 points per pixel
SUBPIXEL_BITS = 4  # OpenCV draws at 1/16 pixel
POINTS_PER_CURVE = 72


@dataclass(frozen=True)
class Shape:
    """One planned shape: its class, its closed loops in pixels, and how it is filled."""

    label: int
    centre: tuple[float, float]
    diameter: float  # of the circle around it, before it is stretched
    angle: float  # radians
    loops: tuple[np.ndarray, ...]  # each [P, 2] float64; a second loop is a hole
    stroke: int  # width of the line in pixels of a shape that is only outlined, 0 for a filled one
    edged: bool
    fill: str  # plain, gradient or striped


@dataclass(frozen=True)
class Drawing:
    """One finished image with the shapes that are seen in it."""

    image: np.ndarray  # uint8 [S, S, 3]
    labels: tuple[int, ...]
    outlines: tuple[np.ndarray, ...]  # each [P, 2] float64, inside [0, S]


def image_generator(seed: int, split: str, index: int) -> np.random.Generator:
    """The source of every random number of one image, and of no other image."""
    return np.random.Generator(np.random.Philox(key=[seed, (SPLITS.index(split) << 32) + index]))


def draw_image(seed: int, split: str, index: int, size: int) -> Drawing:
    """Image `index` of a split, size pixels square: a pure function of its arguments."""
    random = image_generator(seed, split, index)
    shapes = plan_shapes(random, size)
    image = draw_background(random, size)
    owner = np.full((size, size), -1, np.int16)  # which shape is on top at each pixel
    areas = [_draw_shape(image, owner, number, shape, random) for number, shape in enumerate(shapes)]
    image = _add_noise(image, random)

    labels, outlines = [], []
    for number, shape in enumerate(shapes):
        visible = owner == number
        if visible.sum() >= max(LEAST_VISIBLE * areas[number], 1):
            labels.append(shape.label)
            outlines.append(outline_of(visible))
    return Drawing(image, tuple(labels), tuple(outlines))


# The plan


def plan_shapes(random: np.random.Generator, size: int) -> list[Shape]:
    """The shapes of one image from back to front, mostly the larger ones behind; none in EMPTY_SHARE of the images."""
    if random.random() < EMPTY_SHARE:
        return []
    count = min(1 + random.poisson(MEAN_EXTRA_SHAPES), MOST_SHAPES)
    shapes: list[Shape] = []
    for _ in range(count):
        shapes.append(_plan_shape(random, size, shapes))
    distances = np.array([shape.diameter for shape in shapes]) * random.lognormal(0.0, 0.7, count)
    return [shapes[number] for number in np.argsort(-distances)]


def _plan_shape(random: np.random.Generator, size: int, others: list[Shape]) -> Shape:
    label = int(random.integers(len(NAMES)))
    diameter = size * SMALLEST * (LARGEST / SMALLEST) ** (random.random() ** SMALL_ARE_RARE)
    margin = 0.3 * diameter  # up to a fifth of the diameter may leave the image on a side
    places = random.uniform(margin, size - margin, (PLACES_TRIED, 2))
    centre = max(places.tolist(), key=lambda place: _room(place, diameter, others))
    angle = float(random.uniform(-LARGEST_TURN, LARGEST_TURN))
    stretch = np.exp(random.uniform(-0.2, 0.2))

    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    scale = diameter / 2 * np.array([stretch**0.5, stretch**-0.5])
    loops = tuple(loop * scale @ turn + centre for loop in unit_loops(NAMES[label]))

    may_be_outlined = diameter > 16 and NAMES[label] not in ("circle", "ring", "crescent", "checker")
    outlined = random.random() < OUTLINED_SHARE and may_be_outlined
    stroke = max(2, round(diameter * random.uniform(0.06, 0.11))) if outlined else 0
    fill = str(random.choice(["plain", "gradient", "striped"], p=[0.4, 0.45, 0.15]))
    return Shape(label, (centre[0], centre[1]), diameter, angle, loops, stroke, bool(random.random() < 0.35), fill)


def _room(place: list[float], diameter: float, others: list[Shape]) -> float:
    """Pixels between the circle around a shape at that place and the nearest other one's, negative if they overlap."""
    gaps = [
        float(np.hypot(place[0] - other.centre[0], place[1] - other.centre[1])) - (diameter + other.diameter) / 2
        for other in others
    ]
    return min(gaps, default=0.0)


def unit_loops(name: str) -> list[np.ndarray]:
    """The closed loops [P, 2] of a shape of radius 1 around the origin, y down; a second loop is a hole.

    >>> unit_loops("square")[0].round(3).tolist()
    [[0.707, 0.707], [-0.707, 0.707], [-0.707, -0.707], [0.707, -0.707]]
    """
    if name in ("square", "checker"):
        return [_on_circle([45, 135, 225, 315])]
    if name == "triangle":
        return [_on_circle([-90, 30, 150])]
    if name == "star":
        return [_on_circle(np.arange(10) * 36 - 90) * np.where(np.arange(10) % 2, 0.45, 1.0)[:, None]]
    if name == "cross":
        return [_cross(arm=0.32)]
    if name == "crescent":
        return [_crescent(shift=0.45, radius=0.8)]
    if name == "arrow":
        return [_arrow()]
    if name == "heart":
        return [_heart()]
    circle = _on_circle(np.linspace(0, 360, POINTS_PER_CURVE, endpoint=False))
    return [circle, 0.58 * circle] if name == "ring" else [circle]


def _on_circle(degrees: list[int] | np.ndarray) -> np.ndarray:
    radians = np.radians(np.asarray(degrees, np.float64))
    return np.stack([np.cos(radians), np.sin(radians)], 1)


def _cross(arm: float) -> np.ndarray:
    tip = (1 - arm**2) ** 0.5  # the corners of the arms lie on the unit circle
    corner = np.array([[tip, -arm], [tip, arm], [arm, arm]])
    quarter = np.array([[0.0, 1.0], [-1.0, 0.0]])
    return np.concatenate([corner @ np.linalg.matrix_power(quarter, k) for k in range(4)])


def _crescent(shift: float, radius: float) -> np.ndarray:
    """The unit circle less a circle of that radius, moved to the right by shift."""
    x = (1 + shift**2 - radius**2) / (2 * shift)  # where the two circles meet
    y = (1 - x**2) ** 0.5
    outer = np.arctan2(y, x)
    inner = np.arctan2(y, x - shift)
    outside = _on_circle(np.degrees(np.linspace(outer, 2 * np.pi - outer, POINTS_PER_CURVE)))
    inside = _on_circle(np.degrees(np.linspace(2 * np.pi - inner, inner, POINTS_PER_CURVE)))[1:-1]
    return np.concatenate([outside, inside * radius + [shift, 0.0]])


def _arrow() -> np.ndarray:
    half = np.array([[1.0, 0.0], [0.1, 0.72], [0.1, 0.27], [-0.95, 0.27]])
    return np.concatenate([half, half[:0:-1] * [1, -1]])


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, POINTS_PER_CURVE, endpoint=False)
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    heart = np.stack([16 * np.sin(t) ** 3, y - 2.5], 1)
    return heart / np.linalg.norm(heart, axis=1).max()


# The drawing


def draw_background(random: np.random.Generator, size: int) -> np.ndarray:
    """A textured image, uint8 [S, S, 3]: clouds, bands or a slope in three colours, with lines and blobs."""
    values = _clouds(random, size)
    kind = random.choice(["clouds", "bands", "slope"])
    if kind != "clouds":
        angle = random.uniform(0, 2 * np.pi)
        ramp = np.linspace(-0.5, 0.5, size, dtype=np.float32)
        slope = ramp * np.cos(angle) + ramp[:, None] * np.sin(angle)
        if kind == "bands":
            slope = 0.5 * np.sin(slope * random.uniform(15, 70))
        values = 0.3 * values + 0.7 * (slope + 0.5)

    base = random.uniform(40, 215, 3)
    stops = np.clip(base + random.normal(0, 32, (3, 3)), 0, 255)  # [3, BGR]
    steps = np.arange(256)
    table = np.stack([np.interp(steps, [0, 128, 255], stops[:, channel]) for channel in range(3)], 1)
    image = table.astype(np.uint8)[np.clip(values * 255, 0, 255).astype(np.uint8)]
    _scatter(image, random)
    return image


def _clouds(random: np.random.Generator, size: int) -> np.ndarray:
    """Noise of several octaves, float32 [S, S], about [0, 1]."""
    total = np.zeros((size, size), np.float32)
    for octave in range(2, 7):
        grid = random.random((2**octave, 2**octave), dtype=np.float32) - 0.5
        total += cv2.resize(grid, (size, size), interpolation=cv2.INTER_CUBIC) * 0.6 ** (octave - 2)
    return 0.5 + total


def _scatter(image: np.ndarray, random: np.random.Generator) -> None:
    """Draw thin lines and soft blobs that belong to no class."""
    size = len(image)
    for _ in range(random.integers(0, 7)):
        start, end = random.integers(0, size, (2, 2)).tolist()
        shade = _colour(random)
        cv2.line(image, start, end, shade, int(random.integers(1, 3)), cv2.LINE_AA)
    for _ in range(random.integers(0, 4)):
        radius = int(size * random.uniform(0.03, 0.14))
        _add_blob(image, random.integers(0, size, 2).tolist(), radius, random.uniform(-70, 70, 3))


def _add_blob(image: np.ndarray, centre: list[int], radius: int, change: np.ndarray) -> None:
    """Add a colour that fades to nothing at three radii."""
    x1, y1 = (max(c - 3 * radius, 0) for c in centre)
    part = image[y1 : centre[1] + 3 * radius, x1 : centre[0] + 3 * radius]
    x = np.arange(part.shape[1], dtype=np.float32) + x1 - centre[0]
    y = np.arange(part.shape[0], dtype=np.float32) + y1 - centre[1]
    bell = np.exp(-(y**2) / radius**2)[:, None] * np.exp(-(x**2) / radius**2)
    part[:] = np.clip(part + bell[..., None] * change.astype(np.float32), 0, 255).astype(np.uint8)


def _colour(random: np.random.Generator, unlike: np.ndarray | None = None, hue: float | None = None) -> list[float]:
    """A colour, of about a hue in [0, 6) if given, LEAST_CONTRAST away from another one, or the furthest of twelve."""
    tries = random.uniform(0, 255, (12, 3)) if hue is None else _tints(random, hue)
    if unlike is None:
        return tries[0].tolist()
    distances = np.linalg.norm(tries - unlike, axis=1)
    enough = np.flatnonzero(distances >= LEAST_CONTRAST)
    return tries[enough[0] if len(enough) else distances.argmax()].tolist()


def _tints(random: np.random.Generator, hue: float) -> np.ndarray:
    """Twelve colours [12, BGR] about that hue: 0 red, 2 green, 4 blue."""
    hues = hue + random.normal(0, 0.12, (12, 1))
    saturation, value = random.uniform(0.5, 1, (12, 1)), random.uniform(0.4, 1, (12, 1))
    place = (np.array([1, 3, 5]) + hues) % 6
    return 255 * value * (1 - saturation * np.clip(np.minimum(place, 4 - place), 0, 1))


def _draw_shape(image: np.ndarray, owner: np.ndarray, number: int, shape: Shape, random: np.random.Generator) -> int:
    """Draw one shape over image and put its number into owner. Returns its area in pixels, outside the image too."""
    size = len(image)
    points = np.concatenate(shape.loops)
    low = np.floor(points.min(0)).astype(int) - shape.stroke - 2
    high = np.ceil(points.max(0)).astype(int) + shape.stroke + 2
    mask = _mask(shape, low, high)  # uint8 [tile height, tile width]

    x1, y1 = np.maximum(low, 0)
    x2, y2 = np.minimum(high, size)
    inside = mask[y1 - low[1] : y2 - low[1], x1 - low[0] : x2 - low[0]]
    under = image[y1:y2, x1:x2]
    texture = _texture(shape, (x1, y1, x2, y2), under.mean((0, 1)), random)
    alpha = inside[..., None].astype(np.float32) / 255
    under[:] = (under + alpha * (texture - under) + 0.5).astype(np.uint8)
    owner[y1:y2, x1:x2][inside >= 128] = number
    return int((mask >= 128).sum())


def _mask(shape: Shape, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How much of each pixel of the tile from low to high the shape covers, uint8, 255 for all of it."""
    # Drawn finely and shrunk: OpenCV's own smooth edges make a filled shape half a pixel larger all around.
    width, height = ((high - low) * FINER).tolist()
    mask = np.zeros((height, width), np.uint8)
    loops = _fixed_point(shape, low, FINER)
    if shape.stroke:
        cv2.polylines(mask, loops, True, 255, shape.stroke * FINER, cv2.LINE_8, SUBPIXEL_BITS)
    else:
        cv2.fillPoly(mask, loops, 255, cv2.LINE_8, SUBPIXEL_BITS)
    return cv2.resize(mask, (width // FINER, height // FINER), interpolation=cv2.INTER_AREA)


def _fixed_point(shape: Shape, origin: np.ndarray, finer: int = 1) -> list[np.ndarray]:
    """The loops as OpenCV takes them: 1/16 pixels, with integers at pixel centres, in an image so many times finer."""
    return [np.round(((loop - origin) * finer - 0.5) * 2**SUBPIXEL_BITS).astype(np.int32) for loop in shape.loops]


def _texture(
    shape: Shape, tile: tuple[int, int, int, int], under: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """A shape's colours over the tile (x1, y1, x2, y2), float32 [height, width, 3]; under: the mean colour below it."""
    hue = 6 * shape.label / len(NAMES) if random.random() < FAVOURITE_SHARE else None
    first = np.array(_colour(random, under, hue), np.float32)
    checker = NAMES[shape.label] == "checker"
    strength = 1.0 if checker else random.uniform(0.15, 0.4)
    second = first + np.float32(strength) * (np.array(_colour(random, unlike=first), np.float32) - first)
    along, across = _own_frame(shape, tile)
    if checker:
        share = ((np.floor(along * 2.8284) + np.floor(across * 2.8284)) % 2).astype(np.float32)  # 4 x 4 fields
    elif shape.fill == "gradient":
        share = np.clip(along / 2 + 0.5, 0, 1)
    elif shape.fill == "striped":
        share = (np.sin(along * random.uniform(8, 16)) > 0).astype(np.float32)
    else:
        share = np.zeros_like(along)
    texture = first + share[..., None] * (second - first)
    if shape.edged and not shape.stroke:
        dark = (0.35 * first).tolist()
        width = max(1, round(0.06 * shape.diameter))
        cv2.polylines(texture, _fixed_point(shape, np.array(tile[:2])), True, dark, width, cv2.LINE_8, SUBPIXEL_BITS)
    return texture


def _own_frame(shape: Shape, tile: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Each pixel's place along and across the shape, in its radii, float32 [tile height, tile width] each."""
    x1, y1, x2, y2 = tile
    x = (np.arange(x1, x2, dtype=np.float32) + 0.5 - shape.centre[0]) * (2 / shape.diameter)
    y = (np.arange(y1, y2, dtype=np.float32)[:, None] + 0.5 - shape.centre[1]) * (2 / shape.diameter)
    cos, sin = np.float32(np.cos(shape.angle)), np.float32(np.sin(shape.angle))
    return x * cos + y * sin, y * cos - x * sin


def _add_noise(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if random.random() < 0.25:
        image = cv2.GaussianBlur(image, (0, 0), random.uniform(0.4, 0.8))
    noise = random.standard_normal(image.shape[:2], dtype=np.float32) * np.float32(random.uniform(1, 7))
    return np.clip(image + noise[..., None], 0, 255).astype(np.uint8)


# The labels


def outline_of(visible: np.ndarray) -> np.ndarray:
    """The outline [P, 2] of a mask bool [S, S] that holds a pixel; its extremes are the mask's extent to the digit.

    Pieces are joined to one outline by bridges without width; holes are left out.
    """
    rows, columns = np.flatnonzero(visible.any(1)), np.flatnonzero(visible.any(0))
    x1, x2, y1, y2 = columns[0], columns[-1] + 1, rows[0], rows[-1] + 1
    if x2 - x1 < 2 or y2 - y1 < 2:
        return np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], np.float64)
    crop = visible[y1:y2, x1:x2].astype(np.uint8)
    pieces, _ = cv2.findContours(crop, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    points = _join([cv2.approxPolyDP(piece, 0.6, True)[:, 0] for piece in pieces])
    # OpenCV runs through pixel centres, from 0 to extent - 1: half a pixel is missing on each side.
    x = np.interp(points[:, 0], (points[:, 0].min(), points[:, 0].max()), (x1, x2))
    y = np.interp(points[:, 1], (points[:, 1].min(), points[:, 1].max()), (y1, y2))
    return np.stack([x, y], 1)


def _join(pieces: list[np.ndarray]) -> np.ndarray:
    """One closed line through all pieces that goes from first point to first point and back the same way."""
    there = [np.concatenate([piece, piece[:1]]) for piece in pieces]
    back = [piece[:1] for piece in pieces[-2:0:-1]]
    return np.concatenate(there + back) if len(pieces) > 1 else pieces[0]


def label_rows(drawing: Drawing) -> str:
    """The label file of a drawing: one row per shape, its class and the points of its outline as shares of the side."""
    size = len(drawing.image)
    rows = []
    for label, outline in zip(drawing.labels, drawing.outlines, strict=True):
        rows.append(" ".join([str(label), *(f"{value:.6g}" for value in (outline / size).ravel())]) + "\n")
    return "".join(rows)


# The files


def generate(
    root: str | Path = DEFAULT_ROOT, *, train: int = 1000, val: int = 200, size: int = 320, seed: int = 0
) -> Path:
    """The folder of the set, drawn now unless it is there already: images/, labels/, shapes.yaml and the marker.

    The set is drawn into a folder beside and renamed when it is whole, so nobody ever sees half a set; of several
    processes that start at once one set stays.

    Raises ValueError for settings out of range, and where the folder holds anything else than this very set.
    """
    settings = {"recipe": RECIPE, "train": train, "val": val, "size": size, "seed": seed}
    _check(settings)
    root = Path(root)
    if _is_there(root, settings):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = root.with_name(f".{root.name}.tmp.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _write_set(draft, settings)
        _move_into_place(draft, root, settings)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return root


def _check(settings: dict[str, int]) -> None:
    allowed = {"train": (1, 999_999), "val": (1, 999_999), "size": (64, 4096), "seed": (0, 2**63 - 1)}
    for name, (low, high) in allowed.items():
        if not low <= settings[name] <= high:
            raise ValueError(f"shapes: {name} is {settings[name]}, but must be {low} to {high}.")


def _is_there(root: Path, settings: dict[str, int]) -> bool:
    """Whether root holds this very set. Raises ValueError where it holds something else."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return False
    try:
        found = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{root} is there but is no generated set of shapes: name another folder.") from None
    if found != settings:
        raise ValueError(f"{root} was generated with {found}, not with {settings}: delete it or name another folder.")
    return True


def _move_into_place(draft: Path, root: Path, settings: dict[str, int]) -> None:
    try:
        draft.rename(root)
    except OSError:
        if not _is_there(root, settings):  # else another process was faster: its set has the same bytes
            raise


def _write_set(folder: Path, settings: dict[str, int]) -> None:
    for split in SPLITS:
        images, labels = folder / "images" / split, folder / "labels" / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for index in range(1, settings[split] + 1):
            drawing = draw_image(settings["seed"], split, index, settings["size"])
            _, encoded = cv2.imencode(".jpg", drawing.image, [cv2.IMWRITE_JPEG_QUALITY, 92])
            (images / f"{index:06}.jpg").write_bytes(encoded.tobytes())
            (labels / f"{index:06}.txt").write_text(label_rows(drawing), encoding="ascii", newline="\n")
    names = ", ".join(NAMES)
    (folder / "shapes.yaml").write_text(f"path: .\ntrain: images/train\nval: images/val\nnames: [{names}]\n")
    (folder / MARKER).write_text(json.dumps(settings) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Draw the set as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m data.shapes", description="Draw the demonstration set of shapes.")
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=1000, help="number of training images")
    parser.add_argument("--val", type=int, default=200, help="number of validation images")
    parser.add_argument("--size", type=int, default=320, help="side of the images in pixels")
    flags = parser.parse_args(arguments)
    try:
        root = generate(flags.root, train=flags.train, val=flags.val, size=flags.size, seed=flags.seed)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(
        f"{root}: {flags.train} training and {flags.val} validation images. Use it with --data {root / 'shapes.yaml'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
