"""models/export: what the files hold, other heads and families, 16 and 8 bits."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.export import FORMATS
from models.export.compare import ReferenceBackend, compare
from models.export.graph import Export, halve
from models.export.metadata import ExportedModel, Suppression
from models.export.quiet import quiet
from models.export.torchscript.code import check_code
from models.export.torchscript.write import torchscript_bytes
from models.export.writer import Writer
from models.head_registry import HEADS
from models.loading import load_backend
from tests.support.anchor_free import FAMILY
from tests.support.exporting import NAMES, lively_detector

CPU = torch.device("cpu")
TABLES = Path(__file__).parents[2] / "tables"
OTHER_HEADS = ["anchor_free.yaml", "decoupled.yaml", "distance.yaml", "dual.yaml"]
NMS = Suppression(0.3, 0.45, 20, False)


def writer(table: str, **fields: object) -> Writer:
    detector = lively_detector(table).fuse().requires_grad_(False)
    stride = max(detector.strides)
    return Writer(detector, ExportedModel(tuple(NAMES), stride, 2 * stride, opset=17, **fields))  # type: ignore[arg-type]


def images(stride: int, *, fixed: bool = False) -> list[torch.Tensor]:
    shapes = [(2, 2, 2)] if fixed else [(1, 1, 2), (3, 3, 2), (2, 2, 2)]
    generator = torch.Generator().manual_seed(0)
    return [
        torch.rand(n, 3, rows * stride, columns * stride, generator=generator)
        for n, rows, columns in shapes
    ]


def assert_like_torch(written: Writer, name: str, folder: Path, *, fixed: bool = False) -> None:
    for package in FORMATS[name].packages:
        pytest.importorskip(package, reason="an optional package")
    backend = load_backend(written.write(name, folder / "m.pt"), CPU).backend
    found = compare(
        backend, ReferenceBackend(written.reference), images(written.model.stride, fixed=fixed)
    )
    assert found.acceptable, f"{name}: {found}"


@pytest.fixture
def _anchor_free(monkeypatch):
    monkeypatch.setitem(HEADS, "AnchorFree", FAMILY)


@pytest.mark.usefixtures("_anchor_free")
@pytest.mark.parametrize("nms", [None, NMS])
@pytest.mark.parametrize("table", OTHER_HEADS)
def test_another_head_is_exported_to_torchscript(table, nms, tmp_path):
    assert_like_torch(writer(str(TABLES / table), nms=nms), "torchscript", tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("_anchor_free")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("table", OTHER_HEADS)
def test_another_head_is_exported_to_every_format(table, name, tmp_path):
    assert_like_torch(writer(str(TABLES / table), nms=NMS), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["yolov5n6.yaml", "yolov5n-p2.yaml", "yolov3-tiny.yaml"])
def test_other_families_are_exported(table, tmp_path):
    written = writer(table)
    for name in FORMATS:
        assert_like_torch(written, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [17, 18, 20])
def test_onnx_has_the_opset_and_no_trace_of_this_machine(opset, tiny_model, tmp_path):
    onnx = pytest.importorskip("onnx", reason="an optional package")
    given = writer(tiny_model, canvas=(64, 64), batch_size=2, nms=NMS)
    written = Writer(given.reference.detector, replace(given.model, opset=opset))
    content = written.write("onnx", tmp_path / "m.pt").read_bytes()
    proto = onnx.ModelProto.FromString(content)
    onnx.checker.check_model(proto, full_check=True)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", opset)]
    assert not any(tensor.external_data for tensor in proto.graph.initializer)
    assert str(Path(__file__).parents[3]).encode() not in content
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_torchscript_is_one_function_on_the_device_of_its_images(tiny_model):
    export = writer(tiny_model, nms=NMS).reference
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_half_precision_files_are_close_and_half_as_large(name, tiny_model, tmp_path):
    fixed = {"canvas": (64, 64), "batch_size": 2}
    sizes = []
    for precision in ("fp32", "fp16"):
        written = writer(tiny_model, precision=precision, **fixed)
        assert_like_torch(written, name, tmp_path, fixed=True)
        path = tmp_path / ("m.onnx" if name == "onnx" else "m_openvino_model/m.bin")
        sizes.append(path.stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "openvino"])
@pytest.mark.parametrize("nms", [None, NMS])
def test_8_bit_files_run_and_are_close(name, nms, tiny_model, tmp_path):
    for package in (*FORMATS[name].packages, *FORMATS[name].int8_packages):
        pytest.importorskip(package, reason="an optional package")
    written = writer(tiny_model, canvas=(64, 64), batch_size=1, nms=nms, precision="int8")
    batches = [
        each[None] for each in torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    ]
    path = written.write(name, tmp_path / "m.pt", batches)
    assert path.name.startswith("m_int8")
    backend = load_backend(path, CPU).backend
    found, expected = (
        backend.predict(batches[0]),
        ReferenceBackend(written.reference).predict(batches[0]),
    )
    assert found.scores.shape == expected.scores.shape
    if nms is None:
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
