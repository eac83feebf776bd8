"""Annotated images: their names, formats and contents, read back with Pillow."""

import numpy as np
import pytest
from PIL import Image

from tests.support.detected import drawn_frame, found_boxes
from utils.images.encode import encode_bgr
from utils.outputs.annotated import Annotator
from utils.outputs.pictures import PictureFiles, picture_suffix
from utils.terminal import FaultError


def write(folder, *names, found=None, known=True):
    inputs = [(name, False) for name in names] if known else None
    output = PictureFiles(folder, Annotator(["cat"]), known=inputs)
    for name in names:
        output.write(drawn_frame(name, width=80, height=60), found or found_boxes())
    output.close()
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_pictures_keep_their_name_and_subfolder(tmp_path):
    names = ["a.jpg", "b/c/a.png", "d.JPEG", "ä b.png"]
    assert write(tmp_path, *names) == sorted(names)
    for name in names:
        with Image.open(tmp_path / name) as image:
            assert image.format == ("PNG" if name.endswith("png") else "JPEG")
            assert image.size == (80, 60)


def test_other_formats_become_jpeg(tmp_path):
    names = "a.tif", "b.bmp", "c.webp", "d.jpg", "d.tif", "noname"
    assert write(tmp_path, *names) == [
        "a.jpg",
        "b.jpg",
        "c.jpg",
        "d.jpg",
        "d.tif.jpg",
        "noname.jpg",
    ]


@pytest.mark.parametrize("names", [("a.bmp", "a.jpg", "a.png"), ("a.png", "a.jpg", "a.bmp")])
def test_picture_of_an_image_never_has_the_name_of_another_one(tmp_path, names):
    """In any order, and also if nothing is known of the images that are still to come."""
    for known in (True, False):
        folder = tmp_path / str(known)
        folder.mkdir()
        assert write(folder, *names, known=known) == ["a.bmp.jpg", "a.jpg", "a.png"]


def test_converted_pictures_keep_their_suffix_if_others_may_come(tmp_path):
    assert write(tmp_path, "b.bmp", "c.jpg", "noname", known=False) == [
        "b.bmp.jpg",
        "c.jpg",
        "noname.jpg",
    ]


def test_picture_shows_the_boxes_in_right_colors(tmp_path):
    write(tmp_path, "a.png", found=found_boxes([[20, 30, 60, 50]]))
    with Image.open(tmp_path / "a.png") as image:
        assert image.getpixel((20, 40)) == (37, 99, 235)  # the first class's blue
        assert image.getpixel((40, 40)) == (128, 128, 128)


def test_frames_of_videos_are_left_to_the_video(tmp_path):
    PictureFiles(tmp_path, Annotator([])).write(drawn_frame("a.mp4", 1), found_boxes())
    assert not list(tmp_path.iterdir())


def test_pictures_are_written_inside_the_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    assert write(folder, "../x.png", "/y.png", "") == ["_.jpg", "_/x.png", "y.png"]
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_removed_folder_is_reported(tmp_path):
    with pytest.raises(FaultError, match=r"a\.png: its folder no longer exists"):
        write(tmp_path / "gone", "a.png")


def test_very_long_image_becomes_png():
    image = np.zeros((1, 65501, 3), np.uint8)
    assert picture_suffix("a.jpg", image) == ".png"
    assert encode_bgr(image, ".png").startswith(b"\x89PNG")
    assert picture_suffix("a.jpg", image[:, :65500]) == ".jpg"
    assert encode_bgr(image[:, :65500], ".jpg").startswith(b"\xff\xd8")
