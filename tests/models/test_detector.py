"""Detectors against published counts, alternative computations that must agree, and the errors for
bad tables.
"""

import copy
import json
import math
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase

import pytest
import torch
import yaml
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

from models import LossGains, build_loss, build_model
from models.__main__ import main
from models.blocks.attention import Attention
from models.blocks.convolutions import Conv
from models.detector import Detector, check_shapes, count_gflops, count_parameters
from models.losses import Loss
from models.table import load_model_table, model_names, read_table, resolve, without_auxiliary
from tests.support.own_process import run_program
from utils.nested import tensors_in

ROOT = Path(__file__).parents[2]
# total, head, fused (None: not published), GFLOPs at 640 without those of self-attention's matrix
# products
COUNTS = {
    "yolov5n": (1_872_157, 115_005, 1_867_405, 4.47),
    "yolov5s": (7_235_389, 229_245, 7_225_885, 16.43),
    "yolov5m": (21_190_557, 343_485, 21_172_173, 48.87),
    "yolov5l": (46_563_709, 457_725, 46_533_693, 108.99),
    "yolov5x": (86_749_405, 571_965, 86_705_005, 205.45),
    "yolox_nano": (912_159, 104_767, None, 2.47),
    "yolox_tiny": (5_055_855, 1_087_455, None, 15.18),
    "yolox_s": (8_968_255, 1_920_895, None, 26.69),
    "yolox_m": (25_326_495, 4_294_335, None, 73.53),
    "yolox_l": (54_208_895, 7_609_855, None, 155.29),
    "yolox_x": (99_071_455, 11_867_455, None, 281.41),
    "rtmdet_tiny": (4_896_168, 358_524, None, 16.072),
    "rtmdet_s": (8_886_924, 625_404, None, 29.521),
    "rtmdet_m": (24_709_188, 1_380_348, None, 78.133),
    "rtmdet_l": (52_315_804, 2_430_204, None, 159.798),
    "yolov5nu": (2_654_816, 897_664, 2_649_200, 7.72),
    "yolov5su": (9_153_152, 2_147_008, 9_142_496, 24.0),
    "yolov5mu": (25_111_456, 4_264_384, 25_091_536, 64.2),
    "yolov5lu": (53_225_024, 7_119_040, 53_193_088, 135.0),
    "yolov5xu": (97_276_448, 11_099_008, 97_229_648, 246.4),
    "yolov8n": (3_157_200, 897_664, 3_151_904, 8.74),
    "yolov8s": (11_166_560, 2_147_008, 11_156_544, 28.60),
    "yolov8m": (25_902_640, 3_822_016, 25_886_080, 78.94),
    "yolov8l": (43_691_520, 5_644_480, 43_668_288, 165.15),
    "yolov8x": (68_229_648, 8_795_008, 68_200_608, 257.80),
    "yolo11n": (2_624_080, 464_912, 2_616_248, 6.48),
    "yolo11s": (9_458_752, 850_368, 9_443_760, 21.47),
    "yolo11m": (20_114_688, 1_472_704, 20_091_712, 67.98),
    "yolo11l": (25_372_160, 1_472_704, 25_340_992, 86.91),
    "yolo11x": (56_966_176, 3_237_952, 56_919_424, 194.91),
    "yolov9t": (2_442_672, 1_004_256, 2_407_664, 9.900),
    "yolov9s": (7_226_240, 1_501_920, 7_105_920, 26.709),
    "yolov9m": (20_124_032, 4_602_528, 19_978_704, 76.800),
    "yolov9c": (25_498_784, 5_552_352, 25_288_800, 102.819),
    "yolo26n": (2_572_280, 309_656, 2_408_932, 5.96),
    "yolo26s": (10_009_784, 993_784, 9_496_140, 22.53),
    "yolo26m": (21_896_248, 2_921_976, 20_411_132, 74.77),
    "yolo26l": (26_299_704, 2_921_976, 24_807_420, 93.02),
    "yolo26x": (58_993_368, 6_440_952, 55_725_948, 208.36),
}
ONE_HEAD_GFLOPS = {
    "yolo26n": 5.36,
    "yolo26s": 20.70,
    "yolo26m": 68.19,
    "yolo26l": 86.44,
    "yolo26x": 193.89,
}  # fused
# total, GFLOPs with the auxiliary branch, which COUNTS leave out
WITH_AUXILIARY = {
    "yolov9t": (3_717_744, 16.276),
    "yolov9s": (9_804_576, 39.501),
    "yolov9m": (32_878_496, 132.084),
    "yolov9c": (51_182_144, 238.655),
}
PARAMETERS_PER_ROW = {  # of the rows that have parameters, without the head
    "yolov5n": "1760 4672 4800 18560 29184 73984 156928 295424 296448 164608 "
    "33024 90880 8320 22912 36992 74496 147712 296448",
    "yolov5s": "3520 18560 18816 73984 115712 295424 625152 1180672 1182720 656896 "
    "131584 361984 33024 90880 147712 296448 590336 1182720",
    "yolov5m": "5280 41664 65280 166272 444672 664320 2512896 2655744 4134912 1476864 "
    "295680 1182720 74112 296448 332160 1035264 1327872 4134912",
    "yolov8n": (
        "464 4672 7360 18560 49664 73984 197632 295424 460288 164608 148224 37248 36992 "
        "123648 147712 493056"
    ),
    "yolov8s": "928 18560 29056 73984 197632 295424 788480 1180672 1838080 656896 "
    "591360 148224 147712 493056 590336 1969152",
    "yolov8m": "1392 41664 111360 166272 813312 664320 3248640 1991808 3985920 831168 "
    "1993728 517632 332160 1846272 1327872 4207104",
    "yolov8l": "1856 73984 279808 295424 2101248 1180672 8396800 2360320 4461568 656896 "
    "4723712 1247744 590336 4592640 2360320 4723712",
    "yolo11n": "464 4672 6640 36992 26080 147712 87040 295424 346112 164608 249728 "
    "111296 32096 36992 86720 147712 378880",
    "yolo11s": "928 18560 26080 147712 103360 590336 346112 1180672 1380352 656896 990976 "
    "443776 127680 147712 345472 590336 1511424",
    "yolo11m": "1856 73984 111872 590336 444928 2360320 1380352 2360320 1380352 656896 990976 "
    "1642496 542720 590336 1511424 2360320 1642496",
    "yolo11l": "1856 73984 173824 590336 691712 2360320 2234368 2360320 2234368 656896 1455616 "
    "2496512 756736 590336 2365440 2360320 2496512",
    "yolov9t": "464 4672 7872 18560 65216 55488 145824 110848 258432 41344 158112 71360 27744 "
    "150432 55424 266624",
    "yolov9s": "928 18560 31104 73984 258432 221568 579648 442880 1028864 164608 628800 283008 "
    "110784 598080 221440 1061632",
    "yolov9m": "928 18560 171648 276960 629520 778320 1414080 1556160 2511840 577440 1586880 "
    "715920 397808 1480320 778080 2627040",
    "yolov9c": "1856 73984 212864 164352 847616 656384 2857472 656384 2857472 656896 3119616 "
    "912640 164352 2988544 656384 3119616",
    "yolo26n": "464 4672 6640 36992 26080 147712 87040 295424 346112 164608 249728 "
    "119808 34304 36992 95232 147712 463104",
    "yolo26s": "928 18560 26080 147712 103360 590336 346112 1180672 1380352 656896 990976 "
    "477184 136192 147712 378880 590336 1843712",
    "yolo26m": "1856 73984 111872 590336 444928 2360320 1380352 2360320 1380352 656896 990976 "
    "1642496 542720 590336 1511424 2360320 1974784",
    "rtmdet_tiny": "348 1320 2640 10464 13656 41664 52656 166272 206688 664320 369792 818880 "
    "74112 206496 18624 52560 83136 169632 332160 671040 83136 166080 331968",
    "rtmdet_s": "464 2336 4672 18560 23840 73984 135680 295424 533504 1180672 656896 1452288 "
    "131584 365440 33024 92608 147712 299904 590336 1189632 147712 295168 590080",
    "rtmdet_m": "696 5232 10464 41664 77184 166272 492096 664320 1942656 2655744 1476864 "
    "4746240 295680 1193088 74112 301632 332160 1045632 1327872 4155648 332160 663936 1327488",
    "rtmdet_l": "928 9280 18560 73984 178624 295424 1204736 1180672 4768768 4720640 2624512 "
    "11062784 525312 2778368 131584 701056 590336 2516224 2360320 10013184 590336 1180160 2359808",
}


def table_of(name: str, num_classes: int = 80) -> dict:
    return resolve(*load_model_table(name), num_classes)


@cache
def checked_and_counted(name: str) -> tuple[Detector, float]:
    """Return a detector that no test changes, on the meta device, and the GFLOPs of its
    convolutions at 640 pixels.

    It takes no memory, and building x is as fast as building n. The operations are counted in the
    trial run on 2 x 2 cells, and grow with the area. An auxiliary branch is left out.
    """
    operations = 0

    def count(module: nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal operations
        if isinstance(module, nn.Conv2d):
            operations += 2 * output.numel() * module.weight[0].numel()

    hook = register_module_forward_hook(count)
    try:
        model = check_shapes(without_auxiliary(table_of(name)))
    finally:
        hook.remove()
    return model, operations / 1e9 * (640 / (2 * max(model.strides))) ** 2


def checked(name: str) -> Detector:
    """Return a detector that no test changes, on the meta device."""
    return checked_and_counted(name)[0]


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


@pytest.fixture
def small_table() -> dict:
    """A table with two levels, strides 2 and 4."""
    return {
        "nc": 2,
        "depth_multiple": 1.0,
        "width_multiple": 1.0,
        "anchors": [[4, 4], [8, 8]],
        "backbone": [
            [-1, 1, "Conv", [8, 3, 2]],
            [-1, 2, "Conv", [16, 3, 1]],
            [-1, 1, "Conv", [16, 3, 2]],
        ],
        "head": [
            [-1, 1, "nn.Upsample", ["None", 2, "nearest"]],
            [[-1, 1], 1, "Concat", [1]],
            [[-1, 2], 1, "Detect", ["nc", "anchors"]],
        ],
    }


# Counts


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_gflops_equal_published_values(name):
    """GFLOPs within one percent. Published figures leave out the attention between the 400 cells of
    stride 32: 2 % of yolo26n, 1 % of yolo11n.
    """
    total, head, fused, gflops = COUNTS[name]
    model, counted = checked_and_counted(name)
    assert count_parameters(model) == total
    assert count_parameters(model.head) == head
    assert counted == pytest.approx(gflops, rel=0.01)
    if fused is not None:
        assert count_parameters(copy.deepcopy(model).fuse()) == fused


@pytest.mark.parametrize("name", WITH_AUXILIARY)
def test_counts_of_the_auxiliary_branch(name):
    total, gflops = WITH_AUXILIARY[name]
    model = check_shapes(table_of(name))
    assert count_parameters(model) == total
    if (
        name == "yolov9t"
    ):  # there the mean of 16 bins is a convolution: 2 heads, 8400 cells, 4 sides
        of_bins = 2 * 8400 * 4 * 2 * 16 / 1e9
        assert count_gflops(table_of(name), 640) + of_bins == pytest.approx(gflops, abs=1e-3)
    if name in ("yolov9m", "yolov9c"):  # the convolutions of 23 to 25, and the head, of the facts
        of_rows = [line.parameters for line in model.info()[23:29]]
        of_layers = [of_rows[0], sum(of_rows[1:3]), sum(of_rows[3:])]
        published = {"yolov9m": [57840, 216600, 519480], "yolov9c": [131328, 393984, 656640]}
        assert of_layers == published[name]
        assert (
            count_parameters(model.auxiliary_head)
            == {
                "yolov9m": 4_602_528,
                "yolov9c": 16_173_024,
            }[name]
        )


@pytest.mark.parametrize("name", ["yolov5n", "yolox_nano", "yolov8n", "yolo11n", "yolo26n"])
def test_counted_gflops_are_the_published_ones_and_those_of_attention(name):
    with_attention = COUNTS[name][3] + attention_gflops(checked(name), 20 * 20)
    assert count_gflops(table_of(name), 640) == pytest.approx(with_attention, rel=0.01)


@pytest.mark.parametrize(("name", "total"), [("yolov5n6", 3_246_940), ("yolov5s6", 12_626_620)])
def test_p6_parameter_counts_equal_published_values(name, total):
    model = checked(name)
    assert count_parameters(model) == total
    assert model.strides == (8, 16, 32, 64)


@pytest.mark.parametrize("name", PARAMETERS_PER_ROW)
def test_parameter_counts_per_layer(name):
    counts = [line.parameters for line in checked(name).info()[:-1]]
    assert [count for count in counts if count] == [
        int(count) for count in PARAMETERS_PER_ROW[name].split()
    ]


def attention_gflops(model: nn.Module, cells: int) -> float:
    """Return the GFLOPs of the products queries * keys and shares * values, on maps of so many
    cells.
    """
    found = [module for module in model.modules() if isinstance(module, Attention)]
    return (
        sum(2 * cells**2 * module.heads * (module.keys + module.values) for module in found) / 1e9
    )


def test_attention_gflops_by_hand():
    # yolo11n: one block, of 2 heads with 32 channels of keys and 64 of values
    assert attention_gflops(checked("yolo11n"), 400) == pytest.approx(
        2 * 400**2 * 2 * (32 + 64) / 1e9, rel=1e-12
    )


@pytest.mark.parametrize("name", ONE_HEAD_GFLOPS)
def test_fused_model_computes_one_head(name):
    model = copy.deepcopy(checked(name)).fuse()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, 64, 64, device="meta"))
    convolutions = counter.get_total_flops() / 1e9 - attention_gflops(model, 2 * 2)
    assert 100 * convolutions == pytest.approx(ONE_HEAD_GFLOPS[name], rel=0.01)


def test_gflops_by_hand(small_table):
    # On 8 x 8 px: 3x3 from 3 to 8 channels on 4x4 cells, 8 to 16 and 16 to 16 on 4x4, 16 to 16 on
    # 2x2, heads 32 and 16 to 7.
    macs = (
        9 * 3 * 8 * 16
        + 9 * 8 * 16 * 16
        + 9 * 16 * 16 * 16
        + 9 * 16 * 16 * 4
        + 32 * 7 * 16
        + 16 * 7 * 4
    )
    assert count_gflops(resolve(small_table, None, 2), 8) == pytest.approx(
        2 * macs / 1e9, rel=1e-12
    )


# All tables


@pytest.mark.parametrize("name", model_names())
def test_every_model_builds_with_expected_strides(name):
    assert list(checked(name).strides) == {
        "p2": [4, 8, 16, 32],
        "p6": [8, 16, 32, 64],
        "tiny": [16, 32],
    }.get("p6" if name.endswith("6") else name.split("-")[-1], [8, 16, 32])


@pytest.mark.parametrize(
    "name",
    ["yolov5s", "yolov5s.yaml", "models/yolov5s.yaml", "models/hub/yolov5s.yaml", "yolov5s.yml"],
)
def test_model_can_be_named_in_several_ways(name):
    table, scale = load_model_table(name)
    assert (table["source"], scale) == ("models/yolov5.yaml", "s")


def test_p6_models_use_their_own_table():
    table, scale = load_model_table("yolov5x6.yaml")
    assert (table["source"], scale) == ("models/yolov5-p6.yaml", "x6")


# Raw maps


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


# Precision


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


# State


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


def test_channels_and_anchors_can_be_given():
    model = build_model("yolov5n", 1, channels=4, anchors=[[8, 8], [16, 16], [32, 32]])
    assert model.head.anchors_px.tolist() == [[[8, 8]], [[16, 16]], [[32, 32]]]
    assert [tuple(raw.shape) for raw in model.eval()(torch.rand(1, 4, 32, 32))] == [
        (1, 1, 4, 4, 6),
        (1, 1, 2, 2, 6),
        (1, 1, 1, 1, 6),
    ]


def test_set_anchors_updates_buffer_and_table(small_table):
    model = Detector(small_table)
    model.head.set_anchors(torch.tensor([[[9.0, 7.0]], [[2.0, 3.0]]]))  # large first: reversed
    model.update_table()
    assert model.head.anchors_px.tolist() == [[[2, 3]], [[9, 7]]]
    assert Detector(model.table).head.anchors_px.tolist() == model.head.anchors_px.tolist()
    with pytest.raises(ValueError, match="the head has 2 levels of 1 anchors"):
        model.head.set_anchors(torch.tensor([[[1.0, 1.0]], [[2.0, 2.0]], [[3.0, 3.0]]]))


# A user's own table


def test_yolov5_table_format_is_supported(small_table, tmp_path):
    family = read_table(ROOT / "models" / "yolov5.yaml")
    own = {"nc": 80, "depth_multiple": 0.33, "width_multiple": 0.25}
    own |= {key: family[key] for key in ("anchors", "backbone", "head")}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(own))
    assert count_parameters(build_model(path, 80)) == COUNTS["yolov5n"][0]
    assert build_model(path, 3).num_classes == 3


def test_anchors_can_be_a_count_per_level(small_table):
    assert build_model(small_table | {"anchors": 3}, 2).head.anchors_px.shape == (2, 3, 2)


def test_batch_norm_of_a_table_is_that_of_all_layers(small_table):
    given = {"eps": 1e-5, "momentum": 0.1}
    model = build_model(small_table | {"batch_norm": given}, 2)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 0.1)}
    assert len(norms) == 4

    # A checkpoint builds it again from the resolved table.
    again = Detector(json.loads(json.dumps(model.table)))
    assert {module.eps for module in again.modules() if isinstance(module, _BatchNorm)} == {1e-5}


def test_channels_are_rounded_up_to_the_multiple_of_the_table(small_table):
    # 8 * 0.4 = 3.2 and 16 * 0.4 = 6.4
    narrow = small_table | {"width_multiple": 0.4}
    for multiple, channels in ((None, [8, 8, 8]), (1, [4, 7, 7]), (4, [4, 8, 8])):
        model = build_model(narrow | {"channel_multiple": multiple}, 2)
        assert [layer.out_channels for layer in model.layers[:3]] == channels


def test_repeated_rows_become_a_stack(small_table):
    model = build_model(small_table, 2)
    assert "layers.1.1.conv.weight" in model.state_dict()
    assert [line.number for line in model.info()] == [1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("position", "row", "message"),
    [
        (
            1,
            [-1, 1, "Cnov", [16]],
            r"row 1 \[-1, 1, Cnov, \[16\]\]: unknown module 'Cnov'; allowed are Conv, "
            r"SeparableConv, ",
        ),
        (
            1,
            [-1, 1, "Conv", []],
            r"row 1 .*: Conv takes 1 to 5 arguments \(out_channels, kernel, .*\), got 0",
        ),
        (1, [-1, 6, "C3", [16, True, 1, 0.5, 9]], r"row 1 .*: C3 takes 1 to 4 arguments .*, got 5"),
        (
            1,
            [-1, 1, "Conv", ["__import__('os')"]],
            r"row 1 .*: the first argument must be a number of channels",
        ),
        (
            1,
            [-1, 1, "Conv", [16, "big"]],
            r"row 1 \[-1, 1, Conv, \[16, 'big'\]\]: an argument has the wrong type",
        ),
        (1, [-1, 1, "Conv", [16, 3, 1, 1, 3]], r"row 1 .*: .*divisible by groups"),
        (1, [-1, 1, "Conv", [16, 3, 0]], r"row 1 .*: stride must be 1 or more, got 0"),
        (
            1,
            [-1, 1, "Conv", [16, 3, 1.0]],
            r"row 1 .*: an argument has the wrong type: stride is 1.0, but must be int",
        ),
        (
            1,
            [-1, 1, "Conv", [16, True]],
            r"row 1 .*: an argument has the wrong type: kernel is True, but must be int",
        ),
        (
            1,
            [-1, 3, "C3", [16, "False"]],
            r"row 1 .*: an argument has the wrong type: shortcut is 'False', but must be bool",
        ),
        (
            1,
            [-1, 3, "C3", [16, 3]],
            r"row 1 .*: an argument has the wrong type: shortcut is 3, but must be bool",
        ),
        (
            1,
            [-1, 3, "C3", [16, True, 1, 0]],
            r"row 1 .*: a convolution needs 1 or more output channels, got 0",
        ),
        (
            1,
            [-1, 1, "Conv", [10**9]],
            r"row 1 .*: the first argument must be a number of channels, 1 to 1,000,000",
        ),
        (
            1,
            [-1, 1, "Conv", [10**400]],
            r"row 1 .*: the first argument must be a number of channels",
        ),
        (
            0,
            [-1, 1, "Conv", [8, 3, 10**9]],
            r"the model has stride 2000000000, at most 4096 is allowed",
        ),
        (
            1,
            [-1, 1, "Conv", [16, 10**6 + 1]],
            r"Storage size calculation overflowed|the model has [\d,]* parameters",
        ),
        (
            1,
            [-1, 1, "Conv", [16, 1, 1, 10**6]],
            r"row 1 .*: cannot run on maps .* has over 268,435,456 elements",
        ),
        (
            1,
            [-1, 1, "SPPF", [16, 5, 10**7]],
            r"row 1 .*: the pool is repeated 1 to 100 times, got 10000000",
        ),
        (
            1,
            [-1, 1, "a\nb\x1b[2J", [16]],
            r"row 1 \[-1, 1, a\\nb\\x1b\[2J, \[16\]\]: unknown module 'a\\nb",
        ),
        (1, [[-1, 0], 1, "Conv", [16]], r"row 1 .*: Conv takes one input, got 2"),
        (1, [1, 1, "Conv", [16]], r"row 1 .*: `from` must name rows above this one, 0 to 0"),
        (1, [-3, 1, "Conv", [16]], r"row 1 .*: `from` must name rows above"),
        (1, ["-1", 1, "Conv", [16]], r"row 1 .*: `from` must be a row's index"),
        (1, [-1, 0, "Conv", [16]], r"row 1 .*: `number` must be a whole number, 1 to 1000"),
        (
            1,
            [-1, 1, "Conv"],
            r"row 1: must be \[from, number, module, args\], got \[-1, 1, 'Conv'\]",
        ),
        (1, [-1, 1, "Detect", ["nc", "anchors"]], r"row 1 .*: "),
        (2, [-1, 1, "Conv", [16, 3, 1]], r"row 4 .*Concat.*: maps of strides 1, 2 differ in size"),
        (2, [-1, 1, "Conv", [16, 3, 2, 0]], r"row 4 .*Concat.*: cannot run on maps of .*, .*"),
        (4, [[-1, 1], 2, "Concat", [1]], r"row 4 .*: Concat cannot be repeated"),
        (
            4,
            [[-1, 1], 1, "Concat", [2]],
            r"row 4 .*: maps can only be concatenated along dimension 1",
        ),
        (5, [[-1, 2], 1, "Detect", [7, "anchors"]], r"a head with 2 classes"),
        (
            5,
            [-1, 1, "Detect", ["nc", "anchors"]],
            r"row 5 .*: anchors are given for 2 levels, but the head has 1",
        ),
        (
            5,
            [-1, 1, "Conv", [16]],
            r"row 5 .*: the last row, and only the last row, must be a head \(Detect, ",
        ),
    ],
)
def test_errors_name_the_invalid_row(small_table, position, row, message):
    rows = small_table["backbone"] + small_table["head"]
    rows[position] = row
    bad = small_table | {"backbone": rows[:3], "head": rows[3:]}
    with pytest.raises(ValueError, match=message):
        build_model(bad, 2)


def test_model_table_error_names_the_file(tmp_path, small_table):
    small_table["head"][0] = [-1, 1, "nn.Upsample", [None, 1.5]]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(small_table))
    with pytest.raises(
        ValueError,
        match=r"mine.yaml row 3 \[-1, 1, nn.Upsample, \[None, 1.5\]\]: args must be None",
    ):
        build_model(path, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "nn.ReLU()"}, "unknown keys activation; allowed are nc, ch, scales"),
        ({"backbone": None}, "`backbone` must be a list of rows"),
        (
            {"width_multiple": 0},
            r"depth and width multiple must be two positive numbers, got \[1.0, 0\]",
        ),
        ({"anchors": [[1, 2, 3]]}, "every level needs the same number of anchors"),
        ({"anchors": [[1, 2], [1, 2, 3, 4]]}, "every level needs the same number of anchors"),
        ({"anchors": [[1, -2], [3, 4]]}, "anchor sizes must be positive numbers of pixels"),
        (
            {"anchors": [[1, 1e300], [3, 4]]},
            "anchor sizes must be positive numbers of pixels, up to 100,000, got",
        ),
        ({"anchors": [[1, 1e-300], [3, 4]]}, "anchor sizes must be positive numbers of pixels"),
        ({"anchors": "auto"}, "anchors must be one list w, h, w, h, ... per level, got 'auto'"),
        (
            {"scales": {"a": [1, 1]}},
            "the table has the scales a; give depth_multiple and width_multiple instead",
        ),
        ({"scales": 3}, "`scales` must be a mapping"),
        (
            {"letterbox": "top-left"},
            "model table: `letterbox` is 'top-left', but must be center or top_left",
        ),
        ({"letterbox": ["center"]}, r"`letterbox` is \['center'\], but must be center or top_left"),
        ({"channel_multiple": 0}, "`channel_multiple` is 0, but must be a whole number, 1 to 1000"),
        ({"channel_multiple": 2.0}, "`channel_multiple` is 2.0, but must be a whole number"),
        ({"batch_norm": 1e-5}, r"`batch_norm` must be {eps: ..., momentum: ...}, .*, got 1e-05"),
        ({"batch_norm": {"eps": 1e-5}}, "`batch_norm` must be {eps: ..., momentum: ...}"),
        ({"batch_norm": {"eps": 0, "momentum": 0.1}}, "both above 0 and at most 1, got "),
        ({"batch_norm": {"eps": 1e-5, "momentum": 2}}, "both above 0 and at most 1, got "),
    ],
)
def test_invalid_model_tables_are_rejected(small_table, change, message):
    with pytest.raises(ValueError, match=message):
        build_model(small_table | change, 2)


@pytest.mark.parametrize("given", [{}, {"letterbox": None}, {"letterbox": "center"}])
def test_center_is_the_letterbox_without_an_entry(small_table, given):
    """So the tables of checkpoints stay as they are."""
    centered = build_model(small_table | given, 2)
    assert "letterbox" not in centered.table
    corner = build_model(small_table | {"letterbox": "top_left"}, 2)
    assert corner.table == centered.table | {"letterbox": "top_left"}
    again = Detector(corner.table)
    assert [each.letterbox for each in (centered, corner, again)] == ["center", *["top_left"] * 2]


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_invalid_class_counts_are_rejected(small_table, count):
    with pytest.raises(ValueError, match="a model needs 1 or more classes"):
        build_model(small_table, count)


@pytest.mark.parametrize("name", ["yolov9000", "elsewhere/yolov5s.yaml", "yolov5"])
def test_unknown_model_names_are_rejected(name):
    with pytest.raises(
        ValueError,
        match=r"no model .* one of convnext_tiny, .*yolox_x|the table has the scales n, s, m, l, x",
    ):
        build_model(name, 80)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "tags .* are not allowed"),
        ("a: 1\na: 2", "line 2: the key 'a' appears twice"),
        ("a: " + "[" * 21, "nested more than 20 deep"),
        (
            "a: " + "[" * 50_000,
            "nested more than 20 deep|exceeded maximum nesting depth",
        ),  # by PyYAML 6.0.4 itself
        ('"a\\nb\\e[2J": 1', r"unknown keys a\\nb\\x1b\[2J; allowed are nc"),
        ("[1, 2]", "a model table is a mapping"),
        ("", "a model table is a mapping"),
        ("#" * (1 << 18) + "!", "larger than 262,144 bytes, the limit for a model table"),
    ],
)
def test_invalid_model_files_are_rejected(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"bad.yaml.*({message})"):
        build_model(path, 80)


@pytest.mark.parametrize("unfold", ["[{}]", "{{<<: [{}]}}"], ids=["lists", "merged mappings"])
def test_yaml_alias_bombs_are_rejected(tmp_path, unfold):
    lines = [f"{b}: &{b} {unfold.format(f'*{a}, *{a}')}" for a, b in pairwise(ascii_lowercase)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(["a: &a {k: 1}", *lines]))
    with pytest.raises(ValueError, match=r"bomb.yaml line 2: aliases \(\*a\) are not allowed"):
        build_model(path, 80)


def test_table_values_are_read_as_written(tmp_path):
    text = (
        "ch: [3, -1, 1e-3, .5, True, no, None, null, ~, '5', 007, 0x10, 1_0, 1:30, "
        "2024-13-45, .inf, 9e999, ٣]"
    )
    path = tmp_path / "values.yaml"
    path.write_text(text)
    numbers = [3, -1, 0.001, 0.5]
    words = [
        True,
        False,
        "None",
        None,
        None,
        "5",
        "007",
        "0x10",
        "1_0",
        "1:30",
        "2024-13-45",
        ".inf",
    ]
    found = read_table(path)["ch"]
    assert found == [*numbers, *words, math.inf, "٣"]
    assert [type(value) for value in found[:4]] == [int, int, float, float]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"anchors": 10**9}, "1000000000 anchors per level, at most 1000"),
        ({"depth_multiple": 1e300}, r"depth and width multiple are \[1e\+300, 1.0\], at most 100"),
        ({"width_multiple": 101}, "at most 100 is allowed"),
        ({"backbone": [[-1, 1, "Conv", [8]]] * 2000}, r"2,003 rows, at most 1000"),
        (
            {"depth_multiple": 90, "backbone": [[-1, 9, "Conv", [8]]] * 3},
            r"2,433 layers with all repeats, at most 1000",
        ),
        ({"ch": 1}, "`ch` is 1, but the images have 3 channels"),
        ({"nc": "0x_"}, "`nc` is '0x_', but must be a whole number, 1 or more"),
    ],
)
def test_oversized_models_are_rejected_quickly(small_table, change, message):
    began = time.thread_time()
    with pytest.raises(ValueError, match=message):
        build_model(small_table | change, 2)
    assert time.thread_time() - began < 5


def test_too_many_classes_are_rejected_before_allocating():
    with pytest.raises(
        ValueError, match=r"the model has [\d,]{13,} parameters, at most 1,000,000,000 are allowed"
    ):
        build_model("yolov5x", 300_000)


# The command


def test_models_command_prints_the_table(capsys):
    assert main(["yolov5s.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[5].split()[:5] == ["4", "3", "2", "115,712", "C3"]
    assert lines[-1] == "7,235,389 parameters, 16.4 GFLOPs at 640"


def test_models_command_rejects_bad_image_size_in_one_line(capsys):
    assert main(["yolov5s.yaml", "--img", "100"]) == 2
    assert capsys.readouterr().err == "--img 100: must be a multiple of the stride, 32\n"


@pytest.mark.slow
def test_models_command_runs_as_a_process(tmp_path):
    code = "import runpy; runpy.run_module('models', run_name='__main__', alter_sys=True)"
    done = run_program(code, "yolov5n", "--nc", 3, "--img", 320, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    # 80 - 3 = 77 classes less: 3 anchors * (64 + 128 + 256 channels + 3 biases) * 77 = 104,181
    # parameters less
    assert done.stdout.splitlines()[-1].startswith(f"{1_872_157 - 104_181:,} parameters, ")
