"""data/layouts/hold_out.py: which images are held out where a data set has no val split."""

from pathlib import Path

import pytest

from data.layouts.hold_out import hold_out

ROOT = Path("/data/photos")


def paths(names, root=ROOT):
    """The names of images by their paths."""
    return {str(root / name): name for name in names}


def test_each_image_is_in_one_split():
    images = paths(f"{number}.jpg" for number in range(1000))
    train, val, _ = hold_out(images, share=0.2)
    assert sorted(train + val) == sorted(images)


@pytest.mark.parametrize(
    ("images", "share", "held_out"),
    [
        (12, 0.2, 2),  # 2.4
        (13, 0.2, 3),  # 2.6
        (1000, 0.2, 200),
        (5, 0.5, 3),  # 2.5 is rounded up
        (2, 0.2, 1),  # 0.4: at least one
        (3, 0.99, 2),  # 2.97: at least one is left to train on
    ],
)
def test_share_of_the_images_is_held_out(images, share, held_out):
    for seed in range(5):
        found = hold_out(paths(f"{n}.jpg" for n in range(images)), share=share, seed=seed)
        assert (len(found.val), found.wanted) == (held_out, held_out)


def test_choice_depends_on_names_and_seed_only():
    images = paths(f"{number}.jpg" for number in range(50))
    first = hold_out(images, share=0.3)
    assert hold_out(dict(reversed(images.items())), share=0.3) == first
    assert hold_out(images, share=0.3, seed=1) != first
    moved = hold_out(paths(images.values(), Path("/mnt/photos")), share=0.3)
    assert [Path(name).name for name in moved.val] == [Path(name).name for name in first.val]


def test_folders_of_images_do_not_change_the_choice():
    """Whether the data set is given, or its folder images."""
    names = [f"{number}.jpg" for number in range(50)]
    given = hold_out(paths(names, ROOT / "images"), share=0.3)
    whole = hold_out(paths((f"images/{name}" for name in names), ROOT), share=0.3)
    assert whole == given


def test_an_added_image_moves_at_most_one_other():
    """It takes the place of the last one that was held out, or one more is held out."""
    before = hold_out(paths(f"{number}.jpg" for number in range(100)), share=0.2)
    for count in range(101, 120):
        after = hold_out(paths(f"{number}.jpg" for number in range(count)), share=0.2)
        to_train = set(before.val) & set(after.train)
        to_val = set(before.train) & set(after.val)
        assert len(to_train) + len(to_val) <= 1
        before = after


@pytest.mark.parametrize(
    ("sizes", "share", "possible"),
    [
        ([6, 6], 0.2, {6}),  # nothing is nearer to 2
        ([1] * 8 + [4], 0.25, {3}),
        ([10, 2], 0.2, {2}),  # the large group is never held out
        ([5, 5, 5, 5], 0.4, {10}),  # 8 are wanted: 10 are nearer than 5
        ([7, 3, 2], 0.25, {3, 2}),  # 3 are wanted: which comes first
    ],
)
def test_whole_groups_come_near_to_the_share(sizes, share, possible):
    names = [f"{group}_{n}.jpg" for group, size in enumerate(sizes) for n in range(size)]
    found = set()
    for seed in range(8):
        found.add(len(hold_out(paths(names), share=share, group="^[0-9]+_", seed=seed).val))
    assert found <= possible


def test_images_of_a_group_stay_together():
    images = paths(f"patient{patient}_{number}.jpg" for patient in range(20) for number in range(5))
    for pattern in ("patient[0-9]+", "(patient[0-9]+)_"):
        train, val, _ = hold_out(images, share=0.3, group=pattern)
        patients = [{Path(name).name.split("_")[0] for name in side} for side in (train, val)]
        assert not patients[0] & patients[1]
        assert all(patients)


def test_images_without_a_match_are_groups_of_their_own():
    images = paths(["a1.jpg", "a2.jpg", "b.jpg", "c.jpg"])
    train, val, _ = hold_out(images, share=0.5, group="a")
    first, second, *_ = images
    side_of_a = train if first in train else val
    assert second in side_of_a


@pytest.mark.parametrize("share", [0.001, 0.999])
@pytest.mark.parametrize("count", [2, 3, 9])
def test_both_splits_have_an_image(count, share):
    train, val, _ = hold_out(paths(f"{n}.jpg" for n in range(count)), share=share)
    assert train
    assert val


@pytest.mark.parametrize(
    ("images", "group", "message"),
    [
        ([], "", "there is only one image, so no val split can be held out"),
        (["a.jpg"], "", "there is only one image, so no val split can be held out"),
        (["a1.jpg", "a2.jpg"], "a", "there is only one group of --group a"),
        (["a.jpg", "b.jpg"], "patient", "--group 'patient' matches no image name, such as a.jpg"),
        (["a.jpg"], "(", "--group '(' is not a regular expression: missing )"),
    ],
)
def test_choice_that_cannot_be_made_is_refused(images, group, message):
    with pytest.raises(ValueError) as refusal:
        hold_out(paths(images), share=0.2, group=group)
    assert message in str(refusal.value)


def test_images_that_are_all_nearly_identical_are_refused():
    with pytest.raises(ValueError, match=r"^all 3 images are nearly identical, so no"):
        hold_out(paths(["a.jpg", "b.jpg", "c.jpg"]), share=0.2, similar=[0, 0, 0])
