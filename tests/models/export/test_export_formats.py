"""models/export: what the files hold, other heads and families, 16 and 8 bits."""

import io
from collections.abc import Iterator
from copy import deepcopy
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
from models.export.onnx.write import onnx_bytes
from models.export.quiet import quiet
from models.export.torchscript.code import check_code
from models.export.torchscript.write import torchscript_bytes
from models.export.writer import Writer
from models.head_registry import HEADS
from models.loading import load_backend
from models.tables.read import read_table
from tests.support.anchor_free import FAMILY
from tests.support.exporting import NAMES, lively_detector, one_level, short_table, tracing_cache

pytestmark = pytest.mark.usefixtures("onnx_functions")

CPU = torch.device("cpu")
TABLES = Path(__file__).parents[2] / "tables"
EVERY_LAYER = TABLES / "every_layer.yaml"
GROUPED = TABLES / "grouped.yaml"
SIZES = TABLES / "sizes.yaml"
NMS = Suppression(0.3, 0.45, 20, False)
FIXED = {"canvas": (64, 64), "batch_size": 2}  # traced in a fifth of the time of free dimensions


def two_levels(head: str, *arguments: object) -> dict[str, Any]:
    """The table of `one_level` with the map of its first convolution as another level."""
    table = one_level(head, *arguments)
    table["head"][0][0] = [0, 1]
    return table


# Tables, non-maximum suppression, and fixed dimensions of the files other than TorchScript.
# Suppression takes the boxes and scores of any graph. What reads the size of a map is exported for
# any size: the layers and DualDistanceDetect here, Detect by test_exported_files.py. All heads read
# it in `grid_cells`.
GRAPHS: dict[str, tuple[dict[str, Any], Suppression | None, dict[str, Any]]] = {
    "every layer, DecoupledDetect": (read_table(EVERY_LAYER), None, FIXED),
    "layers that read sizes, DualDistanceDetect": (read_table(SIZES), NMS, {}),
    "DistanceDetect": (two_levels("DistanceDetect", "nc", 1), NMS, FIXED),
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


@cache
def wide_detector() -> Detector:
    """A detector of one level whose weights are most of its files."""
    return fused(short_table() | {"width_multiple": 1.0})


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


@pytest.fixture(scope="module", autouse=True)
def _onnx_once(onnx_functions: None) -> Iterator[None]:
    """A detector is traced once for files in 32 and in 8 bits, if their other metadata agree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.export.source.onnx_bytes", cache(onnx_bytes))
        yield


@pytest.fixture
def _anchor_free(monkeypatch):
    monkeypatch.setitem(HEADS, "AnchorFree", FAMILY)


@pytest.mark.slow
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
@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs_are_exported_to_torchscript(graph, tmp_path):
    _, nms, _ = GRAPHS[graph]
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
    with tracing_cache(enabled=bool(fields)):
        for name in ("onnx", "openvino"):
            assert_like_torch(written, name, tmp_path)


def assert_all_formats_are_like_torch(detector: Detector, folder: Path) -> None:
    written = writer_of(detector.fuse().requires_grad_(False), **FIXED)
    for name in ("torchscript", "onnx", "openvino"):
        assert_like_torch(written, name, folder)


@pytest.mark.slow
def test_backbones_of_torchvision_are_exported_to_all_formats(tmp_path):
    """As one graph, up to stride 4: their later stages have no other kind of module."""
    # mobilenet_v3_small is one of every layer, above.
    names = ("resnet18", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny")
    rows: list[list[Any]] = [[-1, 1, "nn.Upsample", [None, 1, "nearest"]]]  # 0: the images
    for name in names:
        rows += [
            [0, 1, "TorchvisionBackbone", [name, [4]]],
            [-1, 1, "Level", [0]],
            [-1, 1, "nn.Conv2d", [64]],
        ]
    last_rows = list(range(3, len(rows), 3))
    table = one_level("DistanceDetect", "nc", 1)
    table["backbone"] = rows
    table["head"] = [[last_rows, 1, "Concat", [1]], [[len(rows)], 1, "DistanceDetect", ["nc", 1]]]

    # Of random weights some have values of 1e-4: each must count in the boxes and scores.
    detector = lively_detector(table)
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for row in last_rows:
            backbone, level, convolution = detector.layers[row - 2 : row + 1]
            convolution.conv.weight.div_(level(backbone(images)).std())
    assert_all_formats_are_like_torch(detector, tmp_path)


@pytest.mark.slow
def test_backbone_of_timm_is_exported_to_all_formats(tmp_path):
    pytest.importorskip("timm", reason="an optional package")
    table = one_level("DistanceDetect", "nc", 1)
    name = "test_efficientnet"  # timm's smallest, which has no part of a network
    table["backbone"] = [[-1, 1, "TimmBackbone", [name, [32]]], [-1, 1, "Level", [0]]]
    detector = lively_detector(table)
    activated = [
        part for part in detector.modules() if isinstance(getattr(part, "act", None), nn.SiLU)
    ]
    activated[0].act = nn.ReLU6(inplace=True)  # as in efficientnet_lite0, which is large
    assert_all_formats_are_like_torch(detector, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [17, 20])
def test_onnx_has_the_opset_and_no_trace_of_this_machine(opset, tmp_path):
    """torch traces for opset 18, and converts the graph to a lower or higher one."""
    onnx = pytest.importorskip("onnx", reason="an optional package")
    given = writer_of(wide_detector(), nms=NMS, canvas=(64, 64), batch_size=1)
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


def test_halved_detector_keeps_its_buffers_and_halves_its_bytes():
    export = writer_of(wide_detector()).reference
    whole = len(torchscript_bytes(export))
    detector = halve(deepcopy(export.detector))
    assert {p.dtype for p in detector.parameters()} == {torch.float16}
    assert {b.dtype for b in detector.buffers()} == {torch.float32}
    assert (
        len(torchscript_bytes(Export(detector, replace(export.model, precision="fp16"))))
        < 0.6 * whole
    )


@pytest.fixture(scope="module")
def wide_writers():
    """Writers in 32 and 16 bits."""
    precisions = ("fp32", "fp16")
    return [writer_of(wide_detector(), precision=precision, **FIXED) for precision in precisions]


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
    return writer_of(wide_detector(), nms=nms, precision="int8", **fixed)


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
