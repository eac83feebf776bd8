"""Checkpoints of Ultralytics' heads of distances: a module with their names gives the same tensors
and outputs.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models import build_model
from models.detector import Detector
from models.heads.distance import Branches
from models.tables.read import read_table
from models.weights import conversion
from models.weights.kestrel import load_detector
from models.weights.pickled_module import read_external

TABLES = Path(__file__).parents[2] / "tables"
NAMES = ["disc", "square", "bar"]
SCALES = {"n": [0.33, 0.125, 1024], "m": [0.33, 0.125, 1024]}
Change = Callable[[Any], object]


BINS = read_table(TABLES / "distance_two_levels.yaml")
WITH_C3 = [row if row[2] != "C2f" else [*row[:2], "C3", row[3]] for row in BINS["backbone"]]


def with_head_args(table: dict[str, Any], *args: Any) -> dict[str, Any]:
    """Return a table with other args of its head."""
    *rows, head = table["head"]
    return table | {"head": [*rows, [*head[:3], list(args)]]}


MODELS = {
    "bins": BINS,
    "bins, separable class branches": with_head_args(BINS, "nc", 16, True),
    "no bins": with_head_args(BINS | {"backbone": WITH_C3}, "nc", 1, False),
    "two heads": read_table(TABLES / "dual_two_levels.yaml"),
}


def random_detector(table: dict[str, Any]) -> Detector:
    torch.manual_seed(0)
    detector = build_model(table, len(NAMES))
    for name, values in detector.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            values.uniform_(0.5, 1.5)
        elif "one_to_one" in name and values.is_floating_point():
            values.mul_(0.9)
    return detector.eval()


def to_ultralytics_module(detector: Detector, scale: str = "n") -> nn.Module:
    """Return a module with Ultralytics' layout of state, attributes and pickle, of torch's and
    Kestrel's classes.
    """
    theirs = nn.Module()
    layers, strides = (
        list(deepcopy(detector).layers),
        torch.tensor(detector.strides, dtype=torch.float32),
    )
    layers[-1] = to_their_head(layers[-1])
    theirs.model = nn.Sequential(*layers)
    theirs.stride, theirs.names = strides, dict(enumerate(NAMES))
    rows = {part: deepcopy(detector.table[part]) for part in ("backbone", "head")}
    rows["head"][-1][2:] = ["Detect", ["nc"]]
    theirs.yaml = {
        "nc": len(NAMES),
        "scales": deepcopy(SCALES),
        "scale": scale,
        "yaml_file": "theirs.yaml",
        **rows,
    }
    return theirs


def to_their_head(head: Any) -> nn.Module:
    theirs = nn.Module()
    theirs.cv2, theirs.cv3 = to_their_branches(head.branches)
    if head.bins > 1:
        theirs.dfl = nn.Module()
        theirs.dfl.conv = nn.Conv2d(head.bins, 1, 1, bias=False).requires_grad_(False)
        theirs.dfl.conv.weight.data[:] = torch.arange(head.bins).view(1, -1, 1, 1)
    if hasattr(head, "one_to_one"):
        theirs.one2one_cv2, theirs.one2one_cv3 = to_their_branches(head.one_to_one)
    return theirs


def to_their_branches(branches: Branches) -> tuple[nn.Module, nn.Module]:
    """Return the branches as modules; theirs have a sequence of two convolutions in place of a
    separable one.
    """
    classes = nn.ModuleList()
    for branch in branches.classes:
        pairs = [
            nn.Sequential(*layer.children()) if hasattr(layer, "dconv") else layer
            for layer in branch
        ]
        classes.append(nn.Sequential(*pairs))
    return branches.sides, classes


def save(path: Path, module: Any, **others: Any) -> Path:
    torch.save(
        {"epoch": -1, "ema": None, "model": module, "train_args": {"imgsz": 64}} | others, path
    )
    return path


def flat(raw: Any) -> Iterator[Tensor]:
    """Return the maps in nested lists."""
    return iter([raw]) if isinstance(raw, Tensor) else itertools.chain.from_iterable(map(flat, raw))


# ---------------------------------------------------------------------- the same numbers


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_external_module_round_trip(kind, tmp_path):
    model = random_detector(MODELS[kind])
    found, saved = load_detector(save(tmp_path / "a.pt", None, ema=to_ultralytics_module(model)))
    assert saved["names"] == NAMES
    assert not found.training
    assert found.state_dict().keys() == model.state_dict().keys()
    expected = model.state_dict()
    assert all(value.equal(expected[key]) for key, value in found.state_dict().items())
    assert (type(found.head), found.head.bins) == (type(model.head), model.head.bins)
    with torch.no_grad():
        raws = [
            detector(torch.linspace(0, 1, 2 * 3 * 64 * 96).view(2, 3, 64, 96))
            for detector in (found, model)
        ]
    maps = [list(flat(raw)) for raw in raws]
    assert len(maps[0]) == len(maps[1]) == (4 if kind == "two heads" else 2)
    assert all(ours.equal(theirs) for ours, theirs in zip(*maps, strict=True))
    for ours, theirs in zip(found.decode(raws[0]), model.decode(raws[1]), strict=True):
        assert ours.equal(theirs)
    assert all(parameter.requires_grad for parameter in found.parameters())


def test_half_precision_is_read_as_float32(tmp_path):
    """Ultralytics saves its averaged model in 16 bits."""
    module = to_ultralytics_module(random_detector(MODELS["bins"])).half()
    found, _ = load_detector(save(tmp_path / "a.pt", module))
    assert found.dtype == torch.float32
    assert found.layers[0].conv.weight.equal(module.model[0].conv.weight.float())


def test_constant_weights_of_the_bins_are_dropped(tmp_path):
    path = save(tmp_path / "a.pt", to_ultralytics_module(random_detector(MODELS["bins"])))
    assert read_external(path).state["model.10.dfl.conv.weight"].flatten().tolist() == list(
        range(16)
    )
    assert not any("dfl" in name for name in load_detector(path)[0].state_dict())


def test_multiples_may_stand_in_the_table_itself(tmp_path):
    """As in the tables of older releases."""
    theirs = to_ultralytics_module(random_detector(MODELS["bins"]))
    del theirs.yaml["scales"], theirs.yaml["scale"]
    theirs.yaml |= {"depth_multiple": 0.33, "width_multiple": 0.125}
    assert load_detector(save(tmp_path / "a.pt", theirs))[0].table["width_multiple"] == 0.125


def with_nesting(part: list[Any], nested: bool) -> list[Any]:
    """Return rows whose C3k2 all say whether their blocks are nested."""
    return [
        [*row[:3], [row[3][0], nested, *row[3][2:]] if row[2] == "C3k2" else row[3]] for row in part
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["n", "m"])
def test_blocks_are_nested_by_scale(scale, tmp_path):
    """In the scales m, l, x all C3k2 are nested, whatever their rows say."""
    table = MODELS["two heads"]
    model = random_detector(
        table | {part: with_nesting(table[part], True) for part in ("backbone", "head")}
    )
    theirs = to_ultralytics_module(model, scale)
    theirs.yaml |= {part: with_nesting(theirs.yaml[part], False) for part in ("backbone", "head")}
    path = save(tmp_path / "a.pt", theirs)
    if scale == "n":
        assert "of its tensors do not fit its table" in error_message(path)
    else:
        found, _ = load_detector(path)
        expected = model.state_dict()
        assert all(value.equal(expected[key]) for key, value in found.state_dict().items())
        assert [row[3][1] for row in found.table["backbone"] if row[2] == "C3k2"] == [True] * 2


# ------------------------------------------------------------------ models that cannot be converted


def error_message(path: Path, read: Callable[[Path], object] = load_detector) -> str:
    """Return the error message for a file without the file's name, after checking that it is one
    short line.
    """
    with pytest.raises(ValueError) as caught:
        read(path)
    return checked_message(path, caught.value)


def checked_message(path: Path, error: ValueError) -> str:
    text = str(error)
    assert text.startswith(f"{path}: ")
    assert text.isprintable()
    assert len(text) < len(str(path)) + 450
    return text.removeprefix(f"{path}: ")


@pytest.fixture(scope="module")
def detectors() -> dict[str, Detector]:
    return {kind: random_detector(table) for kind, table in MODELS.items()}


def head_of(module: Any) -> Any:
    return module.model[-1]


def set_row(part: str, index: int, row: Any) -> Change:
    return lambda m: m.yaml[part].__setitem__(index, row)


def set_table(**values: Any) -> Change:
    return lambda m: m.yaml.update(values)


def without(key: str) -> Change:
    return lambda m: m.yaml.pop(key)


LEAKY = nn.LeakyReLU()


@pytest.mark.parametrize(
    ("kind", "change", "text"),
    [
        (
            "bins",
            lambda m: setattr(m.model[0], "act", LEAKY),
            "activation model.0.act is LeakyReLU; only SiLU is",
        ),
        (
            "bins",
            lambda m: setattr(head_of(m).cv3[1][0], "act", LEAKY),
            "its activation model.10.cv3.1.0.act is LeakyReLU; only SiLU is supported there",
        ),
        (
            "two heads",
            lambda m: setattr(m.model[6].cv1, "act", nn.SiLU()),
            "its activation model.6.cv1.act is SiLU; only Identity is supported there",
        ),
        (
            "two heads",
            lambda m: setattr(head_of(m).one2one_cv3[0][0][1], "act", LEAKY),
            "its activation model.14.one2one_cv3.0.0.1.act is LeakyReLU; only SiLU is supported "
            "there",
        ),
        (
            "bins",
            lambda m: setattr(head_of(m).cv2[0][0].bn, "eps", 1e-5),
            "the eps of its BatchNorm is not 0.001",
        ),
        (
            "bins",
            lambda m: head_of(m).dfl.conv.weight.data.add_(1),
            "its 16 bins of a distance do not stand for 0 to ",
        ),
        (
            "bins",
            lambda m: setattr(
                head_of(m).cv2[0][2], "weight", nn.Parameter(torch.zeros(20, 1, 1, 1))
            ),
            "its 5 bins of a distance do not stand for 0 to 4",
        ),
        ("bins", lambda m: setattr(m, "names", ["a"]), "it has 1 class names for 3 classes"),
        ("bins", set_table(nc=4), "it has 3 class names for 4 classes"),
        (
            "bins",
            lambda m: (m.yaml.update(nc=2), m.names.pop(2)),
            "4 of its tensors do not fit its table, such as lay",
        ),
        (
            "bins",
            lambda m: setattr(m, "stride", torch.tensor([8.0, 64])),
            "its strides are [8, 64], but those",
        ),
        (
            "bins",
            lambda m: setattr(head_of(m), "cv4", nn.Conv2d(8, 8, 1)),
            "2 of its tensors do not fit its table",
        ),
        (
            "bins",
            lambda m: delattr(head_of(m), "cv3"),
            "its head torch.nn.modules.module.Module is not supported: nei",
        ),
        (
            "bins",
            lambda m: delattr(head_of(m), "cv2"),
            "its head torch.nn.modules.module.Module is not supported: nei",
        ),
        (
            "bins",
            lambda m: setattr(head_of(m).cv2[0][2], "weight", nn.Parameter(torch.zeros(3))),
            "its head torch.nn.modules.module.Module is not supported: neither YOLOv5's Detect, "
            "nor one of distances",
        ),
        (
            "bins",
            lambda m: setattr(
                head_of(m).cv2[0][2], "weight", nn.Parameter(torch.zeros(3, 16, 1, 1))
            ),
            "its 0 bins of a distance do not stand for 0 to -1",
        ),
        (
            "no bins",
            lambda m: setattr(
                head_of(m).cv2[0][2], "weight", nn.Parameter(torch.zeros(3, 16, 1, 1))
            ),
            "a distance needs 1 or more bins, got 0",
        ),
        (
            "two heads",
            lambda m: delattr(head_of(m), "one2one_cv2"),
            "of its tensors do not fit its table, such as lay",
        ),
        (
            "bins",
            set_row("backbone", 2, [-1, 3, "C2fAttn", [128]]),
            "unknown module 'C2fAttn'; allowed are Conv, ",
        ),
        (
            "bins",
            set_row("backbone", 2, [-1, 3, "a\n\x1b[2J", [128]]),
            r"unknown module 'a\n\x1b[2J'",
        ),
        (
            "bins",
            set_row("backbone", 2, [-1, 3, "C2f", []]),
            "row 2 [-1, 3, C2f, []]: C2f takes 1 to 4 arguments",
        ),
        (
            "bins",
            set_row("backbone", 2, [-1, 3, "C2f", [128, 3]]),
            "has the wrong type: shortcut is 3, but",
        ),
        (
            "bins",
            set_row("backbone", 2, [-1, 3, "C2f"]),
            "`backbone` of its table is not a list of rows [from, number",
        ),
        (
            "bins",
            set_row("backbone", 2, "C2f "),
            "`backbone` of its table is not a list of rows [from, number",
        ),
        (
            "bins",
            set_row("head", -1, [[8, 99], 1, "Detect", ["nc"]]),
            "`from` must name rows above this one",
        ),
        (
            "bins",
            set_row("head", -1, [[8], 1, "Detect", ["nc"]]),
            "those of its table are [8]",
        ),
        (
            "bins",
            without("backbone"),
            "`backbone` of its table is not a list of rows [from, number, module, args]",
        ),
        (
            "bins",
            without("head"),
            "`head` of its table is not a list of rows [from, number, module, args]",
        ),
        (
            "bins",
            set_table(head=[]),
            "`head` of its table is not a list of rows [from, number, module, args]",
        ),
        ("bins", without("nc"), "it has 3 class names for None classes"),
        ("bins", without("scales"), "of its tensors do not fit its table"),
        ("bins", set_table(scale="x"), "of its tensors do not fit its table"),
        (
            "bins",
            set_table(scales={"n": 3}),
            "its scale is 3, but must be [depth, width, most channels]",
        ),
        (
            "bins",
            set_table(scales={"n": []}),
            "its scale is [], but must be [depth, width, most channels]",
        ),
        (
            "bins",
            set_table(scales={"n": [0.33, "a"]}),
            "depth and width multiple must be two positive numbers, got [0",
        ),
        (
            "bins",
            set_table(scales={"n": [0.33, 1e300, 64]}),
            "width multiple are [0.33, 1e+300], at most 100",
        ),
        (
            "bins",
            set_table(scales={"n": [0.33, 0.125, 0]}),
            "the most channels must be a whole number",
        ),
        ("bins", set_table(scales={"n": [0.33, 0.125, 64]}), "of its tensors do not fit its table"),
    ],
)
def test_unsupported_models_are_rejected(detectors, kind, change, text, tmp_path):
    theirs = to_ultralytics_module(detectors[kind])
    change(theirs)
    message = error_message(save(tmp_path / "a.pt", theirs))
    assert message.startswith("its model cannot be converted (")
    assert text in message


class Segment(nn.Module): ...


class Pose26(nn.Module): ...


class OBB(nn.Module): ...


class Classify(nn.Module): ...


class SemanticSegment(nn.Module): ...


@pytest.mark.parametrize(
    ("head", "task", "said"),
    [
        (Segment, None, "instance segmentation"),
        (Pose26, None, "pose estimation"),
        (OBB, None, "oriented boxes"),
        (Classify, None, "image classification"),
        (SemanticSegment, None, "semantic segmentation"),
        (nn.Module, "segment", "instance segmentation"),
        (nn.Module, "pose", "pose estimation"),
        (nn.Module, "obb", "oriented boxes"),
        (nn.Module, "classify", "image classification"),
        (nn.Module, "depth\n", "depth\\n"),
    ],
)
def test_model_for_another_task_is_named_by_its_task(detectors, head, task, said, tmp_path):
    """The class of the head or the stored word tells; nothing else of such a model has to be
    readable.
    """
    theirs = to_ultralytics_module(detectors["bins"])
    theirs.model[-1].__class__ = head
    theirs.model[0].bn.eps = 1e-5
    theirs.yaml = None
    if task:
        theirs.task = task
    message = error_message(save(tmp_path / "a.pt", theirs))
    assert message == f"is a model for {said}; only detection models can be used"


@pytest.mark.parametrize("task", ["detect", 7])
def test_stored_task_of_a_detection_model_changes_nothing(detectors, task, tmp_path):
    theirs = to_ultralytics_module(detectors["bins"])
    theirs.task = task
    found, _ = load_detector(save(tmp_path / "a.pt", theirs))
    assert found.state_dict().keys() == detectors["bins"].state_dict().keys()


def test_weight_without_values_is_rejected(detectors, tmp_path):
    """Its other sides cost nothing in the file: 2^39 would be 2^37 bins."""
    theirs = to_ultralytics_module(detectors["bins"])
    head_of(theirs).cv2[0][2].weight = nn.Parameter(torch.zeros(1 << 39, 0, 1, 1))
    assert "(model.10.cv2.0.2.weight has no values)" in error_message(
        save(tmp_path / "a.pt", theirs)
    )


WRONG_VALUES: list[Any] = [
    None,
    True,
    -1,
    10**12,
    1.5,
    math.nan,
    "x",
    [],
    [[]],
    {},
    {"a": 1},
    [None] * 4,
]


def containers(value: Any) -> Iterator[Any]:
    """Return the dicts and lists in a table that are not empty."""
    if isinstance(value, dict | list) and value:
        yield value
        for member in value.values() if isinstance(value, dict) else value:
            yield from containers(member)


@pytest.fixture(scope="module")
def with_bins(detectors, tmp_path_factory):
    """What read_external finds in a file."""
    path = tmp_path_factory.mktemp("bins") / "a.pt"
    return read_external(save(path, to_ultralytics_module(detectors["bins"])))


def test_wrong_types_anywhere_in_a_table_give_one_sentence(with_bins, monkeypatch):
    """In each second dict or list of the table one value is replaced by a wrong one."""
    external = with_bins
    refused = 0
    for number in range(0, 30, 2):
        table = deepcopy(external.table)
        container = list(containers(table))[number]
        key = (
            list(container)[number % len(container)]
            if isinstance(container, dict)
            else number % len(container)
        )
        container[key] = WRONG_VALUES[number // 2 % len(WRONG_VALUES)]
        monkeypatch.setattr(
            conversion, "read_external", lambda _, table=table: replace(external, table=table)
        )
        try:
            conversion.load_module(external.path)  # some values change nothing
        except ValueError as error:
            checked_message(external.path, error)
            refused += 1
    assert refused >= 8


@pytest.mark.parametrize("wrong", WRONG_VALUES[2:], ids=repr)
def test_wrong_value_for_each_entry_of_a_table_gives_one_sentence(with_bins, wrong, monkeypatch):
    external = with_bins
    for key in ("nc", "scales", "backbone", "head", "ch"):
        table = external.table | {key: wrong}
        monkeypatch.setattr(
            conversion, "read_external", lambda _, table=table: replace(external, table=table)
        )
        assert error_message(external.path, conversion.load_module).startswith(
            "its model cannot be converted ("
        )
    changed = external.table | {"scale": wrong, "yaml_file": wrong}  # the multiples are 1 then
    monkeypatch.setattr(conversion, "read_external", lambda _: replace(external, table=changed))
    assert "of its tensors do not fit its table" in error_message(
        external.path, conversion.load_module
    )
