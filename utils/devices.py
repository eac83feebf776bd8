"""--device to a torch device, before anything touches CUDA; and the arithmetic it should train in."""

import os

import torch


def pick_device(wanted: str) -> torch.device:
    """The device that `wanted` names: "" (first GPU, else CPU), "cpu", "mps" or a CUDA index such as "0".

    Raises ValueError for one that this machine does not have, or for several.
    """
    name = wanted.strip().lower().removeprefix("cuda:")
    if name == "":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("--device mps: this machine or this torch has no Metal device; use --device cpu")
        return torch.device("mps")
    if "," in name:
        raise ValueError(f"--device {wanted}: one device at a time for now; training on several is not built yet")
    if not name.isdecimal():
        raise ValueError(f'--device {wanted}: choose "cpu", "mps" or the number of a GPU, for example 0')
    count = torch.cuda.device_count()
    if int(name) >= count:
        found = {0: "no CUDA GPU", 1: "GPU 0"}.get(count, f"GPUs 0 to {count - 1}")
        raise ValueError(f"--device {wanted}: this machine has {found}; use --device cpu or another number")
    return torch.device("cuda", int(name))


def describe(device: torch.device) -> str:
    """The device in words, for the log."""
    if device.type != "cuda":
        return {"cpu": f"CPU, {torch.get_num_threads()} threads", "mps": "Metal"}.get(device.type, str(device))
    properties = torch.cuda.get_device_properties(device)
    return f"CUDA {device.index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB"


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on Metal, which has nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def pins_memory(device: torch.device) -> bool:
    """Whether batches should lie in page-locked memory, from which the device copies by itself."""
    return device.type == "cuda"


def loader_workers(wanted: int, batch_size: int, device: torch.device) -> int:
    """How many loader processes: all cores for a GPU; half of them when the CPU runs the model as well."""
    cores = os.cpu_count() or 1
    return min(wanted, batch_size, cores // 2 if device.type == "cpu" else cores)


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
    """The dtype of autocast: float32 (off), bfloat16 or float16.

    auto: bfloat16 where the hardware multiplies it natively, float16 on older GPUs with tensor cores, else float32. The
    choice depends on the hardware's own word, never on a clock, so that two runs on one machine choose alike.
    Raises ValueError for a dtype that the device cannot use.
    """
    named = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if wanted in named:
        if wanted == "fp16" and device.type == "cpu":
            raise ValueError("--amp fp16: a CPU has no use for it; choose auto, bf16 or fp32")
        return named[wanted]
    if wanted != "auto":
        raise ValueError(f"--amp {wanted}: choose auto, fp32, bf16 or fp16")
    if device.type == "cuda":
        generation = torch.cuda.get_device_capability(device)[0]
        # The GTX 16 series passes for generation 7, but has no tensor cores, and its float16 convolutions give nan.
        tensor_cores = generation >= 7 and "GTX 16" not in torch.cuda.get_device_name(device)
        return torch.bfloat16 if generation >= 8 else torch.float16 if tensor_cores else torch.float32
    if device.type == "cpu" and _cpu_has_bf16():
        return torch.bfloat16
    return torch.float32


def _cpu_has_bf16() -> bool:
    """Whether the processor has bfloat16 instructions; False where it cannot be told."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16"} & set(flags))
