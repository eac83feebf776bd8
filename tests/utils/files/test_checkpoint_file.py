"""Checkpoints: the round trip, writes that survive a kill, and loading that executes nothing."""

import enum
import os
import pickle
import time
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.launching import fork_server
from utils.files import checkpoint_file

ROOT = Path(__file__).parents[3]
REQUIRED_ENTRIES = {"model": {}, "table": {}, "names": []}


class StrSubclass(str):
    """A subclass of str, like torch's version string."""


class Level(enum.IntEnum):
    LOW = 3


def test_checkpoint_file_round_trip(tmp_path):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(
        memory_format=torch.channels_last
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    random = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.default_rng(5).bit_generator.state,
        "mt19937": np.random.RandomState(5).get_state(),  # an array in a tuple
    }
    state = {
        "optimizer": optimizer.state_dict(),
        "random": random,
        "half": torch.rand(3).half(),
        7: [None, True, b"x"],
    }
    checkpoint_file.save(
        tmp_path / "a.pt", REQUIRED_ENTRIES | state | {"model": model.state_dict()}
    )

    loaded = checkpoint_file.load(tmp_path / "a.pt")
    assert all(value.equal(loaded["model"][key]) for key, value in model.state_dict().items())
    assert loaded["random"]["torch"].equal(random["torch"])
    generator = np.random.default_rng()
    generator.bit_generator.state = loaded["random"]["numpy"]
    assert generator.random() == np.random.default_rng(5).random()
    assert loaded["random"]["mt19937"][1] == random["mt19937"][1].tolist()
    assert loaded["half"].dtype == torch.float16
    assert loaded[7] == [None, True, b"x"]
    optimizer.load_state_dict(loaded["optimizer"])
    assert torch.load(tmp_path / "a.pt", weights_only=True).keys() == loaded.keys()
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (StrSubclass("2.11"), "2.11"),
        (torch.__version__, str(torch.__version__)),
        (Level.LOW, 3),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(-7), -7),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array(5), 5),
        (np.zeros((0, 2)), []),
        ((1, (2,)), [1, [2]]),
        (torch.Size([1, 2]), [1, 2]),
        (OrderedDict(a=np.int8(1)), {"a": 1}),
        ({np.int64(1): 2}, {1: 2}),
        (2**100, 2**100),
        ({}, {}),
    ],
    ids=repr,
)
def test_to_plain_converts_values(value, expected):
    found = checkpoint_file.to_plain(value)
    assert found == expected
    assert type(found) is type(expected)
    pickled = pickle.dumps(found)
    assert b"numpy" not in pickled


def test_to_plain_detaches_tensors():
    parameter = nn.Parameter(torch.ones(2))
    found = checkpoint_file.to_plain(parameter)
    assert type(found) is torch.Tensor
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Path("a"), "PosixPath"),
        ({1}, "set"),
        (object(), "object"),
        (1j, "complex"),
        (np.array([Path("a")], object), "ndarray"),
        (np.datetime64("2020-01-01"), "datetime64"),
        (np.longdouble(1), "longdouble"),
        (torch.float32, "dtype"),
        (len, "builtin_function_or_method"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_unsupported_checkpoint_values_are_refused(tmp_path, value, kind):
    file = tmp_path / "a.pt"
    checkpoint_file.save(file, REQUIRED_ENTRIES)
    before = file.read_bytes()
    with pytest.raises(TypeError, match=f"a checkpoint cannot hold a {kind}"):
        checkpoint_file.save(file, REQUIRED_ENTRIES | {"x": [{"y": value}]})
    assert file.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["a.pt"]


def save_again_and_again(file: Path) -> None:
    state = {"model": {"x": torch.zeros(3_000_000)}, "table": {}, "names": []}
    for n in range(10**6):
        checkpoint_file.save(file, state | {"n": n})


def test_kill_while_saving_leaves_complete_file(tmp_path):
    file = tmp_path / "last.pt"
    checkpoint_file.save(file, REQUIRED_ENTRIES | {"n": -1})
    numbers, deadline = [], time.monotonic() + 60

    def wait_for_a_save() -> None:
        while not list(tmp_path.glob("*.tmp.*")):
            assert saver.exitcode is None
            assert time.monotonic() < deadline

    saver = fork_server().Process(target=save_again_and_again, args=(file,))
    saver.start()
    try:
        wait_for_a_save()
        for _ in range(20):  # a reader at the same time sees complete files
            numbers.append(checkpoint_file.load(file)["n"])
            time.sleep(0.005)
        wait_for_a_save()
    finally:
        saver.kill()
        saver.join()
    numbers.append(checkpoint_file.load(file)["n"])
    assert numbers == sorted(numbers)


def test_failed_checkpoint_save_keeps_old_file(tmp_path, monkeypatch):
    file = tmp_path / "a.pt"
    checkpoint_file.save(file, REQUIRED_ENTRIES | {"n": 1})

    def disk_full(state: object, stream) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", disk_full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint_file.save(file, REQUIRED_ENTRIES | {"n": 2})
    monkeypatch.undo()
    assert checkpoint_file.load(file)["n"] == 1
    assert [f.name for f in tmp_path.iterdir()] == ["a.pt"]


# ------------------------------------------------------------------- files that are not checkpoints


def load_error(file: Path) -> str:
    with pytest.raises(ValueError) as caught:
        checkpoint_file.load(file)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(file))
    assert "weights_only" not in text  # torch's advice to load the file unsafely is not repeated
    return text.removeprefix(f"{file}: ")


def test_missing_checkpoint_file_is_refused(tmp_path):
    assert (
        load_error(tmp_path / "a.pt") == "cannot be read as a checkpoint: No such file or directory"
    )
    assert (
        load_error(tmp_path)
        == "is not a checkpoint of Kestrel, or is damaged (it is not a regular file)"
    )


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"PK\x03\x04", b"\x80\x02}q\x00.", b"\0" * 1000, b"\x93NUMPY"]
)
def test_files_that_are_not_checkpoints_are_refused(tmp_path, content):
    file = tmp_path / "a.pt"
    file.write_bytes(content)
    assert load_error(file).startswith("is not a checkpoint of Kestrel, or is damaged (")


def test_truncated_checkpoint_is_refused(tmp_path):
    complete, file = tmp_path / "whole.pt", tmp_path / "a.pt"
    checkpoint_file.save(complete, REQUIRED_ENTRIES | {"x": torch.rand(100)})
    data = complete.read_bytes()
    for length in range(0, len(data), 97):
        file.write_bytes(data[:length])
        assert "damaged" in load_error(file)


def test_changed_checkpoint_byte_is_refused(tmp_path):
    file = tmp_path / "a.pt"
    checkpoint_file.save(file, REQUIRED_ENTRIES | {"x": torch.rand(1000)})
    data = bytearray(file.read_bytes())
    at = data.index(checkpoint_file.load(file)["x"].numpy().tobytes()) + 2000
    data[at] ^= 1
    file.write_bytes(data)
    assert torch.load(file, weights_only=True)["x"].shape == (1000,)  # torch itself does not notice
    assert "damaged (Bad CRC-32 for file" in load_error(file)


def test_zip_that_is_not_a_checkpoint_is_refused(tmp_path):
    file = tmp_path / "a.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", "hello")
    assert load_error(file).startswith("is not a checkpoint of Kestrel, or is damaged (")


@pytest.mark.parametrize(
    "state", [{}, [1], torch.ones(3), {"model": {}, "table": {}}, {"names": 1, "model": 2}]
)
def test_checkpoint_without_required_entries_is_refused(tmp_path, state):
    torch.save(state, tmp_path / "a.pt")
    assert (
        load_error(tmp_path / "a.pt")
        == "is not a checkpoint of Kestrel (model, table or names are missing)"
    )


class MaliciousPickle:
    """Its pickle calls os.system."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_loading_checkpoint_executes_no_code(tmp_path, zipped):
    trace, file = tmp_path / "trace", tmp_path / "a.pt"
    torch.save(
        REQUIRED_ENTRIES | {"x": MaliciousPickle(trace)},
        file,
        _use_new_zipfile_serialization=zipped,
    )
    reason = load_error(file)
    assert not trace.exists()
    if zipped:
        assert reason == "is not a checkpoint of Kestrel, or is damaged (it names posix.system)"
    file.write_bytes(pickle.dumps(MaliciousPickle(trace)))
    load_error(file)
    assert not trace.exists()


def test_a_pickled_module_is_refused(tmp_path):
    torch.save({"model": nn.Linear(1, 1)}, tmp_path / "a.pt")
    assert "(it holds something other than tensors and plain values: " in load_error(
        tmp_path / "a.pt"
    )


# ---------------------------------------------------------------------- the newest


def test_newest_checkpoint_is_found(tmp_path):
    for name, age in (("exp", 1), ("exp2", 30), ("exp10", 20)):
        file = tmp_path / name / "weights" / "last.pt"
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (10**9 + age, 10**9 + age))
    assert (
        checkpoint_file.newest(tmp_path, "*/weights/last.pt")
        == tmp_path / "exp2" / "weights" / "last.pt"
    )


@pytest.mark.parametrize("folder", ["", "absent"])
def test_newest_without_any_checkpoint_is_refused(tmp_path, folder):
    with pytest.raises(ValueError) as caught:
        checkpoint_file.newest(tmp_path / folder, "**/weights/last.pt")
    assert str(caught.value) == (
        f"there is no weights/last.pt under {tmp_path / folder}: train first, or name a checkpoint"
    )


def test_fingerprint_depends_on_values_and_not_on_path(tmp_path):
    first, copy, other = (tmp_path / name for name in ("first.pt", "copy.pt", "other.pt"))
    checkpoint_file.save(first, REQUIRED_ENTRIES | {"x": torch.zeros(3)})
    checkpoint_file.save(copy, REQUIRED_ENTRIES | {"x": torch.zeros(3)})
    checkpoint_file.save(other, REQUIRED_ENTRIES | {"x": torch.tensor([0.0, 0.0, 1e-30])})
    prints = [checkpoint_file.digest_of_checkpoint(path) for path in (first, copy, other)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.slow
def test_checkpoints_requesting_huge_memory_are_refused_early(tmp_path):
    """A zip bomb, a pickle that would allocate a gigabyte of zeros, and a file that claims more
    tensors than it has.
    """
    bomb, empty, claim = tmp_path / "bomb.pt", tmp_path / "empty.pt", tmp_path / "claim.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(60_000_000))
    pickled = b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x40\x85R."  # bytearray(2**30)
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
    checkpoint_file.save(claim, REQUIRED_ENTRIES | {"x": torch.zeros(10)})
    content = claim.read_bytes()
    claim.write_bytes(content.replace(b"K\x00K\n\x85", b"K\x00K\xff\x85"))
    tracemalloc.start()
    errors = [load_error(file) for file in (bomb, empty, claim)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "its entries are compressed" in errors[0]
    assert "it holds something other than tensors and plain values: builtins.bytearray" in errors[1]
    assert "is damaged" in errors[2]
    assert peak < 10_000_000
