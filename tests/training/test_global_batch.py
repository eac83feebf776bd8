"""What follows from the batch size: images per process, accumulation, loss scale, weight decay."""

import pytest

from training.global_batch import GlobalBatch


@pytest.mark.parametrize(
    ("size", "processes", "per_process", "accumulate", "loss_scale"),
    [
        (16, 1, 16, 4, 16),  # 64 / 16 = 4 batches per step
        (16, 2, 8, 4, 32),  # 16 images, times 2 since gradients are averaged over 2 processes
        (64, 4, 16, 1, 256),
        (100, 1, 100, 1, 100),  # 0.64 rounds to 1
        (24, 1, 24, 3, 24),  # 2.67 rounds to 3
        (1, 1, 1, 64, 1),
    ],
)
def test_global_batch_by_hand(size, processes, per_process, accumulate, loss_scale):
    batch = GlobalBatch(size, processes)
    assert (batch.per_process, batch.accumulate, batch.loss_scale) == (
        per_process,
        accumulate,
        loss_scale,
    )


def test_weight_decay_scales_with_images_per_step():
    assert GlobalBatch(16).weight_decay(0.0005) == 0.0005  # 4 * 16 = 64 images
    assert GlobalBatch(24).weight_decay(0.0005) == pytest.approx(0.0005 * 72 / 64)  # 3 * 24 = 72
    assert GlobalBatch(24, 2).weight_decay(0.0005) == GlobalBatch(24).weight_decay(0.0005)


def test_nominal_batch_is_kept_and_sets_the_accumulation():
    batch = GlobalBatch(16, 2, nominal=32).limited_to(20)
    assert (batch.size, batch.accumulate, batch.nominal) == (16, 2, 32)
    assert batch.weight_decay(0.0005) == 0.0005  # 2 * 16 = 32 images
    assert GlobalBatch(16, nominal=16).limited_to(9).accumulate == 2  # two batches of 8


def test_indivisible_batch_size_is_refused():
    sentence = "choose a multiple of 2, the number of processes (WORLD_SIZE)"
    with pytest.raises(ValueError) as caught:
        GlobalBatch(5, 2)
    assert str(caught.value) == f"--batch-size 5 is the total over all processes: {sentence}"
    assert GlobalBatch(-1, 2).size == -1  # to be measured


@pytest.mark.parametrize(
    ("size", "images", "expected"),
    [(16, 100, 16), (16, 16, 16), (16, 15, 8), (16, 1, 1), (12, 5, 4)],
)
def test_batch_size_is_limited_to_number_of_images(size, images, expected):
    logged = []
    assert (
        GlobalBatch(size).limited_to(images, logged.append).size == expected
    )  # the largest divisor that they fill
    many = "image" if images == 1 else "images"
    line = (
        f"--batch-size {size}: {images} training {many}, so {expected}, its largest divisor "
        "that they fill"
    )
    assert logged == ([line] if expected < size else [])


def test_too_few_images_for_the_processes_are_refused():
    with pytest.raises(
        ValueError, match=r"^3 training images are too few for 4 processes: the batch would be 2$"
    ):
        GlobalBatch(8, 4).limited_to(3)
