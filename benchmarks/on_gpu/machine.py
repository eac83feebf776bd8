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
    """Hardware, versions, the memory's bandwidth and the speed of matrix products in bfloat16."""
    device = scope.world.device
    hardware = f"{describe(device)}; {os.cpu_count()} cores {platform.machine()}"
    cuda = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {cuda}"
    yield Finding(f"{hardware}; {versions}, OpenCV {cv2.__version__}")
    if driver := nvidia_driver():
        yield Finding(f"driver: {driver}")

    terabytes = copy_bandwidth(scope.sizes.copy_bytes, device)
    bandwidth = {"bandwidth_tb_s": terabytes}
    text = f"copy within memory: {1000 * terabytes:.0f} GB/s, read and written"
    yield Finding(text, values=bandwidth)
    (scope.folder / FILE).write_text(json.dumps(bandwidth))

    teraflops = matrix_speed(scope.sizes.matrix, device)
    text = f"matrix product in bfloat16: {teraflops:.3g} TFLOP/s"
    yield Finding(text, values={"bf16_tflop_s": teraflops})


def copy_bandwidth(size: int, device: torch.device) -> float:
    """TB/s of a copy of `size` bytes, counting both what is read and what is written."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = time_of(lambda: target.copy_(source), device)
    return 2 * size / seconds / 1e12


def matrix_speed(rows: int, device: torch.device) -> float:
    """TFLOP/s of a product of two square matrices of random numbers in bfloat16."""
    left = torch.randn(rows, rows, device=device).bfloat16()
    right = torch.randn(rows, rows, device=device).bfloat16()
    seconds = time_of(lambda: torch.mm(left, right), device)
    return 2 * rows**3 / seconds / 1e12


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
    if not file.exists():
        return 0.0
    return float(json.loads(file.read_text())["bandwidth_tb_s"])


def nvidia_driver() -> str:
    """What nvidia-smi says of the GPUs and the driver; "" without it."""
    program = shutil.which("nvidia-smi")
    if sys.platform != "linux" or program is None:
        return ""

    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    return "; ".join(done.stdout.split("\n")).strip("; ")
