"""Multi-scale training."""

import torch

from data.multi_scale import MultiScale


def test_sizes_are_all_stride_multiples_from_half_to_1_5_times():
    scale = MultiScale(0, 32)
    sizes = {scale.size(batch, 640) for batch in range(1000)}
    assert sizes == set(range(320, 961, 32))  # all 21 of them


def test_size_depends_only_on_seed_and_batch():
    sizes = [MultiScale(0, 32).size(batch, 640) for batch in range(20)]
    assert sizes == [MultiScale(0, 32).size(batch, 640) for batch in reversed(range(20))][::-1]
    assert sizes != [MultiScale(1, 32).size(batch, 640) for batch in range(20)]


def test_size_is_at_least_two_strides():
    # Half of 64 px would be one cell at stride 32, from which BatchNorm cannot compute a variance.
    assert {MultiScale(0, 32).size(batch, 64) for batch in range(100)} == {64, 96}
    assert {MultiScale(0, 64).size(batch, 128) for batch in range(100)} == {128, 192}


def test_multi_scale_resizes_images_and_boxes():
    scale = MultiScale(0, 32)
    batch = next(batch for batch in range(100) if scale.size(batch, 128) == 64)
    images = torch.zeros(2, 3, 128, 128)
    images[1, :, 32:64, 16:32] = 1  # x 16 to 32, y 32 to 64
    targets = torch.tensor([[1.0, 2.0, 16.0, 32.0, 32.0, 64.0]])
    small, moved = scale(batch, images, targets)
    assert small.shape == (2, 3, 64, 64)
    assert moved.tolist() == [[1.0, 2.0, 8.0, 16.0, 16.0, 32.0]]
    assert small[1, 0, 16:32, 8:16].mean() > 0.9
    assert small[1].mean() == images[1].mean()  # 2 x 2 pixels are averaged to one
    assert not small[0].any()
    assert targets.tolist() == [[1.0, 2.0, 16.0, 32.0, 32.0, 64.0]]


def test_multi_scale_accepts_empty_targets():
    images, targets = MultiScale(0, 32)(3, torch.rand(1, 3, 64, 64), torch.zeros(0, 6))
    assert targets.shape == (0, 6)
    assert images.shape[2] == images.shape[3]
