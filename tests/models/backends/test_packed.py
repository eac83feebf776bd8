"""models/backends/packed.py: packed convolutions give the values of unpacked ones, or the detector
stays as it is.
"""

import copy

import pytest
import torch
from torch import nn

from models import build_model
from models.backends import packed
from models.backends.in_torch import TorchBackend
from models.backends.packed import PackedConv, pack_convolutions
from models.blocks.convolutions import Conv

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@pytest.fixture
def detector(tiny_model):
    torch.manual_seed(0)
    model = build_model(tiny_model, 3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # not the identity, as in a new model
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model.to(memory_format=torch.channels_last).fuse()


@torch.inference_mode()
@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 64, 96), (2, 160, 32)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_packed_detector_gives_the_values_of_the_unpacked_one(detector, shape, dtype, tolerance):
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN computes in bfloat16 on CPUs with AVX512 or AVX-NE-CONVERT only")
    batch, height, width = shape
    images = torch.rand(batch, 3, height, width)
    expected = TorchBackend(copy.deepcopy(detector)).predict(images)
    assert pack_convolutions(detector, dtype)
    assert not any(isinstance(module, Conv) for module in detector.modules())
    found = TorchBackend(detector, precision=dtype, packed=True).predict(images)
    assert found.boxes_xyxy.dtype == found.scores.dtype == torch.float32
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=tolerance)
    torch.testing.assert_close(
        found.boxes_xyxy, expected.boxes_xyxy, rtol=tolerance, atol=100 * tolerance
    )


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_packed(dtype):
    """Its convolutions have no activation."""
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN computes in bfloat16 on CPUs with AVX512 or AVX-NE-CONVERT only")
    torch.manual_seed(0)
    model = build_model("yolo11n", 3).fuse()
    images = torch.rand(1, 3, 64, 96)
    expected = TorchBackend(copy.deepcopy(model)).predict(images)
    assert pack_convolutions(model, dtype)
    assert not any(isinstance(module, Conv) for module in model.modules())
    found = TorchBackend(model, precision=dtype, packed=True).predict(images)
    torch.testing.assert_close(
        found.scores, expected.scores, rtol=0, atol=1e-5 if dtype is torch.float32 else 0.05
    )


@torch.inference_mode()
def test_grouped_and_strided_convolutions_are_packed_exactly():
    torch.manual_seed(0)
    for layer in (
        Conv(8, 16, 3, 2, groups=4),
        Conv(8, 8, 1),
        Conv(3, 8, 6, 2, 2),
        Conv(8, 8, 5, groups=8),
    ):
        layer.eval().fuse()
        x = torch.randn(2, layer.conv.in_channels, 20, 28).contiguous(
            memory_format=torch.channels_last
        )
        torch.testing.assert_close(
            PackedConv(layer, torch.float32)(x), layer(x), rtol=1e-5, atol=1e-5
        )


@torch.inference_mode()
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(1, 1, 0), (3, 1, 1), (3, 2, 1), (6, 2, 2), (5, 3, 2)]
)
def test_map_of_one_column_has_no_uninitialized_values(kernel, stride, padding, width):
    """oneDNN 3.12 left NaN in such maps in bfloat16 on processors with AMX: a detector of an image
    32 pixels wide.
    """
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN computes in bfloat16 on CPUs with AVX512 or AVX-NE-CONVERT only")
    if width + 2 * padding < kernel:
        pytest.skip("the kernel is wider than the map")
    torch.manual_seed(0)
    layer = Conv(8, 16, kernel, stride, padding).eval()
    layer.fuse()
    for height in (2, 5, 10, 20):
        x = torch.randn(2, 8, height, width).contiguous(memory_format=torch.channels_last)
        found, expected = PackedConv(layer, torch.bfloat16)(x.bfloat16()), layer(x)
        assert found.shape == expected.shape
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.05)


@torch.inference_mode()
def test_unpacked_detector_computes_maps_of_one_column_in_float32(detector):
    images = torch.rand(2, 3, 160, 32)
    found = TorchBackend(detector, precision=torch.bfloat16).predict(images)
    expected = TorchBackend(detector).predict(images)
    assert found.scores.equal(expected.scores)
    assert found.boxes_xyxy.equal(expected.boxes_xyxy)


def test_unfused_convolutions_are_left_alone(tiny_model):
    model = build_model(tiny_model, 3).eval()
    count = sum(isinstance(module, Conv) for module in model.modules())
    assert pack_convolutions(model, torch.float32)
    assert sum(isinstance(module, Conv) for module in model.modules()) == count > 0


@torch.inference_mode()
@pytest.mark.parametrize("fault", ["missing", "wrong values"])
def test_detector_stays_as_it_is_where_packing_fails(detector, monkeypatch, fault):
    def fail(self, x):
        if fault == "missing":
            raise AttributeError("no such operator")
        return self._run(x, self._weight, self._bias, *self._how, "relu", [], "")

    monkeypatch.setattr(PackedConv, "forward", fail)
    images = torch.rand(1, 3, 64, 64)
    expected = detector(images)
    assert not pack_convolutions(detector, torch.float32)
    assert all(a.equal(b) for a, b in zip(detector(images), expected, strict=True))


def test_operators_of_torch_are_those_that_are_used():
    """If torch renames them, detection still works, but slower: this test says so."""
    for name in ("_convolution_pointwise", "_reorder_convolution_weight"):
        assert hasattr(packed.torch.ops.mkldnn, name)
