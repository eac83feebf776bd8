"""--device to a torch device, before anything touches CUDA; and the arithmetic it should train in."""

import gc
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from utils.launch import Place


def pick_devices(wanted: str, place: Place) -> tuple[torch.device, ...]:
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
        raise ValueError(f"--device {wanted}: this machine has {_found(count)}; use --device cpu or another number")
    if place.size == 1:
        return tuple(torch.device("cuda", number) for number in numbers)
    if place.local_size > len(numbers):
        raise ValueError(f"--device {wanted}: {place.local_size} processes on this machine need as many devices")
    return (torch.device("cuda", numbers[place.local_rank]),)


def _found(count: int) -> str:
    return {0: "no CUDA GPU", 1: "GPU 0"}.get(count, f"GPUs 0 to {count - 1}")


def _metal(place: Place) -> torch.device:
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
        return {"cpu": f"CPU, {torch.get_num_threads()} threads", "mps": "Metal"}.get(device.type, str(device))
    properties = torch.cuda.get_device_properties(device)
    return f"CUDA {device.index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB"


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on Metal, which has nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64


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


def memory_gib(device: torch.device) -> float:
    """GiB in use by this process on the device; its resident memory on a CPU. 0 where it cannot be told."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device) / 2**30
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
    except OSError:
        return 0.0


def choose_precision(wanted: str, device: torch.device) -> torch.dtype:
    """The dtype to compute in: float32, bfloat16 or float16 by autocast, or float64, slow, for proofs.

    auto: bfloat16 where the hardware multiplies it natively, float16 on older GPUs with tensor cores, else float32. The
    choice depends on the hardware's own word, never on a clock, so that two runs on one machine choose alike.
    Raises ValueError for a dtype that the device cannot use.
    """
    named = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if wanted in named:
        if wanted == "fp16" and device.type == "cpu":
            raise ValueError("--amp fp16: a CPU has no use for it; choose auto, bf16 or fp32")
        if wanted == "fp64" and device.type == "mps":
            raise ValueError("--amp fp64: Metal has no such numbers; choose auto or fp32")
        return named[wanted]
    if wanted != "auto":
        raise ValueError(f"--amp {wanted}: choose auto, fp64, fp32, bf16 or fp16")
    if device.type == "cuda":
        generation = torch.cuda.get_device_capability(device)[0]
        # The GTX 16 series passes for generation 7, but has no tensor cores, and its float16 convolutions give nan.
        tensor_cores = generation >= 7 and "GTX 16" not in torch.cuda.get_device_name(device)
        return torch.bfloat16 if generation >= 8 else torch.float16 if tensor_cores else torch.float32
    if device.type == "cpu" and _cpu_has_bf16():
        return torch.bfloat16
    return torch.float32


def widened(precision: torch.dtype) -> torch.dtype:
    """The dtype of weights that compute in `precision`: float32, or float64."""
    return torch.float64 if precision == torch.float64 else torch.float32


def _cpu_has_bf16() -> bool:
    """Whether the processor has bfloat16 instructions; False where it cannot be told."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16"} & set(flags))


class Later:
    """Hands values of a device to the host: on a CPU at once, from a GPU when two more have been passed on.

    By then it has computed them long since, so that the host waits for nothing, and all processes learn of a value at
    the same step.
    """

    BEHIND = 2

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self._under_way: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def pass_on(self, value: Tensor) -> list[Tensor]:
        """Those that have come by now, on the CPU, in their order: one at most."""
        if not self._gpu:
            return [value.cpu()]
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        host.copy_(value, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._under_way.append((host, event))
        return [self._next()] if len(self._under_way) > self.BEHIND else []

    def rest(self) -> list[Tensor]:
        """All that are still under way; waits for them."""
        return [self._next() for _ in range(len(self._under_way))]

    def _next(self) -> Tensor:
        host, event = self._under_way.popleft()
        event.synchronize()
        return host


class Uploads:
    """Copies of host memory on a device. Those to a GPU are made beside what it computes, and the host goes on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._under_way: dict[int, torch.cuda.Event] = {}

    def send(self, host: Tensor, key: int | None = None) -> Tensor:
        """The tensor on the device. key: for memory that will be written to again, but not before `wait(key)`."""
        if self._stream is None:
            return host.to(self._device, copy=key is not None)
        with torch.cuda.stream(self._stream):
            copied = host.to(self._device, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(done)
        copied.record_stream(computing)
        if key is not None:
            self._under_way[key] = done
        return copied

    def wait(self, key: int | None = None) -> None:
        """Until the memory that was sent with this key, or with any, may be written to again."""
        for one in list(self._under_way) if key is None else [key]:
            if done := self._under_way.pop(one, None):
                done.synchronize()


def page_lock(memory: Tensor, device: torch.device, owner: object) -> None:
    """Let a GPU copy from host memory by itself, as long as `owner` lives.

    Where the system does not allow that, copies make the host wait.
    """
    if device.type != "cuda":
        return
    cuda = torch.cuda.cudart()
    if int(cuda.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)):
        with suppress(RuntimeError):  # CUDA tells of the refusal once more, at the next call
            torch.zeros(1, device=device)
    else:
        weakref.finalize(owner, lambda kept: cuda.cudaHostUnregister(kept.data_ptr()), memory)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Where torch's random numbers stand, of the CPU and of the device."""
    own = {"device": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **own}


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on with random numbers where `random_state` was taken, as far as the device is of the same kind."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "device" in state:
        torch.cuda.set_rng_state(state["device"], device)


def free_memory(device: torch.device) -> int:
    """Bytes that this process can still take on the device; of RAM on a CPU."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    if device.type == "mps":
        return max(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory(), 0)
    return free_ram()


def release_memory(device: torch.device) -> None:
    """Free what nothing refers to any more, and hand cached memory back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if device.type == "mps":
        torch.mps.empty_cache()


def reserved_by(step: Callable[[], None], device: torch.device) -> int:
    """Bytes that `step` makes this process take from a GPU at its peak, beyond those in use before.

    Reserved bytes, not allocated ones: what the allocator loses to rounding and fragments is not free either.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # what is cached from before must not serve for free
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before


def free_ram(root: Path = Path("/")) -> int:
    """Bytes of RAM that are free or could be freed, within the limits of this process's control groups.

    sys.maxsize where it cannot be told. root: where the kernel's files are.
    """
    free_kib = _number_of("MemAvailable", root / "proc/meminfo")
    machine = sys.maxsize if free_kib is None else free_kib * 1024
    return max(min([machine, *_left_in_groups(root)]), 0)


def _left_in_groups(root: Path) -> Iterator[int]:
    """Bytes left in each control group that holds this process, of version 2 or 1, and in each that holds that."""
    for line in _lines(root / "proc/self/cgroup"):
        _, kind, path = line.split(":", 2)
        if kind in ("", "memory"):  # version 2 names no kind
            base = root / "sys/fs/cgroup" / kind
            group = base / path.lstrip("/")  # a container sees its own as the base, whatever the path says
            for folder in (group, *group.parents):
                if folder.is_relative_to(base):
                    yield from _left_in(folder)


def _left_in(folder: Path) -> Iterator[int]:
    """Bytes left in one control group, if it has a limit. Files that it caches and has not used lately can go."""
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        numbers = [*_lines(folder / limit), *_lines(folder / used)]
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers):  # no limit is called "max"
            yield int(numbers[0]) - int(numbers[1]) + (_number_of(cache, folder / "memory.stat") or 0)


def _number_of(name: str, file: Path) -> int | None:
    """The number behind a name in a file of names and numbers, a pair in a line; None if it is not there."""
    found = (line.replace(":", " ").split() for line in _lines(file))
    return next((int(words[1]) for words in found if words and words[0] == name), None)


def _lines(file: Path) -> list[str]:
    """The lines of a text file; none if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
