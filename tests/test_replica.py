"""The model as a process calls it: compiling."""

import pytest
import torch
from torch import nn

from utils.distributed import World
from utils.replica import Replica

CPU = torch.device("cpu")


def test_compiling_replaces_the_call_of_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compiled(function: object, **settings: object) -> object:
        asked.append(settings)
        return lambda images: -function(images)  # type: ignore[operator]

    monkeypatch.setattr(torch, "compile", compiled)
    model = nn.Linear(2, 1)
    replica, names, images = Replica(model, World(CPU)), list(model.state_dict()), torch.ones(1, 2)
    before = replica(images)
    replica.compile("reduce-overhead")
    assert replica(images).equal(-before)
    assert asked == [{"mode": "reduce-overhead", "dynamic": False}]
    assert list(replica.state_dict()) == names


def test_several_devices_in_one_process_are_not_compiled() -> None:
    replica = Replica(nn.Linear(2, 1), World(CPU, devices=(CPU, CPU)))
    with pytest.raises(ValueError, match=r"^--compile: DataParallel cannot; use a process for each GPU"):
        replica.compile("default")
