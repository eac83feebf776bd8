"""Draw a batch of plans with torch on the device of the base images: uint8 [B, H, W, 3] RGB.
Counterpart of draw.py.

`pack` converts plans to numbers, in a DataLoader worker; `draw_batch` draws them on the device of
the pool, a flat uint8 tensor of base images (rows of BGR pixels, one image after another). It never
waits for the device: every shape follows from the shapes of its arguments.

Each pixel of a canvas belongs to a *slot*: slot 0 is the background, the others are tiles. In an
upright tile the source column depends only on the canvas column, and the source row only on the
canvas row, so both are looked up by slot in small tables; only warped tiles need arithmetic per
pixel.

Differences from draw.py: in upright tiles at most 1 level, because cv2.resize rounds down some
values that are rounded to nearest here. After colour gains, equal colours are equal or 1 level
apart; colours 1 level apart end 0.2 levels apart on average and up to 40 where the hue wraps
around. Warped tiles agree (to 1 level before OpenCV 5, which moves by 32nds of a pixel) except for
every fourth pixel on their edges, which only one of the two draws: 0.1 % of a mosaic of 640 x 640.

Each step is a pass over memory: 200 MB for an image of 640 x 640, the same again for gains and for
a warp. Colour planes are separate and shapes few for torch.compile, which fuses all steps into a
few loops with about a tenth of that.

Legend: B samples, M of them mixed, N = B + M canvases (all first layers, then all second ones), S
slots, H W pixels.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.augment.draw import colour_tables
from data.augment.geometry import transformed, translation
from data.augment.polygons import rectangle
from data.augment.records import CanvasLayer, Matrix, Plan, Tile
from utils.images.letterbox import GREY

# image index -> offset of its first byte in the pool, height, width
Locate = Callable[[int], tuple[int, int, int]]
Numbers = NDArray[np.float64]
# bytes of padding after the last image of the pool: each pixel is read together with the next one
POOL_PADDING = 3
# px by which warped tiles extend past their edges, as with cv2.fillPoly: no gaps between tiles
MARGIN = 0.499
# the number of mixed samples is a multiple of a batch's quarter where drawing is compiled
MIXED_PARTS = 4
NO_RECOLOUR = 255  # not a valid hue: marks the tables of a sample whose colours do not change


class Packed(NamedTuple):
    """The plans of a batch as numbers."""

    # float32 [N, S, 7, 3], factors of x, y, 1: source x, source y, depth; four edges, >= 0 inside
    lines: Tensor
    # int64 [N, S, 6]: byte of source pixel (0, 0), bytes per row, first x and y, last x and y to
    # read
    places: Tensor
    mixes: Tensor  # float32 [M, 2]: sample, weight of its first layer
    # uint8 [B, 3, 256]: old to new hue, saturation, value; [0, 3, 256] if no sample changes colours
    tables: Tensor
    height: int
    width: int
    upright: bool  # whether no tile is warped

    def sent(self, send: Callable[[Tensor], Tensor]) -> "Packed":
        """Return a copy with the result of `send`, which moves a tensor to a device, for each
        tensor.
        """
        lines, places, mixes, tables = map(send, self[:4])
        return self._replace(lines=lines, places=places, mixes=mixes, tables=tables)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as NumPy arrays: torch would move each tensor to shared memory, which takes longer
        than a copy.
        """
        return _from_arrays, tuple(
            part.numpy() if isinstance(part, Tensor) else part for part in self
        )


def _from_arrays(*parts: Any) -> Packed:
    return Packed._make(
        torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in parts
    )


def pack(plans: Sequence[Plan], locate: Locate) -> Packed:
    """Return the plans of a batch as numbers. Without plans, they draw an empty batch [0, 0, 0, 3].

    Raises ValueError for plans with pastes, plans of different sizes and tiles that extend past
    their images.
    """
    sizes = {plan.size for plan in plans} or {(0, 0)}
    if len(sizes) > 1:
        raise ValueError(f"the plans of a batch must have one size, not {sorted(sizes)}")
    mixed = [b for b, plan in enumerate(plans) if len(plan.layers) > 1]
    layers = [plan.layers[0] for plan in plans] + [plans[b].layers[1] for b in mixed]
    if any(layer.pastes for layer in layers):
        raise ValueError("copy-paste cannot be drawn on the device, only by OpenCV")
    lines, places = _slots(layers, locate)
    flips = np.array([_flip(plan) for plan in plans]).reshape(-1, 1, 3, 3)
    lines @= np.concatenate([flips, flips[mixed]])  # part of the matrices, so flips cost nothing
    return Packed(
        torch.from_numpy(lines.astype(np.float32)),
        torch.from_numpy(places),
        torch.tensor([[b, plans[b].mix] for b in mixed], dtype=torch.float32).view(-1, 2),
        torch.from_numpy(_tables(plans)),
        *sizes.pop(),
        upright=all(tile.target is not None for layer in layers for tile in layer.tiles),
    )


def _slots(layers: Sequence[CanvasLayer], locate: Locate) -> tuple[Numbers, NDArray[np.int64]]:
    """Return `Packed.lines` [N, S, 7, 3] and `Packed.places` [N, S, 6] of the layers' tiles."""
    counts = np.array([len(layer.tiles) for layer in layers], int)
    tiles = [tile for layer in layers for tile in layer.tiles]
    most = int(counts.max(initial=0))
    slots = 1 + (most if most < 2 else max(most, 4))  # all batches with mosaics get one shape
    lines, places = _empty_slots(len(layers), slots)
    used = (np.arange(slots) > 0) & (np.arange(slots) <= counts[:, None])
    places[used] = np.array(
        [_places(tile, *locate(tile.index)) for tile in tiles], np.int64
    ).reshape(-1, 6)
    lines[used] = _lines(tiles)
    return lines, places


def _places(tile: Tile, first: int, high: int, wide: int) -> tuple[int, ...]:
    """Return the values of a tile in `Packed.places`. A resize reads only the region, a warp also
    pixels outside it.
    """
    x1, y1, x2, y2 = tile.region
    if not (0 <= x1 < x2 <= wide and 0 <= y1 < y2 <= high):
        raise ValueError(
            f"a tile has region {tile.region} of image {tile.index}, which has {wide} x {high} "
            "pixels"
        )
    return (
        first,
        3 * wide,
        *((0, 0, wide - 1, high - 1) if tile.target is None else (x1, y1, x2 - 1, y2 - 1)),
    )


def _lines(tiles: Sequence[Tile]) -> Numbers:
    """Return [tiles, 7, 3]: the matrices from canvas to source (integers at pixel centres) and the
    four edge lines.
    """
    matrices = np.array([tile.matrix for tile in tiles]).reshape(-1, 3, 3)
    to_source = translation(-0.5, -0.5) @ np.linalg.inv(matrices) @ translation(0.5, 0.5)
    corners = np.array([_corners(tile) for tile in tiles]).reshape(-1, 4, 2) - 0.5
    margins = np.array([MARGIN if tile.target is None else 0.0 for tile in tiles])
    return np.concatenate([to_source, _edges(corners, margins)], 1)


def _corners(tile: Tile) -> Numbers:
    """Return the corners of a tile on the canvas, [4, 2]."""
    if tile.target is not None:
        return rectangle(*tile.target)
    return transformed(rectangle(*tile.region), tile.matrix)


def _edges(corners: Numbers, margins: Numbers) -> Numbers:
    """Return [tiles, 4, 3] lines that are >= 0 inside the corners and up to the margin (in x or y)
    outside them.
    """
    after = np.roll(corners, -1, 1)
    orientation = np.sign(
        (corners[..., 0] * after[..., 1] - corners[..., 1] * after[..., 0]).sum(1)
    )
    inward = (after - corners)[..., ::-1] * (-1, 1) * orientation[:, None, None]
    inward /= np.abs(inward).max(2, keepdims=True)
    return np.concatenate(
        [inward, margins[:, None, None] - (inward * corners).sum(2, keepdims=True)], 2
    )


def _flip(plan: Plan) -> Matrix:
    """Return the matrix from pixels of the finished sample to pixels before its flips."""
    (height, width), up, left = plan.size, plan.flip_up, plan.flip_left
    return np.array(
        [
            [-1.0 if left else 1, 0, width - 1 if left else 0],
            [0, -1 if up else 1, height - 1 if up else 0],
            [0, 0, 1],
        ]
    )


def _tables(plans: Sequence[Plan]) -> NDArray[np.uint8]:
    """Return `Packed.tables` of the plans."""
    if all(plan.hsv is None for plan in plans):
        return np.zeros((0, 3, 256), np.uint8)
    keeps = np.full((256, 3), NO_RECOLOUR, np.uint8)
    tables = np.stack([keeps if plan.hsv is None else colour_tables(plan.hsv) for plan in plans])
    return np.ascontiguousarray(tables.transpose(0, 2, 1))


def with_fixed_shapes(packed: Packed) -> Packed:
    """Return plans that draw the same pixels, with one of five numbers of mixed samples: for
    torch.compile.

    Compiled code is made for the shapes of its arguments, but the number of mixed samples M differs
    from batch to batch. It is rounded up to a multiple of a quarter of the batch. The added second
    layers are empty and have no weight.
    """
    mixed = len(packed.mixes)
    samples = len(packed.lines) - mixed
    quarter = max(-(-samples // MIXED_PARTS), 1)
    added = min(-(-mixed // quarter) * quarter, samples) - mixed
    if added == 0:
        return packed

    # Each sample may be written once only, so the added layers belong to samples that are not
    # mixed.
    is_mixed = torch.zeros(samples, dtype=torch.bool)
    is_mixed[packed.mixes[:, 0].long()] = True
    owners = torch.nonzero(~is_mixed).flatten()[:added]
    weights = torch.ones(added)
    mixes = torch.cat([packed.mixes, torch.stack([owners.float(), weights], 1)])

    slots = packed.lines.shape[1]
    lines, places = _empty_slots(added, slots)
    return packed._replace(
        lines=torch.cat([packed.lines, torch.from_numpy(lines.astype(np.float32))]),
        places=torch.cat([packed.places, torch.from_numpy(places)]),
        mixes=mixes,
    )


def _empty_slots(layers: int, slots: int) -> tuple[Numbers, NDArray[np.int64]]:
    """Return `Packed.lines` [N, S, 7, 3] and `Packed.places` [N, S, 6] of layers without tiles."""
    lines = np.zeros((layers, slots, 7, 3))
    lines[..., 2:, 2] = 1, -1, -1, -1, -1  # its depth is 1, and no pixel is inside
    return lines, np.zeros((layers, slots, 6), np.int64)


def draw_batch(packed: Packed, pool: Tensor) -> Tensor:
    """Draw the samples, uint8 [B, H, W, 3] RGB, on the device of `packed` and the pool.

    pool: uint8 [bytes], the base images at the offsets that `pack` got from `locate`, then
    POOL_PADDING bytes.
    """
    planes = _canvases(packed, pool)
    if len(packed.mixes):
        planes = [_mixed(plane, packed.mixes) for plane in planes]
    if len(packed.tables):
        planes = _recoloured(planes, packed.tables)
    return torch.stack(planes[::-1], 3)


# blue, green, red: separate, so that torch.compile can fuse everything into one loop over pixels
Planes = list[Tensor]


def _canvases(packed: Packed, pool: Tensor) -> Planes:
    """Draw all layers; return planes of uint8 [N, H, W]."""
    x = torch.arange(packed.width, device=pool.device, dtype=torch.float32)
    y = torch.arange(packed.height, device=pool.device, dtype=torch.float32)
    slots = _slot_map(packed.lines[:, :, 3:], x, y)
    sources = _upright_sources if packed.upright else _warped_sources
    address, down_step, across, down = sources(packed, x, y, slots)
    pairs = pool.unfold(0, 6, 1)  # a view: a pixel and the next one, starting at every byte
    upper, lower = pairs[address], pairs[address + down_step]  # [N, H, W, 6]
    here = [
        a.float().lerp_(b.float(), down)
        for a, b in zip(upper.unbind(3), lower.unbind(3), strict=True)
    ]
    planes = [here[c].lerp_(here[c + 3], across).add_(0.5).to(torch.uint8) for c in range(3)]
    return [plane.masked_fill_(slots == 0, GREY) for plane in planes]


def _slot_map(edges: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the slot of each pixel, int64 [N, H, W] (as torch.gather requires), later tiles over
    earlier ones.

    edges: [N, S, 4, 3]. In each row a convex tile is between the last of its left edges and the
    first of its right ones.
    """
    slope, rest = edges[..., :1], edges[..., 1:2] * y + edges[..., 2:]  # [N, S, 4, 1], [N, S, 4, H]
    crossing, infinity = -rest / slope, torch.inf
    outside = (slope == 0) & (rest < 0)
    low = (
        torch.where(slope > 0, crossing, -infinity)
        .masked_fill_(outside, infinity)
        .amax(2)[..., None]
    )
    high = torch.where(slope < 0, crossing, infinity).amin(2)[..., None]  # [N, S, H, 1]
    slots = torch.zeros((len(edges), len(y), len(x)), device=x.device, dtype=torch.uint8)
    for slot in range(1, edges.shape[1]):
        slots.masked_fill_((x >= low[:, slot]) & (x <= high[:, slot]), slot)
    return slots.long()


# of each pixel: byte, bytes to the next row, weights of next x and y
Sources = tuple[Tensor, Tensor, Tensor, Tensor]


def _upright_sources(packed: Packed, x: Tensor, y: Tensor, slots: Tensor) -> Sources:
    lines, places = packed.lines[..., None], packed.places[..., None]
    left, across = _neighbours(
        lines[:, :, 0, 0] * x + lines[:, :, 0, 2], places[:, :, 2], places[:, :, 4]
    )
    top, down = _neighbours(
        lines[:, :, 1, 1] * y + lines[:, :, 1, 2], places[:, :, 3], places[:, :, 5]
    )
    address = _by_column(3 * left, slots).add_(
        _by_row(places[:, :, 0] + top * places[:, :, 1], slots)
    )
    return (
        address,
        _by_column(_down_step(places), slots),
        _by_column(across, slots),
        _by_row(down, slots),
    )


def _warped_sources(packed: Packed, x: Tensor, y: Tensor, slots: Tensor) -> Sources:
    lines, places = packed.lines[..., None], packed.places[..., None]

    def at_pixels(line: int) -> Tensor:
        across = lines[:, :, line, 0] * x + lines[:, :, line, 2]
        return _by_column(across, slots).add_(_by_row(lines[:, :, line, 1] * y, slots))

    depth = at_pixels(2)
    first_x, first_y, last_x, last_y = (
        _by_column(places[:, :, i].float(), slots) for i in range(2, 6)
    )
    left, across = _neighbours(at_pixels(0).div_(depth), first_x, last_x)
    top, down = _neighbours(at_pixels(1).div_(depth), first_y, last_y)
    address = (
        top.mul_(_by_column(places[:, :, 1], slots))
        .add_(left, alpha=3)
        .add_(_by_column(places[:, :, 0], slots))
    )
    return address, _by_column(_down_step(places), slots), across, down


def _down_step(places: Tensor) -> Tensor:
    """Return the bytes from a source pixel to the one below it, [N, S, 1]; 0 if only one row may be
    read.
    """
    return places[:, :, 1] * (places[:, :, 5] > places[:, :, 3])


def _neighbours(position: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Return the source pixel before a position, int64, and the weight of the next one; clamped to
    first and last.
    """
    # unlike clamp, fmin and fmax replace NaN by a number
    position = position.fmin(last).fmax(first)
    before = position.floor().fmin(last - 1).fmax(first)
    return before.long(), position - before


def _by_column(table: Tensor, slots: Tensor) -> Tensor:
    """Look up each pixel by slot and column in a table [N, S, W or 1]; return [N, H, W]."""
    return table.expand(-1, -1, slots.shape[2]).gather(1, slots)


def _by_row(table: Tensor, slots: Tensor) -> Tensor:
    """Look up each pixel by slot and row in a table [N, S, H]; return [N, H, W]."""
    return table.transpose(1, 2).gather(2, slots)


def _mixed(plane: Tensor, mixes: Tensor) -> Tensor:
    """Return the first layers [B, H, W], blended with the second layers in mixed samples."""
    which, weight = mixes[:, 0].long(), mixes[:, 1, None, None]
    samples, seconds = plane.tensor_split([len(plane) - len(mixes)])
    blended = samples.index_select(0, which) * weight + seconds * (1 - weight)
    return samples.index_copy_(0, which, blended.round_().to(torch.uint8))


def _recoloured(planes: Planes, tables: Tensor) -> Planes:
    """Return the samples after hue, saturation and value were replaced by means of the tables."""
    hue, saturation, value = (part.flatten(1).long() for part in _hsv(*planes))  # [B, H * W]
    new_hue = tables[:, 0] * (6 / 180)  # in sixths of the circle, [B, 256]
    new_value = (tables[:, 2] * (1 / 255)).gather(1, value)
    chroma = (tables[:, 1] * (1 / 255)).gather(1, saturation).mul_(new_value)
    # blue, green, red
    missing = ((new_hue - 4).abs() - 1, (new_hue - 2).abs() - 1, 2 - (new_hue - 3).abs())
    new = [
        torch.addcmul(new_value, chroma, part.clamp(0, 1).gather(1, hue), value=-1).mul_(255)
        for part in missing
    ]
    # truncated as OpenCV does, not rounded
    new = [level.to(torch.uint8).view_as(planes[0]) for level in new]
    keeps = (tables[:, 0, 0] == NO_RECOLOUR)[:, None, None]
    return [torch.where(keeps, a, b) for a, b in zip(planes, new, strict=True)]


def _hsv(blue: Tensor, green: Tensor, red: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue (0 to 179), saturation and value as whole numbers in float32 or uint8, equal to
    cv2.COLOR_BGR2HSV.

    OpenCV divides by rounded multiples of 1 / 4096; all numbers here are below 2^24, so float32 is
    exact.
    """
    value = blue.maximum(green).maximum(red)
    spread = (value - blue.minimum(green).minimum(red)).float()
    is_green, is_red, scale = (
        value == green,
        value == red,
        (30 * 4096 / spread.clamp_min(1)).round_(),
    )
    blue, green, red = blue.float(), green.float(), red.float()
    hue = torch.where(
        is_green, (blue - red).add_(spread, alpha=2), (red - green).add_(spread, alpha=4)
    )
    hue = torch.where(is_red, green - blue, hue).mul_(scale)
    saturation = spread * (255 * 4096 / value.clamp_min(1)).round_()
    return (
        hue.add_(2048).div_(4096).floor_().remainder_(180),
        saturation.add_(2048).div_(4096).floor_(),
        value,
    )
