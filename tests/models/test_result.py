"""models/result.py: the result of one image as arrays, records, files and pictures."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from models.result import Detection, ReachedLimits, Result
from utils.images.detections import ImageDetections

NAMES = ("cat", "dog", "größe\n2")
BOXES = [[10.0, 20.0, 30.0, 60.0], [0.5, 1.0, 2.5, 4.0]]


def result_of(
    boxes=BOXES, scores=(0.9, 0.5), class_ids=(2, 0), path="street.jpg", size=(48, 64)
) -> Result:
    found = ImageDetections(
        np.array(boxes, float).reshape(-1, 4), np.array(scores, float), np.array(class_ids, int)
    )
    image = np.full((*size, 3), 200, np.uint8)
    return Result(image, found, NAMES, path)


EMPTY = result_of([], [], [])


def test_detections_are_iterated_with_names():
    result = result_of()
    assert len(result) == 2
    assert list(result) == [
        Detection((10, 20, 30, 60), 0.9, 2, NAMES[2]),
        Detection((0.5, 1, 2.5, 4), 0.5, 0, "cat"),
    ]
    assert result.names[result.class_ids[1]] == "cat"
    assert (list(EMPTY), len(EMPTY)) == ([], 0)


def test_repr_says_size_and_counts():
    assert repr(result_of()) == r"<street.jpg, 64 x 48 px: 1 cat, 1 größe\n2>"
    assert repr(result_of([], [], [], path="")) == "<image, 64 x 48 px: no detections>"


def test_dict_is_plain_json():
    expected = {
        "path": "street.jpg",
        "width": 64,
        "height": 48,
        "detections": [
            {"box_xyxy": BOXES[0], "score": 0.9, "class_id": 2, "name": NAMES[2]},
            {"box_xyxy": BOXES[1], "score": 0.5, "class_id": 0, "name": "cat"},
        ],
    }
    assert json.loads(json.dumps(result_of().to_dict())) == expected
    assert EMPTY.to_dict()["detections"] == []


def test_coco_rows_have_width_and_height():
    rows = result_of().to_coco(7)
    assert rows[0] == {
        "image_id": 7,
        "category_id": 3,
        "bbox": [10.0, 20.0, 20.0, 40.0],
        "score": 0.9,
    }
    assert rows[1]["bbox"] == [0.5, 1.0, 2.0, 3.0]
    assert result_of().to_coco(1, first_category=0)[1]["category_id"] == 0
    assert EMPTY.to_coco(1) == []


def test_supervision_detections_hold_the_same_values():
    pytest.importorskip("supervision", reason="the package supervision is optional")
    found = result_of().to_supervision()
    assert found.xyxy.tolist() == BOXES
    assert found.class_id.tolist() == [2, 0]
    assert found.confidence == pytest.approx([0.9, 0.5])
    assert found.data["class_name"].tolist() == [NAMES[2], "cat"]
    assert len(EMPTY.to_supervision()) == 0


def test_missing_supervision_names_the_pip_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "supervision", None)
    with pytest.raises(
        ValueError, match="to_supervision needs the package supervision: pip install supervision"
    ):
        EMPTY.to_supervision()


def test_picture_shows_boxes_and_leaves_the_image_unchanged():
    result = result_of()
    drawn = result.plot(line_width=2, labels=False)
    assert (drawn.shape, drawn.dtype) == (result.image.shape, np.uint8)
    assert (result.image == 200).all()
    changed = (drawn != 200).any(2)
    assert changed[20:60, 9:12].mean() > 0.5  # the left side of the first box
    assert not changed[:, 40:].any()
    assert (EMPTY.plot() == 200).all()


def test_picture_has_the_colors_that_detect_draws():
    from utils.plots.annotate import draw_detections

    result = result_of()
    expected = draw_detections(
        result.image, result.boxes_xyxy, result.class_ids, result.scores, NAMES
    )  # BGR, a gray image
    assert np.array_equal(result.plot(), expected[..., ::-1])
    assert not np.array_equal(result.plot(), expected)


def test_saved_picture_and_notebook_picture_are_those_of_plot(tmp_path):
    result = result_of()
    assert result.save(tmp_path / "a.PNG") == tmp_path / "a.PNG"
    assert np.array_equal(np.array(Image.open(tmp_path / "a.PNG")), result.plot())
    assert np.array_equal(np.array(Image.open(io.BytesIO(result._repr_png_()))), result.plot())
    result.save(tmp_path / "a.jpg")
    assert Image.open(tmp_path / "a.jpg").size == (64, 48)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.PNG", "a.jpg"]


def test_saving_under_another_suffix_is_rejected(tmp_path):
    with pytest.raises(
        ValueError, match=r"a\.gif: choose a name that ends in \.jpg, \.jpeg or \.png"
    ):
        EMPTY.save(tmp_path / "a.gif")


def test_reached_limit_is_said_with_its_numbers():
    def found(count: int, left_out: int = 0, capped: bool = False) -> ImageDetections:
        boxes = np.tile([0.0, 0, 9, 9], (count, 1))
        return ImageDetections(boxes, np.full(count, 0.5), np.zeros(count, int), left_out, capped)

    limits = ReachedLimits(1000, 300)
    assert limits.sentences() == []
    limits.add(found(1000), "all.jpg")
    limits.add(found(0), "none.jpg")
    assert limits.sentences() == []

    # Of a.jpg 1003 were found, of panorama.jpg 2056: 3 + 1056 = 1059 are left out.
    limits.add(found(1000, 3), "a.jpg")
    limits.add(found(1000, 1056), "panorama.jpg")
    assert limits.sentences() == [
        "--max-det 1000 was reached in 2 images: 1,059 detections left out, the most in "
        "panorama.jpg, "
        "1000 of 2056; a larger --max-det keeps them"
    ]
    limits = ReachedLimits(1000, 300)
    limits.add(found(300, capped=True), "b.jpg")
    assert limits.sentences() == [
        "the exported model's own limit of 300 detections was reached in 1 image, which may have "
        "more: "
        "export it with a larger --max-det"
    ]
