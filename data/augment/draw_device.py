"""Draw a batch of plans with torch on the device of the base images: uint8 [B, H, W, 3] RGB.

Counterpart of draw.py. `pack` converts plans to numbers in a DataLoader worker; `draw_packed` draws
them on the device of the pool, a flat uint8 tensor of base images (rows of BGR pixels, one image
after another). It never waits for the device: every shape follows from the shapes of its arguments.

Each pixel of a canvas belongs to a *slot*: slot 0 is the background, the others are patches. In an
upright patch the source column depends only on the canvas column, and the source row only on the
canvas row, so both are looked up by slot in small tables; only warped patches need arithmetic per
pixel. The passes, in the order of `draw_packed`: slots, sources, interpolation, background, mixup,
color gains.

Differences from draw.py: in upright patches at most 1 level, because cv2.resize rounds down some
values that are rounded to nearest here. After color gains, equal colors are equal or 1 level apart;
colors 1 level apart end 0.2 levels apart on average and up to 40 where the hue wraps around. Warped
patches agree (to 1 level before OpenCV 5, which moves by 32nds of a pixel) except for every fourth
pixel on their edges, which only one of the two draws: 0.1 % of a mosaic of 640 x 640.

Each step is a pass over memory: 200 MB for an image of 640 x 640, the same again for gains and for
a warp. Color planes are separate and shapes few for torch.compile, which fuses all steps into a
few loops with about a tenth of that.

Legend: B samples, M of them mixed, N = B + M canvases (all first layers, then all second ones), S
slots, H W pixels.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.augment.draw import color_tables
from data.augment.geometry import transformed, translation
from data.augment.polygons import rectangle
from data.augment.records import CanvasLayer, Matrix, Patch, Plan
from utils.images.letterbox import GRAY

# image index -> offset of its first byte in the pool, height, width
Locate = Callable[[int], tuple[int, int, int]]
Numbers = NDArray[np.float64]
# bytes of padding after the last image of the pool: each pixel is read together with the next one
POOL_PADDING = 3
# px by which warped patches extend past their edges, as with cv2.fillPoly: no gaps between patches
MARGIN = 0.499
# the number of mixed samples is a multiple of a batch's quarter where drawing is compiled
MIXED_PARTS = 4
NO_RECOLOR = 255  # not a valid hue: marks the tables of a sample whose colors do not change


class Packed(NamedTuple):
    """The plans of a batch as numbers."""

    # float32 [N, S, 7, 3], factors of x, y, 1: source x, source y, depth; four edges, >= 0 inside
    lines: Tensor
    # int64 [N, S, 6]: byte of source pixel (0, 0), bytes per row,
    # first x and y, last x and y that may be read
    places: Tensor
    mixes: Tensor  # float32 [M, 2]: sample, weight of its first layer
    # uint8 [B, 3, 256]: old to new hue, saturation, value; [0, 3, 256] if no sample changes colors
    tables: Tensor
    height: int
    width: int
    upright: bool  # whether no patch is warped

    def sent(self, send: Callable[[Tensor], Tensor]) -> "Packed":
        """Return a copy with each tensor moved to a device by `send`."""
        lines, places, mixes, tables = map(send, self[:4])
        return self._replace(lines=lines, places=places, mixes=mixes, tables=tables)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as NumPy arrays.

        torch would move each tensor to shared memory, which takes longer than a copy.
        """
        arrays = tuple(part.numpy() if isinstance(part, Tensor) else part for part in self)
        return _from_arrays, arrays


def _from_arrays(*parts: Any) -> Packed:
    return Packed._make(
        torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in parts
    )


# ---------------------------------------------------------------------- plans to numbers


def pack(plans: Sequence[Plan], locate: Locate) -> Packed:
    """Return the plans of a batch as numbers.

    Without plans, they draw an empty batch [0, 0, 0, 3].

    Raises ValueError for plans with pastes, plans of different sizes and patches that extend past
    their images.
    """
    sizes = {plan.size for plan in plans} or {(0, 0)}
    if len(sizes) > 1:
        raise ValueError(f"the plans of a batch must have one size, not {sorted(sizes)}")
    height, width = sizes.pop()

    # All first layers, then the second layers of the mixed samples.  [N]
    mixed = [b for b, plan in enumerate(plans) if len(plan.layers) > 1]
    first_layers = [plan.layers[0] for plan in plans]
    second_layers = [plans[b].layers[1] for b in mixed]
    layers = first_layers + second_layers
    if any(layer.pastes for layer in layers):
        raise ValueError("copy-paste cannot be drawn on the device, only by OpenCV")

    # Flips become part of the matrices, so they cost nothing.
    lines, places = _slots(layers, locate)
    flips = np.array([_flip(plan) for plan in plans]).reshape(-1, 1, 3, 3)
    lines @= np.concatenate([flips, flips[mixed]])

    mixes = [[b, plans[b].mix] for b in mixed]
    patches = [patch for layer in layers for patch in layer.patches]
    return Packed(
        lines=torch.from_numpy(lines.astype(np.float32)),
        places=torch.from_numpy(places),
        mixes=torch.tensor(mixes, dtype=torch.float32).view(-1, 2),
        tables=torch.from_numpy(_tables(plans)),
        height=height,
        width=width,
        upright=all(patch.target is not None for patch in patches),
    )


def _slots(layers: Sequence[CanvasLayer], locate: Locate) -> tuple[Numbers, NDArray[np.int64]]:
    """Return `Packed.lines` [N, S, 7, 3] and `Packed.places` [N, S, 6] of the layers' patches."""
    counts = np.array([len(layer.patches) for layer in layers], int)
    most = int(counts.max(initial=0))
    if most > 1:
        most = max(most, 4)  # all batches with mosaics get one shape
    slots = 1 + most
    lines, places = _empty_slots(len(layers), slots)

    # Patch k of a layer fills slot k + 1.
    slot = np.arange(slots)
    used = (slot > 0) & (slot <= counts[:, None])  # [N, S]
    patches = [patch for layer in layers for patch in layer.patches]
    rows = [_places(patch, *locate(patch.index)) for patch in patches]
    places[used] = np.array(rows, np.int64).reshape(-1, 6)
    lines[used] = _lines(patches)
    return lines, places


def _empty_slots(layers: int, slots: int) -> tuple[Numbers, NDArray[np.int64]]:
    """Return `Packed.lines` [N, S, 7, 3] and `Packed.places` [N, S, 6] of empty layers."""
    lines = np.zeros((layers, slots, 7, 3))
    lines[..., 2, 2] = 1  # a depth of 1
    lines[..., 3:, 2] = -1  # edges with no pixel inside
    places = np.zeros((layers, slots, 6), np.int64)
    return lines, places


def _places(patch: Patch, first: int, high: int, wide: int) -> tuple[int, ...]:
    """Return the values of a patch in `Packed.places`.

    A resize reads only the region, a warp also pixels outside it.

    Args:
        patch: the patch.
        first: offset of the first byte of its image in the pool.
        high: height of its image in pixels.
        wide: width of its image in pixels.
    """
    x1, y1, x2, y2 = patch.region
    if not (0 <= x1 < x2 <= wide and 0 <= y1 < y2 <= high):
        raise ValueError(
            f"a tile has region {patch.region} of image {patch.index}, which has {wide} x {high} "
            "pixels"
        )

    row_bytes = 3 * wide
    if patch.target is None:
        return first, row_bytes, 0, 0, wide - 1, high - 1
    return first, row_bytes, x1, y1, x2 - 1, y2 - 1


def _lines(patches: Sequence[Patch]) -> Numbers:
    """Return the matrix from canvas to source and the four edges of each patch, [patches, 7, 3].

    Pixel centers are integers, on the canvas and in the source.
    """
    matrices = np.array([patch.matrix for patch in patches]).reshape(-1, 3, 3)
    to_base = np.linalg.inv(matrices)
    to_source = translation(-0.5, -0.5) @ to_base @ translation(0.5, 0.5)

    corners = np.array([_corners(patch) for patch in patches]).reshape(-1, 4, 2)
    margins = np.array([MARGIN if patch.target is None else 0.0 for patch in patches])
    edges = _edges(corners - 0.5, margins)
    return np.concatenate([to_source, edges], 1)


def _corners(patch: Patch) -> Numbers:
    """Return the corners of a patch on the canvas, [4, 2]."""
    if patch.target is not None:
        return rectangle(*patch.target)
    return transformed(rectangle(*patch.region), patch.matrix)


def _edges(corners: Numbers, margins: Numbers) -> Numbers:
    """Return lines [patches, 4, 3] that are >= 0 inside the corners, and up to the margin outside.

    corners: [patches, 4, 2]. margins: [patches], in pixels along x or y.
    """
    after = np.roll(corners, -1, 1)

    # The sign of the area (shoelace formula): in which direction the corners go around.
    products = corners[..., 0] * after[..., 1] - corners[..., 1] * after[..., 0]
    orientation = np.sign(products.sum(1))[:, None, None]

    # Normals of the edges that point inward, with 1 as their larger component.
    along = after - corners
    inward = along[..., ::-1] * (-1, 1) * orientation
    inward /= np.abs(inward).max(2, keepdims=True)

    # Lines through the corners, moved outward by the margin.
    offset = margins[:, None, None] - (inward * corners).sum(2, keepdims=True)
    return np.concatenate([inward, offset], 2)


def _flip(plan: Plan) -> Matrix:
    """Return the matrix from pixels of the finished sample to pixels before its flips."""
    height, width = plan.size
    matrix = np.eye(3)
    if plan.flip_left:
        matrix[0] = -1, 0, width - 1
    if plan.flip_up:
        matrix[1] = 0, -1, height - 1
    return matrix


def _tables(plans: Sequence[Plan]) -> NDArray[np.uint8]:
    """Return `Packed.tables` of the plans."""
    if all(plan.hsv is None for plan in plans):
        return np.zeros((0, 3, 256), np.uint8)

    unchanged = np.full((256, 3), NO_RECOLOR, np.uint8)
    tables = [unchanged if plan.hsv is None else color_tables(plan.hsv) for plan in plans]
    return np.ascontiguousarray(np.stack(tables).transpose(0, 2, 1))


def with_fixed_shapes(packed: Packed) -> Packed:
    """Return plans that draw the same pixels, with one of five numbers of mixed samples.

    For torch.compile: compiled code is made for the shapes of its arguments, but the number of
    mixed samples M differs from batch to batch. It is rounded up to a multiple of a quarter of the
    batch. The added second layers are empty and have no weight.
    """
    mixed = len(packed.mixes)
    samples = len(packed.lines) - mixed
    quarter = max(ceil(samples / MIXED_PARTS), 1)
    rounded_up = ceil(mixed / quarter) * quarter
    added = min(rounded_up, samples) - mixed
    if added == 0:
        return packed

    # Each sample may be written once only, so the added layers belong to samples that are not
    # mixed.
    is_mixed = torch.zeros(samples, dtype=torch.bool)
    is_mixed[packed.mixes[:, 0].long()] = True
    owners = torch.nonzero(~is_mixed).flatten()[:added]
    weights = torch.ones(added)
    added_mixes = torch.stack([owners.float(), weights], 1)

    slots = packed.lines.shape[1]
    lines, places = _empty_slots(added, slots)
    added_lines = torch.from_numpy(lines.astype(np.float32))
    added_places = torch.from_numpy(places)

    return packed._replace(
        lines=torch.cat([packed.lines, added_lines]),
        places=torch.cat([packed.places, added_places]),
        mixes=torch.cat([packed.mixes, added_mixes]),
    )


# ---------------------------------------------------------------------- numbers to pixels

# blue, green, red: separate, so that torch.compile can fuse everything into one loop over pixels
Planes = list[Tensor]


def draw_packed(packed: Packed, pool: Tensor) -> Tensor:
    """Draw the samples, uint8 [B, H, W, 3] RGB, on the device of `packed` and the pool.

    pool: uint8 [bytes], the base images at the offsets that `pack` got from `locate`, then
    POOL_PADDING bytes.
    """
    x = torch.arange(packed.width, device=pool.device, dtype=torch.float32)
    y = torch.arange(packed.height, device=pool.device, dtype=torch.float32)

    # All layers: which patch each pixel shows, where its color comes from, the color.  [N, H, W]
    slots = _slot_map(packed.lines[:, :, 3:], x, y)
    find_sources = _upright_sources if packed.upright else _warped_sources
    sources = find_sources(packed, x, y, slots)
    planes = _interpolated(pool, sources)
    planes = _with_background(planes, slots)
    del slots, sources  # 32 bytes for each pixel, which the next passes do not need

    # From layers to samples: mixup and color gains.  [B, H, W]
    if len(packed.mixes):
        planes = [_mixed(plane, packed.mixes) for plane in planes]
    if len(packed.tables):
        planes = _recolored(planes, packed.tables)

    blue, green, red = planes
    return torch.stack((red, green, blue), 3)


def _slot_map(edges: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the slot of each pixel, int64 [N, H, W] as torch.gather requires; later patches win.

    In each row a convex patch lies between the last of its left edges and the first right one.

    edges: [N, S, 4, 3], slope * x + factor * y + offset >= 0 inside. x: [W]. y: [H].
    """
    # Where each edge crosses each row.
    slope = edges[..., :1]  # [N, S, 4, 1]
    rest = edges[..., 1:2] * y + edges[..., 2:]  # [N, S, 4, H]
    crossing = -rest / slope

    # The inside of a left edge is on its right. A horizontal edge excludes whole rows.
    excluded = (slope == 0) & (rest < 0)
    starts = torch.where(slope > 0, crossing, -torch.inf).masked_fill_(excluded, torch.inf)
    ends = torch.where(slope < 0, crossing, torch.inf)
    low = starts.amax(2)[..., None]  # [N, S, H, 1]
    high = ends.amin(2)[..., None]

    slots = torch.zeros((len(edges), len(y), len(x)), device=x.device, dtype=torch.uint8)
    for slot in range(1, edges.shape[1]):
        inside = (x >= low[:, slot]) & (x <= high[:, slot])
        slots.masked_fill_(inside, slot)
    return slots.long()


class Sources(NamedTuple):
    """Where in the pool each pixel of the canvases comes from, [N, H, W] each."""

    address: Tensor  # byte of the upper left of four source pixels
    down_step: Tensor  # bytes from there to the next row
    across: Tensor  # weight of the right pixels, in [0, 1]
    down: Tensor  # weight of the lower pixels


def _upright_sources(packed: Packed, x: Tensor, y: Tensor, slots: Tensor) -> Sources:
    """Return the sources of upright patches, whose matrices only scale and shift."""
    lines = packed.lines[..., None]  # [N, S, 7, 3, 1]
    places = packed.places[..., None]  # [N, S, 6, 1]
    first_byte, row_bytes, first_x, first_y, last_x, last_y = places.unbind(2)  # [N, S, 1]

    # By slot, the source column of each canvas column, and the source row of each canvas row.
    source_x = lines[:, :, 0, 0] * x + lines[:, :, 0, 2]  # [N, S, W]
    source_y = lines[:, :, 1, 1] * y + lines[:, :, 1, 2]  # [N, S, H]
    left, across = _neighbors(source_x, first_x, last_x)
    top, down = _neighbors(source_y, first_y, last_y)
    row_address = first_byte + top * row_bytes

    # The entries of each pixel's own slot.  [N, H, W]
    address = _by_column(3 * left, slots).add_(_by_row(row_address, slots))
    down_step = _by_column(_down_step(places), slots)
    across = _by_column(across, slots)
    down = _by_row(down, slots)
    return Sources(address, down_step, across, down)


def _warped_sources(packed: Packed, x: Tensor, y: Tensor, slots: Tensor) -> Sources:
    """Return the sources of patches with any matrix, by the projective map of each pixel."""
    lines = packed.lines[..., None]  # [N, S, 7, 3, 1]
    places = packed.places[..., None]  # [N, S, 6, 1]
    first_byte, row_bytes, first_x, first_y, last_x, last_y = places.unbind(2)  # [N, S, 1]

    def at_pixels(line: int) -> Tensor:
        """Return the value of a row of the matrix at each pixel, [N, H, W]."""
        part_of_x = lines[:, :, line, 0] * x + lines[:, :, line, 2]
        part_of_y = lines[:, :, line, 1] * y
        return _by_column(part_of_x, slots).add_(_by_row(part_of_y, slots))

    def limit(values: Tensor) -> Tensor:
        return _by_column(values.float(), slots)

    depth = at_pixels(2)
    left, across = _neighbors(at_pixels(0).div_(depth), limit(first_x), limit(last_x))
    top, down = _neighbors(at_pixels(1).div_(depth), limit(first_y), limit(last_y))

    # address = top * row_bytes + 3 * left + first_byte, in the memory of `top`
    address = top.mul_(_by_column(row_bytes, slots)).add_(left, alpha=3)
    address.add_(_by_column(first_byte, slots))
    down_step = _by_column(_down_step(places), slots)
    return Sources(address, down_step, across, down)


def _down_step(places: Tensor) -> Tensor:
    """Return the bytes to the next source row, [N, S, 1]; 0 where only one row may be read."""
    row_bytes = places[:, :, 1]
    has_next_row = places[:, :, 5] > places[:, :, 3]
    return row_bytes * has_next_row


def _neighbors(position: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Return the source pixel before each position, int64, and the weight of the next one.

    Both pixels are between `first` and `last`.
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


def _interpolated(pool: Tensor, sources: Sources) -> Planes:
    """Return the colors between four source pixels, planes of uint8 [N, H, W]."""
    # The four pixels, each row of two at once.  [N, H, W, 6]
    pairs = pool.unfold(0, 6, 1)  # a view: a pixel and the next one, starting at every byte
    upper = pairs[sources.address]
    lower = pairs[sources.address + sources.down_step]

    # Between the two rows: left blue, green, red, then right blue, green, red.
    columns = []
    for above, below in zip(upper.unbind(3), lower.unbind(3), strict=True):
        columns.append(above.float().lerp_(below.float(), sources.down))

    # Between the left and the right pixel, rounded.
    planes = []
    for left, right in zip(columns[:3], columns[3:], strict=True):
        planes.append(left.lerp_(right, sources.across).add_(0.5).to(torch.uint8))
    return planes


def _with_background(planes: Planes, slots: Tensor) -> Planes:
    """Return the planes, changed in place, with gray where there is no patch."""
    background = slots == 0
    return [plane.masked_fill_(background, GRAY) for plane in planes]


def _mixed(plane: Tensor, mixes: Tensor) -> Tensor:
    """Return the first layers [B, H, W], blended with the second layers in mixed samples.

    plane: uint8 [N, H, W], changed in place.
    """
    which = mixes[:, 0].long()
    weight = mixes[:, 1, None, None]
    samples, seconds = plane.tensor_split([len(plane) - len(mixes)])

    firsts = samples.index_select(0, which)
    blended = firsts * weight + seconds * (1 - weight)
    return samples.index_copy_(0, which, blended.round_().to(torch.uint8))


def _recolored(planes: Planes, tables: Tensor) -> Planes:
    """Return the samples after hue, saturation and value were replaced by means of the tables.

    Back from HSV, a channel is value - value * saturation * share(hue): the share is 0 in the third
    of the circle around the channel's own hue, and 1 in the opposite third.
    """
    # The levels before, as indices into the tables.  [B, H * W]
    hue, saturation, value = (part.flatten(1).long() for part in _hsv(*planes))

    # The levels after: hues in sixths of the circle, the others in [0, 1].
    hue_table = tables[:, 0] * (6 / 180)  # [B, 256]
    value_table = tables[:, 2] * (1 / 255)
    saturation_table = tables[:, 1] * (1 / 255)
    new_value = value_table.gather(1, value)
    chroma = saturation_table.gather(1, saturation).mul_(new_value)

    # The share of the chroma that each channel lacks: a table of the hue, too.  [B, 256]
    blue_lacks = (hue_table - 4).abs() - 1
    green_lacks = (hue_table - 2).abs() - 1
    red_lacks = 2 - (hue_table - 3).abs()
    recolored = []
    for lacks in (blue_lacks, green_lacks, red_lacks):
        share = lacks.clamp(0, 1).gather(1, hue)
        level = torch.addcmul(new_value, chroma, share, value=-1).mul_(255)
        # truncated as OpenCV does, not rounded
        recolored.append(level.to(torch.uint8).view_as(planes[0]))

    unchanged = (tables[:, 0, 0] == NO_RECOLOR)[:, None, None]
    return [torch.where(unchanged, old, new) for old, new in zip(planes, recolored, strict=True)]


def _hsv(blue: Tensor, green: Tensor, red: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue (0 to 179), saturation and value as whole numbers, equal to cv2.COLOR_BGR2HSV.

    They are float32 or uint8. OpenCV divides by rounded multiples of 1 / 4096; all numbers here are
    below 2^24, so float32 is exact.
    """
    value = blue.maximum(green).maximum(red)
    darkest = blue.minimum(green).minimum(red)
    spread = (value - darkest).float()
    is_green = value == green
    is_red = value == red
    blue, green, red = blue.float(), green.float(), red.float()

    # Hue in sixths of the circle, times the spread: 0 is red, 2 green, 4 blue.
    near_green = (blue - red).add_(spread, alpha=2)
    near_blue = (red - green).add_(spread, alpha=4)
    hue = torch.where(is_green, near_green, near_blue)
    hue = torch.where(is_red, green - blue, hue)

    # hue * 30 / spread and 255 * spread / value, in multiples of 1 / 4096, then rounded
    hue.mul_((30 * 4096 / spread.clamp_min(1)).round_())
    hue = hue.add_(2048).div_(4096).floor_().remainder_(180)
    saturation = spread * (255 * 4096 / value.clamp_min(1)).round_()
    saturation = saturation.add_(2048).div_(4096).floor_()
    return hue, saturation, value
