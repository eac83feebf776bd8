"""Other projects' checkpoints: a converted model gives the same numbers, and no code of hostile
files is run.
"""

import io
import os
import pickle
import struct
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models import build_model
from models.detector import Detector
from models.weights.conversion import load_module
from models.weights.external import unpickled_or_none
from models.weights.kestrel import load_detector
from models.weights.pickled_module import holds_module, read_external
from tests.support.saved_files import LAYOUTS
from utils.files import checkpoint_file
from utils.files.pickled import PickledObject, PickleReader, interpreter

ROOT = Path(__file__).parents[3]
FIXTURE = ROOT.parent / "shared" / "fixtures" / "yolov5n_bccd"
needs_fixture = pytest.mark.skipif(
    not FIXTURE.is_dir(), reason="../shared/fixtures/yolov5n_bccd is missing"
)
NAMES = ["disc", "square", "bar"]
MEGABYTE = 1 << 20


@pytest.fixture
def model(tiny_model: str) -> Detector:
    torch.manual_seed(0)
    detector = build_model(tiny_model, 3)
    detector.head.set_anchors(detector.head.anchors_px * 1.25)
    detector.update_table()
    for name, buffer in detector.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1.5)
    return detector.eval()


def to_yolov5_module(detector: Detector) -> nn.Module:
    """Return a module with YOLOv5's layout of state, attributes and pickle, made of torch's and
    Kestrel's classes.
    """
    theirs = nn.Module()
    theirs.model = nn.Sequential(*deepcopy(detector).layers)
    head = theirs.model[-1]
    strides = torch.tensor(head.strides, dtype=torch.float32)
    anchors = head.anchors_px / strides.view(-1, 1, 1)
    del head.anchors_px
    head.register_buffer("anchors", anchors)
    theirs.stride, theirs.names = strides, dict(enumerate(NAMES))
    theirs.yaml = {key: deepcopy(value) for key, value in detector.table.items() if key != "source"}
    return theirs


def save_external(path: Path, module: Any, *, zipped: bool = True, **others: Any) -> Path:
    content = {"epoch": 3, "ema": None, "model": module, "best_fitness": np.array([0.5])}
    torch.save(content | others, path, _use_new_zipfile_serialization=zipped)
    return path


# ---------------------------------------------------------------------- the same numbers


@needs_fixture
def test_converted_yolov5_checkpoint_reproduces_its_outputs():
    loaded, names = load_module(FIXTURE / "yolov5n_bccd.pt")
    assert names == ["WBC", "RBC", "Platelets"]
    assert not loaded.training
    with np.load(FIXTURE / "forward.npz") as stored:
        expected = {key: torch.from_numpy(stored[key]) for key in stored.files}
    with torch.no_grad():
        raw = loaded(expected["image"][None].float() / 255)
    for level, values in enumerate(raw):
        assert (values - expected[f"raw{level}"]).abs().max() < 1e-4
    boxes, scores = loaded.decode(raw)
    theirs = expected["decoded"]  # cx, cy, w, h, objectness, classes
    cxcywh = torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)
    # A side is (2 sigma)^2 * anchor, so an error of 1e-5 in a raw map changes 522 px by up to 522 *
    # 2 * 1e-5 = 1e-2 px. Observed: 3e-4 px at 514 px, which is 5 steps of float32; 26 of the 25,200
    # numbers differ by more than 1e-4 px.
    difference = (cxcywh - theirs[..., :4]).abs()
    assert (difference / theirs[..., :4].abs().clamp(min=100)).max() < 1e-5
    assert difference[..., :2].max() < 1e-4
    assert (difference > 1e-4).float().mean() < 0.01
    assert (scores - theirs[..., 4:5] * theirs[..., 5:]).abs().max() < 1e-5


def test_external_module_round_trip(model, tmp_path):
    found, names = load_module(save_external(tmp_path / "a.pt", to_yolov5_module(model)))
    assert names == NAMES
    assert found.state_dict().keys() == model.state_dict().keys()
    expected = model.state_dict()
    assert all(value.equal(expected[key]) for key, value in found.state_dict().items())
    assert found.table["anchors"] == model.table["anchors"]
    assert found.table["source"] == "a.pt"
    assert not found.training
    assert all(parameter.requires_grad for parameter in found.parameters())
    image = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert all(a.equal(b) for a, b in zip(found(image), model(image), strict=True))


def test_converted_detector_can_be_saved_and_trained(model, tmp_path):
    found, names = load_module(save_external(tmp_path / "a.pt", to_yolov5_module(model)))
    checkpoint_file.save(
        tmp_path / "b.pt", {"model": found.state_dict(), "table": found.table, "names": names}
    )
    again = Detector(checkpoint_file.load(tmp_path / "b.pt")["table"])
    again.load_state_dict(found.state_dict())
    sum(raw.square().mean() for raw in found.train()(torch.rand(2, 3, 64, 64))).backward()
    assert all(parameter.grad is not None for parameter in found.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_external_floats_are_converted_to_float32(model, tmp_path, dtype):
    found = read_external(save_external(tmp_path / "a.pt", to_yolov5_module(model).to(dtype)))
    for key, value in to_yolov5_module(model).to(dtype).state_dict().items():
        assert found.state[key].equal(value.float() if value.is_floating_point() else value)
    assert {value.dtype for value in found.state.values()} == {torch.float32, torch.int64}


def test_read_external_returns_all_fields(model, tmp_path):
    found = read_external(save_external(tmp_path / "a.pt", to_yolov5_module(model)))
    assert (found.names, found.strides) == (NAMES, [8, 16, 32])
    assert found.head == "models.heads.anchor_based.AnchorBasedHead"
    assert set(found.activations.values()) == {"SiLU"}
    assert "model.0.act" in found.activations
    assert found.bn_eps == {1e-3}
    assert found.table == to_yolov5_module(model).yaml
    assert found.anchors_px is not None
    assert found.anchors_px.equal(model.head.anchors_px)
    assert found.state.keys() == to_yolov5_module(model).state_dict().keys()


def test_external_checkpoint_prefers_ema_model(model, tmp_path):
    averaged = deepcopy(model)
    averaged.head.set_anchors(averaged.head.anchors_px * 2)
    path = save_external(tmp_path / "a.pt", to_yolov5_module(model), ema=to_yolov5_module(averaged))
    assert load_module(path)[0].head.anchors_px.equal(averaged.head.anchors_px)
    assert load_module(save_external(path, None, ema=to_yolov5_module(averaged)))[
        0
    ].head.anchors_px.equal(averaged.head.anchors_px)


def test_bare_module_of_any_pickle_protocol_is_read(model, tmp_path):
    for protocol in (2, 3, 4, 5):
        torch.save(to_yolov5_module(model), tmp_path / "a.pt", pickle_protocol=protocol)
        found, _ = load_module(tmp_path / "a.pt")
        assert found.layers[0].conv.weight.equal(model.layers[0].conv.weight)


def test_modules_saved_by_old_torch_versions_are_read(model, tmp_path):
    """They have OrderedDicts, and before 1.5 no set of non-persistent buffers; YOLOv5 before 6.0
    has anchor_grid.
    """
    theirs = to_yolov5_module(model)
    theirs.model[-1].register_buffer("anchor_grid", model.head.anchors_px.clone())
    for module in theirs.modules():
        del module._non_persistent_buffers_set
        for key in ("_modules", "_parameters", "_buffers"):
            module.__dict__[key] = OrderedDict(module.__dict__[key])
    theirs.yaml = OrderedDict(theirs.yaml)
    found, names = load_module(save_external(tmp_path / "a.pt", theirs))
    assert names == NAMES
    expected = model.state_dict()
    assert all(value.equal(expected[key]) for key, value in found.state_dict().items())


def test_tensor_views_and_non_persistent_buffers_are_handled(model, tmp_path):
    theirs = to_yolov5_module(model)
    theirs.register_buffer("passing", torch.ones(3), persistent=False)
    theirs.model[0].conv.weight.data = theirs.model[0].conv.weight.data.to(
        memory_format=torch.channels_last
    )
    assert (
        load_module(save_external(tmp_path / "a.pt", theirs))[0]
        .layers[0]
        .conv.weight.equal(model.layers[0].conv.weight)
    )
    store = torch.arange(100.0)
    for view in (store[10:16].view(2, 3), store[::7], store.view(10, 10).T[2:5], torch.tensor(3)):
        root = nn.Module()
        root.register_buffer("x", view)
        root.yaml = {}
        torch.save(root, tmp_path / "b.pt")
        assert read_external(tmp_path / "b.pt").state["x"].equal(view)


def test_is_external_detects_only_external_checkpoints(model, tmp_path):
    path = save_external(tmp_path / "a.pt", to_yolov5_module(model))
    assert holds_module(unpickled_or_none(path))
    checkpoint_file.save(
        tmp_path / "b.pt", {"model": model.state_dict(), "table": model.table, "names": NAMES}
    )
    torch.save(model.state_dict(), tmp_path / "c.pt")
    (tmp_path / "d.pt").write_text("")
    assert not any(
        holds_module(unpickled_or_none(tmp_path / name))
        for name in ("b.pt", "c.pt", "d.pt", "none.pt", ".")
    )


# ------------------------------------------------------------------ models that cannot be converted


def error_message(path: Path, read: Callable[[Path], object] = load_module) -> str:
    """Return the error message for a file without the file's name, after checking that it is one
    short line.
    """
    with pytest.raises(ValueError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert text.isprintable()
    assert len(text) < len(str(path)) + 450
    return text.removeprefix(f"{path}: ")


def error_after_change(model: Detector, tmp_path: Path, change: Callable[[Any], object]) -> str:
    theirs = to_yolov5_module(model)
    change(theirs)
    return error_message(save_external(tmp_path / "a.pt", theirs))


def set_table(**values: Any) -> Callable[[Any], object]:
    return lambda theirs: theirs.yaml.update(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda m: delattr(m.model[-1], "anchors"),
            "its head models.heads.anchor_based.AnchorBasedHead is not supported: neither YOLOv5's "
            "Detect, nor one of",
        ),
        (
            lambda m: setattr(m.model[0], "act", nn.LeakyReLU()),
            "its activation model.0.act is LeakyReLU; only SiLU is supported there",
        ),
        (lambda m: setattr(m.model[0].bn, "eps", 1e-5), "the eps of its BatchNorm is not 0.001"),
        (lambda m: setattr(m, "names", ["a"]), "it has 1 class names for 3 classes"),
        (
            lambda m: setattr(m, "stride", torch.tensor([8.0, 16, 64])),
            "its strides are [8, 16, 64], but those of",
        ),
        (
            lambda m: setattr(m.model[0], "conv", nn.Conv2d(3, 4, 1)),
            "2 of its tensors do not fit its table, such as l",
        ),
        (lambda m: m.yaml["backbone"][0].__setitem__(2, "Focus\n\x1b[2J"), "unknown module 'Focus"),
        (set_table(backbone=[[-1, 1, "Conv", [64, 3]]] * 400), "its model cannot be converted"),
        (set_table(depth_multiple=1e300), "at most 100 is allowed"),
        (set_table(depth_multiple=-1), "depth and width multiple must be two positive numbers"),
        (set_table(width_multiple=1e300), "its model cannot be converted"),
        (set_table(width_multiple=0.5), "of its tensors do not fit its table"),
        (set_table(nc=10**12), "it has 3 class names for 1000000000000 classes"),
        (set_table(nc=None), "it has 3 class names for None classes"),
        (set_table(nc="3"), "it has 3 class names for '3' classes"),
        (set_table(head=None), "`head` must be a list of rows"),
    ],
)
def test_unsupported_external_models_are_rejected(model, tmp_path, change, text):
    message = error_after_change(model, tmp_path, change)
    assert message.startswith("its model cannot be converted (")
    assert text in message


def test_unconvertible_external_model_can_still_be_read(model, tmp_path):
    theirs = to_yolov5_module(model)
    del theirs.model[-1].anchors
    found = read_external(save_external(tmp_path / "a.pt", theirs))
    assert found.anchors_px is None
    assert (found.names, found.strides, len(found.state)) == (
        NAMES,
        [8, 16, 32],
        len(theirs.state_dict()),
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: setattr(m, "yaml", "yolov5n.yaml"), "its model has no architecture table"),
        (lambda m: setattr(m, "yaml", {"head": [0] * 6000}), "its table or names are too large"),
        (
            lambda m: setattr(m, "names", {1: "a", 2: "b"}),
            "its class names are not numbered from 0",
        ),
        (lambda m: setattr(m, "names", 3), "its class names are not a list of names"),
        (
            lambda m: setattr(m, "stride", torch.tensor([0.5])),
            "its strides are not at most 16 whole numbers from 1 to",
        ),
        (
            lambda m: setattr(m, "stride", torch.tensor([8.0])),
            "its anchors do not have the shape [levels, anchors, 2]",
        ),
        (
            lambda m: m.model[0].conv.weight.data.fill_(float("nan")),
            "model.0.conv.weight has values that are not fini",
        ),
        (lambda m: m._modules.update(loop=m), "its modules are nested too deeply"),
        (
            lambda m: m._modules.update(wrong=m.stride),
            "an entry that should be a module is not one",
        ),
        (lambda m: m._parameters.update(wrong=3), "it has something else where a tensor should be"),
        (
            lambda m: m._buffers.update({"x" * 101: None}),
            "the name of a module or tensor is not text of at most 100",
        ),
        (
            lambda m: m._buffers.update(b=torch.zeros(3, dtype=torch.complex64)),
            "tensors of torch.ComplexFloatStorage",
        ),
        (
            lambda m: m._buffers.update({str(i): None for i in range(5001)}),
            "it has more than 5000 tensors",
        ),
    ],
)
def test_damaged_external_modules_are_rejected(model, tmp_path, change, text):
    message = error_after_change(model, tmp_path, change)
    assert message.startswith("is not a checkpoint that can be read without running it (")
    assert text in message


# -------------------------------------------------------------------- hostile files: nothing is run


class Calls:
    """An object that is pickled as a function call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def write_archive(
    path: Path, pickled: bytes, entries: dict[str, bytes] | None = None, compression: int = 0
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in {"data.pkl": pickled, "version": b"3\n", **(entries or {})}.items():
            archive.writestr(f"a/{name}", content)
    return path


def global_opcode(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def call(function: bytes, *words: str) -> bytes:
    """Return opcodes that call `function` with strings."""
    args = b"".join(b"X" + struct.pack("<I", len(word.encode())) + word.encode() for word in words)
    return function + b"(" + args + b"tR"


START = b"\x80\x02"
TOUCH = "open({!r}, 'w').close()"
TENSOR = global_opcode("torch._utils", "_rebuild_tensor_v2")


def pickle_of(steps: bytes) -> Callable[[str], bytes]:
    return lambda stamp: START + steps + b"."


def python_call(*line: Any) -> Callable[[str], bytes]:
    """Make the pickle of a call whose last argument is a line of Python that creates the stamp
    file.
    """
    return lambda stamp: pickle.dumps(Calls(*line, TOUCH.format(stamp)), 2)


def chain(stamp: str) -> bytes:
    """getattr(__import__("os"), "system")("touch stamp")."""
    found = call(global_opcode("builtins", "__import__"), "os")
    attribute = global_opcode("builtins", "getattr") + b"(" + found + b"X\x06\x00\x00\x00systemtR"
    return START + call(attribute, f"touch {stamp}") + b"."


def chain_of_module(stamp: str) -> bytes:
    """getattr(torch.serialization.os, "system")("touch stamp"), all by harmless names."""
    module = global_opcode("torch.serialization", "os")
    attribute = global_opcode("__builtin__", "getattr") + b"(" + module + b"X\x06\0\0\0systemtR"
    return START + call(attribute, f"touch {stamp}") + b"."


def dotted_name(stamp: str) -> bytes:
    """torch.serialization.os.system: a dotted name that starts at a harmless module and leads to
    another one.
    """
    return START + call(global_opcode("torch.serialization", "os.system"), f"touch {stamp}") + b"."


def hidden_in_module(stamp: str) -> bytes:
    """A checkpoint with a call hidden in an attribute of its model."""
    root = nn.Module()
    root.yaml = {"nc": Calls(os.system, f"touch {stamp}")}
    return pickle.dumps({"model": root}, 2)


def stack_global(stamp: str) -> bytes:
    return pickle.dumps({"model": Calls(os.system, f"touch {stamp}")}, 4)


HOSTILE: dict[str, tuple[Callable[[str], bytes], str]] = {
    "os.system": (
        lambda s: pickle.dumps({"model": Calls(os.system, f"touch {s}")}, 2),
        f"names {os.name}.system",
    ),
    "os.popen": (
        lambda s: START + call(global_opcode("os", "popen"), f"touch {s}") + b".",
        "names os.popen",
    ),
    "protocol 4": (stack_global, f"names {os.name}.system"),
    "protocol 0": (lambda s: pickle.dumps(Calls(os.system, f"touch {s}"), 0), "names"),
    "eval": (
        lambda s: START + call(global_opcode("__builtin__", "eval"), TOUCH.format(s)) + b".",
        "names builtins.eval",
    ),
    "exec": (python_call(exec), "names builtins.exec"),
    "subprocess": (
        lambda s: START + call(global_opcode("subprocess", "getoutput"), f"touch {s}") + b".",
        "subprocess.g",
    ),
    "runpy": (
        lambda s: START + call(global_opcode("runpy", "_run_code"), TOUCH.format(s)) + b".",
        "names runpy._run",
    ),
    "attribute chain": (chain, "names builtins.__import__"),
    "attribute of a module": (chain_of_module, "its pickle calls a value that is not callable"),
    "getattr that nobody calls": (
        pickle_of(call(global_opcode("builtins", "getattr"), "a", "b")),
        "it holds no module",
    ),
    "dotted name": (dotted_name, "it holds no module"),
    "numpy's eval": (
        lambda s: (
            START + call(global_opcode("numpy.f2py.crackfortran", "myeval"), TOUCH.format(s)) + b"."
        ),
        "it holds no module",
    ),
    "torch.hub": (
        lambda s: START + call(global_opcode("torch.hub", "load"), s, s) + b".",
        "it holds no module",
    ),
    "torch.load": (
        lambda s: START + call(global_opcode("torch", "load"), s) + b".",
        "it holds no module",
    ),
    "in a module": (hidden_in_module, f"names {os.name}.system"),
    "import by name": (
        pickle_of(global_opcode("no_such_module_of_anyone", "x")),
        "its pickle|it holds no module",
    ),
    "INST": (
        lambda s: START + b"(X\x01\x00\x00\x00xios\nsystem\n.",
        "its pickle has an opcode INST",
    ),
    "OBJ": (pickle_of(b"(" + global_opcode("a", "b") + b"o"), "its pickle has an opcode OBJ"),
    "extension": (pickle_of(b"\x82\x01"), "its pickle has an opcode EXT1"),
    "PERSID": (pickle_of(b"Pstorage\n"), "its pickle has an opcode PERSID"),
    "tower of calls": (
        pickle_of(global_opcode("a", "b") + b")R" * 100),
        "its pickle calls a value that is not callable",
    ),
    "deep tower of calls": (
        pickle_of(global_opcode("a", "b") * 20_000 + b")R" + b"\x85R" * 19_999),
        "it holds no module",
    ),
    "deep tuples": (pickle_of(b")" + b"\x85" * 100_000), "it holds no module"),
    "hash for ever": (pickle_of(b"})" + b"q\x00h\x00\x86" * 60 + b"Ns"), "it holds no module"),
    "set of hashes for ever": (
        pickle_of(global_opcode("builtins", "set") + b"])" + b"q\x00h\x00\x86" * 60 + b"a\x85R"),
        "it holds no module",
    ),
    "terabyte of bytes": (
        pickle_of(global_opcode("builtins", "bytearray") + b"\x8a\x06" + b"\xff" * 5 + b"\0\x85R"),
        "holds no m",
    ),
    "terabyte of tensor": (
        pickle_of(global_opcode("torch", "Tensor") + b"\x8a\x06" + b"\xff" * 5 + b"\0\x85R"),
        "holds no m",
    ),
    "no storage": (pickle_of(b"X\x01\x00\x00\x00xQ"), "it has an invalid storage reference"),
    "made-up name": (pickle_of(b")]\x93"), "it builds a class name from values that are not text"),
    "nothing on the stack": (pickle_of(b"R"), "its pickle is damaged"),
    "no mark": (pickle_of(b"t"), "its pickle is damaged"),
    "memo of nothing": (pickle_of(b"h\x07"), "its pickle is damaged"),
    "odd items": (pickle_of(b"}(Nu"), "its pickle is damaged"),
    "fill a number": (
        pickle_of(b"K\x01K\x02a"),
        "its pickle adds items or state to a value that has none",
    ),
    "state of a number": (
        pickle_of(b"K\x01}b"),
        "its pickle adds items or state to a value that has none",
    ),
    "no end": (
        lambda s: START + b"N",
        "pickle exhausted before seeing STOP|its pickle is damaged",
    ),
    "no pickle": (lambda s: b"\xff" * 99, "opcode"),
    "nothing": (lambda s: b"", "pickle exhausted before seeing STOP"),
    "long text that is not there": (
        lambda s: START + b"X\xff\xff\xff\x7fx.",
        "expected 2147483647 bytes",
    ),
}
WATCHED = {
    *(
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "os.spawn",
        "subprocess.Popen",
        "socket.connect",
    ),
    *("exec", "compile", "import", "pickle.find_class", "ctypes.dlopen"),
}


class Watch:
    """Records audit events of the interpreter while `on` is set. An audit hook cannot be
    removed.
    """

    def __init__(self) -> None:
        self.on, self.seen = False, []
        sys.addaudithook(self._record)

    def _record(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event in WATCHED:
            self.seen.append((event, str(args)[:100]))


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """Created after torch and numpy have imported the modules that they import only on first
    use.
    """
    np.random.default_rng(0).integers(9)
    detector = build_model(str(ROOT / "tests" / "tables" / "tiny.yaml"), 3)
    load_module(
        save_external(tmp_path_factory.mktemp("first") / "a.pt", to_yolov5_module(detector))
    )
    return Watch()


@pytest.fixture
def watch(audit: Watch, tmp_path: Path) -> Iterator[Path]:
    """The path of a file that must not exist when the test ends; the test must not run or import
    anything.
    """
    stamp = tmp_path / "stamp"
    audit.seen.clear()
    zipfile.ZipFile(
        io.BytesIO(b"PK\x05\x06" + bytes(18))
    )  # so that lazy imports happen before the watch is on
    "".encode("cp437")
    audit.on = True
    yield stamp
    audit.on = False
    assert not stamp.exists()
    assert audit.seen == []


def test_hostile_pickles_run_code_under_pickle_loads(tmp_path, audit):
    """The hostile pickles are effective: pickle.loads runs them and they create the stamp file."""
    for name in (
        "os.system",
        "protocol 4",
        "protocol 0",
        "eval",
        "exec",
        "attribute chain",
        "attribute of a module",
        "dotted name",
    ):
        stamp = tmp_path / name.replace(" ", "")
        audit.on = True
        content = HOSTILE[name][0](str(stamp))
        if name == "dotted name":
            content = START + call(global_opcode("os", "system"), f"touch {stamp}") + b"."
        pickle.loads(content)  # noqa: S301
        audit.on = False
        assert stamp.exists()
    assert {"os.system", "exec", "pickle.find_class"} <= {event for event, _ in audit.seen}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_rejected_without_running_code(watch, tmp_path, name, layout):
    make, text = HOSTILE[name]
    path = LAYOUTS[layout](tmp_path / "a.pt", make(str(watch)))
    for read in (read_external, load_module):
        message = error_message(path, read)
        assert message.startswith("is not a checkpoint that can be read without running it (")
        assert any(part in message for part in text.split("|"))
    assert not holds_module(unpickled_or_none(path))
    with pytest.raises(ValueError, match=r"a\.pt: is not a checkpoint of Kestrel"):
        load_detector(path)  # the reader of --weights


def test_classes_named_in_a_pickle_are_never_imported(watch, model, tmp_path):
    """A valid module whose pickle names classes that do not exist is still read."""
    theirs = to_yolov5_module(model)
    theirs.model[0].hook = Calls(nn.Module)
    torch.save({"model": theirs}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        entries = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    pickled = entries.pop("data.pkl").replace(
        b"torch.nn.modules.module\nModule", b"no.such.module\nModule"
    )
    found, _ = load_module(write_archive(tmp_path / "b.pt", pickled, entries))
    assert found.head.anchors_px.equal(model.head.anchors_px)


def test_pickle_reader_returns_plain_data_and_records():
    """Hand-written opcodes: a call, and an object with its state, become a PickledObject."""
    steps = START + global_opcode("a.b", "C") + b"K\x01\x85R}X\x01\x00\x00\x00xNsb."
    found = PickleReader().run(steps)
    assert isinstance(found, PickledObject)
    assert (found.kind, found.args, found.state) == ("a.b.C", (1,), {"x": None})
    values = [
        None,
        True,
        -7,
        1 << 40,
        2.5,
        "é",
        b"x",
        (),
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        {"a": [1, {3: 4}]},
    ]
    for protocol in (2, 3, 4, 5):
        kept = values if protocol > 2 else [value for value in values if value != b"x"]
        assert PickleReader().run(pickle.dumps(kept, protocol)) == kept


# -------------------------------------------------------------------- hostile files: bounded memory


@pytest.fixture
def memory_limit() -> Iterator[None]:
    """The test's peak of Python memory must stay below 24 MiB."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 * MEGABYTE


def write_sparse_file(path: Path, size: int, start: bytes = b"", end: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(start)
        file.seek(size - len(end))
        file.write(end)
        file.truncate(size)
    return path


def one_buffer_pickle(size: bytes, strides: bytes, count: bytes, offset: bytes = b"K\0") -> bytes:
    """Return the pickle of a module with one float buffer `x` on storage 0."""
    storage = (
        b"(X\x07\0\0\0storage"
        + global_opcode("torch", "FloatStorage")
        + b"X\x01\0\0\x000X\x03\0\0\0cpu"
        + count
    )
    tensor = TENSOR + b"(" + storage + b"tQ" + offset + size + strides + b"\x89NtR"
    state = (
        b"}(X\x08\0\0\0_modules}X\x08\0\0\0_buffers}X\x01\0\0\0x" + tensor + b"sX\x04\0\0\0yaml}u"
    )
    return START + global_opcode("a", "B") + b")\x81" + state + b"b."


@pytest.mark.parametrize("layout", LAYOUTS)
def test_handwritten_module_pickle_is_read(tmp_path, watch, layout):
    content = np.arange(4, dtype=np.float32).tobytes()
    pickled = one_buffer_pickle(b"K\x04\x85", b"K\x01\x85", b"K\x04")
    path = LAYOUTS[layout](tmp_path / "a.pt", pickled, {"0": content})
    assert read_external(path).state["x"].tolist() == [0, 1, 2, 3]


SHAPE_65535_BY_65535 = b"M\xff\xffM\xff\xff\x86"  # (65535, 65535)


@pytest.mark.parametrize(
    ("pickled", "text"),
    [
        (
            one_buffer_pickle(SHAPE_65535_BY_65535, b"K\0K\0\x86", b"K\x04"),
            "reaches outside its storage",
        ),
        (one_buffer_pickle(b"K\x05\x85", b"K\x01\x85", b"K\x04"), "reaches outside its storage"),
        (one_buffer_pickle(b"K\x04\x85", b"K\x02\x85", b"K\x04"), "reaches outside its storage"),
        (
            one_buffer_pickle(b"K\x02\x85", b"J\xff\xff\xff\xff\x85", b"K\x04"),
            "reaches outside its storage",
        ),
        (
            one_buffer_pickle(b"K\x02\x85", b"K\x01\x85", b"K\x04", b"K\x03"),
            "reaches outside its storage",
        ),
        (
            one_buffer_pickle(b"K\x02\x85", b"K\x01\x85", b"K\x04", b"J\xff\xff\xff\xff"),
            "reaches outside its storage",
        ),
        (
            one_buffer_pickle(b"K\x02\x85", b"K\x01K\x01\x86", b"K\x04"),
            "reaches outside its storage",
        ),
        (one_buffer_pickle(b"N", b"N", b"K\x04"), "reaches outside its storage"),
        (
            one_buffer_pickle(
                SHAPE_65535_BY_65535, b"M\xff\xffK\x01\x86", b"\x8a\x05" + b"\xff" * 4 + b"\0"
            ),
            "larger than the file",
        ),
        (
            one_buffer_pickle(b"K\x05\x85", b"K\x01\x85", b"K\x05"),
            "its data/0 has 16 bytes for 5 torch.float32|it is truncated, or claims more values",
        ),
        (
            one_buffer_pickle(b"K\x04\x85", b"K\x01\x85", b"N"),
            "it has an invalid storage reference",
        ),
        (
            one_buffer_pickle(b"K\x04\x85", b"K\x01\x85", b"J\xff\xff\xff\xff"),
            "it has an invalid storage reference",
        ),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_outside_their_storage_are_rejected(
    watch, memory_limit, tmp_path, pickled, text, layout
):
    path = LAYOUTS[layout](tmp_path / "a.pt", pickled, {"0": bytes(16)})
    message = error_message(path, read_external)
    assert any(part in message for part in text.split("|"))


def test_missing_archive_entries_are_rejected(watch, tmp_path):
    pickled = one_buffer_pickle(b"K\x04\x85", b"K\x01\x85", b"K\x04")
    assert "it has no entry data/0" in error_message(write_archive(tmp_path / "a.pt", pickled))
    no_pickle = tmp_path / "b.pt"
    for names in ([], ["x"], ["data.pkl"], ["a/b/data.pkl"], ["a/data.pkl", "b/data.pkl"]):
        with zipfile.ZipFile(no_pickle, "w") as archive:
            archive.writestr("first", "")
            for name in names:
                archive.writestr(name, pickled)
        assert "it has no data.pkl as torch.save writes it" in error_message(no_pickle)


@pytest.mark.parametrize("zipped", [True, False])
def test_storage_shared_by_many_tensors_is_rejected(memory_limit, tmp_path, zipped):
    """4 MB in a file, as 64 buffers of 4 MB each."""
    root = nn.Module()
    store = torch.zeros(MEGABYTE)
    for number in range(64):
        root.register_buffer(f"x{number}", store)
    root.yaml = {}
    torch.save(root, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    assert "its tensors are larger than the file" in error_message(tmp_path / "a.pt")


@pytest.mark.slow
def test_nested_shared_lists_and_modules_are_rejected(watch, memory_limit, model, tmp_path):
    nested: list[Any] = [1] * 10
    for _ in range(30):
        nested = [nested] * 10
    theirs = to_yolov5_module(model)
    theirs.yaml["head"] = nested
    assert "its table or names are too large" in error_message(
        save_external(tmp_path / "a.pt", theirs)
    )
    twins = nn.Module()
    for _ in range(30):
        twins, inner = nn.Module(), twins
        twins.a = twins.b = inner
    assert "it has more than 20,000 modules" in error_message(
        save_external(tmp_path / "b.pt", twins)
    )

    # Places without a module, in a module that is shared: reading them takes time, too.
    empty = nn.Module()
    for number in range(300):
        empty.register_module(f"none{number}", None)
    shared = nn.Module()
    for number in range(100):
        shared.register_module(f"shared{number}", empty)
    assert "it has more than 20,000 modules" in error_message(
        save_external(tmp_path / "c.pt", shared)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_huge_pickle_opcode_counts_are_rejected(watch, memory_limit, tmp_path, monkeypatch, layout):
    monkeypatch.setattr(interpreter, "MAX_STEPS", 10_000)
    for step in (b"N", b"}", b"]", b"(", b"K\x01q\x01"):
        pickled = START + b"N" + step * MEGABYTE + b"."
        message = error_message(LAYOUTS[layout](tmp_path / "a.pt", pickled))
        assert "its pickle has more than 10000 opcodes" in message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_very_long_names_in_a_pickle_are_rejected(watch, memory_limit, tmp_path, layout):
    """4 MB of text, and 10,000 names made from it."""
    text = b"X" + struct.pack("<I", 4 * MEGABYTE) + b"y" * (4 * MEGABYTE) + b"q\0"
    path = LAYOUTS[layout](tmp_path / "a.pt", START + text + b"h\0\x93h\0" * 10_000 + b".")
    message = error_message(path)
    assert "it has names of more than 500 letters" in message


def test_compressed_checkpoint_entries_are_rejected(watch, memory_limit, tmp_path, monkeypatch):
    zeros = START + b"N" * (64 * MEGABYTE)
    with (
        zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a/data.pkl", "w") as f,
    ):
        for start in range(0, len(zeros), MEGABYTE):
            f.write(zeros[start : start + MEGABYTE])
    del zeros
    tracemalloc.reset_peak()
    assert (tmp_path / "a.pt").stat().st_size < MEGABYTE
    assert "its entries are compressed" in error_message(tmp_path / "a.pt")


def test_too_large_pickle_is_rejected(watch, memory_limit, tmp_path):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive, archive.open("a/data.pkl", "w") as file:
        for _ in range(65):
            file.write(bytes(MEGABYTE))
    assert f"its data.pkl has more than {64 * MEGABYTE} bytes" in error_message(path)


def test_checkpoint_with_overlapping_zip_entries_is_rejected(watch, tmp_path):
    """A zip directory that lists one entry's bytes twice: 2 MB of tensors in a file of 1 MB."""
    write_archive(tmp_path / "a.pt", START + b"N.", {"data/0": bytes(MEGABYTE), "data/1": b""})
    content = bytearray((tmp_path / "a.pt").read_bytes())
    directory = content.rindex(b"PK\x05\x06")
    offsets = [at for at in range(MEGABYTE, directory) if content[at : at + 4] == b"PK\x01\x02"]
    content[offsets[3] + 16 : offsets[3] + 28] = content[offsets[2] + 16 : offsets[2] + 28]
    content[offsets[3] + 42 : offsets[3] + 46] = content[offsets[2] + 42 : offsets[2] + 46]
    (tmp_path / "b.pt").write_bytes(content)
    assert "its entries are larger than the file" in error_message(tmp_path / "b.pt")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_other_invalid_checkpoint_zips_are_rejected(watch, tmp_path):
    twice = tmp_path / "a.pt"
    with zipfile.ZipFile(twice, "w") as archive:
        archive.writestr("a/data.pkl", START + b"N.")
        archive.writestr("a/data.pkl", START + b"}.")
    assert "it has two entries with the same name" in error_message(twice)
    assert "it holds no module" in error_message(write_archive(twice, START + b"N."))
    assert "not little-endian" in error_message(
        write_archive(twice, START + b"N.", {"byteorder": b"big"})
    )
    content = bytearray(write_archive(twice, START + b"N" * 99 + b"0.").read_bytes())
    content[content.index(b"NNNN")] ^= 1
    twice.write_bytes(content)
    assert "Bad CRC-32" in error_message(twice)


def test_huge_sparse_files_are_rejected_within_memory_limit(watch, memory_limit, tmp_path):
    """Sparse files of 1 GiB: all zeros, a zip without an end, and a zip whose directory fills the
    file.
    """
    size = 1 << 30
    assert "it is not a file of torch.save" in error_message(
        write_sparse_file(tmp_path / "a.pt", size)
    )
    assert "is not a zip file" in error_message(
        write_sparse_file(tmp_path / "b.pt", size, b"PK\x03\x04")
    )
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, size - 26, 4, 0)
    message = error_message(write_sparse_file(tmp_path / "c.pt", size, b"PK\x03\x04", end))
    assert "its directory has more than 4194304 bytes" in message
    assert "it has more than 17179869184 bytes" in error_message(
        write_sparse_file(tmp_path / "d.pt", 17 << 30)
    )


def test_missing_empty_or_non_zip_files_are_rejected(watch, tmp_path):
    assert (
        error_message(tmp_path / "none.pt")
        == "cannot be read as a checkpoint: No such file or directory"
    )
    assert "it is not a regular file" in error_message(tmp_path)
    (tmp_path / "empty.pt").touch()
    assert "it is empty" in error_message(tmp_path / "empty.pt")
    (tmp_path / "text.pt").write_text("import os\n")
    assert "it is not a file of torch.save" in error_message(tmp_path / "text.pt")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.pt")  # reading it would block
        assert "it is not a regular file" in error_message(tmp_path / "pipe.pt")


@pytest.fixture
def older(model: Detector, tmp_path: Path) -> Path:
    """A checkpoint of the older layout, in which torch also stores the source of each class."""
    return save_external(tmp_path / "older.pt", to_yolov5_module(model), zipped=False)


def test_a_checkpoint_of_the_older_layout_is_read(older, watch, model):
    assert holds_module(unpickled_or_none(older))
    found, names = load_module(older)
    assert names == NAMES
    assert all(value.equal(model.state_dict()[key]) for key, value in found.state_dict().items())


def test_a_pickle_alone_is_rejected(watch, tmp_path):
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Calls(os.system, f"touch {watch}")))
    assert "it is not a file of torch.save" in error_message(tmp_path / "b.pt")


def test_truncated_checkpoints_are_rejected(watch, tmp_path):
    root = nn.Module()
    root.model, root.yaml = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)), {}
    torch.save(root, tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    for length in range(0, len(content), 41):
        (tmp_path / "b.pt").write_bytes(content[:length])
        assert error_message(tmp_path / "b.pt", read_external)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_random_pickle_bytes_raise_only_value_error(watch, tmp_path):
    """Random bytes in the pickle, with a valid checksum: it is read, or raises ValueError, but no
    other error.
    """
    random = np.random.default_rng(0)
    root = nn.Module()
    root.model, root.yaml = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)), {"nc": 1}
    torch.save(root, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        entries = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    pickled, messages = entries.pop("data.pkl"), []
    for _ in range(400):
        noisy = bytearray(pickled)
        for index in random.integers(0, len(noisy), random.integers(1, 4)):
            noisy[index] = random.integers(256)
        path = write_archive(tmp_path / "b.pt", bytes(noisy), entries)
        try:
            read_external(path)
        except ValueError as error:
            messages.append(str(error))
    assert all(
        text.startswith(f"{path}: is not a checkpoint") and text.isprintable() for text in messages
    )
    assert len(messages) > 100


def test_error_message_escapes_and_shortens_names(watch, tmp_path):
    name = "x\x1b[2J" + "y" * 400
    message = error_message(
        write_archive(tmp_path / "a.pt", START + global_opcode("os", name) + b".")
    )
    assert r"names os.x\x1b[2Jyy" in message
    assert "..." in message[-10:]
