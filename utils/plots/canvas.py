"""Shared code of the pictures: colors, fonts, figures that are written atomically.

Figures are drawn with matplotlib's objects on its Agg canvas (no pyplot, so no window, and no state
that grows with the epochs). Without data a picture shows "no data". Colors are RGB in [0, 255].
"""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from utils.files.atomic import atomic_write

INK = "#22272e"
FAINT = "#6b7480"
GRID = "#e4e7eb"

BLUE = "#2563eb"
FIRST_COLORS = (
    "2563eb",
    "e8590c",
    "16a34a",
    "c026d3",
    "ca8a04",
    "0891b2",
    "dc2626",
    "7c3aed",
    "65a30d",
    "db2777",
)
WIDE_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "Yu Gothic",
    "PingFang SC",
)

VARIATIONS = "\ufe0e\ufe0f"  # follow an emoji, to choose its style

MAX_NAMED_TICKS = 80  # classes named along an axis
# classes drawn one by one; more would be smaller than a pixel each and take gigabytes
MAX_DRAWN_CLASSES = 1000


def color_of(index: int) -> tuple[int, int, int]:
    """Return the color of a class: ten fixed ones, then hues a golden angle apart in three shades.

    >>> color_of(0), color_of(1)
    ((37, 99, 235), (232, 89, 12))
    """
    if 0 <= index < len(FIRST_COLORS):
        red, green, blue = bytes.fromhex(FIRST_COLORS[index])
        return red, green, blue

    hue = index * (math.sqrt(5) - 1) / 2 % 1
    lightness = (0.45, 0.6, 0.33)[index % 3]
    shares = colorsys.hls_to_rgb(hue, lightness, 0.7)  # in [0, 1]
    red, green, blue = (round(255 * share) for share in shares)
    return red, green, blue


def short_name(names: Sequence[str], index: int, longest: int = 24) -> str:
    """Return the name of a class on one line, shortened in the middle if it is too long.

    Without a name it is the class's number. Letters that the fonts of pictures lack, such as emoji,
    are left out, and the number is put before the rest, so that names stay different.

    >>> short_name(["cat", "a very long name of a class"], 1, longest=11)
    'a ver…class'
    >>> short_name(["cat"], 7)
    '7'
    """
    name = str(index)
    if 0 <= index < len(names):
        name = " ".join(str(names[index]).split())

    drawable = "".join(letter for letter in name if _is_drawable(letter)).strip()
    if drawable != name or not name:
        name = f"{index} {drawable}".strip()

    if len(name) <= longest:
        return name
    half = longest // 2
    return f"{name[:half]}…{name[-half:]}"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises FileNotFoundError if its folder is missing."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{path.parent} is not a folder: {path.name} cannot be written there."
        )
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def picture(
    path: str | Path,
    width: float,
    height: float,
    layout: Literal["constrained"] | None = "constrained",
) -> Iterator[Figure]:
    """Yield a figure of the given size in inches, written as PNG if the block raises no error.

    layout: "constrained" finds room for all labels; with None the block places the axes.
    """
    path = Path(path)
    with matplotlib.rc_context(_style()):
        figure = Figure(figsize=(width, height), dpi=140, facecolor="white", layout=layout)
        canvas = FigureCanvasAgg(figure)
        yield figure
        content = io.BytesIO()
        canvas.print_png(content)  # savefig draws twice if there is a layout
    write_atomically(path, content.getvalue())


def _style() -> dict[Any, Any]:
    """Return the settings of matplotlib for all figures."""
    families = ["DejaVu Sans"]
    wide = wide_font()
    if wide:
        families.append(wide)

    return {
        "font.family": families,
        "text.parse_math": False,  # a class may be called $x$
        "font.size": 9,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.edgecolor": FAINT,
        "axes.labelcolor": FAINT,
        "axes.titlecolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "legend.frameon": False,
        "legend.labelcolor": INK,
    }


def wide_font() -> str | None:
    """Return the name of an installed font with Chinese, Japanese and Korean letters, or None."""
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    for name in WIDE_FONTS:
        if name in installed:
            return name
    return None


@lru_cache(maxsize=1)
def fonts() -> list[FT2Font]:
    """Return the fonts of all text: matplotlib's DejaVu Sans, and `wide_font` if there is one."""
    default = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    loaded = [FT2Font(str(default))]
    wide = wide_font()
    if wide:
        loaded.append(FT2Font(str(font_manager.findfont(wide))))
    return loaded


def has_letters(font: FT2Font, text: str) -> bool:
    """Return whether a font has all letters of the text."""
    return all(font.get_char_index(ord(letter)) for letter in text)


@lru_cache(maxsize=4096)
def _is_drawable(letter: str) -> bool:
    """Return whether a letter can be printed and one of the fonts has it."""
    if letter in VARIATIONS or not letter.isprintable():  # variations have no shape
        return False
    return any(has_letters(font, letter) for font in fonts())


def draw_no_data(axes: Axes) -> None:
    """Write "no data" in the middle of empty axes."""
    axes.set_axis_off()
    centered: dict[str, Any] = {"ha": "center", "va": "center", "transform": axes.transAxes}
    axes.text(0.5, 0.5, "no data", fontsize=16, color=FAINT, **centered)


def hex_color(index: int) -> str:
    """Return the color of a class as matplotlib takes it, such as #2563eb."""
    return "#{:02x}{:02x}{:02x}".format(*color_of(index))


def name_ticks(
    axes: Axes, names: Sequence[str], count: int, which: Literal["x", "y"], last: str | None = None
) -> None:
    """Label an axis with class names, unless they are too many to read.

    Args:
        axes: whose axis is labeled.
        names: of the classes.
        count: number of classes K.
        which: of the two axes.
        last: the label of one more tick at the end.
    """
    axis = axes.xaxis if which == "x" else axes.yaxis
    longest = 24 if count <= 30 else 16
    positions = list(range(count)) if count <= MAX_NAMED_TICKS else []
    labels = [short_name(names, k, longest) for k in positions]
    if last:
        positions.append(count)
        labels.append(last)
    axis.set_ticks(positions, labels)

    size = float(np.clip(300 / max(count, 1), 5.0, 9))
    rotation = 90 if which == "x" and count > 8 else 0
    axes.tick_params(which, labelsize=size, length=0, labelrotation=rotation)
