"""Detectors: raw maps by alternative computations that must agree, gradients, and their state."""

import copy
import json

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from models import LossGains, build_loss, build_model
from models.blocks.convolutions import Conv
from models.detector import Detector
from models.losses import Loss
from utils.nested import tensors_in


def randomize_statistics(model: nn.Module) -> nn.Module:
    """Return `model` in eval mode, with random BatchNorm statistics as after training."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return model.eval()


@pytest.fixture(scope="module")
def nano() -> Detector:
    torch.manual_seed(0)
    return randomize_statistics(build_model("yolov5n.yaml", 3))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (96, 64), (32, 160)])
def test_raw_maps_and_decoded_shapes(nano, height, width):
    with torch.no_grad():
        maps = nano(torch.rand(2, 3, height, width))
    expected = [(2, 3, height // stride, width // stride, 8) for stride in (8, 16, 32)]
    assert [tuple(raw.shape) for raw in maps] == expected
    boxes, scores = nano.decode(maps)
    count = 3 * sum(shape[2] * shape[3] for shape in expected)
    assert (tuple(boxes.shape), tuple(scores.shape)) == ((2, count, 4), (2, count, 3))


def test_train_and_eval_outputs_have_the_same_shapes(nano):
    images = torch.rand(2, 3, 64, 64)
    trained = copy.deepcopy(nano).train()(images)
    assert [raw.shape for raw in trained] == [raw.shape for raw in nano(images)]


def test_detector_accepts_empty_batch(nano):
    boxes, scores = nano.decode(nano(torch.empty(0, 3, 64, 64)))
    assert (tuple(boxes.shape), tuple(scores.shape)) == ((0, 252, 4), (0, 252, 3))


def test_batched_equals_single(nano):
    images = torch.rand(3, 3, 64, 64)
    with torch.no_grad():
        for index, batched in enumerate(zip(*nano(images), strict=True)):
            for raw, single in zip(batched, nano(images[index : index + 1]), strict=True):
                torch.testing.assert_close(raw, single[0], rtol=1e-4, atol=1e-5)


def test_every_parameter_gets_a_gradient():
    model = build_model("yolov5n", 2).train()
    sum(raw.square().mean() for raw in model(torch.rand(2, 3, 64, 64))).backward()
    assert [name for name, value in model.named_parameters() if value.grad is None] == []


@torch.no_grad()
def test_channels_last_is_kept_and_gives_the_same_maps(nano):
    images, seen = torch.rand(2, 3, 64, 96), []
    model = copy.deepcopy(nano).to(memory_format=torch.channels_last)
    for module in model.modules():
        if isinstance(module, Conv):
            module.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    maps = model(images.to(memory_format=torch.channels_last))
    assert all(out.is_contiguous(memory_format=torch.channels_last) for out in seen)
    assert len(seen) == 57  # 60 convolutions, without the head's three
    for raw, plain in zip(maps, nano(images), strict=True):
        torch.testing.assert_close(raw, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("yolov5n", 64),
        ("yolov5n6", 128),
        ("yolov3-tiny", 64),
        ("yolov8n", 64),
        ("yolo26n", 64),
        ("yolov9t", 64),
    ],
)
def test_fused_model_gives_the_same_maps(name, side):
    torch.manual_seed(1)
    model, images = randomize_statistics(build_model(name, 3)), torch.rand(2, 3, side, side)
    before = model(images)
    assert model.fuse() is model
    assert not any(isinstance(module, _BatchNorm) for module in model.modules())
    after = model(images)
    if model.head.outputs:  # of two heads the chosen one is left
        (before,), (after,) = before[1:], after
    for fused, raw in zip(after, before, strict=True):
        torch.testing.assert_close(fused, raw, rtol=1e-4, atol=1e-4)


def test_maps_are_freed_after_their_last_use(small_table):
    # Row 1 is read by row 4, row 2 by 3 and 5; Detect reads 4 and 2; the images are read by row 0
    # only.
    assert Detector(small_table)._freed_after == [[-1], [0], [], [], [1, 3], [2, 4]]


def some_targets(images: int) -> torch.Tensor:
    """Return targets with three boxes in each 64 px image."""
    boxes = torch.tensor([[0.0, 4, 6, 30, 40], [1, 20, 10, 60, 58], [2, 33, 35, 47, 62]])
    return torch.cat(
        [torch.cat([torch.full((3, 1), float(image)), boxes], 1) for image in range(images)]
    )


def to_float64(model: Detector) -> tuple[Detector, Loss]:
    model = copy.deepcopy(model).double()
    return model, build_loss(model.head, LossGains()).double()


@pytest.mark.parametrize("name", ["yolov5n", "yolox_nano", "yolo26n"])
def test_maps_of_one_column_are_computed_in_float32(name):
    """oneDNN 3.12 left values uninitialized there in bfloat16 on processors with AMX: other losses
    in each run, or NaN.

    The model trains with autocast, and its coarsest level is 1 column of 5 cells.
    """
    torch.manual_seed(0)
    model = build_model(name, 3)
    narrow = torch.rand(2, 3, 160, 32).contiguous(memory_format=torch.channels_last)
    wide = torch.cat([narrow, narrow], 3)
    exact_narrow, exact_wide = list(tensors_in(model(narrow))), list(tensors_in(model(wide)))
    with torch.autocast("cpu", torch.bfloat16):
        found_narrow, found_wide = list(tensors_in(model(narrow))), list(tensors_in(model(wide)))
    assert exact_narrow
    assert all(a.equal(b) for a, b in zip(found_narrow, exact_narrow, strict=True))
    assert exact_wide
    assert not any(a.equal(b) for a, b in zip(found_wide, exact_wide, strict=True))


def test_detector_dtype_is_that_of_its_parameters(nano):
    assert nano.dtype == torch.float32
    assert copy.deepcopy(nano).double().dtype == torch.float64
    assert copy.deepcopy(nano).bfloat16().dtype == torch.bfloat16


def test_float64_agrees_with_float32(nano):
    single, (double, criterion) = copy.deepcopy(nano).train(), to_float64(nano)
    images, targets = torch.rand(2, 3, 64, 64), some_targets(2)
    wanted = build_loss(single.head, LossGains())(single(images), targets)
    terms = criterion(double.train()(images.double()), targets)
    for name, term in terms.items():
        assert term.dtype == torch.float64
        assert term.item() == pytest.approx(wanted[name].item(), rel=1e-5)
    boxes, scores = double.decode(double(images.double()))
    assert (boxes.dtype, scores.dtype) == (torch.float32, torch.float32)


def test_float64_gradients_equal_finite_differences(nano):
    model, _ = to_float64(nano)
    model.train()
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    sum(raw.square().mean() for raw in model(images)).backward()
    for name in (
        "layers.0.conv.weight",
        "layers.9.cv1.bn.weight",
        "layers.17.m.0.cv2.conv.weight",
        "layers.24.m.1.bias",
    ):
        values = model.get_parameter(name)
        index = values.grad.abs().flatten().argmax()
        losses = []
        with torch.no_grad():
            for step in (1e-6, -2e-6):
                values.view(-1)[index] += step
                losses.append(sum(raw.square().mean().item() for raw in model(images)))
            values.view(-1)[index] += 1e-6
        assert values.grad.view(-1)[index].item() == pytest.approx(
            (losses[0] - losses[1]) / 2e-6, rel=1e-6
        )


def test_detector_gradients_of_shares_equal_batch_gradients(nano):
    # Eval mode: fixed BatchNorm statistics make the images independent of each other, so the batch
    # can be divided. In training, BatchNorm over all processes (--sync-bn) has the same effect.
    model, criterion = to_float64(nano)
    images, targets = torch.rand(4, 3, 64, 64, dtype=torch.float64), some_targets(4)
    sum(criterion(model(images), targets).values()).backward()
    full_batch = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    first, second = (
        targets[targets[:, 0] < 1],
        targets[targets[:, 0] >= 1] - torch.tensor([1.0, 0, 0, 0, 0, 0]),
    )
    parts, counts = [(images[:1], first), (images[1:], second)], []
    for part, boxes in parts:
        criterion(model(part), boxes, lambda own: counts.append(own) or own)
    for part, boxes in parts:
        sum(criterion(model(part), boxes, lambda _: sum(counts)).values()).backward()
    largest = max(gradient.abs().max().item() for gradient in full_batch.values())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, full_batch[name], rtol=1e-12, atol=1e-12 * largest
        )


def data_parallel_replica(module: nn.Module) -> nn.Module:
    """Return a module as torch's DataParallel runs it on each device: its parameters are plain
    attributes.
    """
    replica = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(replica, name, None if parameter is None else parameter.view_as(parameter))
    for name, child in module.named_children():
        setattr(replica, name, data_parallel_replica(child))
    return replica


@pytest.mark.parametrize("recompute", [False, True])
def test_data_parallel_replicas_give_the_same_gradients(nano, recompute):
    model, images = copy.deepcopy(nano).train(), torch.rand(2, 3, 64, 64)
    model.recompute = recompute
    replica = data_parallel_replica(model)
    assert next(replica.parameters(), None) is None
    sum(raw.square().mean() for raw in replica(images)).backward()
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    sum(raw.square().mean() for raw in model(images)).backward()
    assert [
        name for name, parameter in model.named_parameters() if not parameter.grad.equal(ours[name])
    ] == []


def test_table_survives_json_and_builds_the_same_model(nano):
    again = Detector(json.loads(json.dumps(nano.table)))
    assert again.table == nano.table
    again.load_state_dict(nano.state_dict())
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        for raw, expected in zip(again.eval()(images), nano(images), strict=True):
            torch.testing.assert_close(raw, expected, rtol=0, atol=0)


def test_state_dict_names_follow_table_rows(nano):
    names = set(nano.state_dict())
    assert {
        "layers.0.conv.weight",
        "layers.2.m.0.cv1.bn.running_mean",
        "layers.9.cv2.conv.weight",
    } <= names
    assert {"layers.24.m.0.bias", "layers.24.anchors_px"} <= names
    assert len(names) == 349  # as many tensors as YOLOv5 stores for yolov5n


def test_set_anchors_updates_buffer_and_table(small_table):
    model = Detector(small_table)
    model.head.set_anchors(torch.tensor([[[9.0, 7.0]], [[2.0, 3.0]]]))  # large first: reversed
    model.update_table()
    assert model.head.anchors_px.tolist() == [[[2, 3]], [[9, 7]]]
    assert Detector(model.table).head.anchors_px.tolist() == model.head.anchors_px.tolist()
    with pytest.raises(ValueError, match="the head has 2 levels of 1 anchors"):
        model.head.set_anchors(torch.tensor([[[1.0, 1.0]], [[2.0, 2.0]], [[3.0, 3.0]]]))
