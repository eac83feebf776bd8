"""Files of torch.save that are no zips: the same content as zips; hostile ones are refused."""

import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.saved_files import MACHINE, header_pickles
from utils.files.pickled import (
    PickledObject,
    PickleReader,
    TensorReader,
    is_tensor,
    legacy_layout,
    mapping_entries,
    open_saved,
    read_plain,
)
from utils.files.pickled.legacy_layout import MAGIC

HUGE = 1 << 62
TWO = {"a": torch.arange(3.0), "b": torch.arange(4)}  # storages of 12 and 32 bytes


def save(path: Path, value: Any, *, zipped: bool = False) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


def read(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file that holds a dict of them."""
    with open_saved(path) as saved:
        content = mapping_entries(saved.unpickled())
        reader = TensorReader(saved)
        return {key: reader.tensor(value) for key, value in content.items() if is_tensor(value)}


def parts_of(path: Path) -> list[bytes]:
    """Return the five pickles of a file, and its storages with their counts."""
    content = path.read_bytes()
    parts = []
    start = 0
    for _ in range(5):
        ends = [end for end in range(start, len(content)) if content[end : end + 1] == b"."]
        end = next(end for end in ends if is_pickle(content[start : end + 1]))
        parts.append(content[start : end + 1])
        start = end + 1
    return [*parts, content[start:]]


def is_pickle(content: bytes) -> bool:
    try:
        PickleReader().run(content)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------------- what torch writes


def test_tensors_of_both_layouts_are_equal(tmp_path):
    shared = torch.arange(12.0)
    tensors = {
        "shared": shared,
        "part": shared[2:5],
        "transposed": torch.arange(6).reshape(2, 3).T,
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(7),
        "half": torch.tensor([0.5, -2]).half(),
        "bfloat": torch.tensor([0.5, -2]).bfloat16(),
        "double": torch.tensor([0.1], dtype=torch.float64),
        "bool": torch.tensor([True, False]),
        "byte": torch.tensor([255], dtype=torch.uint8),
    }
    legacy = read(save(tmp_path / "a.pth", tensors))
    zipped = read(save(tmp_path / "b.pth", tensors, zipped=True))
    assert legacy.keys() == zipped.keys() == tensors.keys()
    for key, value in tensors.items():
        assert legacy[key].equal(value)
        assert zipped[key].equal(value)
        assert legacy[key].dtype is value.dtype


@pytest.mark.parametrize("value", [{}, [], None, {"x": 1}, [1.5, ("a", None)]])
def test_values_without_tensors_are_read(tmp_path, value):
    with open_saved(save(tmp_path / "a.pth", value)) as saved:
        assert saved.unpickled() == value


def test_own_checkpoints_must_be_zips(tmp_path):
    with pytest.raises(ValueError, match=r"it is not a zip file of torch\.save"):
        read_plain(save(tmp_path / "a.pth", TWO))


def test_getattr_is_a_record_and_not_plain(tmp_path):
    """getattr(Tensor, "mean") as mmengine's histories have it: recorded, and nothing called."""
    content = {"mean": torch.Tensor([1.0]).mean, "x": torch.zeros(1)}
    with open_saved(save(tmp_path / "a.pth", content)) as saved:
        found = saved.unpickled()["mean"]
    assert isinstance(found, PickledObject)
    assert found.kind == "builtins.getattr"
    assert found.args[1] == "mean"
    with pytest.raises(ValueError, match=r"other than tensors and plain values: builtins\.getattr"):
        read_plain(save(tmp_path / "b.pth", content, zipped=True))


# ---------------------------------------------------------------------------- damaged and hostile


@pytest.fixture
def memory_limit() -> Iterator[None]:
    """The test's peak of Python memory must stay below 24 MiB."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def storages(*counted: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack("<q", count) + values for count, values in counted)


FLOATS = np.arange(3, dtype="<f4").tobytes()
WHOLE = np.arange(4, dtype="<i8").tobytes()
NOT_ONCE = "its list of storages does not name each of them once"
CLAIMS = "it is truncated, or claims more values than it has"


def pickled(value: Any) -> bytes:
    return pickle.dumps(value, 2)


@pytest.mark.parametrize(
    ("number", "part", "reason"),
    [
        (1, pickled(1000), "its layout is not version 1001"),
        (1, pickled(True), "its layout is not version 1001"),
        (1, pickled("1001"), "its layout is not version 1001"),
        (2, pickled(MACHINE | {"little_endian": False}), "its numbers are not little-endian"),
        (2, pickled(MACHINE | {"little_endian": 1}), "its numbers are not little-endian"),
        (2, pickled({}), "its numbers are not little-endian"),
        (2, pickled(7), "its numbers are not little-endian"),
        (4, pickled(["0", "0"]), NOT_ONCE),
        (4, pickled(["0"]), NOT_ONCE),
        (4, pickled([]), NOT_ONCE),
        (4, pickled(["0", "1", "2"]), NOT_ONCE),
        (4, pickled(["0", 1]), NOT_ONCE),
        (4, pickled(("0", "1")), NOT_ONCE),
        (4, pickled({"0": 0, "1": 1}), NOT_ONCE),
        (4, pickled("01"), NOT_ONCE),
        (4, pickled([["0"], "1"]), NOT_ONCE),
        (5, storages((4, FLOATS), (4, WHOLE)), "its storage 0 has 4 values for 3"),
        (5, storages((-3, FLOATS), (4, WHOLE)), "its storage 0 has -3 values for 3"),
        (5, storages((HUGE, FLOATS), (4, WHOLE)), f"its storage 0 has {HUGE} values for 3"),
        (5, storages((3, FLOATS), (0, WHOLE)), "its storage 1 has 0 values for 4"),
        (5, storages((3, FLOATS), (4, WHOLE)) + b"\0", "it has content after its last storage"),
        (5, storages((3, FLOATS), (4, WHOLE), (0, b"")), "it has content after its last storage"),
        (5, storages((3, FLOATS), (4, WHOLE[:-1])), CLAIMS),
        (5, storages((3, FLOATS)), CLAIMS),
        (5, b"", CLAIMS),
    ],
)
def test_deviations_from_the_layout_are_refused(tmp_path, memory_limit, number, part, reason):
    parts = legacy_parts()
    parts[number] = part
    (tmp_path / "b.pth").write_bytes(b"".join(parts))
    with pytest.raises(ValueError, match=reason):
        read(tmp_path / "b.pth")


def legacy_parts(*references: bytes) -> list[bytes]:
    """Return the parts of a file with the tensors of TWO on the storages 0 and 1."""
    first, second = references or (reference("FloatStorage", "0", 3), reference("Long", "1", 4))
    tensors = b"\x80\x02}(" + text("a") + tensor(first, 3) + text("b") + tensor(second, 4) + b"u."
    keys = pickled(["0", "1"])
    return [*header_pickles(), tensors, keys, storages((3, FLOATS), (4, WHOLE))]


def reference(kind: str, key: str, count: int, *, end: bytes = b"N") -> bytes:
    """Return the opcodes of the six parts that refer to a storage."""
    name = kind if kind.endswith("Storage") else f"{kind}Storage"
    storage = b"(" + text("storage") + f"ctorch\n{name}\n".encode() + text(key) + text("cpu")
    return storage + b"\x8a\x08" + struct.pack("<q", count) + end + b"tQ"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def tensor(storage: bytes, count: int) -> bytes:
    """Return the opcodes of a tensor of one dimension on a storage."""
    size = b"K" + bytes([count]) + b"\x85K\x01\x85"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + size + b"\x89NtR"


FLOAT_0 = reference("Float", "0", 3)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (reference("Long", "1", 4), ""),
        (reference("Long", "1", 4, end=b""), ""),  # five parts, as in zips
        (reference("Long", "1", 4, end=b"K\0"), "a storage that is a part of another one"),
        (reference("Long", "1", 4, end=b"NN"), "it has an invalid storage reference"),
        (reference("Long", "1", -1), "it has an invalid storage reference"),
        (reference("Long", "1", HUGE), CLAIMS),
        (reference("Long", "0", 3), "one of its storages has two types or sizes"),
        (reference("Float", "0", 4), "one of its storages has two types or sizes"),
        (reference("Complex", "1", 4), "it has tensors of torch.ComplexStorage, which is unknown"),
        (reference("Float", "1", 8), "its storage 1 has 4 values for 8"),
    ],
)
def test_references_that_do_not_fit_are_refused(tmp_path, memory_limit, second, reason):
    (tmp_path / "a.pth").write_bytes(b"".join(legacy_parts(FLOAT_0, second)))
    if not reason:
        found = read(tmp_path / "a.pth")
        assert found["a"].tolist() == [0, 1, 2]
        assert found["b"].tolist() == [0, 1, 2, 3]
        return
    with pytest.raises(ValueError, match=reason):
        read(tmp_path / "a.pth")


@pytest.mark.parametrize("missing", range(5))
def test_five_pickles_are_needed(tmp_path, missing):
    parts = parts_of(save(tmp_path / "a.pth", TWO))
    assert parts[:3] == header_pickles()[:2] + [parts[2]]
    del parts[missing]
    (tmp_path / "b.pth").write_bytes(b"".join(parts))
    with pytest.raises(ValueError):
        read(tmp_path / "b.pth")


def test_truncated_files_are_refused(tmp_path):
    content = save(tmp_path / "a.pth", TWO).read_bytes()
    path = tmp_path / "b.pth"
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError):
            read(path)


def test_changed_bytes_raise_only_value_error(tmp_path):
    """Random bytes anywhere: the file is read, or refused by ValueError, but by no other error."""
    random = np.random.default_rng(0)
    content = save(tmp_path / "a.pth", TWO).read_bytes()
    path = tmp_path / "b.pth"
    refused = 0
    for _ in range(150):
        noisy = bytearray(content)
        for index in random.integers(0, len(noisy), random.integers(1, 4)):
            noisy[index] = random.integers(256)
        path.write_bytes(noisy)
        try:
            read(path)
        except ValueError:
            refused += 1
    assert refused > 50


def test_pickles_without_end_are_refused(tmp_path, memory_limit, monkeypatch):
    """A gigabyte after the magic number: zeros, texts and lines that claim all of it."""
    size = 1 << 30
    starts = {
        b"": "opcode b'.x00' unknown",
        b"\x80\x02X\xff\xff\xff\x7f": "its pickles have more than 67108864 bytes",
        b"\x80\x02\x8d" + struct.pack("<Q", HUGE): "its pickles have more than 67108864 bytes",
        b"\x80\x02\x8b\xff\xff\xff\x7f": "its pickles have more than 67108864 bytes",
    }
    path = tmp_path / "a.pth"
    for start, reason in starts.items():
        write_sparse(path, MAGIC + start, size)
        with pytest.raises(ValueError, match=reason):
            read(path)

    monkeypatch.setattr(legacy_layout, "MAX_PICKLE", 1 << 20)
    write_sparse(path, MAGIC + b"\x80\x02c", size)
    with pytest.raises(ValueError, match="its pickles have more than 1048576 bytes"):
        read(path)


def write_sparse(path: Path, start: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)


def test_header_with_many_opcodes_is_refused(tmp_path):
    content = MAGIC + b"\x80\x02" + b"Nq\0" * 501 + b"K\x01."
    (tmp_path / "a.pth").write_bytes(content)
    with pytest.raises(ValueError, match="its pickle has more than 1000 opcodes"):
        read(tmp_path / "a.pth")


def test_first_bytes_decide_on_the_layout(tmp_path):
    """As in torch.load: never the zip's directory, which is at the end of a file."""
    legacy = save(tmp_path / "a.pth", TWO).read_bytes()
    other = save(tmp_path / "b.pth", {"a": torch.zeros(1)}, zipped=True).read_bytes()

    path = tmp_path / "c.pth"
    path.write_bytes(legacy + other)
    assert zipfile.is_zipfile(path)
    with pytest.raises(ValueError, match="it has content after its last storage"):
        read(path)

    # A zip that begins with the magic number: its first pickles are missing.
    path.write_bytes(MAGIC + other)
    assert zipfile.is_zipfile(path)
    with pytest.raises(ValueError):
        read(path)

    # A zip with the older layout at its end.
    path.write_bytes(other + legacy)
    assert read(path)["a"].tolist() == [0]


def test_zip_hidden_in_a_storage_is_values(tmp_path):
    """A zip in the last storage is read as that storage's values, as torch does."""
    inner = save(tmp_path / "a.pth", {"a": torch.zeros(1)}, zipped=True).read_bytes()
    values = torch.frombuffer(bytearray(inner), dtype=torch.uint8)
    path = save(tmp_path / "b.pth", {"hidden": values})
    assert zipfile.is_zipfile(path)
    assert read(path)["hidden"].equal(values)
    assert torch.load(path, weights_only=True)["hidden"].equal(values)
