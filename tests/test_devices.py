"""Devices and arithmetic: what is chosen, and the words of refusals, on machines that are only pretended."""

import types

import pytest
import torch

from utils.devices import choose_precision, describe, memory_gib, pick_device, widest_float

CPU, GPU, METAL = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps")


@pytest.fixture
def machine(monkeypatch):
    """Sets how many GPUs there seem to be, of which generation and name."""

    def pretend(gpus: int, generation: int = 8, name: str = "Some GPU", metal: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (generation, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: metal)

    return pretend


@pytest.mark.parametrize(
    ("wanted", "device"),
    [
        ("", GPU),
        ("0", GPU),
        ("cuda:1", torch.device("cuda", 1)),
        (" 1 ", torch.device("cuda", 1)),
        ("CPU", CPU),
        ("mps", METAL),
    ],
)
def test_devices_that_are_there(machine, wanted, device):
    machine(2, metal=True)
    assert pick_device(wanted) == device


def test_the_default_without_a_gpu_is_the_cpu(machine):
    machine(0)
    assert pick_device("") == CPU


@pytest.mark.parametrize(
    ("wanted", "gpus", "sentence"),
    [
        ("0", 0, "--device 0: this machine has no CUDA GPU; use --device cpu or another number"),
        ("2", 2, "--device 2: this machine has GPUs 0 to 1; use --device cpu or another number"),
        ("cuda:7", 1, "--device cuda:7: this machine has GPU 0; use --device cpu or another number"),
        ("0,1", 2, "--device 0,1: one device at a time for now; training on several is not built yet"),
        ("mps", 0, "--device mps: this machine or this torch has no Metal device; use --device cpu"),
        ("gpu", 1, '--device gpu: choose "cpu", "mps" or the number of a GPU, for example 0'),
        ("-1", 1, '--device -1: choose "cpu", "mps" or the number of a GPU, for example 0'),
        ("0.0", 1, '--device 0.0: choose "cpu", "mps" or the number of a GPU, for example 0'),
        ("²", 1, '--device ²: choose "cpu", "mps" or the number of a GPU, for example 0'),
    ],
)
def test_refusals(machine, wanted, gpus, sentence):
    machine(gpus)
    with pytest.raises(ValueError) as caught:
        pick_device(wanted)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("generation", "name", "precision"),
    [
        (9, "NVIDIA H100", torch.bfloat16),
        (8, "NVIDIA A100", torch.bfloat16),
        (7, "Tesla T4", torch.float16),
        (7, "NVIDIA GeForce GTX 1660 Ti", torch.float32),
        (6, "Tesla P100", torch.float32),
    ],
)
def test_precision_of_gpus(machine, generation, name, precision):
    machine(1, generation, name)
    assert choose_precision("auto", GPU) == precision
    assert choose_precision("fp32", GPU) == torch.float32
    assert choose_precision("fp16", GPU) == torch.float16
    assert choose_precision("bf16", GPU) == torch.bfloat16


@pytest.mark.parametrize(("flags", "precision"), [(True, torch.bfloat16), (False, torch.float32)])
def test_precision_of_cpus(monkeypatch, flags, precision):
    monkeypatch.setattr("utils.devices._cpu_has_bf16", lambda: flags)
    assert choose_precision("auto", CPU) == precision
    assert choose_precision("auto", METAL) == torch.float32
    assert choose_precision("bf16", CPU) == torch.bfloat16


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("fp16", "--amp fp16: a CPU has no use for it; choose auto, bf16 or fp32"),
        ("fp8", "--amp fp8: choose auto, fp32, bf16 or fp16"),
    ],
)
def test_precision_refusals(wanted, sentence):
    with pytest.raises(ValueError) as caught:
        choose_precision(wanted, CPU)
    assert str(caught.value) == sentence


def test_words_and_numbers(machine, monkeypatch):
    machine(1)
    properties = types.SimpleNamespace(name="Some GPU", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert describe(GPU) == "CUDA 0 Some GPU, 80 GiB"
    assert describe(CPU) == f"CPU, {torch.get_num_threads()} threads"
    assert describe(METAL) == "Metal"
    assert 0 <= memory_gib(CPU) < 100
    assert widest_float(CPU) == widest_float(GPU) == torch.float64
    assert widest_float(METAL) == torch.float32
