"""Images that their files turn, in a data set: boxes, sizes and pixels agree."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from data.scan import scan
from utils.images.decode import read_image

Image = pytest.importorskip("PIL.Image")
from PIL import features  # noqa: E402 - after the check that Pillow is there

ORIENTATION = 0x0112
STORED = {
    1: 0,
    8: 1,
    3: 2,
    6: 3,
}  # by EXIF orientation: quarter turns anticlockwise that show the image upright


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif", ".avif"])
def test_boxes_lie_on_the_pixels_of_turned_images(tmp_path: Path, suffix: str) -> None:
    """An upright image of 64 x 48 px has a white object at x 8 to 24, y 32 to 40, whose box is
    labeled.
    """
    if suffix == ".avif" and not (features.check("avif") and cv2.haveImageWriter("a.avif")):
        pytest.skip("this Pillow or this OpenCV has no AVIF")
    upright = np.zeros((48, 64, 3), np.uint8)
    upright[32:40, 8:24] = 255
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    for orientation, turns in STORED.items():
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        stored = Image.fromarray(np.rot90(upright, -turns))
        stored.save(tmp_path / "images" / f"{orientation}{suffix}", exif=exif, quality=95)
        # center (16, 36), size 16 x 8, as fractions of 64 and 48
        (tmp_path / "labels" / f"{orientation}.txt").write_text("0 0.25 0.75 0.25 0.166666667\n")

    labels, _ = scan([tmp_path / "images"], ("object",), threads=1)
    assert labels.sizes.tolist() == [[64, 48]] * 4
    for index in range(4):
        x, y, width, height = labels.boxes_xywh[index].round().astype(int)
        assert [x, y, width, height] == [8, 32, 16, 8]
        pixels = read_image(labels.path(index))
        inside = pixels[y : y + height, x : x + width]
        assert inside.mean() > 230
        assert pixels.mean() < 1.2 * inside.size / pixels.size * 255  # nothing else is white
