"""Transforms of Albumentations on finished samples: boxes, random numbers, workers, errors."""

import inspect
import os
import pickle
import random
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from data import Loader, open_base_images
from data.augment.__main__ import main as draw_picture
from data.augment.transforms import Transforms, TransformsError, library
from data.augment.transforms.names import BOX_TRANSFORMS, COVERING, PIXEL_TRANSFORMS, REFUSED
from tests.data.test_loader import contents, epochs_of, train_loader, write_data
from utils.distributed.world import World
from utils.images.letterbox import GRAY

ROOT = Path(__file__).parents[4]
MISSING = find_spec("albumentations") is None
needs_library = pytest.mark.skipif(MISSING, reason="albumentations is not installed")

NO_TARGETS = np.zeros((0, 5), np.float32)
# class, x1, y1, x2, y2 on 64 x 64; the last one is an ignore region
TARGETS = np.array([[0, 8, 8, 40, 48], [1, 30, 4, 62, 44], [-1, 0, 44, 20, 64]], np.float32)
REQUIRED = {  # arguments of transforms that have some without a default, or need them
    "AtLeastOneBBoxRandomCrop": "height: 40, width: 32",
    "CenterCrop": "height: 40, width: 32",
    "ConstrainedCoarseDropout": "bbox_labels: [0]",
    "Crop": "x_max: 48, y_max: 40",
    "CropAndPad": "percent: [-0.2, 0.2]",
    "GridElasticDeform": "num_grid_xy: [4, 4], magnitude: 3",
    "RandomCrop": "height: 40, width: 32",
    "RandomResizedCrop": "size: [64, 64]",
    "RandomSizedBBoxSafeCrop": "height: 64, width: 64",
    "RandomSizedCrop": "min_max_height: [30, 50], size: [64, 64]",
    "XYMasking": "num_masks_x: 2, mask_x_length: 6",
}


def noise(height: int = 64, width: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def transforms_of(text: str) -> Transforms:
    return Transforms(text, "f.yaml")


def single(name: str, arguments: str = "") -> Transforms:
    return transforms_of(f"- {{name: {name}, p: 1{', ' if arguments else ''}{arguments}}}")


def applied(
    transforms: Transforms, image: np.ndarray, targets: np.ndarray, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    changed = image.copy()
    return changed, transforms.apply(changed, targets.copy(), seed)


# ---------------------------------------------------------------------- the installed package


@needs_library
def test_lists_hold_every_transform_of_the_installed_release():
    albumentations = library.import_albumentations()
    kinds = {
        name: kind
        for name, kind in vars(albumentations).items()
        if inspect.isclass(kind) and issubclass(kind, albumentations.BasicTransform)
    }
    bases = {"BasicTransform", "DualTransform", "ImageOnlyTransform", "Transform3D"}
    listed = PIXEL_TRANSFORMS | BOX_TRANSFORMS | REFUSED.keys()
    assert set(kinds) - bases <= listed

    for name, kind in kinds.items():
        targets = getattr(kind, "_targets", ())
        targets = targets if isinstance(targets, (tuple, list)) else (targets,)
        has_boxes = "BBOXES" in {target.name for target in targets}
        if name in PIXEL_TRANSFORMS:
            assert issubclass(kind, albumentations.ImageOnlyTransform)
            assert not has_boxes
        if name in BOX_TRANSFORMS:
            assert issubclass(kind, albumentations.DualTransform)
            assert has_boxes


@pytest.mark.parametrize(
    ("installed", "sentence"),
    [
        ({"albumentations": "1.4.23"}, "--augmentations needs Albumentations 1.4.24 to 2.0.8, not "
         "1.4.23; docs/augmentations.md"),
        ({"albumentations": "2.0.9"}, "needs Albumentations 1.4.24 to 2.0.8, not 2.0.9"),
        ({"albumentationsx": "2.0.8", "albumentations": "2.0.8"}, "(MIT license), but "
         "albumentationsx is installed, which has the AGPL: pip uninstall albumentationsx"),
    ],
)  # fmt: skip
def test_other_releases_and_the_successor_are_refused(monkeypatch, installed, sentence):
    monkeypatch.setattr(library, "_installed", lambda name: installed.get(name, ""))
    monkeypatch.setattr(library, "import_optional", lambda *_: pytest.fail("was imported"))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        library.import_albumentations()


@pytest.mark.parametrize(("module", "reason"), [("albumentations", ""), ("albucore", ".*albucore")])
def test_package_that_is_missing_or_broken_is_one_sentence(monkeypatch, module, reason):
    if MISSING and reason:
        pytest.skip("albumentations is not installed")
    for name in [name for name in sys.modules if name.split(".")[0] == "albumentations"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    sentence = (
        "--augmentations needs the package albumentations: docs/augmentations.md says how to "
        "install it beside OpenCV"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}( \\(.*\\))?$") as error:
        library.import_albumentations()
    assert re.search(reason, str(error.value))


CHECK_UPDATES = """
import sys
from pathlib import Path
from tests.support.no_network import block_network

sys.modules["torch"] = None  # takes seconds, and is optional for it
block_network(Path(sys.argv[1]), {"command": "import"})
from utils.optional_packages import import_optional
import_optional("albumentations", "a test")
"""


@needs_library
@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_no_newer_version_is_asked_for_unless_the_user_wants_it(tmp_path, asked):
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment.pop("NO_ALBUMENTATIONS_UPDATE", None)
    if asked:
        environment["NO_ALBUMENTATIONS_UPDATE"] = "0"
    notes = tmp_path / "attempts.txt"
    command = [sys.executable, "-c", CHECK_UPDATES, str(notes)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert bool(notes.read_text()) == asked


# ---------------------------------------------------------------------- one sample


@pytest.mark.slow
@needs_library
def test_every_transform_depends_on_the_seed_only():
    """In a new object too, and after other samples; and it leaves global random numbers alone."""
    image = noise()
    albumentations = library.import_albumentations()
    before = np.random.get_state()[1].tobytes(), random.getstate(), torch.get_rng_state()  # noqa: NPY002
    for name in sorted(PIXEL_TRANSFORMS | BOX_TRANSFORMS):
        if name not in vars(albumentations):
            continue
        transforms = single(name, REQUIRED.get(name, ""))
        pixels, boxes = applied(transforms, image, TARGETS)
        assert pixels.dtype == np.uint8
        assert boxes.dtype == np.float32
        assert (boxes[:, 1:3] >= 0).all(), name
        assert (boxes[:, 3:] <= 64).all(), name
        if name in PIXEL_TRANSFORMS:
            assert (boxes == TARGETS).all()

        applied(transforms, image[::-1], TARGETS[:1], seed=2)
        assert applied(transforms, image, NO_TARGETS)[1].shape == (0, 5)
        for other in (transforms, pickle.loads(pickle.dumps(transforms))):  # noqa: S301
            again, boxes_again = applied(other, image, TARGETS)
            assert (again == pixels).all(), name
            assert np.array_equal(boxes_again, boxes), name

    after = np.random.get_state()[1].tobytes(), random.getstate(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2]
    assert before[2].equal(after[2])


AS_COMPOSE = [
    ("Affine", "rotate: [-40, 40], scale: [0.5, 1.5], shear: [-10, 10]"),
    ("Perspective", "scale: [0.1, 0.2]"),
    ("RandomResizedCrop", "size: [64, 64], scale: [0.2, 0.6]"),
    ("ElasticTransform", "alpha: 20, sigma: 6"),
    ("D4", ""),
]


@needs_library
@pytest.mark.parametrize(("name", "arguments"), AS_COMPOSE)
def test_pixels_and_boxes_are_those_of_the_librarys_own_compose(name, arguments):
    albumentations = library.import_albumentations()
    transforms = single(name, arguments)
    compose = albumentations.Compose(
        [transforms.leaves[0].transform],
        bbox_params=albumentations.BboxParams(
            "pascal_voc", label_fields=["classes"], min_visibility=0.1, min_width=2, min_height=2
        ),
    )
    objects = TARGETS[:2]
    kept = 0
    for seed in range(20):
        pixels, boxes = applied(transforms, noise(), objects, seed)
        compose.set_random_state(np.random.default_rng(seed), random.Random(seed))
        expected = compose(
            force_apply=True, image=noise(), bboxes=objects[:, 1:], classes=objects[:, 0]
        )
        transforms.leaves[0].transform.set_processors({"bboxes": transforms._processor})
        assert (pixels == expected["image"]).all()
        assert boxes[:, 0].tolist() == list(expected["classes"])
        np.testing.assert_allclose(boxes[:, 1:], expected["bboxes"], atol=1e-3)
        kept += len(boxes)
    assert kept > 20


@needs_library
def test_flip_moves_boxes_as_worked_out_by_hand():
    pixels, boxes = applied(single("HorizontalFlip"), noise(), TARGETS)
    assert (pixels == noise()[:, ::-1]).all()
    # x1, x2 = 64 - x2, 64 - x1
    assert boxes.tolist() == [[0, 24, 8, 56, 48], [1, 2, 4, 34, 44], [-1, 44, 44, 64, 64]]


@needs_library
def test_crop_is_letterboxed_back_to_the_canvas():
    """The left half, 32 x 64, keeps its size, 64 px high, in the middle of 64 x 64."""
    image = noise()
    pixels, boxes = applied(single("Crop", "x_max: 32, y_max: 64"), image, TARGETS)
    assert (pixels[:, 16:48] == image[:, :32]).all()
    assert (pixels[:, :16] == GRAY).all()
    assert (pixels[:, 48:] == GRAY).all()
    # The first box is cut at x 32, and moved by 16. Of the second, 2 of 32 px are left: dropped.
    assert boxes.tolist() == [[0, 24, 8, 48, 48], [-1, 16, 44, 36, 64]]


@needs_library
def test_quarter_turn_of_a_rectangular_canvas_is_letterboxed_back():
    """32 x 64 (h, w) becomes 64 x 32, which is halved to 32 x 16 and moved by 24."""
    targets = np.array([[3, 8, 4, 40, 28]], np.float32)
    pixels, boxes = applied(single("Transpose"), noise(32, 64), targets)
    assert pixels.shape == (32, 64, 3)
    # transposed: 4, 8, 28, 40; halved: 2, 4, 14, 20; moved
    assert boxes.tolist() == [[3, 26, 4, 38, 20]]


@needs_library
def test_of_an_ignore_region_any_part_stays_and_of_an_object_a_tenth():
    targets = np.array([[c, 0, 0, 60, 60] for c in (0, -1)], np.float32)
    crop = single("Crop", "x_min: 50, x_max: 64, y_min: 30, y_max: 44")  # 10 x 14 of 60 x 60 px
    _, boxes = applied(crop, noise(), targets)
    assert boxes[:, 0].tolist() == [-1]
    wider = single("Crop", "x_min: 30, x_max: 64, y_min: 30, y_max: 64")  # a quarter
    assert applied(wider, noise(), targets)[1][:, 0].tolist() == [0, -1]


@needs_library
def test_covered_boxes_stay_as_they_are_or_go():
    hole = "num_holes_range: [1, 1], hole_height_range: [64, 64], hole_width_range: [64, 64]"
    pixels, boxes = applied(single("CoarseDropout", hole), noise(), TARGETS)
    assert not pixels.any()
    assert boxes.tolist() == TARGETS[2:].tolist()  # the ignore region
    assert COVERING <= BOX_TRANSFORMS

    halves = "num_masks_x: 1, mask_x_length: 10"
    assert (applied(single("XYMasking", halves), noise(), TARGETS)[1] == TARGETS).all()


@needs_library
def test_transforms_of_equal_probability_are_chosen_independently():
    """Of 400 samples about 100 have both, neither, and each alone (4 standard deviations: 35)."""
    both = transforms_of("- {name: HorizontalFlip, p: 0.5}\n- {name: InvertImg, p: 0.5}")
    image = noise(4, 8)
    outcomes = [image, image[:, ::-1], 255 - image, 255 - image[:, ::-1]]
    counts = [0] * 4
    for seed in range(400):
        pixels, _ = applied(both, image, NO_TARGETS, seed)
        counts[[(pixels == outcome).all() for outcome in outcomes].index(True)] += 1
    assert all(65 < count < 135 for count in counts), counts


@needs_library
def test_groups_choose_one_some_or_all():
    image = noise(4, 8)
    inverted, flipped = 255 - image, image[:, ::-1]
    pair = "[{name: InvertImg, p: 0.9}, {name: HorizontalFlip, p: 0.3}]"

    def share(text: str, *outcomes: np.ndarray) -> list[float]:
        transforms = transforms_of(text)
        drawn = [applied(transforms, image, NO_TARGETS, seed)[0] for seed in range(300)]
        return [
            sum((pixels == outcome).all() for pixels in drawn) / 300
            for outcome in (*outcomes, image)
        ]

    # one of them, in the ratio 0.9 to 0.3, and never both
    one = share(f"- {{name: OneOf, p: 0.8, transforms: {pair}}}", inverted, flipped)
    np.testing.assert_allclose(one, [0.6, 0.2, 0.2], atol=0.1)
    # each half of the time, with its own probability
    some = share(f"- {{name: SomeOf, n: 1, transforms: {pair}}}", inverted, flipped)
    np.testing.assert_allclose(some, [0.45, 0.15, 0.4], atol=0.1)
    # all, if at all
    certain = pair.replace("0.9", "1").replace("0.3", "1")
    every = share(f"- {{name: Sequential, transforms: {certain}}}", 255 - flipped)
    np.testing.assert_allclose(every, [0.5, 0.5], atol=0.12)


# ---------------------------------------------------------------------- errors


@needs_library
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- {name: Blur, blur_limt: 3}", "f.yaml line 1: Blur has no argument 'blur_limt' (did you "
         "mean blur_limit?); it has blur_limit, p"),
        ("- {name: ToGray}\n- {name: GaussNoise, std_range: [0.5, 2]}",
         "f.yaml line 2: GaussNoise: std_range: "),
        ("- {name: CropAndPad}", "f.yaml line 1: CropAndPad: "),
        ("- {name: OneOf, transforms: [{name: Blur, p: 0}]}",
         "f.yaml line 1: all transforms of OneOf have p 0"),
    ],
)  # fmt: skip
def test_arguments_are_checked_by_the_library(text, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}") as error:
        transforms_of(text)
    assert "\n" not in str(error.value)


@needs_library
def test_what_the_library_warns_of_is_noted_with_the_line():
    (note,) = transforms_of("- {name: ToGray}\n- {name: Blur, blur_limit: [4, 7]}").notes
    assert note.startswith("f.yaml line 2: Blur: blur_limit: Non-zero kernel sizes must be odd.")


@needs_library
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- {name: RandomCrop, p: 0.1, height: 80, width: 8}",
         "f.yaml line 1: RandomCrop fails on an image of 64 x 64 px: Crop size"),
        ("- {name: ToGray, p: 0.1, num_output_channels: 1}",
         "f.yaml line 1: ToGray returns uint8 [64, 64], expected uint8 [height, width, 3]"),
    ],
)  # fmt: skip
def test_transforms_that_cannot_work_are_found_before_the_training(tmp_path, text, sentence):
    with pytest.raises(TransformsError, match=f"^{re.escape(sentence)}"):
        train_loader(write_data(tmp_path), transforms=transforms_of(text))


@needs_library
def test_transforms_are_tried_on_the_lowest_and_the_narrowest_canvas(tmp_path):
    crop = transforms_of("- {name: RandomCrop, p: 0.1, height: 64, width: 40}")
    train_loader(write_data(tmp_path), transforms=crop)
    sentence = "RandomCrop fails on an image of 64 x 32 px"
    with pytest.raises(TransformsError, match=sentence):
        train_loader(write_data(tmp_path), rect=True, transforms=crop)


# ---------------------------------------------------------------------- batches

MANY = """
- {name: RandomBrightnessContrast, p: 0.5}
- {name: GaussNoise, p: 0.3}
- name: OneOf
  transforms: [{name: MotionBlur}, {name: CLAHE}, {name: ElasticTransform}]
- {name: Affine, rotate: [-20, 20], p: 0.5}
- {name: RandomCrop, height: 20, width: 24, p: 0.3}
- {name: CoarseDropout, p: 0.5}
"""


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize("rect", [False, True])
def test_batches_depend_on_neither_workers_nor_processes(tmp_path, rect):
    labels = write_data(tmp_path)

    def loader(**changes: object) -> Loader:
        return train_loader(
            labels, batch_size=4, rect=rect, transforms=transforms_of(MANY), **changes
        )

    alone = epochs_of(loader(), 2)
    for workers in (1, 2):
        drawn = epochs_of(loader(workers=workers), 2)
        assert [contents(batch) for batch in drawn] == [contents(batch) for batch in alone]
    ranks = [epochs_of(loader(rank=rank, size=2), 2) for rank in (0, 1)]
    for batch, *parts in zip(alone, *ranks, strict=True):
        assert torch.stack([part.images for part in parts], 1).flatten(0, 1).equal(batch.images)
        rows = torch.cat([part.targets[:, 1:] for part in parts]).tolist()
        assert sorted(rows) == sorted(batch.targets[:, 1:].tolist())

    # an epoch that begins in its middle, as after a restart
    resumed = loader()
    resumed.sampler.set_epoch(1, 1)
    later = alone[loader().sampler.batches_in(0) + 1 :]
    assert [contents(batch) for batch in resumed] == [contents(batch) for batch in later]


@needs_library
def test_without_effect_the_batches_are_those_without_transforms(tmp_path):
    labels = write_data(tmp_path)
    idle = transforms_of("- {name: NoOp, p: 1}\n- {name: Blur, p: 0}")
    plain = [contents(batch) for batch in epochs_of(train_loader(labels), 1)]
    drawn = epochs_of(train_loader(labels, transforms=idle), 1)
    assert [contents(batch) for batch in drawn] == plain
    changed = epochs_of(train_loader(labels, transforms=transforms_of(MANY)), 1)
    assert [contents(batch) for batch in changed] != plain


@needs_library
@pytest.mark.parametrize("workers", [0, 1])
def test_failure_in_a_worker_is_one_sentence(tmp_path, monkeypatch, workers):
    crop = transforms_of("- {name: RandomCrop, p: 1, height: 40, width: 40}")
    monkeypatch.setattr(Transforms, "check", lambda *_: None)
    labels = write_data(tmp_path, [(200, 100)] * 3)  # 32 px high
    loader = train_loader(labels, rect=True, workers=workers, transforms=crop)
    sentence = r"^f\.yaml line 1: RandomCrop fails on an image of \d+ x \d+ px: Crop size .*$"
    with pytest.raises(TransformsError, match=sentence) as error:
        list(loader)
    assert "Traceback" not in str(error.value)


def test_device_cache_is_refused():
    sentence = (
        "--cache device does not support --augmentations, whose transforms run on the CPU: choose "
        "--cache ram"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        open_base_images(
            {}, 64, World(torch.device("cpu")), where="device", folder=None, transforms=True
        )


# ---------------------------------------------------------------------- the picture


@needs_library
@pytest.mark.slow
def test_picture_shows_each_transform(tmp_path, tiny_data, capsys):
    image = tiny_data.parent / "images" / "0.png"
    file, out = tmp_path / "my.yaml", tmp_path / "picture.png"
    file.write_text(MANY)
    words = [str(file), "--image", str(image), "--img", "64", "--out", str(out)]
    assert draw_picture(words) == out
    printed = capsys.readouterr().out
    # unchanged, 8 transforms, 3 samples
    assert "8 transforms of Albumentations" in printed
    assert f"12 images: {out}" in printed
    assert out.stat().st_size > 10_000

    for flag, value, sentence in (
        ("--out", "a.gif", "--out a.gif: choose a name that ends with .jpg or .png"),
        ("--out", "none/a.png", "--out none/a.png: there is no folder none"),
        ("--out", str(image), f"--out {image}: is the image itself"),
        ("--img", "8", "--imgsz 8: choose 32 to 8192 pixels"),
        ("--label", "none.txt", "--label none.txt: does not exist"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            draw_picture([*words, flag, value])
