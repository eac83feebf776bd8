"""data/layouts/similar.py: nearly identical images are found, others are not."""

import struct
import zlib

import cv2
import numpy as np
import pytest

from data.layouts import similar
from data.layouts.hold_out import hold_out
from data.layouts.similar import UNREADABLE, similar_groups, thumbnail_of


def photograph(seed, side=64):
    """A smooth picture of random blobs."""
    blobs = np.random.default_rng(seed).integers(0, 256, (6, 6, 3)).astype(np.uint8)
    return cv2.resize(blobs, (side, side), interpolation=cv2.INTER_CUBIC)


def write(folder, pictures):
    """Write pictures by name; returns their sorted paths."""
    for name, picture in pictures.items():
        cv2.imwrite(str(folder / name), picture)
    return sorted(str(folder / name) for name in pictures)


def partners(paths, groups):
    """The names of images that share a group."""
    sets = {}
    for path, group in zip(paths, groups, strict=True):
        sets.setdefault(group, []).append(path.rpartition("/")[2])
    return sorted(names for names in sets.values() if len(names) > 1)


def test_copies_of_other_sizes_and_encodings_are_similar(tmp_path):
    one = photograph(1, 256)
    pictures = {
        "a.png": one,
        "b.jpg": one,
        "c.png": cv2.resize(one, (128, 128), interpolation=cv2.INTER_AREA),
        "d.png": photograph(2, 256),
        "e.png": np.ascontiguousarray(one[:, ::-1]),
    }
    paths = write(tmp_path, pictures)
    assert partners(paths, similar_groups(paths, None, 2)) == [["a.png", "b.jpg", "c.png"]]


def test_different_pictures_are_not_similar(tmp_path):
    paths = write(tmp_path, {f"{seed:03}.png": photograph(seed) for seed in range(200)})
    assert partners(paths, similar_groups(paths, None, 2)) == []


@pytest.mark.parametrize(("added", "are_similar"), [(0, True), (8, True), (9, False)])
def test_thumbnails_may_differ_by_eight_gray_levels(added, are_similar, monkeypatch):
    one = np.random.default_rng(0).integers(1, 200, (16, 17)).astype(np.uint8)
    other = one.copy()
    other[3, 4] += added
    thumbnails = [one.tobytes(), other.tobytes()]
    monkeypatch.setattr(similar, "thumbnails_of", lambda *_: thumbnails)
    first, second = similar_groups(["a", "b"], None, 1)
    assert (first == second) == are_similar


def test_files_that_are_no_images_are_similar_to_nothing(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"x")
    paths = [str(tmp_path / name) for name in ("a.png", "b.png", "missing.png")]
    assert similar_groups(paths, None, 1) == [0, 1, 2]
    assert similar_groups([], None, 1) == []
    assert thumbnail_of(b"") == UNREADABLE


def test_image_of_more_pixels_than_opencv_allows_is_similar_to_nothing():
    encoded = cv2.imencode(".png", np.zeros((2, 2), np.uint8))[1].tobytes()
    header = bytearray(encoded[:33])  # the signature, and the chunk IHDR with its checksum
    header[16:24] = struct.pack(">II", 1_000_000, 1_000_000)  # width and height
    header[29:33] = struct.pack(">I", zlib.crc32(header[12:29]))
    assert thumbnail_of(bytes(header) + encoded[33:]) == UNREADABLE


def test_thumbnails_are_stored_and_computed_again_after_a_change(tmp_path, monkeypatch):
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = write(folder, {"a.png": photograph(1), "b.png": photograph(1), "c.png": photograph(2)})
    cache = tmp_path / "cache"
    first = similar_groups(paths, cache, 1)
    with monkeypatch.context() as patch:
        patch.setattr(similar, "_thumbnail_of_file", None)  # is not called
        assert similar_groups(paths, cache, 1) == first == [0, 0, 2]

    cv2.imwrite(paths[1], photograph(3))
    assert similar_groups(paths, cache, 1) == [0, 1, 2]
    for stored in cache.iterdir():
        stored.write_bytes(b"damaged")
    assert similar_groups(paths, cache, 1) == [0, 1, 2]


def test_similar_images_are_held_out_together(tmp_path):
    names = {str(tmp_path / f"{number:02}.jpg"): f"{number:02}.jpg" for number in range(40)}
    paths = list(names)
    pairs = [number // 2 for number in range(40)]
    _, val, _ = hold_out(names, share=0.3, similar=pairs)
    assert val
    for one, other in zip(paths[::2], paths[1::2], strict=True):
        assert (one in val) == (other in val)


def test_most_images_are_never_held_out(tmp_path):
    """All but two images are alike: whatever the seed, they are trained on."""
    names = {str(tmp_path / f"{number:02}.jpg"): f"{number:02}.jpg" for number in range(10)}
    paths = list(names)
    for seed in range(20):
        train, val, _ = hold_out(names, share=0.2, seed=seed, similar=[0] * 8 + [8, 9])
        assert set(paths[:8]) <= set(train)
        assert val


def test_many_images_of_one_camera_are_compared_by_brightness(monkeypatch):
    """More than MOST_IN_BAND of them: a frame and its copy of nearly the same brightness."""
    monkeypatch.setattr(similar, "MOST_IN_BAND", 10)
    monkeypatch.setattr(similar, "MANY_IN_BAND", 4)
    scene = np.random.default_rng(0).integers(1, 100, (16, 17)).astype(np.uint8)
    frames = [scene + 5 * number for number in range(20)]
    frames.append(frames[7] + 1)
    thumbnails = [frame.astype(np.uint8).tobytes() for frame in frames]
    monkeypatch.setattr(similar, "thumbnails_of", lambda *_: thumbnails)
    groups = similar_groups([str(number) for number in range(21)], None, 1)
    assert groups[20] == groups[7] == groups[6] == groups[8]  # 5 gray levels from frame to frame


def test_mirrored_copy_is_found_among_many_images_of_one_camera(monkeypatch):
    """No frame but the copy resembles the mirrored scene."""
    monkeypatch.setattr(similar, "MOST_IN_BAND", 10)
    monkeypatch.setattr(similar, "MANY_IN_BAND", 4)
    scene = np.random.default_rng(0).integers(1, 100, (16, 17)).astype(np.uint8)
    frames = [scene + 5 * number for number in range(20)]
    frames.append(frames[7][:, ::-1])
    thumbnails = [frame.astype(np.uint8).tobytes() for frame in frames]
    found = similar.close_images(thumbnails, range(21), mirrored=True)
    mirrored = {(close.image, *close.others.tolist()) for close in found if close.mirrored}
    assert (7, 20) in mirrored
