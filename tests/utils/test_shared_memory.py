"""SharedBytes: forked processes and processes it is pickled to see the same anonymous memory."""

import multiprocessing
import os
import pickle
import sys

import pytest
import torch

from utils.shared_memory import SharedBytes, has_memfd


def fill(shared: SharedBytes, value: int) -> None:
    shared.tensor[1:3] = value


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_writes_of_other_process_are_visible(method: str) -> None:
    shared = SharedBytes(5)
    assert shared.tensor.tolist() == [0] * 5
    process = multiprocessing.get_context(method).Process(target=fill, args=(shared, 7))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert shared.tensor.tolist() == [0, 7, 7, 0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems it is a shared torch tensor")
def test_shared_memory_is_anonymous_and_closed_with_its_owner() -> None:
    shared = SharedBytes(4)
    path = shared.path
    assert "memfd" in os.readlink(path)
    other = pickle.loads(pickle.dumps(shared))  # noqa: S301
    other.tensor.fill_(9)
    assert shared.tensor.tolist() == [9] * 4
    del shared
    assert other.tensor.tolist() == [9] * 4
    with pytest.raises(FileNotFoundError):
        os.readlink(path)


@pytest.mark.parametrize("allowed", [None, False])
def test_torch_shared_memory_is_used_without_memfd(
    monkeypatch: pytest.MonkeyPatch, allowed: bool | None
) -> None:
    def refuse(_: str) -> int:
        raise PermissionError

    if allowed is None:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    else:
        monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    assert not has_memfd()
    shared = SharedBytes(3)
    assert shared.tensor.is_shared()
    assert shared.tensor.dtype == torch.uint8
    assert shared.tensor.tolist() == [0, 0, 0]
