"""TorchScript, ONNX and OpenVINO files: they predict what torch does, in threads too, and are
refused if damaged.
"""

import json
import os
import re
import shutil
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from models.backends.in_torch import TorchBackend
from models.export import FORMATS
from models.export.exported import ExportedBackend
from models.export.openvino import run as openvino_runtime
from models.export.openvino.read import read_openvino
from models.export.openvino.write import openvino_digest
from models.export.quiet import quiet
from models.export.torchscript.read import read_entries
from models.export.torchscript.write import METADATA, packed
from models.loading import fixed_settings_notes, load_backend
from models.nms import non_max_suppression
from tests.support.exporting import DYNAMIC, FIXED, NAMES, SIZE, WITH_NMS, installed
from tests.support.fuzzing import mutate, result_or_error
from tests.support.own_process import run_program

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
each_format = pytest.mark.parametrize("name", FORMATS)


def pictures(count, height=SIZE, width=SIZE):
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def assert_predicts_like_torch(backend, exports, images):
    expected = TorchBackend(exports.detector).predict(images)
    found = backend.predict(
        images.contiguous(memory_format=torch.channels_last)
    )  # as to_device returns images
    torch.testing.assert_close(found.boxes_xyxy, expected.boxes_xyxy, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=1e-4)
    assert expected.scores.max() > 0.3


@pytest.mark.slow
@each_format
@torch.inference_mode()
def test_fixed_file_predicts_like_torch(name, exports):
    loaded = load_backend(exports(name, *FIXED), CPU)
    assert (loaded.names, loaded.image_size, loaded.data, loaded.single_class) == (
        tuple(NAMES),
        SIZE,
        "",
        False,
    )
    assert len(loaded.digest) == 8
    assert (loaded.backend.canvas, loaded.backend.stride, loaded.backend.min_confidence) == (
        (SIZE, SIZE),
        32,
        0,
    )
    for count in (1, 2, 3):
        assert_predicts_like_torch(loaded.backend, exports, pictures(count))


@pytest.mark.slow
@each_format
@torch.inference_mode()
def test_dynamic_file_predicts_like_torch_at_any_size(name, exports):
    backend = load_backend(exports(name, *DYNAMIC), CPU).backend
    assert backend.canvas is None
    for count, height, width in ((1, 64, 64), (3, 32, 96), (2, 96, 32), (1, 32, 32)):
        assert_predicts_like_torch(backend, exports, pictures(count, height, width))


@pytest.mark.slow
@each_format
@torch.inference_mode()
def test_file_with_suppression_finds_what_nms_finds(name, exports):
    backend = load_backend(exports(name, *WITH_NMS), CPU).backend
    assert backend.min_confidence == 0.3
    images = pictures(3)
    limits = {"confidence": 0.3, "iou": 0.45, "multi_label": False, "max_detections": 20}
    expected = non_max_suppression(*TorchBackend(exports.detector).predict(images)[:2], **limits)
    predicted = backend.predict(images)
    assert predicted.boxes_xyxy.shape == (3, 20, 4)
    found = non_max_suppression(
        *predicted[:2], **limits | {"confidence": 0.001, "multi_label": True}
    )
    assert min(map(len, expected)) > 2
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-3)
    for settings in (
        {"confidence": 0.001, "multi_label": False},
        {"confidence": 0.3, "multi_label": True},
    ):
        suppression, canvas = fixed_settings_notes(backend, **settings)
        assert "with one class per box and scores above 0.3; lower" in suppression
        assert "a canvas of 64 x 64, a checkpoint" in canvas
    assert fixed_settings_notes(backend, 0.3, multi_label=False) == [canvas]


@pytest.mark.slow
@pytest.mark.skipif(
    int(cv2.__version__.split(".")[0]) < 5, reason="OpenCV 4 has no NonMaxSuppression"
)
@pytest.mark.parametrize("flags", [FIXED, WITH_NMS])
def test_onnx_file_runs_in_opencv(flags, exports):
    path, images = exports("onnx", *flags), pictures(2)
    model = load_backend(path, CPU).backend.model
    net = cv2.dnn.readNetFromONNX(str(path))
    net.setInput(images.numpy())
    found = [torch.from_numpy(values) for values in net.forward(list(model.outputs))]
    expected = load_backend(path, CPU).backend.run(images)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-3)
    assert (found[0] != 0).any()


@pytest.mark.parametrize("shares", [1, 3])
@each_format
def test_threads_share_a_backend(name, shares, exports):
    backend = load_backend(exports(name, *FIXED), CPU, threads=shares).backend
    assert backend.threads == shares
    images = [pictures(2) * shade for shade in (0.2, 0.5, 1.0)]
    # In a thread, too: torch may use more cores in the main one, and round differently there.
    with ThreadPoolExecutor(1) as one_thread:
        expected = list(one_thread.map(backend.predict, images))
    wrong: list[int] = []

    def repeat(index):
        for _ in range(10):
            found = backend.predict(images[index])
            if not (
                found.boxes_xyxy.equal(expected[index].boxes_xyxy)
                and found.scores.equal(expected[index].scores)
            ):
                wrong.append(index)

    threads = [threading.Thread(target=repeat, args=(index % 3,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


TWO_THREADS = """
import os, sys, threading, torch
from pathlib import Path
from models.loading import load_backend

def predict(backend, start):
    start.wait()
    backend.predict(torch.zeros(2, 3, int(sys.argv[1]), int(sys.argv[1])))

def run(path):
    sys.setswitchinterval(1e-6)  # a deadlock needs threads that take turns at the wrong moment
    backend = load_backend(path, torch.device("cpu"), threads=2).backend
    start = threading.Barrier(2)
    threads = [threading.Thread(target=predict, args=(backend, start), daemon=True) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    print("waiting" if any(thread.is_alive() for thread in threads) else "done", flush=True)
    os._exit(0)

for path in sys.argv[2:]:
    if os.fork() == 0:  # a process whose first calls are those of this file
        run(Path(path))
    os.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_first_calls_of_two_threads_end(exports, tmp_path):
    names = installed(*FORMATS)
    files = [str(exports(name, *FIXED)) for name in names]
    done = run_program(TWO_THREADS, SIZE, *files, folder=tmp_path, seconds=240)
    assert done.stdout == "done\n" * len(names), done.stderr


@pytest.mark.parametrize(("threads", "pool", "cores"), [(1, 4, 4), (2, 3, 4), (3, 2, 4), (8, 1, 8)])
def test_threads_use_all_cores_together(threads, pool, cores, exports, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    onnx = load_backend(exports("onnx", *FIXED), CPU, threads=threads).backend
    assert onnx._session.get_session_options().intra_op_num_threads == pool  # callers work too
    given = openvino_runtime.settings(threads, half=True)
    assert given == {"NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": cores}


def test_openvino_folder_is_named_by_its_xml_too(exports):
    folder = exports("openvino", *FIXED)
    loaded = load_backend(folder / "m.xml", CPU)
    assert isinstance(loaded.backend, ExportedBackend)
    assert loaded.digest == load_backend(folder, CPU).digest


# ---------------------------------------------------------------------- damaged and hostile files


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        load_backend(path, CPU)
    message = str(caught.value)
    assert message.startswith(
        str(path.parent) if path.is_dir() or path.suffix in (".xml", ".bin") else str(path)
    )
    assert message.isprintable()
    return message


@pytest.mark.parametrize("name", ["torchscript", "onnx"])
def test_damaged_files_are_refused_or_unchanged_in_meaning(name, exports, tmp_path):
    """200 mutations. A file that still loads differs only where it does not matter, and predicts
    the same.
    """
    whole, random = exports(name, *FIXED), np.random.default_rng(0)
    content, file = whole.read_bytes(), tmp_path / whole.name
    images, expected = pictures(1), load_backend(whole, CPU).backend.predict(pictures(1))
    refused = 0
    for _ in range(200):
        file.write_bytes(mutate(content, random, [b"\0" * 8, b"\xff" * 8, b"PK\x01\x02"]))
        found = result_or_error(lambda: load_backend(file, CPU), file)
        if isinstance(found, str):
            refused += 1
        else:
            assert found.backend.predict(images).scores.equal(expected.scores)
    assert refused > 150


def test_damaged_openvino_files_are_refused(exports, tmp_path):
    whole, random = exports("openvino", *FIXED), np.random.default_rng(0)
    model = read_openvino(whole).model
    folder = tmp_path / "m_openvino_model"
    shutil.copytree(whole, folder)
    for number in range(200):
        name = ("m.xml", "m.bin", "metadata.json")[number % 3]
        changed = mutate(
            (whole / name).read_bytes(), random, [b"&a;", b"<!ENTITY a 'b'>", b'"', b"<"]
        )
        (folder / name).write_bytes(changed)
        if changed != (whole / name).read_bytes():
            found = result_or_error(lambda: read_openvino(folder).model, folder)
            assert isinstance(found, str) or found == model, name  # equal: a space was inserted
        shutil.copy(whole / name, folder / name)


@each_format
def test_random_empty_and_missing_files_are_refused(name, exports, tmp_path):
    random = np.random.default_rng(0)
    path = tmp_path / exports(name, *FIXED).name
    assert "no such" in refusal(path).lower()
    if name == "openvino":
        path.mkdir()
        assert "has 0 .xml files" in refusal(path)
        return
    for content in (b"", b"\0" * 100, random.bytes(1000), b"PK\x03\x04" + random.bytes(100)):
        path.write_bytes(content)
        refusal(path)
    path.unlink()
    path.mkdir()
    if name == "onnx":
        assert "is not a regular file" in refusal(path)


def test_onnx_file_names_all_missing_packages(tmp_path, monkeypatch):
    for package in ("onnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ValueError,
        match="an ONNX file needs the packages onnx and onnxruntime: pip install onnx onnx",
    ):
        load_backend(tmp_path / "m.onnx", CPU)


@pytest.fixture
def onnx_file(exports, tmp_path):
    """A copy of an ONNX file, and a function that changes it, with a correct checksum again."""
    onnx = pytest.importorskip("onnx", reason="an optional package")
    from models.export.onnx.read import read_onnx
    from models.export.onnx.write import with_metadata

    whole, path = exports("onnx", *FIXED), tmp_path / "m.onnx"

    def change(edit):
        proto = onnx.ModelProto.FromString(whole.read_bytes())
        edit(proto)
        path.write_bytes(with_metadata(proto, read_onnx(whole)[1]))
        return path

    return change


def test_onnx_with_external_data_is_refused_and_nothing_is_opened(onnx_file, tmp_path):
    secret = tmp_path.parent / "secret.bin"
    secret.write_bytes(bytes(1 << 16))

    def external(tensor):
        tensor.ClearField("raw_data")
        tensor.data_location = 1
        tensor.external_data.add(key="location", value="../secret.bin")

    path = onnx_file(lambda proto: external(proto.graph.initializer[0]))
    assert "it keeps tensors in other files" in refusal(path)

    def in_attribute(proto):
        node = proto.graph.node.add(op_type="Constant", output=["more"])
        tensor = node.attribute.add(name="value", type=4).t
        tensor.data_type = 1
        external(tensor)

    assert "it keeps tensors in other files" in refusal(onnx_file(in_attribute))


def test_onnx_with_other_operators_or_graphs_is_refused(onnx_file):
    def foreign(proto):
        proto.graph.node[0].domain = "com.microsoft"

    assert "operators of the domain 'com.microsoft'" in refusal(onnx_file(foreign))
    assert "of the domain 'evil\\n'" in refusal(
        onnx_file(lambda proto: proto.opset_import.add(domain="evil\n", version=1))
    )

    def nested(proto):
        proto.graph.node.add(op_type="If").attribute.add(
            name="then_branch", type=5
        ).g.name = "inner"

    assert "its operator If has a nested graph" in refusal(onnx_file(nested))
    assert "it has functions" in refusal(onnx_file(lambda proto: proto.functions.add(name="f")))

    def broken(proto):
        proto.graph.node[0].op_type = "NoSuchOperator"

    assert "onnxruntime cannot load it" in refusal(onnx_file(broken))


def other_value(value):
    """Return another value of the same type, which the metadata may have."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return value[::-1] if value != value[::-1] else [2 * each for each in value]
    if isinstance(value, dict | None):  # of the suppression
        return {"confidence": 0.31, "iou": 0.45, "max_detections": 20, "agnostic": False}
    return f"{value}0" if isinstance(value, str) else 2 * value or 0.5


def with_each_entry_changed(text):
    """Yield the JSON of the metadata with one entry changed, and the entry."""
    values = json.loads(text)
    for key in values.keys() - {"format", "input", "outputs"}:
        other = {"precision": "fp16", "tile": 32}.get(key, other_value(values[key]))
        yield key, json.dumps(values | {key: other})


def test_changed_onnx_is_refused_whatever_was_changed(exports, tmp_path):
    """A number of each weight, an attribute of each node, each entry of the metadata, and more."""
    onnx = pytest.importorskip("onnx")
    content, path = exports("onnx", *FIXED).read_bytes(), tmp_path / "m.onnx"

    def refused(change):
        proto = onnx.ModelProto.FromString(content)
        change(proto)
        path.write_bytes(proto.SerializeToString())
        message = refusal(path)
        return "does not match its checksum" in message or "changed after the export" in message

    def flip(tensor):
        raw = bytearray(tensor.raw_data)
        raw[0] ^= 1
        tensor.raw_data = bytes(raw)

    whole = onnx.ModelProto.FromString(content)
    for index in range(len(whole.graph.initializer)):
        assert refused(lambda proto, index=index: flip(proto.graph.initializer[index]))
    for index, node in enumerate(whole.graph.node):
        if node.attribute:
            assert refused(lambda proto, index=index: proto.graph.node[index].attribute.pop())
    for key, text in with_each_entry_changed(whole.metadata_props[0].value):
        assert refused(lambda proto, text=text: setattr(proto.metadata_props[0], "value", text)), (
            key
        )
    assert refused(lambda proto: proto.metadata_props.add(key="author", value="x"))
    assert refused(lambda proto: setattr(proto, "producer_name", "x"))
    assert refused(lambda proto: setattr(proto.opset_import[0], "version", 18))


def test_changed_openvino_folder_is_refused_whatever_was_changed(exports, tmp_path):
    whole, folder = exports("openvino", *FIXED), tmp_path / "m_openvino_model"
    shutil.copytree(whole, folder)

    def refused(name, content):
        (folder / name).write_bytes(content)
        message = refusal(folder)
        shutil.copy(whole / name, folder / name)
        return "do not match the checksum in metadata.json" in message

    weights, graph = (bytearray((whole / name).read_bytes()) for name in ("m.bin", "m.xml"))
    for position in range(0, len(weights), len(weights) // 50):
        changed = weights.copy()
        changed[position] ^= 1
        assert refused("m.bin", changed)
    assert refused("m.bin", weights + b"\0")
    for position in [match.start() for match in re.finditer(rb'strides="1,1"', graph)]:
        assert refused("m.xml", graph[:position] + graph[position:].replace(b"1,1", b"2,2", 1))
    for key, text in with_each_entry_changed((whole / "metadata.json").read_text()):
        assert refused("metadata.json", text.encode()), key


def test_onnx_of_another_program_is_refused(onnx_file):
    path = onnx_file(lambda proto: None)
    onnx = pytest.importorskip("onnx")
    proto = onnx.ModelProto.FromString(path.read_bytes())
    del proto.metadata_props[:]
    path.write_bytes(proto.SerializeToString())
    assert "has no metadata of Kestrel: export the checkpoint with export.py" in refusal(path)


@pytest.fixture
def openvino_folder(exports, tmp_path):
    """Changes the graph's text in a copy of an OpenVINO folder, with a correct checksum again."""
    whole, folder = exports("openvino", *FIXED), tmp_path / "m_openvino_model"

    def change(old, new):
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        graph = (whole / "m.xml").read_bytes()
        assert old in graph
        changed, weights = graph.replace(old, new, 1), (whole / "m.bin").read_bytes()
        (folder / "m.xml").write_bytes(changed)
        model = read_openvino(whole).model.sealed(openvino_digest(changed, weights))
        (folder / "metadata.json").write_text(model.to_json())
        return folder

    return change


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            b"<net ",
            b'<!DOCTYPE net [<!ENTITY a SYSTEM "file:///etc/passwd">]><net ',
            "document type",
        ),
        (b"<net ", b"<?php x?><net ", "processing instructions"),
        (b"<layers>", b"<layers>&a;", "undefined entity"),
        (b"<layers>", b'<layers><include href="/etc/passwd"/>', "it has an element include"),
        (b'type="Convolution"', b'type="Loop"', "it has a layer Loop"),
        (
            b'type="Convolution" version="opset1"',
            b'type="Mine" version="extension"',
            "not one of OpenVINO's own",
        ),
        (b'offset="0"', b'offset="99999999999"', "a constant reaches outside the .bin file"),
        (b'offset="0"', b'offset="-1"', "a constant has no offset and size"),
        (
            b"<rt_info>",
            b'<rt_info><weightless_cache_attribute bin_offset="1"/>',
            "it names other weights",
        ),
        (b'type="Convolution"', b'type="NoSuchOperator"', "OpenVINO cannot load it"),
        (b"</net>", b"", "no element found"),
    ],
)
def test_hostile_openvino_graphs_are_refused(openvino_folder, old, new, reason):
    assert reason in refusal(openvino_folder(old, new))


@pytest.fixture
def torchscript_file(exports, tmp_path):
    """A TorchScript file with some entries replaced or added."""

    def change(**entries):
        path = tmp_path / "m.torchscript"
        with (
            zipfile.ZipFile(exports("torchscript", *FIXED)) as old,
            zipfile.ZipFile(path, "w") as new,
        ):
            for info in old.infolist():
                name = info.filename.partition("/")[2]
                key = (
                    "code"
                    if name.startswith("code/") and name.endswith(".py")
                    else name.replace(".pkl", "")
                )
                edit = entries.pop(key, None)
                new.writestr(
                    zipfile.ZipInfo(info.filename), edit(old.read(info)) if edit else old.read(info)
                )
            for name, content in entries.items():
                new.writestr(zipfile.ZipInfo(f"m/{name}"), content)
        return path

    return change


def test_unchanged_rewritten_torchscript_loads(torchscript_file):
    assert load_backend(torchscript_file(), CPU).backend.num_classes == len(NAMES)


def test_hostile_torchscript_is_refused(torchscript_file, tmp_path):
    def calling(code):
        return code.replace(b"    return", b'    _9 = torch.save(images, "stolen")\n    return', 1)

    assert "its code calls torch.save" in refusal(torchscript_file(code=calling))
    assert "it has an entry m/code/other.txt" in refusal(
        torchscript_file(**{"code/other.txt": b"x"})
    )
    assert "it has no code, or too much" in refusal(
        torchscript_file(**{"code/__torch__/more.py": b"class A: pass"})
    )

    def importing(pickled):
        return b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R."

    assert "it names os.system" in refusal(torchscript_file(data=importing))
    other = b"\x80\x02c__torch__\nOther\n)\x81."
    assert "it builds a __torch__.Other" in refusal(torchscript_file(data=lambda _: other))
    assert not (tmp_path / "stolen").exists()


def test_torchscript_tensors_outside_their_storage_are_refused(torchscript_file):
    path = torchscript_file(**{"constants/0": lambda content: content[:-4]})
    assert "one of its tensors has another size than its storage" in refusal(path)


@pytest.mark.slow
def test_changed_torchscript_is_refused_whatever_was_changed(exports, tmp_path):
    """One byte of each entry, two constants exchanged, a number in the code, each entry of the
    metadata.
    """
    path = tmp_path / "m.torchscript"
    entries = read_entries(exports("torchscript", *WITH_NMS))

    def refused(**changed):
        path.write_bytes(packed(entries | changed))
        refusal(path)

    path.write_bytes(packed(dict(reversed(entries.items()))))
    assert load_backend(path, CPU).backend.num_classes == len(NAMES)  # the order does not matter
    for name, content in entries.items():
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        refused(**{name: bytes(changed)})
        if name.startswith("constants/"):
            assert "does not match its checksum" in refusal(path)

    constants = {
        name: content for name, content in entries.items() if name.startswith("constants/")
    }
    one, other = next(
        (one, other)
        for one, other in combinations(constants, 2)
        if len(constants[one]) == len(constants[other]) and constants[one] != constants[other]
    )
    refused(**{one: entries[other], other: entries[one]})
    code = next(name for name in entries if name.startswith("code/"))
    assert b"0.45" in entries[code]
    refused(**{code: entries[code].replace(b"0.45", b"0.65")})
    assert "does not match its checksum" in refusal(path)
    for key, text in with_each_entry_changed(entries[METADATA]):
        refused(**{METADATA: text.encode()})
        assert "checksum" in refusal(path), key


def test_torchscript_of_older_versions_says_what_to_do(exports, tmp_path):
    """They had no checksum, but the files of torch.jit.save that nobody needs."""
    entries = read_entries(exports("torchscript", *FIXED))
    values = json.loads(entries[METADATA])
    former = entries | {
        ".data/serialization_id": b"1",
        METADATA: json.dumps(values | {"payload": ""}).encode(),
    }
    path = tmp_path / "m.torchscript"
    path.write_bytes(packed(former))
    assert refusal(path).endswith(
        "has no checksum, an older Kestrel exported it: export the checkpoint again"
    )
    path.write_bytes(packed(former | {METADATA: entries[METADATA]}))
    assert "it has an entry .data/serialization_id" in refusal(path)


def test_torchscript_does_not_name_files_of_this_machine(exports):
    entries = read_entries(exports("torchscript", *FIXED))
    assert not any(str(ROOT).encode() in content for content in entries.values())
    assert not any(name.endswith(".debug_pkl") for name in entries)


def test_compressed_torchscript_tensors_are_refused(exports, tmp_path):
    path = tmp_path / "m.torchscript"
    with (
        zipfile.ZipFile(exports("torchscript", *FIXED)) as old,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    assert "its entries are compressed" in refusal(path)


def test_torchscript_of_another_program_is_refused(tmp_path):
    with quiet():
        torch.jit.script(torch.nn.Identity()).save(str(tmp_path / "m.torchscript"))
    assert "has no metadata of Kestrel" in refusal(tmp_path / "m.torchscript")
