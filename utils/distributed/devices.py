"""--device to a torch device, before anything touches CUDA."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from utils.distributed.launch import RankInfo


def pick_devices(wanted: str, place: RankInfo) -> tuple[torch.device, ...]:
    """The devices of a process: one, or all that `wanted` names for a lone process (DataParallel).

    wanted: "cpu", "mps", the number of a GPU, or several ("0,1"), of which each process of a machine takes the one at
    its local rank. "" means the GPU at the local rank, or the CPU of a machine without GPUs.
    Raises ValueError for a device that this machine does not have, or fewer devices than processes.
    """
    name = wanted.strip().lower().removeprefix("cuda:")
    count = torch.cuda.device_count() if name not in ("cpu", "mps") else 0
    if place.own_gpu and count == 1:
        place = replace(place, local_rank=0, local_size=1)  # it is alone in what it sees
    if name == "" and count == 0:
        return (torch.device("cpu"),)
    if name in ("", "cuda"):
        if count == 0:
            raise ValueError(f"--device {wanted}: this machine has no CUDA GPU; use --device cpu")
        if count < place.local_size:
            found = f"{place.local_size} processes but {_found(count)} on this machine"
            raise ValueError(f"--device {wanted or 'not given'}: {found}; use as many processes, or --device cpu")
        return (torch.device("cuda", place.local_rank),)
    if name == "cpu":
        return (torch.device("cpu"),)
    if name == "mps":
        return (_metal(place),)
    words = [word.strip() for word in name.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ValueError(f'--device {wanted}: choose "cpu", "mps" or numbers of GPUs, for example 0 or 0,1')
    numbers = [int(word) for word in words]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"--device {wanted}: a GPU is named twice")
    if max(numbers) >= count:
        use = "--device cpu or another number" if count else "--device cpu"
        raise ValueError(f"--device {wanted}: this machine has {_found(count)}; use {use}")
    if place.size == 1:
        return tuple(torch.device("cuda", number) for number in numbers)
    if place.local_size > len(numbers):
        raise ValueError(f"--device {wanted}: {place.local_size} processes on this machine need as many devices")
    return (torch.device("cuda", numbers[place.local_rank]),)


def _found(count: int) -> str:
    return {0: "no CUDA GPU", 1: "GPU 0"}.get(count, f"GPUs 0 to {count - 1}")


def _metal(place: RankInfo) -> torch.device:
    if place.size > 1:
        raise ValueError("--device mps: Metal has one device, and serves one process")
    if not torch.backends.mps.is_available():
        raise ValueError("--device mps: this machine or this torch has no Metal device; use --device cpu")
    return torch.device("mps")


def processes_for(wanted: str, processes: int) -> int:
    """How many processes --spawn starts: as asked, or one for each device that `wanted` names, "" all GPUs.

    Raises ValueError where the devices do not tell.
    """
    name = wanted.strip().lower().removeprefix("cuda:")
    named = torch.cuda.device_count() if name in ("", "cuda") else len(name.split(",")) if name[0].isdecimal() else 0
    if not (processes or named):
        raise ValueError(f"--spawn: say how many processes, for example --spawn 2 (--device {wanted or 'cpu'})")
    return processes or named


def describe(device: torch.device) -> str:
    """The device in words, for the log."""
    if device.type != "cuda":
        threads = torch.get_num_threads()
        cpu = f"CPU, {threads} thread{'s' if threads > 1 else ''}"
        return {"cpu": cpu, "mps": "Metal"}.get(device.type, str(device))
    properties = torch.cuda.get_device_properties(device)
    return f"CUDA {device.index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB"


def loader_workers(wanted: int, batch_size: int, device: torch.device, local_size: int = 1) -> int:
    """Loader processes of each of a machine's `local_size` processes, whose batches hold `batch_size` images.

    Together they take all cores for GPUs; half of them when the CPU runs the model as well.
    """
    cores = (os.cpu_count() or 1) // local_size
    return min(wanted, batch_size, cores // 2 if device.type == "cpu" else cores)


@contextmanager
def tuned_convolutions(one_shape: bool) -> Iterator[None]:
    """A block in which cuDNN tries its ways to convolve and takes the fastest: where all images have one shape.

    Elsewhere the trying, anew for each shape, would cost more than it saves.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = one_shape
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Where torch's random numbers stand, of the CPU and of the device."""
    own = {"device": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **own}


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on with random numbers where `random_state` was taken, as far as the device is of the same kind."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "device" in state:
        torch.cuda.set_rng_state(state["device"], device)
