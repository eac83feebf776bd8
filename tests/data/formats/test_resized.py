"""data/formats/resized.py: boxes of an image that has another size than its labels say."""

import json

import numpy as np
import pytest
from PIL import Image

from data.formats.resized import fit_rows
from data.labels import LabelRow
from data.report import LABELS_RESIZED, LABELS_TURNED
from data.scan import scan
from utils.images.orientation import turned


def row(x, y, w, h, points=None):
    return LabelRow(0, (x, y, w, h), float(w * h), False, points, 1)


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_turned_box_shows_the_pixels_that_it_showed(orientation):
    """The image is turned by the code that turns it for training; the marked pixels are found."""
    stored = np.zeros((6, 9, 1), np.uint8)
    stored[1:3, 2:7] = 255  # x 2 to 7, y 1 to 3
    upright = turned(stored, orientation)
    ys, xs = np.nonzero(upright[..., 0])
    expected = (xs.min(), ys.min(), xs.max() + 1 - xs.min(), ys.max() + 1 - ys.min())

    outline = np.array([(2, 1), (7, 1), (7, 3)], np.float32)
    height, width, _ = upright.shape
    fitted = fit_rows([row(2, 1, 5, 2, outline)], (9, 6), (width, height), orientation)
    assert fitted.kind == LABELS_TURNED
    assert fitted.rows[0].box_xywh == expected
    box = [*fitted.rows[0].points.min(0), *np.ptp(fitted.rows[0].points, 0)]
    assert tuple(box) == expected
    assert fitted.reason == f"labels of 9x6 turned with the image (EXIF orientation {orientation})"


@pytest.mark.parametrize("orientation", [1, 2, 3, 4])
def test_swapped_sides_of_a_file_that_is_not_turned_do_not_fit(orientation):
    assert fit_rows([row(1, 1, 2, 2)], (9, 6), (6, 9), orientation) is None


def test_labels_of_a_larger_copy_are_scaled():
    outline = np.array([(40, 20), (80, 20), (80, 60)], np.float32)
    fitted = fit_rows([row(40, 20, 40, 40, outline)], (400, 200), (100, 50), 1)
    assert fitted.kind == LABELS_RESIZED
    assert fitted.rows[0].box_xywh == (10, 5, 10, 10)
    assert fitted.rows[0].area == 100
    assert fitted.rows[0].points.tolist() == [[10, 5], [20, 5], [20, 15]]
    assert fitted.reason == "labels of 400x200 scaled by 0.25"


@pytest.mark.parametrize(
    ("declared", "actual", "fits"),
    [
        ((640, 427), (320, 214), True),  # 427 / 2 = 213.5, rounded
        ((640, 480), (320, 250), False),
        ((641, 480), (640, 480), False),  # cut, not resized
        ((640, 480), (640, 240), False),
    ],
)
def test_only_copies_of_the_same_ratio_fit(declared, actual, fits):
    assert (fit_rows([], declared, actual, 1) is not None) == fits


def coco(folder, size, bbox):
    """A COCO JSON of one image, which is said to have this size."""
    width, height = size
    document = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": width, "height": height}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": bbox}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (folder / "a.json").write_text(json.dumps(document))
    return folder / "a.json"


def test_scan_says_how_many_images_were_fitted(tmp_path):
    """A photograph of 20x10 pixels that its camera was turned for: upright it is 10x20."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 10)).save(tmp_path / "a.jpg", exif=exif)
    labels, report = scan([coco(tmp_path, (20, 10), [2, 1, 5, 3])], ["cat"])
    # Orientation 6: upright x = 10 - stored y, upright y = stored x.
    assert labels.boxes_xywh.tolist() == [[10 - 4, 2, 3, 5]]
    assert "image with labels from before it was turned, turned: 1" in report.summary()
    assert report.problems[0].reason == "labels of 20x10 turned with the image (EXIF orientation 6)"

    labels, report = scan([coco(tmp_path, (20, 40), [4, 8, 10, 10])], ["cat"])
    assert labels.boxes_xywh.tolist() == [[2, 4, 5, 5]]
    assert "image with labels of another size, scaled: 1" in report.summary()
