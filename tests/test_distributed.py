"""A world of one, and the refusal of more."""

import dataclasses

import pytest
import torch

from utils.distributed import connect


def test_a_world_of_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with connect("cpu") as world:
        assert (world.rank, world.local_rank, world.size, world.is_main) == (0, 0, 1, True)
        assert world.device == torch.device("cpu")
        rows = torch.arange(6).view(3, 2)
        assert world.sum(rows).equal(rows)
        assert world.gather(rows).equal(rows)
        assert world.gather(rows[:0]).shape == (0, 2)
        with pytest.raises(dataclasses.FrozenInstanceError):
            world.rank = 1


@pytest.mark.parametrize("size", ["", "1"])
def test_a_launcher_with_one_process_is_welcome(monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    with connect("cpu") as world:
        assert world.size == 1


@pytest.mark.parametrize("size", ["2", "0", "many"])
def test_other_sizes_are_refused(monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    sentence = f"WORLD_SIZE is {size}: training in several processes is not built yet; start one process"
    with pytest.raises(ValueError, match=sentence), connect("cpu"):
        pass


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="--device gpu: choose"), connect("gpu"):
        pass


def test_errors_inside_pass_through(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(KeyError), connect("cpu"):
        raise KeyError
