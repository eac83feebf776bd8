"""The lines about devices and parallel mode at the start of a run."""

from functools import partial

import torch

from tests.support.thread_ranks import run_ranks, thread_worlds
from utils.distributed.devices import describe
from utils.distributed.modes import describe_mode
from utils.distributed.world import World

CPU = torch.device("cpu")


def test_the_device_of_each_process_is_named(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # which threads need not share
    name = describe(CPU)
    assert describe_mode(World(CPU), shard=False) == [f"device: {name}"]

    worlds = thread_worlds(2)
    lines = run_ranks([partial(describe_mode, world, shard=False) for world in worlds], worlds)
    assert lines == [[f"device: 2 x {name}"]] * 2


def test_both_gpus_of_dataparallel_are_named(monkeypatch):
    monkeypatch.setattr("utils.distributed.modes.describe", lambda device: f"GPU {device.index}")
    devices = (torch.device("cuda", 0), torch.device("cuda", 1))
    first, second = describe_mode(World(devices[0], devices=devices), shard=False)
    assert first == "devices: GPU 0; GPU 1"
    assert second.startswith("DataParallel over 2 GPUs; one process per GPU is faster")
