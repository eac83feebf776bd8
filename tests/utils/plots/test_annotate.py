"""utils/plots/annotate.py: boxes and labels on images of any size, and which of them is on top."""

import time

import numpy as np
import pytest

from utils.plots.annotate import (
    contrasting,
    default_line_width,
    draw_boxes,
    draw_detections,
    font_for,
)
from utils.plots.canvas import color_of, short_name

NAMES = [
    "cat",
    "日本語",
    "two\nlines",
    "",
    "a very long name " * 9,
    "star🙂",
    "\x1b[2J\0\u202e\udcff",
    "$x^{",
]
BLUE_BGR = list(color_of(0)[::-1])


def draw(image, boxes, classes=None, scores=None, names=NAMES, **options):
    boxes = np.array(boxes, np.float64).reshape(-1, 4)
    ids = np.zeros(len(boxes), np.int64) if classes is None else np.array(classes)
    return draw_detections(
        image, boxes, ids, None if scores is None else np.array(scores), names, **options
    )


def gray(width, height):
    return np.full((height, width, 3), 128, np.uint8)


def test_without_detections_the_image_is_copied():
    image = gray(64, 48)
    drawn = draw(image, [])
    assert np.array_equal(drawn, image)
    assert drawn is not image
    assert not np.shares_memory(drawn, image)


def test_input_is_unchanged_even_if_it_is_a_mirrored_view():
    image = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    before, view = image.copy(), image[:, ::-1]
    drawn = draw(view, [[10, 20, 50, 50]], show_labels=False)
    assert np.array_equal(image, before)
    assert np.array_equal(drawn[-1], view[-1])


def test_box_is_drawn_in_bgr_with_its_outer_edge_at_the_corners():
    drawn = draw(gray(640, 480), [[100, 200, 300, 400]], show_labels=False, line_width=3)
    rows, columns = np.nonzero((drawn == BLUE_BGR).all(2))
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (100, 300, 200, 400)
    assert (drawn[300, 100:103] == BLUE_BGR).all()  # three pixels, then the outline
    assert drawn[300, 99].tolist() == drawn[300, 103].tolist() == [255, 255, 255]
    assert drawn[300, 200].tolist() == [128, 128, 128]


@pytest.mark.parametrize("class_id", range(12))
def test_box_is_visible_on_its_own_color(class_id):
    image = np.full((100, 100, 3), color_of(class_id)[::-1], np.uint8)
    drawn = draw(image, [[20, 20, 80, 80]], [class_id], show_labels=False)
    changed = (drawn != image).any(2)
    assert (drawn[changed] == contrasting(color_of(class_id))).all()
    assert changed[50].sum() == 4  # a line on both sides of the left and of the right edge


@pytest.mark.parametrize(
    "size", [(30, 30), (64, 64), (640, 480), (1920, 1080), (3000, 40), (1, 1), (1, 200)]
)
def test_any_image_size_and_odd_boxes_can_be_drawn(size):
    width, height = size
    boxes = [
        [0, 0, width, height],
        [width, height, width, height],
        [5, 5, 5, 40],
        [-50, -50, 9000, 9000],
    ]
    boxes += [
        [40, 40, 5, 5],
        [np.nan, 0, 9, 9],
        [0, np.inf, 9, 9],
        [width - 3, height - 3, width, height],
    ]
    drawn = draw(gray(*size), boxes, range(8), np.linspace(0.1, 0.9, 8))
    assert drawn.shape == (height, width, 3)
    assert (drawn != 128).any()


def test_line_and_text_grow_with_the_image():
    assert [default_line_width(side, side) for side in (30, 640, 1080, 8000)] == [1, 2, 4, 27]
    shares = [
        (draw(gray(s, s), [[s / 4, s / 4, s / 2, s / 2]], scores=[0.5]) != 128).mean()
        for s in (480, 3000)
    ]
    assert 0.3 < shares[0] / shares[1] < 3


def test_line_width_is_used_but_not_on_tiny_boxes():
    boxes = [[10, 10, 200, 200], [300, 300, 306, 306]]
    drawn = draw(gray(400, 400), boxes, show_labels=False, line_width=8)
    assert (drawn[100, 10:18] == BLUE_BGR).all()
    assert not (drawn[100, 18] == BLUE_BGR).all()
    assert drawn[303, 303].tolist() == [128, 128, 128]  # the content of the tiny box


def label_rows(drawn):
    """First and last row, first and last column of the changed pixels."""
    rows, columns = np.nonzero((drawn != 128).any(2))
    return rows.min(), rows.max() + 1, columns.min(), columns.max() + 1


def test_label_is_above_the_box_or_inside_at_the_upper_border():
    above = draw(gray(640, 480), [[100, 200, 300, 400]], scores=[0.5])
    assert label_rows(above)[0] < 190
    inside = draw(gray(640, 480), [[100, 3, 300, 400]], scores=[0.5])
    assert (inside[3:12, 101:120] != 128).any(2).all()


def test_label_at_the_right_border_stays_whole():
    left = draw(gray(640, 480), [[100, 200, 110, 400]], [4], [0.5])
    right = draw(gray(640, 480), [[630, 200, 640, 400]], [4], [0.5])
    wide = label_rows(left)[3] - label_rows(left)[2]
    assert label_rows(right)[3] == 640
    assert 0 <= wide - (640 - label_rows(right)[2]) <= 1  # the outline of the box beside it


def test_label_wider_than_the_image_is_shortened():
    drawn = draw(gray(60, 200), [[10, 100, 50, 190]], [4], [0.5])
    assert label_rows(drawn)[2:] == (0, 60)


def test_labels_are_left_out_where_they_would_hide_the_image():
    boxes = [[5, 5, 25, 25]]
    assert np.array_equal(draw(gray(30, 30), boxes), draw(gray(30, 30), boxes, show_labels=False))


def test_labels_and_scores_can_be_hidden():
    image, boxes = gray(640, 480), [[100, 200, 300, 400]]
    changed = [
        (draw(image, boxes, scores=[0.5], **options) != 128).sum()
        for options in ({"show_labels": False}, {"show_scores": False}, {})
    ]
    assert changed[0] < changed[1] < changed[2]
    without = draw(image, boxes)
    assert np.array_equal(without, draw(image, boxes, scores=[0.5], show_scores=False))


def test_best_score_is_on_top():
    boxes = [[10, 30, 90, 90], [10, 30, 90, 90]]
    for scores in ([0.9, 0.5], [0.5, 0.9]):
        drawn = draw(gray(100, 100), boxes, [0, 1], scores, show_labels=False)
        assert drawn[60, 10].tolist() == list(color_of(int(np.argmax(scores)))[::-1])


def test_without_scores_the_smallest_box_is_on_top():
    drawn = draw(gray(100, 100), [[10, 30, 50, 90], [10, 20, 90, 99]], [0, 1], show_labels=False)
    assert drawn[60, 10].tolist() == BLUE_BGR


def test_labels_are_on_top_of_all_boxes():
    """The line of the better box goes through the label of the other one."""
    image = gray(640, 480)
    boxes = [[100, 100, 300, 300], [150, 80, 400, 400]]
    alone = draw(image, boxes[:1], [0], [0.5])
    both = draw(image, boxes, [0, 1], [0.5, 0.9], show_scores=True)
    part = slice(90, 98), slice(101, 149)
    assert np.array_equal(both[part], alone[part])


def test_text_contrasts_with_bright_and_dark_colors():
    for color, text in (((0, 0, 60), 255), ((0, 255, 255), 0)):
        image = gray(300, 200)
        draw_boxes(image, np.array([[50.0, 100, 200, 150]]), [["mmm"]], [color])
        label = image[86:98, 52:80].astype(int)
        assert np.abs(label - text).max(2).min() < 60


def test_text_is_rendered_with_a_font_that_has_its_letters():
    assert font_for("cat", 14).path == font_for("Ünïcode", 14).path
    assert font_for("cat", 14) is font_for("dog", 14)  # loaded once


def test_unknown_classes_are_drawn_as_numbers():
    names = ["0"] * 8 + ["7"]
    image = gray(640, 480)
    box = [[100, 200, 300, 400]]
    drawn = draw(image, box, [7], names=["a"])
    renamed = draw(image, box, [7], names=names[:7] + ["7"])
    assert np.array_equal(drawn, renamed)


def test_full_hd_frame_with_20_boxes_takes_few_milliseconds():
    """Measured: 2.2 ms on one core of 2024. The limit leaves room for a busy machine."""
    random = np.random.default_rng(0)
    low = random.uniform(0, 900, (20, 2))
    boxes, image = np.concatenate([low, low + 150], 1), gray(1920, 1080)
    seconds = []
    for _ in range(7):
        scores = random.uniform(0, 1, 20)
        start = time.thread_time()
        draw(image, boxes, np.arange(20), scores, names=[f"class {k}" for k in range(20)])
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.02


# U+1F9FF is in no font here; U+FE0F follows many emoji
@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("\U0001f9ff", "3"),
        ("\U0001f9ff\ufe0f", "3"),
        ("\U0001f9ff \U0001f9ff", "3"),
        ("\U0001f9ff eye", "3 eye"),
        ("eye\x07", "3 eye"),
        ("", "3"),
        ("+", "+"),
        ("two\nlines", "two lines"),
    ],
)
def test_letters_that_no_font_has_are_left_out(name, drawn):
    """An emoji would be an empty box; the class's number says more."""
    assert short_name(["a", "b", "c", name], 3) == drawn
