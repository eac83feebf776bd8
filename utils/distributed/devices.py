"""Choose torch devices from --device, before CUDA is used; and helpers for devices."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from utils.distributed.launch import RankInfo
from utils.threads import machine_cores, usable_cores


def pick_devices(wanted: str, rank_info: RankInfo) -> tuple[torch.device, ...]:
    """Return the devices of a process: one, or several in a single process (DataParallel).

    Numbers count the GPUs that CUDA_VISIBLE_DEVICES leaves, from 0. A process that SLURM has bound
    to a single GPU takes that one.

    wanted: "cpu", "mps", a GPU number, or several ("0,1"), all of which a single process takes; of
    several processes each takes the one at the index of its local rank. "" means the GPU at the
    local rank, or the CPU on a machine without GPUs. On its host, torch gets the threads of
    `limit_threads`.

    Raises: ValueError if this machine does not have the device, or has fewer devices than
    processes.
    """
    limit_threads()
    name = wanted.strip().lower().removeprefix("cuda:")
    if name == "cpu":
        return (torch.device("cpu"),)
    if name == "mps":
        return (_metal_device(rank_info),)

    count = torch.cuda.device_count()
    tasks = rank_info.local_size
    bound = rank_info.own_gpu and count == 1  # this process sees a GPU of its own
    if bound:
        rank_info = replace(rank_info, local_rank=0, local_size=1)
    if name == "" and count == 0:
        return (torch.device("cpu"),)
    if name in ("", "cuda"):
        _check_gpu_for_each_process(wanted, count, rank_info)
        return (torch.device("cuda", rank_info.local_rank),)

    numbers = _gpu_numbers(wanted, name)
    if bound and len(numbers) == tasks:
        # the numbers are those of the machine, of which each process sees one
        return (torch.device("cuda", 0),)
    if max(numbers) >= count:
        use = "--device cpu or another number" if count else "--device cpu"
        raise ValueError(f"--device {wanted}: {_visible_gpus(count)}; use {use}")
    if rank_info.size == 1:
        return tuple(torch.device("cuda", number) for number in numbers)
    if rank_info.local_size > len(numbers):
        need = (
            f"{rank_info.local_size} processes on this machine need {rank_info.local_size} devices"
        )
        raise ValueError(f"--device {wanted}: {need}")
    return (torch.device("cuda", numbers[rank_info.local_rank]),)


def _check_gpu_for_each_process(wanted: str, count: int, rank_info: RankInfo) -> None:
    """Raise ValueError if this machine has no GPU, or fewer than processes."""
    if count == 0:
        raise ValueError(f"--device {wanted}: {_visible_gpus(count)}; use --device cpu")
    if count < rank_info.local_size:
        need = f"{rank_info.local_size} processes need {rank_info.local_size} GPUs"
        use = "use fewer processes or --device cpu"
        raise ValueError(f"--device {wanted or 'not given'}: {need}, {_visible_gpus(count)}; {use}")


def _gpu_numbers(wanted: str, name: str) -> list[int]:
    """Return the numbers in "0" or "0,1".

    Raises ValueError for other texts, and for a number that is given twice.
    """
    if name.startswith(("gpu-", "mig-")):
        given = wanted.strip()
        own = f"set CUDA_VISIBLE_DEVICES={given}, which makes this GPU number 0, and use --device 0"
        raise ValueError(f"--device {given}: a GPU is given by its number here; {own}")
    words = [word.strip() for word in name.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ValueError(
            f'--device {wanted}: choose "cpu", "mps" or GPU numbers, for example 0 or 0,1'
        )
    numbers = [int(word) for word in words]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"--device {wanted}: a GPU is named twice")
    return numbers


def _visible_gpus(count: int) -> str:
    """Return a clause about the GPUs that this process can use, and what hides the others."""
    names = {0: "no CUDA GPU", 1: "GPU 0"}.get(count, f"GPUs 0 to {count - 1}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return f"this machine has {names}"
    if count == 0:
        return f"CUDA_VISIBLE_DEVICES={visible} leaves {names}"
    return f"CUDA_VISIBLE_DEVICES={visible} leaves {names}, counted anew from 0"


def _metal_device(rank_info: RankInfo) -> torch.device:
    if rank_info.size > 1:
        raise ValueError("--device mps: Metal has one device, which only one process can use")
    if not torch.backends.mps.is_available():
        raise ValueError(
            "--device mps: this machine or this torch has no Metal device; use --device cpu"
        )
    return torch.device("mps")


def processes_for(wanted: str, processes: int) -> int:
    """Return the number of processes that --spawn starts.

    `processes`, or if 0, one per device in `wanted` ("": all GPUs). Raises ValueError if neither
    gives a number, for example for the CPU.
    """
    name = wanted.strip().lower().removeprefix("cuda:")
    named = 0  # devices
    if name in ("", "cuda"):
        named = torch.cuda.device_count()
    elif name[0].isdecimal():
        named = len(name.split(","))
    if not (processes or named):
        raise ValueError(
            "--spawn: give the number of processes, for example --spawn 2 (--device "
            f"{wanted or 'cpu'})"
        )
    return processes or named


def limit_threads() -> None:
    """Have torch use no more threads than there are cores for this process.

    torch counts the cores of the machine, also in a container whose CPU time is limited: its
    threads would be stopped for most of the time. OMP_NUM_THREADS is kept.
    """
    cores = usable_cores()
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cores:
        torch.set_num_threads(cores)


def describe(device: torch.device) -> str:
    """Return a description of the device, for the log."""
    if device.type != "cuda":
        threads = torch.get_num_threads()
        cpu = f"CPU, {threads} thread{'s' if threads > 1 else ''}"
        return {"cpu": cpu, "mps": "Metal"}.get(device.type, str(device))
    properties = torch.cuda.get_device_properties(device)
    return f"CUDA {device.index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB"


def loader_workers(wanted: int, batch_size: int, device: torch.device, local_size: int = 1) -> int:
    """Return the number of DataLoader workers per training process.

    At most `wanted` and at most `batch_size`. The workers of all `local_size` processes on a
    machine together use at most all cores, or half of them if the model runs on the CPU as well.
    """
    # A launcher may bind each process to cores of its own, or all of them to the same.
    share = machine_cores() // local_size
    cores = min(share, usable_cores())
    return min(wanted, batch_size, cores // 2 if device.type == "cpu" else cores)


@contextmanager
def tuned_convolutions(one_shape: bool) -> Iterator[None]:
    """Context manager that turns cuDNN's benchmark mode on if all images have one shape, else off.

    cuDNN then times its convolution algorithms once per shape and uses the fastest. With many
    shapes that costs more than it saves.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = one_shape
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished all queued work; returns at once for other devices."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's random number generators, of the CPU and of the GPU."""
    own = {"device": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **own}


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore the generators from `random_state`; the GPU's only if both states are of a GPU."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "device" in state:
        torch.cuda.set_rng_state(state["device"], device)
