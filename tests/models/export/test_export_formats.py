"""models/export: what the files hold, other heads and families, 16 and 8 bits."""

import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from models.blocks.registry import LAYERS
from models.detector import Detector
from models.export import FORMATS
from models.export import graph as graph_module
from models.export.compare import ReferenceBackend, compare
from models.export.graph import Export, export_graph, halve
from models.export.metadata import ExportedModel, Suppression
from models.export.quiet import quiet
from models.export.torchscript.code import check_code
from models.export.torchscript.write import torchscript_bytes
from models.export.writer import Writer
from models.head_registry import HEADS
from models.loading import load_backend
from models.tables.read import read_table
from tests.support.anchor_free import FAMILY
from tests.support.exporting import NAMES, lively_detector, one_level, short_table

pytestmark = pytest.mark.usefixtures("onnx_functions")

CPU = torch.device("cpu")
TABLES = Path(__file__).parents[2] / "tables"
EVERY_LAYER = TABLES / "every_layer.yaml"
GROUPED = TABLES / "grouped.yaml"
SIZES = TABLES / "sizes.yaml"
NMS = Suppression(0.3, 0.45, 20, False)
FIXED = {"canvas": (64, 64), "batch_size": 2}  # traced in a fifth of the time of free dimensions

# Tables, and of the files other than TorchScript: non-maximum suppression and fixed dimensions.
# Two of them have two levels. What reads the size of a map is exported for any size: the layers and
# DualDistanceDetect here, Detect by test_exported_files.py. All heads read it in `grid_cells`.
GRAPHS: dict[str, tuple[dict[str, Any], Suppression | None, dict[str, Any]]] = {
    "every layer, DecoupledDetect": (read_table(EVERY_LAYER), None, FIXED),
    "layers that read sizes, DualDistanceDetect": (read_table(SIZES), NMS, {}),
    "DistanceDetect": (one_level("DistanceDetect", "nc", 1), NMS, FIXED),
    "SharedDistanceDetect": (one_level("SharedDistanceDetect", "nc"), NMS, FIXED),
    "GroupedDistanceDetect": (read_table(GROUPED), None, FIXED),
    # Of the tests; batches of any number.
    "AnchorFree": (one_level("AnchorFree", "nc"), NMS, {"canvas": (64, 64)}),
}


def fused(table: str | dict[str, Any]) -> Detector:
    return lively_detector(table).fuse().requires_grad_(False)


@cache
def detector_of(graph: str) -> Detector:
    """The detector of one of GRAPHS, built once for all files: they leave it unchanged."""
    table, _, _ = GRAPHS[graph]
    return fused(table)


def writer(table: str | dict[str, Any], **fields: object) -> Writer:
    return writer_of(fused(table), **fields)


def writer_of(detector: Detector, **fields: object) -> Writer:
    stride = max(detector.strides)
    return Writer(detector, ExportedModel(tuple(NAMES), stride, 2 * stride, opset=17, **fields))  # type: ignore[arg-type]


def images(model: ExportedModel) -> list[torch.Tensor]:
    """Batches that the file takes: of any size, of any number, or of two images."""
    stride = model.stride
    if model.canvas is None:
        shapes = [(1, 1, 2), (3, 3, 2), (2, 2, 2)]
    else:
        rows, columns = (side // stride for side in model.canvas)
        numbers = [1, 3] if model.batch_size is None else [model.batch_size]
        shapes = [(number, rows, columns) for number in numbers]

    generator = torch.Generator().manual_seed(0)
    return [
        torch.rand(n, 3, rows * stride, columns * stride, generator=generator)
        for n, rows, columns in shapes
    ]


def assert_like_torch(written: Writer, name: str, folder: Path) -> None:
    for package in FORMATS[name].packages:
        pytest.importorskip(package, reason="an optional package")
    backend = load_backend(written.write(name, folder / "m.pt"), CPU).backend
    found = compare(backend, ReferenceBackend(written.reference), images(written.model))
    assert found.acceptable, f"{name}: {found}"


@pytest.fixture
def _anchor_free(monkeypatch):
    monkeypatch.setitem(HEADS, "AnchorFree", FAMILY)


def test_every_layer_and_head_is_exported():
    """By the tests below, and Detect by test_exported_files.py."""
    tables = [table for table, _, _ in GRAPHS.values()]
    rows = [row for table in tables for row in (*table["backbone"], *table["head"])]
    # TimmBackbone by test_backbone.py, if timm is installed
    assert {row[2] for row in rows} >= {*LAYERS, *HEADS} - {"Detect", "TimmBackbone"}


def test_only_a_graph_with_suppression_imports_torchvision(micro_model, monkeypatch):
    """Its package takes seconds to import."""
    imported: list[str] = []
    monkeypatch.setattr(graph_module, "importlib", SimpleNamespace(import_module=imported.append))
    assert "torchvision" not in vars(graph_module)
    detector = lively_detector(micro_model)
    for nms, expected in ((None, []), (NMS, ["torchvision"])):
        export_graph(detector, nms)
        assert imported == expected


@pytest.mark.slow
@pytest.mark.usefixtures("_anchor_free")
@pytest.mark.parametrize("nms", [None, NMS])
@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs_are_exported_to_torchscript(graph, nms, tmp_path):
    assert_like_torch(writer_of(detector_of(graph), nms=nms), "torchscript", tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("_anchor_free")
@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs_are_exported_to_other_formats(graph, tmp_path):
    """By one writer: torch traces a graph for seconds.

    Files for any size of images and number in a batch are traced once. Other layers than those that
    read sizes are operations of torch on maps, whatever their size: each is exported for any size
    as TorchScript, above.
    """
    _, nms, fields = GRAPHS[graph]
    written = writer_of(detector_of(graph), nms=nms, **fields)
    for name in ("onnx", "openvino"):
        assert_like_torch(written, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        # mobilenet_v3_small is one of every layer, above.
        ["TorchvisionBackbone", "resnet18"],
        ["TorchvisionBackbone", "efficientnet_b0"],
        ["TorchvisionBackbone", "regnet_y_400mf"],
        ["TorchvisionBackbone", "convnext_tiny"],
        ["TimmBackbone", "test_efficientnet"],  # timm's smallest
    ],
    ids=lambda row: row[1],
)
def test_backbones_are_exported_to_all_formats(row, tmp_path):
    """Those of torchvision up to stride 4: their later stages have no other kind of module."""
    kind, name = row
    stride = 4
    if kind == "TimmBackbone":
        pytest.importorskip("timm", reason="an optional package")
        stride = 32  # it has no part of a network
    table = one_level("DistanceDetect", "nc", 1)
    table["backbone"] = [[-1, 1, kind, [name, [stride]]], [-1, 1, "Level", [0]]]
    detector = lively_detector(table)
    if kind == "TimmBackbone":
        activated = [
            part for part in detector.modules() if isinstance(getattr(part, "act", None), nn.SiLU)
        ]
        activated[0].act = nn.ReLU6(inplace=True)  # as in efficientnet_lite0, which is large
    detector.fuse().requires_grad_(False)
    written = writer_of(detector, **FIXED)
    for each in ("torchscript", "onnx", "openvino"):
        assert_like_torch(written, each, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [17, 18, 20])
def test_onnx_has_the_opset_and_no_trace_of_this_machine(opset, tmp_path):
    onnx = pytest.importorskip("onnx", reason="an optional package")
    given = writer(short_table(), nms=NMS, **FIXED)
    written = Writer(given.reference.detector, replace(given.model, opset=opset))
    content = written.write("onnx", tmp_path / "m.pt").read_bytes()
    proto = onnx.ModelProto.FromString(content)
    onnx.checker.check_model(proto, full_check=True)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", opset)]
    assert not any(tensor.external_data for tensor in proto.graph.initializer)
    assert str(Path(__file__).parents[3]).encode() not in content
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_torchscript_is_one_function_on_the_device_of_its_images(micro_model):
    export = writer(micro_model, nms=NMS).reference
    with quiet():
        module = torch.jit.load(io.BytesIO(torchscript_bytes(export)))
    assert 'torch.device("' not in module.code
    check_code("class G(Module):\n" + "".join(f"  {line}\n" for line in module.code.splitlines()))


def test_halved_detector_keeps_its_buffers_and_halves_its_bytes(tiny_model):
    export = writer(tiny_model).reference
    whole = len(torchscript_bytes(export))
    detector = halve(export.detector)
    assert {p.dtype for p in detector.parameters()} == {torch.float16}
    assert {b.dtype for b in detector.buffers()} == {torch.float32}
    assert (
        len(torchscript_bytes(Export(detector, replace(export.model, precision="fp16"))))
        < 0.6 * whole
    )


@pytest.fixture(scope="module")
def wide_writers():
    """Writers in 32 and 16 bits, of a model whose weights are most of its files."""
    wide = short_table() | {"width_multiple": 1.0}
    return [writer(wide, precision=precision, **FIXED) for precision in ("fp32", "fp16")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_half_precision_files_are_close_and_half_as_large(name, wide_writers, tmp_path):
    sizes = []
    for written in wide_writers:
        assert_like_torch(written, name, tmp_path)
        path = tmp_path / ("m.onnx" if name == "onnx" else "m_openvino_model/m.bin")
        sizes.append(path.stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]


@pytest.fixture(scope="module", params=[(None, 2), (NMS, 1)], ids=["raw", "nms"])
def int8_writer(request):
    nms, batch_size = request.param
    fixed = {"canvas": (64, 64), "batch_size": batch_size}
    return writer(short_table(), nms=nms, precision="int8", **fixed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_8_bit_files_run_and_are_close(name, int8_writer, tmp_path):
    for package in (*FORMATS[name].packages, *FORMATS[name].int8_packages):
        pytest.importorskip(package, reason="an optional package")
    generator = torch.Generator().manual_seed(0)
    batches = list(torch.rand(8, 3, 64, 64, generator=generator).split(1))
    path = int8_writer.write(name, tmp_path / "m.pt", batches)
    assert path.name.startswith("m_int8")

    images = torch.cat(batches[: int8_writer.model.batch_size])
    found = load_backend(path, CPU).backend.predict(images)
    expected = ReferenceBackend(int8_writer.reference).predict(images)
    assert found.scores.shape == expected.scores.shape
    if int8_writer.model.nms is None:
        assert (found.scores - expected.scores).abs().mean() < 0.05
        assert not found.scores.equal(expected.scores)


def test_folder_with_other_files_is_not_replaced(tmp_path):
    from models.export.openvino.write import require_replaceable

    folder = tmp_path / "m_openvino_model"
    require_replaceable(folder, "m")  # there is nothing
    folder.mkdir()
    for name in ("metadata.json", "m.xml", "m.bin"):
        (folder / name).touch()
    require_replaceable(folder, "m")
    (folder / "thesis.txt").touch()
    with pytest.raises(
        ValueError, match="exists and holds other files than an OpenVINO export; move it away"
    ):
        require_replaceable(folder, "m")
    (tmp_path / "n_openvino_model").touch()
    with pytest.raises(ValueError, match="n_openvino_model: exists and holds other files"):
        require_replaceable(tmp_path / "n_openvino_model", "n")
