"""data/sanity/shared_images.py: images that two splits share."""

import os
from pathlib import Path

import pytest

from data.sanity import shared_images as module
from data.sanity.shared_images import ImageFile, SharedImages, shared_images

LONG = bytes(range(256)) * 200  # longer than all samples


def files(folder: Path, contents: dict[str, bytes]) -> list[ImageFile]:
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [module._image_file(str(folder / name)) for name in contents]


def test_copies_under_other_names_are_found(tmp_path):
    train = files(tmp_path / "train", {"a": LONG, "b": b"other", "c": b""})
    val = files(tmp_path / "val", {"x": LONG, "y": b"third", "z": LONG + b"1"})
    assert shared_images(val, train) == SharedImages(1, 1)


def test_a_byte_that_is_in_no_sample_makes_a_difference(tmp_path):
    changed = bytearray(LONG)
    changed[5000] ^= 1
    train = files(tmp_path / "train", {"a": LONG})
    val = files(tmp_path / "val", {"x": bytes(changed)})
    assert module._samples(train[0]) == module._samples(val[0])
    assert shared_images(val, train) == SharedImages(0, 0)


@pytest.mark.parametrize("position", [0, len(LONG) // 2, len(LONG) - 1])
def test_samples_tell_files_of_one_size_apart(tmp_path, position):
    changed = bytearray(LONG)
    changed[position] ^= 1
    (one,), (other,) = (
        files(tmp_path / name, {"a": content}) for name, content in (("a", LONG), ("b", changed))
    )
    assert module._samples(one) != module._samples(other)


def test_links_are_no_copies(tmp_path):
    train = files(tmp_path / "train", {"a": LONG, "b": b"b"})
    (tmp_path / "val").mkdir()
    os.link(tmp_path / "train" / "a", tmp_path / "val" / "a")
    linked = module._image_file(str(tmp_path / "val" / "a"))
    assert shared_images([linked, *train[1:]], train) == SharedImages(2, 0)


def test_more_copies_than_are_compared_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "COMPARED", 2)
    contents = {str(number): bytes([number]) * 9000 for number in range(5)}
    train = files(tmp_path / "train", contents)
    assert shared_images(files(tmp_path / "val", contents), train) == SharedImages(5, 5)


def test_files_that_are_gone_are_no_copies(tmp_path):
    gone = [module._image_file(str(tmp_path / name)) for name in "ab"]
    assert shared_images(gone[:1], gone[1:]) == SharedImages(0, 0)


def test_no_images_share_nothing(tmp_path):
    some = files(tmp_path / "train", {"a": LONG})
    assert shared_images([], some) == shared_images(some, []) == SharedImages(0, 0)
