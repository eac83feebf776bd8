"""A model of a user's own table, and the errors for tables that describe none."""

import json
import time
from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.modules.batchnorm import _BatchNorm

from models import build, build_model
from models.build import count_gflops
from models.detector import Detector, count_parameters
from models.tables.find import load_model_table
from models.tables.read import read_table
from models.tables.resolve import resolve

ROOT = Path(__file__).parents[2]


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


def test_channels_and_anchors_can_be_given():
    model = build_model("yolov5n", 1, channels=4, anchors=[[8, 8], [16, 16], [32, 32]])
    assert model.head.anchors_px.tolist() == [[[8, 8]], [[16, 16]], [[32, 32]]]
    assert [tuple(raw.shape) for raw in model.eval()(torch.rand(1, 4, 32, 32))] == [
        (1, 1, 4, 4, 6),
        (1, 1, 2, 2, 6),
        (1, 1, 1, 1, 6),
    ]


def test_yolov5_table_format_is_supported(small_table, tmp_path):
    family = read_table(ROOT / "models" / "yolov5.yaml")
    own = {"nc": 80, "depth_multiple": 0.33, "width_multiple": 0.25}
    own |= {key: family[key] for key in ("anchors", "backbone", "head")}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(own))
    assert count_parameters(build_model(path, 80)) == 1_872_157
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


def test_recent_tables_are_not_tried_again(micro_model, monkeypatch):
    tried = []
    real = build.check_shapes
    monkeypatch.setattr(build, "_recent_shapes", {})
    monkeypatch.setattr(
        build, "check_shapes", lambda table: (tried.append(table["nc"]), real(table))[1]
    )
    for classes in (2, 3, 2, 3):
        model = build_model(micro_model, classes)
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        assert build.tensor_shapes(model.table) == shapes
    assert tried == [2, 3]

    monkeypatch.setattr(build, "RECENT_TABLES", 2)
    for classes in (4, 2, 3):  # the third table takes the place of the two before it
        build_model(micro_model, classes)
    assert tried == [2, 3, 4, 2, 3]
    assert len(build._recent_shapes) == 1


def test_error_of_a_table_is_raised_each_time(micro_model):
    table = resolve(*load_model_table(micro_model), 3)
    backwards = [[5, 1, "Conv", [8]]]  # row 5 is below it
    broken = {**table, "backbone": [*backwards, *table["backbone"]]}
    for _ in range(2):
        with pytest.raises(ValueError, match="row 0"):
            build.tensor_shapes(broken)
