"""The pictures of a run: each can be decoded, is not blank, and works with no, one, many and oddly
named classes.
"""

import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from utils.plots import batches, canvas, confusion, labels, operating, results

ODD_NAMES = [
    "日本語",
    "Ünïcode",
    "$x_1^{$",
    "_hidden",
    "two\nlines",
    "",
    "a very long name " * 9,
    "star🙂",
    "\x1b[2J\0\u202e\udcff",
]
HEADER = (
    "epoch,time,train/box_loss,train/obj_loss,train/cls_loss,metrics/precision,metrics/recall,metrics/mAP_0.5,"
    "metrics/mAP_0.5:0.95,val/box_loss,val/obj_loss,val/cls_loss,lr"
)


def names_of(count):
    return [ODD_NAMES[k] if k < len(ODD_NAMES) else f"class {k}" for k in range(count)]


def read(path, width=300, height=200):
    """Read a picture, [H, W, 3], and check its size, its content, and that its folder has no
    temporary file.
    """
    image = cv2.imread(str(path))
    assert image is not None, f"{path.name} cannot be decoded"
    assert image.shape[0] >= height
    assert image.shape[1] >= width
    assert cv2.meanStdDev(image)[1].max() > 1, f"{path.name} is blank"
    assert not list(path.parent.glob("*.tmp.*")), "a temporary file is left"
    return image


def drawn_fraction(image):
    """Fraction of the pixels that are not white."""
    return (image < 250).any(2).mean()


# results.png


def write_results(path, epochs, header=HEADER):
    rows = [header]
    for epoch in range(epochs):
        rows.append(
            ",".join(
                [str(epoch)]
                + [f"{0.5 + 0.1 * np.sin(epoch + k):.5f}" for k in range(header.count(","))]
            )
        )
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_results_plot_of_more_epochs_is_fuller(tmp_path):
    fractions = []
    for epochs in (0, 1, 300):
        picture = tmp_path / f"{epochs}.png"
        results.plot_results(write_results(tmp_path / f"{epochs}.csv", epochs), picture)
        fractions.append(drawn_fraction(read(picture, 1000, 600)))
    none, one, many = fractions
    assert many > one > none
    assert many > 2 * none


def test_results_plot_treats_invalid_cells_as_missing(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(
        "epoch, train/box_loss, val/box_loss, "
        "lr\n0,nan,0.5,\n1,0.4,inf,0.1\n2,0.3\n3,word,0.2,0.1\n"
    )
    columns = results._read_results(path)
    assert list(columns) == ["epoch", "train/box_loss", "val/box_loss", "lr"]
    np.testing.assert_equal(columns["train/box_loss"], [np.nan, 0.4, 0.3, np.nan])
    np.testing.assert_equal(columns["val/box_loss"], [0.5, np.nan, np.nan, 0.2])
    results.plot_results(path, tmp_path / "results.png")
    read(tmp_path / "results.png")


@pytest.mark.parametrize("text", ["", "\n", "epoch,time\n1,2\n"])
def test_results_plot_without_data(tmp_path, text):
    (tmp_path / "results.csv").write_text(text)
    results.plot_results(tmp_path / "results.csv", tmp_path / "results.png")
    read(tmp_path / "results.png")


def test_train_and_val_columns_share_panels():
    columns = [
        "train/box_loss",
        "train/dfl_loss",
        "val/box_loss",
        "val/dfl_loss",
        "metrics/mAP_0.5",
        "lr",
    ]
    panels = [results._panel_of(name) for name in columns]
    assert panels == ["box loss", "dfl loss", "box loss", "dfl loss", "mAP", "learning rate"]


# labels.png


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "boxes"),
    [
        (0, 0),
        (3, 0),
        (1, 1),
        (80, 500),
        (1000, 9000),
        (10_000, 9000),
    ],
)
def test_labels_plot_of_any_number_of_classes_and_boxes(tmp_path, count, boxes):
    random = np.random.default_rng(0)
    classes = random.integers(0, max(count, 1), boxes)
    labels.plot_labels(
        classes, random.uniform(0, 1, (boxes, 4)), names_of(count), tmp_path / "labels.png"
    )
    read(tmp_path / "labels.png", 1200, 800)


def test_labels_plot_writes_counts_as_plain_numbers(tmp_path, monkeypatch):
    ticks = []
    real = labels._draw_boxes

    def draw_and_read(axes, *arguments):
        real(axes, *arguments)
        ticks.extend(label.get_text() for label in axes.figure.axes[0].get_yticklabels())

    monkeypatch.setattr(labels, "_draw_boxes", draw_and_read)
    labels.plot_labels(
        np.repeat([0, 1, 2], [5000, 3, 3]),
        np.full((5006, 4), 0.5),
        ["a", "b", "c"],
        tmp_path / "labels.png",
    )
    assert "1,000" in ticks
    assert not [text for text in ticks if "$" in text]


def test_labels_plot_of_many_classes_shows_those_with_boxes(tmp_path, monkeypatch):
    shown = []
    real = labels._draw_boxes

    def draw_and_read(axes, *arguments):
        real(axes, *arguments)
        counts = axes.figure.axes[0]
        shown.append(
            (
                counts.get_title(loc="left"),
                [text.get_text() for text in counts.get_xticklabels()],
                counts.get_xlabel(),
            )
        )

    monkeypatch.setattr(labels, "_draw_boxes", draw_and_read)
    classes = np.repeat([7, 1999], [2, 5])
    labels.plot_labels(classes, np.full((7, 4), 0.5), names_of(2000), tmp_path / "labels.png")
    title = "7 boxes, 2,000 classes, 2 of them with boxes"
    named = ["class 1999", "7 star"]  # no font here has the last letter of the name
    assert shown == [(title, named, "")]


def test_labels_plot_of_classes_without_names(tmp_path):
    labels.plot_labels(
        np.array([5, -1]), np.full((2, 4), 0.5), ["only one"], tmp_path / "labels.png"
    )
    labels.plot_labels(np.array([-1]), np.full((1, 4), 0.5), names_of(100), tmp_path / "labels.png")
    read(tmp_path / "labels.png")


# train_batch*.jpg


def batch(count, side=64):
    random = np.random.default_rng(count)
    images = random.integers(0, 255, (count, side, side, 3), dtype=np.uint8)
    targets = [[image, k % 9, 8, 8 + k, 40, 40 + k] for image in range(count) for k in range(3)]
    return images, np.array(targets, np.float32).reshape(-1, 6)


@pytest.mark.parametrize(
    ("count", "suffix"), [(0, ".jpg"), (1, ".png"), (3, ".jpg"), (16, ".jpg"), (40, ".jpg")]
)
def test_batch_plot_of_any_number_of_images(tmp_path, count, suffix):
    images, targets = batch(count)
    path = tmp_path / f"batch{suffix}"
    batches.plot_batch(
        images,
        targets,
        names_of(9),
        path,
        scores=np.full(len(targets), 0.87),
        titles=names_of(count),
    )
    image = read(path)
    assert max(image.shape) <= batches.MOSAIC_SIDE + 100  # the gaps


def test_batch_plot_draws_box_at_its_position(tmp_path):
    images = np.full((1, 480, 480, 3), 255, np.uint8)
    batches.plot_batch(
        images, np.array([[0, 0, 100, 200, 300, 400.0]]), ["cat"], tmp_path / "batch.png"
    )
    drawn = cv2.cvtColor(read(tmp_path / "batch.png"), cv2.COLOR_BGR2RGB)[
        4:-4, 4:-4
    ]  # without the gap around
    assert drawn.shape == (480, 480, 3)
    rows, columns = np.nonzero((drawn == canvas.color_of(0)).all(2))
    assert (columns.min(), rows.max()) == (100, 400)
    assert drawn[300, 200].tolist() == [255, 255, 255]


def test_batch_plot_hatches_ignore_regions(tmp_path):
    images = np.full((1, 480, 480, 3), 255, np.uint8)
    batches.plot_batch(
        images, np.array([[0, -1, 100, 200, 300, 400.0]]), [], tmp_path / "batch.png"
    )
    part = read(tmp_path / "batch.png")[234:374, 134:274]
    assert set(np.unique(part)) == {181, 255}  # 0.3 x 255 + 0.7 x 150 = 181.5
    assert abs((part == 181).mean() - 0.5) < 0.05


def test_batch_plot_accepts_invalid_boxes(tmp_path):
    boxes = [
        [0, 1, -50, -50, 900, 900],
        [0, 99, 10, 10, 10, 10],
        [0, 1, 40, 40, 5, 5],
        [0, 0, np.nan, 1, 2, 3],
        [7, 0, 1, 1, 9, 9],
    ]
    boxes += [[0, -1, -20, -20, -5, -5], [0, -1, 60, 60, 900, 900], [0, 2, 500, 500, 600, 600]]
    batches.plot_batch(
        batch(1)[0], np.array(boxes, float), ODD_NAMES, tmp_path / "batch.jpg", titles=["x" * 500]
    )
    read(tmp_path / "batch.jpg")


def test_batch_plot_keeps_aspect_ratio(tmp_path):
    batches.plot_batch(
        np.zeros((2, 96, 320, 3), np.uint8),
        np.array([[0, 0, 1, 1, 300, 90.0]]),
        ["a"],
        tmp_path / "b.jpg",
    )
    height, width, _ = read(tmp_path / "b.jpg", height=100).shape
    assert width / height == pytest.approx(2 * 320 / 96, rel=0.1)


def test_batch_plot_does_not_change_its_inputs(tmp_path):
    images, targets = batch(2)
    before = images.copy(), targets.copy()
    batches.plot_batch(images, targets, ["a"], tmp_path / "b.jpg")
    assert np.array_equal(images, before[0])
    assert np.array_equal(targets, before[1])


# Curves


def curves(count, points=1000):
    x = np.linspace(0, 1, points)
    quality = np.linspace(0.4, 0.9, count)[:, None]
    recall = quality * (1 - x**3)
    precision = np.clip(quality + 0.3 * x, 0, 1)
    pr = np.clip(1 - (np.linspace(0, 1, 101) / quality) ** 4, 0, 1)
    return [
        x,
        precision,
        recall,
        2 * precision * recall / (precision + recall + 1e-9),
        np.linspace(0, 1, 101),
        pr,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 12, 1000])
def test_curve_plots_of_any_number_of_classes(tmp_path, count):
    operating.plot_curves(*curves(count), names_of(count), tmp_path, 0.3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{x}_curve.png" for x in ("F1", "PR", "P", "R")
    ]
    for path in tmp_path.iterdir():
        read(path, 900, 600)


@pytest.mark.slow
def test_curve_plots_skip_classes_without_ground_truth(tmp_path):
    data = curves(2)
    for rows in (*data[1:4], data[5]):
        rows[1] = np.nan
    operating.plot_curves(*data, names_of(2), tmp_path, 0.3)
    with_gap = read(tmp_path / "PR_curve.png")
    for rows in (*data[1:4], data[5]):
        rows[:] = np.nan
    operating.plot_curves(*data, names_of(2), tmp_path, float("nan"))
    assert drawn_fraction(read(tmp_path / "PR_curve.png")) < drawn_fraction(with_gap) / 2


def test_curve_plots_without_data(tmp_path):
    operating.plot_curves(*(np.zeros(0) for _ in range(6)), [], tmp_path, 0.0)
    for name in ("F1", "PR", "P", "R"):
        read(tmp_path / f"{name}_curve.png")


# Confusion matrix


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 26, 1000])
def test_confusion_plot_of_any_number_of_classes(tmp_path, count):
    matrix = np.random.default_rng(0).poisson(0.5, (count + 1, count + 1))
    matrix[np.arange(count), np.arange(count)] += 20_000
    confusion.plot_confusion(matrix, names_of(count), tmp_path / "confusion.png")
    read(tmp_path / "confusion.png", 600, 600)


@pytest.mark.parametrize("matrix", [np.zeros((0, 0), int), np.zeros((4, 4), int)])
def test_confusion_plot_of_empty_matrix(tmp_path, matrix):
    confusion.plot_confusion(matrix, names_of(3), tmp_path / "confusion.png")
    read(tmp_path / "confusion.png")


def test_confusion_plot_keeps_classes_that_occur(tmp_path):
    matrix = np.zeros((1202, 1202), int)
    matrix[7, 7], matrix[-1, 1200], matrix[500, -1], matrix[0, -1] = (
        3,
        5,
        1,
        2,
    )  # correct, missed, false positives
    assert confusion._shown_classes(matrix, few=25, most=1000).tolist() == [0, 7, 500, 1200]
    assert confusion._shown_classes(matrix, few=25, most=2).tolist() == [
        7,
        1200,
    ]  # 3 counts for both its axes
    assert confusion._shown_classes(matrix[:4, :4], few=25, most=1000).tolist() == [0, 1, 2]
    assert confusion._shown_classes(np.zeros((40, 40), int), few=25, most=1000).tolist() == []
    confusion.plot_confusion(matrix, names_of(1201), tmp_path / "confusion.png")
    read(tmp_path / "confusion.png")


def test_confusion_shares_by_hand():
    # Class a: 8 objects, 6 found, 1 predicted as b, 1 missed. Class b: 4 objects, all found. False
    # positives: 2 a, 5 b.
    matrix = np.array([[6, 0, 2], [1, 4, 5], [1, 0, 0]])
    # a: 6/8, 1/8, 1/8; b: 4/4; of 6 + 0 + 2 = 8 predicted a 2 are false positives, of 1 + 4 + 5 =
    # 10 b 5.
    np.testing.assert_allclose(
        confusion._confusion_shares(matrix), [[0.75, 0, 0.25], [0.125, 1, 0.5], [0.125, 0, 0]]
    )


def test_confusion_colors_distinguish_right_from_wrong():
    red, _, blue = np.moveaxis(
        confusion._confusion_colors(np.array([[6.0, 3.0, 2.0], [2.0, 4.0, 5.0], [1.0, 2.0, 0.0]])),
        -1,
        0,
    )
    right = np.diag([True, True, False])
    assert (blue > red)[right].all()
    right[-1, -1] = True  # background, background is gray
    assert (red > blue)[~right].all()


# All


def test_class_colors_differ():
    colors = [canvas.color_of(k) for k in range(100)]
    assert len(set(colors)) == 100
    first = np.array(colors[:10])
    gaps = np.linalg.norm(first[:, None] - first, axis=-1)
    assert gaps[~np.eye(10, dtype=bool)].min() > 40


def test_missing_plot_folder_is_named_in_error(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"nowhere is not a folder: a\.png cannot be written there"
    ):
        labels.plot_labels(np.zeros(0), np.zeros((0, 4)), [], tmp_path / "nowhere" / "a.png")


def test_failed_plot_write_keeps_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    canvas.write_atomically(path, b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        canvas.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_pyplot_is_never_imported(tmp_path):
    code = (
        "import sys, numpy as np; from pathlib import Path; folder = Path(sys.argv[1]);"
        "from utils.plots import confusion, labels;"
        "labels.plot_labels(np.zeros(3), np.full((3, 4), .5), ['a'], folder / 'a.png');"
        "confusion.plot_confusion(np.eye(3), ['a', 'b'], folder / 'b.png');"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, tmp_path],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_confusion_plot_with_numbers_is_fast(tmp_path):
    """A picture with 676 numbers takes about twice the CPU time of this thread that it takes
    without them.
    """

    def seconds(matrix):
        start = time.thread_time()
        confusion.plot_confusion(matrix, names_of(25), tmp_path / "a.png")
        return time.thread_time() - start

    without_numbers = seconds(np.eye(26))
    assert seconds(np.where(np.eye(26), 20_000, 1)) < 6 * without_numbers
    read(tmp_path / "a.png", 600, 600)
