"""utils/outputs/names.py: two images never share a file, and none is written outside the folder."""

import os
from pathlib import Path

import pytest

from tests.support.detected import drawn_frame
from utils.outputs.names import MAX_BYTES, OutputNames, path_inside, prepare_file, with_number


def stems(*names, suffix=""):
    """The stems of images, or of videos for names that end with .mp4 or .avi."""
    output = OutputNames()
    return [
        output.stem(drawn_frame(n, 1 if n.endswith(("mp4", "avi")) else None), suffix)
        for n in names
    ]


def test_second_image_with_a_stem_keeps_its_suffix():
    assert stems("a.jpg", "a.png", "b/a.png", "a.jpg", "a.png") == [
        "a",
        "a.png",
        "b/a",
        "a",
        "a.png",
    ]


def known_stems(*names, suffix=".txt"):
    """The stems that these images and videos get in this order and in the opposite one, which must
    be the same.
    """
    frames = [drawn_frame(name, 1 if name.endswith(("mp4", "avi")) else None) for name in names]
    inputs = [(frame.name, frame.number is not None) for frame in frames]
    output, reverse = OutputNames(inputs), OutputNames(inputs[::-1])
    found = [output.stem(frame, suffix) for frame in frames]
    assert [reverse.stem(frame, suffix) for frame in frames[::-1]] == found[::-1]
    assert [output.stem(frame, suffix) for frame in frames] == found  # for further frames
    assert len({(stem + suffix).casefold() for stem in found}) == len(found)
    return found


def test_known_images_that_would_share_a_file_all_keep_their_suffix():
    assert known_stems("a.bmp", "a.jpg", "b.jpg", "c/a.jpg") == ["a.bmp", "a.jpg", "b", "c/a"]
    assert known_stems("A.bmp", "a.jpg") == ["A.bmp", "a.jpg"]
    assert known_stems("clip.mp4", "clip.avi", "clip.jpg", suffix="") == [
        "clip.mp4",
        "clip.avi",
        "clip.jpg",
    ]
    assert known_stems("noname", "noname.jpg") == ["noname", "noname.jpg"]
    assert known_stems() == []


def test_known_image_that_is_named_like_a_frame_keeps_its_suffix():
    assert known_stems("clip.mp4", "clip_1.jpg", "clip_x.jpg") == ["clip", "clip_1.jpg", "clip_x"]
    assert known_stems("c.mp4", "c.avi", "c.mp4_1.jpg") == ["c.mp4", "c.avi", "c.mp4_1.jpg"]


def test_picture_is_never_called_like_another_known_image():
    names = ["a.bmp", "a.jpg", "a.bmp.jpg", "b.tif", "d.tif/e.jpg", "d.jpg/f.tif", "d.jpg"]
    for order in (names, names[::-1]):
        output = OutputNames([(name, False) for name in names])
        pictures = {name: output.picture(drawn_frame(name), ".jpg") for name in order}
        assert pictures["a.bmp.jpg"] == "a.bmp.jpg"
        assert pictures["a.jpg"] == "a.jpg"
        assert pictures["b.tif"] == "b.jpg"
        assert pictures["d.jpg"] == "d.jpg.jpg"  # d.jpg is a folder
        assert len(set(pictures.values())) == len(names)


def test_fallback_name_may_be_taken_too():
    assert stems("a.jpg", "a.png.jpg", "a.png", "a.png") == ["a", "a.png", "a.png-2", "a.png-2"]


def test_video_and_image_do_not_share_a_stem():
    assert stems("a.mp4", "a.jpg", "a.avi", "a.mp4") == ["a", "a.jpg", "a.avi", "a"]


def test_image_named_like_a_frame_of_a_video():
    assert stems("clip.mp4", "clip_1.jpg", "clip_x.jpg") == ["clip", "clip_1.jpg", "clip_x"]
    assert stems("clip_1.jpg", "clip.mp4", "clip_2.jpg") == ["clip_1", "clip.mp4", "clip_2"]


def test_stems_are_unique_with_their_suffix():
    output = OutputNames()
    assert [
        output.stem(drawn_frame(n), s)
        for n, s in (("a.jpg", ".jpg"), ("a.png", ".png"), ("a.tif", ".jpg"))
    ] == [
        "a",
        "a",
        "a.tif",
    ]


def test_stems_differ_in_more_than_case():
    assert stems("A.png", "a.jpg", "B.mp4", "b_1.png") == ["A", "a.jpg", "B", "b_1.png"]


def test_file_and_folder_never_share_a_path():
    assert stems("a.jpg", "a.txt/x.jpg", suffix=".txt") == ["a", "a.txt_x"]
    assert stems("a.txt/x.jpg", "a.jpg", "a.txt/y.jpg", suffix=".txt") == [
        "a.txt/x",
        "a.jpg",
        "a.txt/y",
    ]


def test_folders_of_the_outputs_are_not_those_of_pictures():
    assert stems("crops/RBC/a.jpg", "Labels/b.jpg", "crops.jpg") == [
        "_crops/RBC/a",
        "_Labels/b",
        "crops",
    ]


def test_number_of_a_frame_is_added():
    assert with_number("b/clip", drawn_frame("clip.mp4", 7)) == "b/clip_7"
    assert with_number("a", drawn_frame("a.jpg")) == "a"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ä/ö.jpg", "ä/ö.jpg"),
        ("../x", "_/x"),
        ("a/../../b", "a/_/_/b"),
        ("labels/x", "_labels/x"),
        ("labels", "labels"),
    ],
)
def test_paths_stay_inside_the_folder_and_outside_its_own_folders(name, path):
    assert path_inside(name) == path


def test_long_names_are_shortened_and_stay_different():
    first, second = (path_inside("b/" + "ä" * 300 + end + ".jpg") for end in "xy")
    assert first != second
    assert all(len(os.fsencode(part)) <= MAX_BYTES for part in first.split("/"))
    assert first.endswith(".jpg")


def test_subfolders_are_created_but_not_a_removed_folder(tmp_path):
    assert prepare_file(tmp_path, "a/b.txt") == tmp_path / "a/b.txt"
    assert (tmp_path / "a").is_dir()
    prepare_file(tmp_path / "gone", "a/b.txt")
    assert not (tmp_path / "gone").exists()
    assert Path(tmp_path).is_dir()
