"""Every model of models/*.yaml: its strides, and the published counts of parameters and GFLOPs."""

from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

from models.blocks.attention import Attention
from models.build import check_shapes, count_gflops
from models.detector import Detector, count_parameters
from models.tables.find import load_model_table, model_names
from models.tables.resolve import resolve
from models.tables.rows import without_auxiliary
from models.tables.shape_rules import ShapeRules

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


class Measured(NamedTuple):
    """What a detector is, without its auxiliary branch and before it is fused.

    gflops: of its convolutions at 640 pixels. detector: on the meta device.
    """

    strides: tuple[int, ...]
    parameters: int
    of_head: int
    per_row: list[int]
    gflops: float
    detector: Detector


@cache
def measured(name: str) -> Measured:
    """Build a detector on the meta device, where it takes no memory, and x is as fast as n.

    The operations are counted in the trial run on 2 x 2 cells, and grow with the area.
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
    return Measured(
        model.strides,
        count_parameters(model),
        count_parameters(model.head),
        [line.parameters for line in model.info()],
        operations / 1e9 * (640 / (2 * max(model.strides))) ** 2,
        model,
    )


@cache
def with_auxiliary(name: str) -> Detector:
    return check_shapes(table_of(name))


@cache
def fused(name: str) -> Detector:
    """Return the measured detector, fused: its numbers are known, so it needs no copy."""
    with ShapeRules():  # the meta device takes a hundred times as long for products
        return measured(name).detector.fuse()


@pytest.mark.slow
@pytest.mark.parametrize("name", model_names())
def test_every_model_builds_with_expected_strides(name):
    assert list(measured(name).strides) == {
        "p2": [4, 8, 16, 32],
        "p6": [8, 16, 32, 64],
        "tiny": [16, 32],
    }.get("p6" if name.endswith("6") else name.split("-")[-1], [8, 16, 32])


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_gflops_equal_published_values(name):
    """GFLOPs within one percent. Published figures leave out the attention between the 400 cells of
    stride 32: 2 % of yolo26n, 1 % of yolo11n.
    """
    total, head, when_fused, gflops = COUNTS[name]
    found = measured(name)
    assert found.parameters == total
    assert found.of_head == head
    assert found.gflops == pytest.approx(gflops, rel=0.01)
    if when_fused is not None:
        assert count_parameters(fused(name)) == when_fused


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_AUXILIARY)
def test_counts_with_the_auxiliary_branch(name):
    total, gflops = WITH_AUXILIARY[name]
    assert count_parameters(with_auxiliary(name)) == total
    if name == "yolov9t":
        # The authors compute the mean of 16 bins by a convolution: 2 heads, 8400 cells, 4 sides.
        of_bins = 2 * 8400 * 4 * 2 * 16 / 1e9
        assert count_gflops(table_of(name), 640) + of_bins == pytest.approx(gflops, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "convolutions", "head"),
    [
        ("yolov9m", [57_840, 216_600, 519_480], 4_602_528),
        ("yolov9c", [131_328, 393_984, 656_640], 16_173_024),
    ],
)
def test_parameters_of_the_auxiliary_branch(name, convolutions, head):
    model = with_auxiliary(name)
    of_rows = [line.parameters for line in model.info()[23:29]]
    assert [of_rows[0], sum(of_rows[1:3]), sum(of_rows[3:])] == convolutions
    assert count_parameters(model.auxiliary_head) == head


@pytest.mark.parametrize("name", ["yolov5n", "yolox_nano", "yolov8n", "yolo11n", "yolo26n"])
def test_counted_gflops_are_the_published_ones_and_those_of_attention(name):
    with_attention = COUNTS[name][3] + attention_gflops(measured(name).detector, 20 * 20)
    assert count_gflops(table_of(name), 640) == pytest.approx(with_attention, rel=0.01)


@pytest.mark.parametrize(("name", "total"), [("yolov5n6", 3_246_940), ("yolov5s6", 12_626_620)])
def test_p6_parameter_counts_equal_published_values(name, total):
    assert measured(name).parameters == total
    assert measured(name).strides == (8, 16, 32, 64)


@pytest.mark.parametrize("name", PARAMETERS_PER_ROW)
def test_parameter_counts_per_layer(name):
    counts = measured(name).per_row[:-1]
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
    assert attention_gflops(measured("yolo11n").detector, 400) == pytest.approx(
        2 * 400**2 * 2 * (32 + 64) / 1e9, rel=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_HEAD_GFLOPS)
def test_fused_model_computes_one_head(name):
    model = fused(name)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, 64, 64, device="meta"))
    convolutions = counter.get_total_flops() / 1e9 - attention_gflops(model, 2 * 2)
    assert 100 * convolutions == pytest.approx(ONE_HEAD_GFLOPS[name], rel=0.01)
