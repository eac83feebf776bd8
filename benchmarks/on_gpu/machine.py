"""The machine: its GPU, versions, and the two limits that everything else is compared with."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import cv2
import torch

from benchmarks.on_gpu.stage import Finding, Scope
from utils.distributed.devices import describe, wait_for

REPEATS = 10
FILE = "machine.json"


def describe_machine(scope: Scope) -> Iterator[Finding]:
    """Hardware and versions, the bandwidth of the device's memory, and its speed of matrix products
    in bfloat16.
    """
    device = scope.world.device
    yield Finding(
        f"{describe(device)}; {os.cpu_count()} cores {platform.machine()}; Python "
        f"{platform.python_version()}, "
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN "
        f"{torch.backends.cudnn.version()}, "
        f"OpenCV {cv2.__version__}"
    )
    if driver := nvidia_driver():
        yield Finding(f"driver: {driver}")

    terabytes = copy_bandwidth(scope.sizes.copy_bytes, device)
    text = f"copy within memory: {1000 * terabytes:.0f} GB/s, read and written"
    yield Finding(text, values={"bandwidth_tb_s": terabytes})
    (scope.folder / FILE).write_text(json.dumps({"bandwidth_tb_s": terabytes}))

    teraflops = matrix_speed(scope.sizes.matrix, device)
    yield Finding(
        f"matrix product in bfloat16: {teraflops:.3g} TFLOP/s", values={"bf16_tflop_s": teraflops}
    )


def copy_bandwidth(size: int, device: torch.device) -> float:
    """TB/s of a copy of `size` bytes, counting both what is read and what is written."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / time_of(lambda: target.copy_(source), device) / 1e12


def matrix_speed(rows: int, device: torch.device) -> float:
    """TFLOP/s of a product of two square matrices of random numbers in bfloat16."""
    left, right = (torch.randn(rows, rows, device=device).bfloat16() for _ in range(2))
    return 2 * rows**3 / time_of(lambda: torch.mm(left, right), device) / 1e12


def time_of(work: Callable[[], object], device: torch.device) -> float:
    """Median seconds of `work` on the device, after three times for warm-up."""
    seconds = []
    for _ in range(3 + REPEATS):
        wait_for(device)
        started = perf_counter()
        work()
        wait_for(device)
        seconds.append(perf_counter() - started)
    return median(seconds[3:])


def measured_bandwidth(scope: Scope) -> float:
    """TB/s that the stage has measured; 0 if it did not get there."""
    file = scope.folder / FILE
    return float(json.loads(file.read_text())["bandwidth_tb_s"]) if file.exists() else 0.0


def nvidia_driver() -> str:
    """What nvidia-smi says of the GPUs and the driver; "" without it."""
    if sys.platform != "linux" or not (program := shutil.which("nvidia-smi")):
        return ""
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    return "; ".join(done.stdout.split("\n")).strip("; ")
