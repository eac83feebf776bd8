"""The pictures of a run: results, labels, batches, curves, confusion matrix.

Figures are drawn with matplotlib's objects on its Agg canvas (no pyplot, so no window, no state that grows with the
epochs), batches with Pillow. Each picture is written whole or not at all; nothing to show gives a picture that says
"no data".

B images, T boxes, N labels, K classes, P confidences, R recalls; colours are RGB in [0, 255].
"""

from __future__ import annotations

import colorsys
import csv
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw, ImageFont

from utils.files import written_whole
from utils.opencv import cv2

INK, FAINT, GRID = "#22272e", "#6b7480", "#e4e7eb"
BLUE, ORANGE = "#2563eb", "#e8590c"
FIRST_COLOURS = ("2563eb", "e8590c", "16a34a", "c026d3", "ca8a04", "0891b2", "dc2626", "7c3aed", "65a30d", "db2777")
WIDE_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "Yu Gothic",
    "PingFang SC",
)

MOST_NAMED_LINES = 20  # classes in the legend of a curve
MOST_NAMED_TICKS = 80  # classes named along an axis
MOST_COUNTED_CLASSES = 25  # classes whose confusion matrix shows numbers
MOST_DRAWN_CLASSES = 1000  # classes drawn one by one: of more each is less than a pixel, and they take gigabytes
MOSAIC_SIDE = 1920  # pixels at most


# What the pictures share


def colour_of(index: int) -> tuple[int, int, int]:
    """The colour of a class: ten chosen ones, then hues a golden angle apart in three shades.

    >>> colour_of(0), colour_of(1)
    ((37, 99, 235), (232, 89, 12))
    """
    if 0 <= index < len(FIRST_COLOURS):
        red, green, blue = bytes.fromhex(FIRST_COLOURS[index])
        return red, green, blue
    hue = index * (math.sqrt(5) - 1) / 2 % 1
    shade = (0.45, 0.6, 0.33)[index % 3]
    red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, shade, 0.7))
    return red, green, blue


def short_name(names: Sequence[str], index: int, longest: int = 24) -> str:
    """The name of a class on one line, cut in the middle where it is too long; its number where it has none.

    >>> short_name(["cat", "a very long name of a class"], 1, longest=11)
    'a ver…class'
    >>> short_name(["cat"], 7)
    '7'
    """
    name = " ".join(str(names[index]).split()) if 0 <= index < len(names) else str(index)
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that nobody sees half of it. Raises FileNotFoundError where its folder is missing."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder: {path.name} cannot be written there.")
    with written_whole(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def _picture(path: str | Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of that size in inches, written to path when the block ends well."""
    path = Path(path)
    with matplotlib.rc_context(_style()):
        figure = Figure(figsize=(width, height), dpi=140, facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        content = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # drawn as an empty box
            figure.savefig(content, format=path.suffix[1:] or "png")
    write_atomically(path, content.getvalue())


def _style() -> dict[Any, Any]:
    wide = _wide_font()
    return {
        "font.family": ["DejaVu Sans", *([wide] if wide else [])],
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


def _wide_font() -> str | None:
    """The first font on this machine that has Chinese, Japanese and Korean letters."""
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return next((name for name in WIDE_FONTS if name in installed), None)


def _say_no_data(axes: Axes) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, "no data", ha="center", va="center", fontsize=16, color=FAINT, transform=axes.transAxes)


def _hex(index: int) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour_of(index))


# results.png


def plot_results(csv_path: str | Path, png_path: str | Path) -> None:
    """Draw every column of results.csv but epoch and time over the epochs; what belongs together shares a panel."""
    columns = _read_results(Path(csv_path))
    epochs = columns.pop("epoch", np.zeros(0))
    columns.pop("time", None)
    panels: dict[str, list[str]] = {}
    for name in columns:
        panels.setdefault(_panel_of(name), []).append(name)

    across = min(3, max(1, len(panels)))
    down = max(1, math.ceil(len(panels) / across))
    with _picture(png_path, 4.4 * across, 3.1 * down) as figure:
        grid = figure.subplots(down, across, squeeze=False).ravel()
        for axes, (title, names) in zip(grid, panels.items(), strict=False):
            _draw_history(axes, title, epochs, {name: columns[name] for name in names})
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        if not panels:
            _say_no_data(grid[0])


def _read_results(path: Path) -> dict[str, np.ndarray]:
    """Each column of a CSV file as floats, NaN for what is no finite number."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    names = [name.strip() for name in rows[0]] if rows else []
    table = [
        [_number(row[column]) if column < len(row) else math.nan for row in rows[1:]] for column in range(len(names))
    ]
    return {name: np.array(values, float) for name, values in zip(names, table, strict=True) if name}


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _panel_of(column: str) -> str:
    """The title of the panel a column belongs to.

    >>> [_panel_of(name) for name in ("train/box_loss", "val/box_loss", "metrics/mAP_0.5", "metrics/recall", "x/lr0")]
    ['box loss', 'box loss', 'mAP', 'precision and recall', 'learning rate']
    """
    last = column.rsplit("/", 1)[-1]
    if last.lower().startswith("map"):
        return "mAP"
    if last in ("precision", "recall"):
        return "precision and recall"
    return "learning rate" if last.startswith("lr") else last.replace("_", " ")


def _draw_history(axes: Axes, title: str, epochs: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    axes.set_title(title)
    axes.grid(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.set_xlabel("epoch")
    if not any(np.isfinite(values).any() for values in columns.values()):
        _say_no_data(axes)
        return
    lines = []
    for number, values in enumerate(columns.values()):
        shown = np.isfinite(values)
        marker = "o" if shown.sum() <= 25 else ""
        x = epochs if len(epochs) == len(values) else np.arange(len(values))
        lines += axes.plot(x[shown], values[shown], color=_hex(number), marker=marker, markersize=3, linewidth=1.8)
    if len(columns) > 1:
        axes.legend(lines, [_line_name(name, values) for name, values in columns.items()], loc="best", fontsize=8)
    if len(epochs) == 1:
        axes.set_xlim(epochs[0] - 0.5, epochs[0] + 0.5)
    if title in ("mAP", "precision and recall"):
        axes.set_ylim(0, 1.02 if max(np.nanmax(values, initial=0) for values in columns.values()) > 0.5 else None)


def _line_name(column: str, values: np.ndarray) -> str:
    first, _, last = column.partition("/")
    if first in ("train", "val"):
        return first
    best = np.nanmax(values, initial=0.0)
    return f"{last}, best {best:.3f}" if last.lower().startswith("map") else last or first


# labels.png


def plot_labels(classes: np.ndarray, boxes_xywh_norm: np.ndarray, names: Sequence[str], png_path: str | Path) -> None:
    """Draw what a data set's labels are like.

    Args:
        classes: int [N].
        boxes_xywh_norm: [N, 4] centre x, centre y, width, height in [0, 1].
    """
    classes = np.asarray(classes, np.int64).reshape(-1)
    boxes = np.asarray(boxes_xywh_norm, np.float64).reshape(-1, 4)
    with _picture(png_path, 12, 8) as figure:
        if not len(classes):
            _say_no_data(figure.subplots())
            return
        grid = figure.add_gridspec(2, 3, height_ratios=[1, 1.1])
        _draw_class_counts(figure.add_subplot(grid[0, :]), classes, names)
        centres, sizes, overlay = (figure.add_subplot(grid[1, column]) for column in range(3))
        _draw_heat(centres, boxes[:, :2], "where boxes are", "x of the centre", "y of the centre")
        centres.invert_yaxis()
        _draw_heat(sizes, boxes[:, 2:], "how large they are", "width", "height")
        _draw_boxes(overlay, classes, boxes)


def _draw_class_counts(axes: Axes, classes: np.ndarray, names: Sequence[str]) -> None:
    counts = np.bincount(classes[classes >= 0], minlength=max(len(names), 1))
    order = np.arange(len(counts))
    if len(counts) > MOST_NAMED_TICKS:
        order = np.argsort(-counts, kind="stable")
        axes.set_xlabel(
            "classes, the most frequent first: " + ", ".join(short_name(names, k) for k in order[:8]) + " …"
        )
    if len(counts) > MOST_DRAWN_CLASSES:  # one outline instead of a bar and a colour for each
        axes.stairs(counts[order], np.arange(len(counts) + 1) - 0.5, fill=True, color=BLUE)
    else:
        axes.bar(np.arange(len(counts)), counts[order], width=0.8, color=[_hex(int(k)) for k in order])
    axes.set_title(f"{len(classes):,} boxes, {len(counts):,} class{'' if len(counts) == 1 else 'es'}")
    axes.set_ylabel("boxes")
    axes.grid(True, axis="y")
    margin = max(0.7, 5 - len(counts) / 2)  # a single bar is not as wide as the picture
    axes.set_xlim(-margin, len(counts) - 1 + margin)
    if counts.max() > 100 * max(1, np.median(counts)):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,.0f}")  # the scale's own are formulas, which names must not be read as
    _name_ticks(axes, names, len(counts), "x")
    if len(counts) <= 25:
        for k, count in enumerate(counts):
            axes.text(k, count, f"{count:,}", ha="center", va="bottom", fontsize=8, color=INK)


def _name_ticks(
    axes: Axes, names: Sequence[str], count: int, which: Literal["x", "y"], last: str | None = None
) -> None:
    """Name the classes along an axis, as far as they can be read; last: the name of one more tick at the end."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if count > MOST_NAMED_TICKS:
        axis.set_ticks([count] if last else [], [last] if last else [])
    else:
        labels = [short_name(names, k, 24 if count <= 30 else 16) for k in range(count)] + ([last] if last else [])
        axis.set_ticks(np.arange(len(labels)), labels)
    size = float(np.clip(300 / max(count, 1), 5.0, 9))
    upright = which == "x" and count > 8
    axes.tick_params(which, labelsize=size, length=0, labelrotation=90 if upright else 0)


def _draw_heat(axes: Axes, points: np.ndarray, title: str, x_label: str, y_label: str) -> None:
    """How many points [N, 2] in [0, 1] lie where, on a scale that shows single ones."""
    share, _, _ = np.histogram2d(points[:, 1], points[:, 0], bins=48, range=[[0, 1], [0, 1]])
    colours = LinearSegmentedColormap.from_list("heat", ["#f4f6f9", "#93b4f5", BLUE, "#14215c"])
    axes.imshow(np.log1p(share), cmap=colours, extent=(0, 1, 0, 1), origin="lower", interpolation="nearest")
    axes.set(title=title, xlabel=f"{x_label} (share of the image)", ylabel=y_label)


def _draw_boxes(axes: Axes, classes: np.ndarray, boxes: np.ndarray, most: int = 400) -> None:
    """Boxes drawn around one centre, evenly picked from all."""
    picked = np.unique(np.linspace(0, len(boxes) - 1, min(most, len(boxes))).astype(int))
    corners = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]])
    lines = 0.5 + boxes[picked, None, 2:] * corners  # [picked, 5, 2]
    colours = [_hex(int(k)) for k in classes[picked]]
    axes.add_collection(LineCollection(list(lines), colors=colours, linewidths=0.7, alpha=0.35))
    axes.set(title="boxes around one centre", xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=GRID)


# train_batch*.jpg, val_batch*.jpg


def plot_batch(
    images: np.ndarray,
    targets: np.ndarray,
    names: Sequence[str],
    path: str | Path,
    *,
    scores: np.ndarray | None = None,
    titles: Sequence[str] | None = None,
    max_images: int = 16,
) -> None:
    """Draw a batch as a grid of its images with their boxes.

    Args:
        images: uint8 [B, H, W, 3] RGB.
        targets: [T, 6] image of the batch, class, x1, y1, x2, y2 in pixels; class -1 is an ignored region.
        scores: [T] in [0, 1], written beside the class.
        titles: one per image.
    """
    images = np.asarray(images)[:max_images]
    targets = np.asarray(targets, np.float64).reshape(-1, 6)
    if not images.size:
        _write_image(_empty_mosaic(), Path(path))
        return
    count, height, width, _ = images.shape
    across = math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    scale = min(MOSAIC_SIDE / (across * width), MOSAIC_SIDE / (down * height), max(1.0, 480 / max(width, height)))
    tile = max(1, round(width * scale)), max(1, round(height * scale))

    gap = 4
    mosaic = Image.new("RGB", (across * (tile[0] + gap) + gap, down * (tile[1] + gap) + gap), "white")
    for number, image in enumerate(images):
        mine = (targets[:, 0] == number) & np.isfinite(targets).all(1)
        boxes = targets[mine, 2:] * np.array([tile[0] / width, tile[1] / height] * 2)
        shares = None if scores is None else np.asarray(scores, np.float64).reshape(-1)[mine]
        drawn = _draw_tile(image, tile, targets[mine, 1].astype(int), boxes, shares, names)
        if titles is not None and number < len(titles):
            _draw_title(drawn, short_name(titles, number, longest=48))
        row, column = divmod(number, across)
        mosaic.paste(drawn, (gap + column * (tile[0] + gap), gap + row * (tile[1] + gap)))
    _write_image(mosaic, Path(path))


def _draw_tile(
    image: np.ndarray,
    tile: tuple[int, int],
    classes: np.ndarray,
    boxes: np.ndarray,
    scores: np.ndarray | None,
    names: Sequence[str],
) -> Image.Image:
    """One image, resized to tile (width, height), with its boxes [T, 4] in the tile's pixels."""
    shrinks = tile[0] < image.shape[1]
    pixels = cv2.resize(
        np.ascontiguousarray(image), tile, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    )
    for box in boxes[classes < 0]:
        _hatch(pixels, box)
    drawn = Image.fromarray(pixels)
    # The surest boxes, or the smallest ones, are drawn last and stay on top.
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for number in np.argsort(-area if scores is None else scores, kind="stable"):
        label = "ignored" if classes[number] < 0 else short_name(names, classes[number])
        if scores is not None:
            label += f" {scores[number]:.2f}"
        colour = (120, 124, 130) if classes[number] < 0 else colour_of(classes[number])
        _draw_box(drawn, boxes[number], label, colour)
    return drawn


def _hatch(pixels: np.ndarray, box: np.ndarray) -> None:
    """Grey out a box x1, y1, x2, y2 of an image with slanted stripes."""
    height, width = pixels.shape[:2]
    x1, y1, x2, y2 = np.clip(np.round(box).astype(int), 0, [width, height, width, height])
    part = pixels[y1:y2, x1:x2]
    stripes = (np.arange(part.shape[1]) + np.arange(part.shape[0])[:, None]) // 6 % 2 == 0
    part[stripes] = (0.3 * part[stripes] + 0.7 * 150).astype(np.uint8)


def _draw_box(image: Image.Image, box: np.ndarray, label: str, colour: tuple[int, int, int]) -> None:
    """Draw one box with its label above it, or inside where there is no room above."""
    draw = ImageDraw.Draw(image)
    x1, y1 = np.clip(box[:2], 0, [image.width - 1, image.height - 1]).tolist()
    x2, y2 = np.clip(box[2:], [x1, y1], [image.width - 1, image.height - 1]).tolist()
    draw.rectangle((x1, y1, x2, y2), outline=colour, width=max(1, round(min(image.size) / 200)))
    font = _font(label, image)
    wide = font.getlength(label) + 5
    tall = sum(font.getmetrics()) + 1
    left = max(0, min(x1, image.width - wide))
    top = y1 - tall if y1 >= tall else y1
    draw.rectangle((left, top, left + wide, top + tall), fill=colour)
    bright = np.dot(colour, (0.299, 0.587, 0.114)) > 150
    draw.text((left + 3, top), label, fill="black" if bright else "white", font=font)


def _draw_title(image: Image.Image, title: str) -> None:
    """Write the title on a dark strip at the bottom."""
    font = _font(title, image)
    tall = sum(font.getmetrics()) + 4
    strip = image.crop((0, image.height - tall, image.width, image.height)).point(lambda value: value * 0.35)
    image.paste(strip, (0, image.height - tall))
    ImageDraw.Draw(image).text((5, image.height - tall + 2), title, fill="white", font=font)


def _font(text: str, image: Image.Image) -> ImageFont.FreeTypeFont:
    """A font that has the letters of text, if there is one, sized for the image."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    if not text.isascii():
        letters = FT2Font(str(path))
        wide = _wide_font()
        if wide and not all(letters.get_char_index(ord(letter)) for letter in text):
            path = Path(font_manager.findfont(wide))
    return ImageFont.truetype(path, int(np.clip(min(image.size) / 30, 9, 18)))


def _empty_mosaic() -> Image.Image:
    image = Image.new("RGB", (480, 320), "white")
    ImageDraw.Draw(image).text((240, 160), "no data", fill=FAINT, font=_font("no data", image), anchor="mm")
    return image


def _write_image(image: Image.Image, path: Path) -> None:
    content = io.BytesIO()
    image.save(content, "PNG" if path.suffix.lower() == ".png" else "JPEG", quality=92)
    write_atomically(path, content.getvalue())


# PR_curve.png, F1_curve.png, P_curve.png, R_curve.png


def plot_curves(
    confidence: np.ndarray,
    precision: np.ndarray,
    recall: np.ndarray,
    f1: np.ndarray,
    pr_recall: np.ndarray,
    pr_precision: np.ndarray,
    names: Sequence[str],
    folder: str | Path,
    best_confidence: float,
) -> None:
    """Draw precision over recall, and F1, precision and recall over confidence, into four files.

    Args:
        confidence: [P] in [0, 1], ascending.
        precision, recall, f1: [K, P] at IoU 0.5; a row with NaN (a class without ground truth) is left out.
        pr_recall, pr_precision: [R] and [K, R]; R evenly spaced points (COCO's 101), so that a row's mean is its AP50.
        best_confidence: where the mean F1 is highest.
    """
    folder = Path(folder)
    pr_precision = np.asarray(pr_precision, np.float64)
    average = pr_precision.mean(1) if pr_precision.size else np.zeros(0)
    _plot_curve(folder / "PR_curve.png", pr_recall, pr_precision, names, ("recall", "precision"), average, "AP")
    for title, rows in (("F1", f1), ("precision", precision), ("recall", recall)):
        rows = np.asarray(rows, np.float64)
        values = np.array([np.interp(best_confidence, confidence, row) for row in rows if len(row)])
        legend = f"{title} at confidence {best_confidence:.3f}"
        file = folder / f"{'F1' if title == 'F1' else title[0].upper()}_curve.png"
        _plot_curve(file, confidence, rows, names, ("confidence", title), values, legend, mark=best_confidence)


def _plot_curve(
    path: Path,
    x: np.ndarray,
    rows: np.ndarray,
    names: Sequence[str],
    axis_names: tuple[str, str],
    values: np.ndarray,
    legend: str,
    mark: float | None = None,
) -> None:
    """One picture: a thin line per class, named with its value where there are few, and a thick one for their mean."""
    x = np.asarray(x, np.float64).reshape(-1)
    shown = np.flatnonzero(np.isfinite(rows).all(1)) if rows.size else np.zeros(0, int)
    with _picture(path, 9, 6) as figure:
        axes = figure.subplots()
        axes.set_title(f"{axis_names[1]} over {axis_names[0]}, at IoU 0.5")
        if not len(shown) or not len(x):
            _say_no_data(axes)
            return
        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=axis_names[0], ylabel=axis_names[1])
        axes.grid(True)
        lines, labels = _draw_class_lines(axes, x, rows, shown, names, values)
        lines += axes.plot(x, rows[shown].mean(0), color=INK, linewidth=3)
        labels.append(f"all classes  {values[shown].mean():.3f}")
        if mark is not None and math.isfinite(mark):
            axes.axvline(mark, color=FAINT, linewidth=1, linestyle=(0, (3, 3)))
        figure.legend(lines[::-1], labels[::-1], title=legend, loc="outside right upper", fontsize=8, alignment="left")


def _draw_class_lines(
    axes: Axes, x: np.ndarray, rows: np.ndarray, shown: np.ndarray, names: Sequence[str], values: np.ndarray
) -> tuple[list, list[str]]:
    """Draw a line per class. Returns the lines to be named and their names, the best class last."""
    if len(shown) > MOST_NAMED_LINES:
        step = max(1, len(x) // 200)
        lines = [np.stack([x[::step], rows[k, ::step]], 1) for k in shown]
        alpha = float(np.clip(20 / len(shown), 0.04, 0.5))
        axes.add_collection(LineCollection(lines, colors=BLUE, linewidths=0.8, alpha=alpha))
        return axes.plot([], [], color=BLUE, linewidth=0.8, alpha=0.5), [f"each of {len(shown)} classes"]
    order = shown[np.argsort(values[shown], kind="stable")]
    handles = [axes.plot(x, rows[k], color=_hex(int(k)), linewidth=1.2, alpha=0.8)[0] for k in order]
    labels = [f"{short_name(names, int(k))}  {values[k]:.3f}" for k in order]
    # matplotlib before 3.10 leaves out of the legend what begins with an underscore
    return handles, [" " + label if label.startswith("_") else label for label in labels]


# confusion_matrix.png


def plot_confusion(matrix: np.ndarray, names: Sequence[str], path: str | Path) -> None:
    """Draw a confusion matrix: right answers blue, wrong ones orange, the darker the larger their share.

    Args:
        matrix: int [K + 1, K + 1], rows predicted, columns true; last is background: its row holds the objects that
            were missed, its column the false alarms.

    Of more than 1000 classes those with the most boxes are drawn. Ticks then name none of them.
    A column's shares are of the objects of that class. Background has no objects, so a false alarm's share is of the
    boxes predicted for its class.
    """
    classes = max(len(matrix) - 1, 0)
    matrix = _most_frequent(np.asarray(matrix), MOST_DRAWN_CLASSES).astype(np.float64)
    count = max(len(matrix) - 1, 0)
    with _picture(path, *_confusion_size(count)) as figure:
        axes = figure.subplots()
        axes.set_title("Confusion matrix" + (f" of the {count:,} most frequent classes" if count < classes else ""))
        if count < 1 or not matrix.any():
            _say_no_data(axes)
            return
        axes.imshow(_confusion_colours(matrix), interpolation="nearest", aspect="equal")
        _name_ticks(axes, names, count, "x", last="background\n(false alarm)")
        _name_ticks(axes, names, count, "y", last="background\n(missed)")
        axes.set(xlabel="true class", ylabel="predicted class")
        for line in (axes.axhline, axes.axvline):
            line(count - 0.5, color=INK, linewidth=0.8)
        if count <= MOST_COUNTED_CLASSES:
            _write_counts(axes, matrix)
        figure.supxlabel(
            "Blue: right. Orange: wrong. Darker: a larger share of that true class (last column: of that prediction).",
            fontsize=8,
            color=FAINT,
        )


def _most_frequent(matrix: np.ndarray, most: int) -> np.ndarray:
    """The rows and columns of the `most` classes with the most boxes, in their order, and of background.

    >>> _most_frequent(np.array([[0, 0, 1], [0, 5, 0], [0, 2, 0]]), 1)
    array([[5, 0], [2, 0]])
    """
    if len(matrix) - 1 <= most:
        return matrix
    boxes = matrix[:-1].sum(1) + matrix[:, :-1].sum(0)
    chosen = np.append(np.sort(np.argsort(-boxes, kind="stable")[:most]), len(matrix) - 1)
    return matrix[np.ix_(chosen, chosen)]


def _confusion_size(count: int) -> tuple[float, float]:
    """Width and height in inches."""
    side = float(np.clip(3.5 + 0.42 * count, 5.5, 13))
    return side + 0.6, side


def _confusion_shares(matrix: np.ndarray) -> np.ndarray:
    """Each count as a share of its true class, in the last column of its prediction; 0 where there is nothing.

    >>> _confusion_shares(np.array([[3, 1], [1, 0]]))
    array([[0.75, 0.25], [0.25, 0.  ]])
    """
    shares = matrix / np.maximum(matrix.sum(0), 1)
    shares[:, -1] = matrix[:, -1] / np.maximum(matrix.sum(1), 1)
    shares[-1, -1] = 0
    return shares


def _confusion_colours(matrix: np.ndarray) -> np.ndarray:
    """[K + 1, K + 1, 3] in [0, 1]."""
    shares = _confusion_shares(matrix)
    right = LinearSegmentedColormap.from_list("right", ["#ffffff", "#7ea6f4", "#1e40af"])(shares)[..., :3]
    colours = LinearSegmentedColormap.from_list("wrong", ["#ffffff", "#fdba74", "#c2410c"])(shares**0.7)[..., :3]
    diagonal = np.arange(len(matrix) - 1)
    colours[diagonal, diagonal] = right[diagonal, diagonal]
    colours[-1, -1] = 0.93  # background taken for background is never counted
    return colours


def _write_counts(axes: Axes, matrix: np.ndarray) -> None:
    shares = _confusion_shares(matrix)
    size = float(np.clip(90 / len(matrix), 6, 10))
    for row, column in np.argwhere(matrix > 0):
        value = int(matrix[row, column])
        text = f"{value}" if value < 10_000 else f"{value / 1000:.0f}k"
        colour = "white" if shares[row, column] > 0.55 else INK
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)
