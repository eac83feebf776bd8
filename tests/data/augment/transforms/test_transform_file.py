"""data/augment/transforms/file.py: what a file of augmentations may say, without the library."""

import re
from pathlib import Path

import pytest

from data.augment.transforms.file import Step, parse_transforms, read_transforms
from data.augment.transforms.names import BOX_TRANSFORMS, GROUPS, PIXEL_TRANSFORMS, REFUSED
from utils.printable import excerpt


def steps(text: str) -> tuple[Step, ...]:
    return parse_transforms(text, "f.yaml").steps


def test_values_are_plain_python_with_the_line_of_each_transform():
    found = steps(
        "- {name: GaussNoise, p: 0.2, std_range: [1e-3, .5], per_channel: false}\n"
        "# a comment\n"
        "- name: Downscale\n"
        "  interpolation_pair: {upscale: 0, downscale: 3}\n"
        '- {name: ImageCompression, compression_type: "webp", quality_range: ~}\n'
    )
    noise, downscale, compression = found
    assert noise.arguments == {"p": 0.2, "std_range": [0.001, 0.5], "per_channel": False}
    assert downscale.where == "f.yaml line 3"
    assert downscale.arguments == {"interpolation_pair": {"upscale": 0, "downscale": 3}}
    assert compression.arguments == {"compression_type": "webp", "quality_range": None}


def test_groups_have_their_own_settings_and_defaults():
    one, some = steps(
        "- name: OneOf\n"
        "  transforms: [{name: Blur}, {name: Compose, transforms: [{name: CLAHE}]}]\n"
        "- {name: SomeOf, n: 3, replace: true, p: 0.4, transforms: [{name: Blur}, {name: ToGray}]}"
    )
    assert (one.chance, [child.name for child in one.children]) == (0.5, ["Blur", "Compose"])
    assert one.children[1].chance == 1.0
    assert (some.chance, some.count, some.repeats) == (0.4, 3, True)


ERRORS = {
    f"- {{name: Blur, blur_limit: {'9' * 400}}}": "f.yaml line 1: "
    f"{excerpt('9' * 400)} is not a finite number",
    "- {name: SomeOf, n: 101, replace: true, transforms: [{name: Blur}]}": "f.yaml line 1: n of "
    "SomeOf is 101, expected 1 to 100",
    "": "f.yaml: expected a list of transforms: - {name: Blur, p: 0.1}",
    "[]": "f.yaml: expected a list of transforms: - {name: Blur, p: 0.1}",
    "name: Blur": "f.yaml: expected a list of transforms: - {name: Blur, p: 0.1}",
    "- Blur": "f.yaml line 1: expected a transform such as {name: Blur, p: 0.1}",
    "- {p: 0.5}": "f.yaml line 1: a transform has no 'name' (it has: p)",
    "- {name: [Blur]}": "f.yaml line 1: 'name' must be the name of a transform",
    "- {name: Blur}\n- {name: Blurr}": "f.yaml line 2: 'Blurr' is not a transform of "
    "Albumentations that can be used (did you mean Blur?); docs/augmentations.md lists them",
    "- {name: os.system}": "f.yaml line 1: 'os.system' is not a transform of Albumentations that "
    "can be used; docs/augmentations.md lists them",
    "- {name: Lambda}": "f.yaml line 1: Lambda is not allowed: it runs functions, and a file is "
    "data",
    "- {name: FDA, reference_images: [a.jpg]}": "f.yaml line 1: FDA is not allowed: it reads other "
    "images or files",
    "- {name: Resize, height: 8, width: 8}": "f.yaml line 1: Resize is not allowed: it changes the "
    "size of the image, which is that of --img; Affine zooms",
    "- {name: OneOf, transforms: [{name: Normalize}]}": "f.yaml line 1: Normalize is not allowed: "
    "the result must be an image of 8-bit RGB, which train.py normalizes",
    "- {name: Blur, p: 1.5}": "f.yaml line 1: p of Blur is 1.5, expected a number from 0 to 1",
    "- {name: Blur, p: true}": "f.yaml line 1: p of Blur is True, expected a number from 0 to 1",
    "- {name: Blur, blur_limit: inf}": "f.yaml line 1: inf is not a finite number",
    "- {name: Blur, blur_limit: 'nan'}": "f.yaml line 1: nan is not a finite number",
    "- {name: Blur, p: 1, p: 0}": "f.yaml line 1: the key 'p' appears twice in a transform",
    "- !!python/name:os.system {}": "f.yaml line 1: tags (tag:yaml.org,2002:python/name:os.system) "
    "are not allowed",
    "- &a {name: Blur}\n- *a": "f.yaml line 2: aliases (*a) are not allowed",
    "- {name: OneOf}": "f.yaml line 1: OneOf needs 'transforms', a list of one or more",
    "- {name: OneOf, n: 1, transforms: [{name: Blur}]}": "f.yaml line 1: OneOf has no 'n'; it has "
    "transforms, p",
    "- {name: SomeOf, n: 0, transforms: [{name: Blur}]}": "f.yaml line 1: n of SomeOf is 0, "
    "expected 1 to 100",
    "- {name: SomeOf, n: 2, transforms: [{name: Blur}]}": "f.yaml line 1: n of SomeOf is 2, but it "
    "has 1 transform",
    "- {name: SomeOf, replace: 1, transforms: [{name: Blur}]}": "f.yaml line 1: replace of SomeOf "
    "is 1, expected true or false",
}


@pytest.mark.parametrize("text", ERRORS)
def test_wrong_content_is_refused_with_file_and_line(text):
    with pytest.raises(ValueError, match=f"^{re.escape(ERRORS[text])}$"):
        steps(text)


def test_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"none\.yaml cannot be read: No such file or directory"):
        read_transforms(tmp_path / "none.yaml")


def test_each_name_is_in_one_list():
    lists = [PIXEL_TRANSFORMS, BOX_TRANSFORMS, REFUSED.keys(), {*GROUPS}]
    assert sum(map(len, lists)) == len(set().union(*lists))
