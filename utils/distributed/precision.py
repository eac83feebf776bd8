"""Choose the floating-point precision of training on a device, and keep float32 free of TF32."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

WITHOUT_FLOAT64 = ("mps",)  # types of devices


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on Metal, which does not support float64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def choose_precision(wanted: str, device: torch.device) -> torch.dtype:
    """Return the dtype to compute in.

    float32, bfloat16 or float16 with autocast, or float64 (slow, to verify results). auto: bfloat16
    if the hardware multiplies it natively, float16 on older GPUs with tensor cores, else float32.
    The choice depends on what the hardware reports, never on timings, so two runs on one machine
    make the same choice. Raises ValueError for a dtype that the device cannot use.
    """
    named = {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }

    if wanted in named:
        if wanted == "fp16" and device.type == "cpu":
            raise ValueError("--amp fp16: not supported on a CPU; choose auto, bf16, fp32 or fp64")
        if wanted == "fp64" and device.type in WITHOUT_FLOAT64:
            raise ValueError("--amp fp64: Metal does not support float64; choose auto or fp32")
        return named[wanted]

    if wanted != "auto":
        raise ValueError(f"--amp {wanted}: choose auto, fp64, fp32, bf16 or fp16")

    if device.type == "cuda":
        generation = torch.cuda.get_device_capability(device)[0]
        # The GTX 16 series reports generation 7, but has no tensor cores, and its float16
        # convolutions give nan.
        tensor_cores = generation >= 7 and "GTX 16" not in torch.cuda.get_device_name(device)
        if generation >= 8:
            return torch.bfloat16
        return torch.float16 if tensor_cores else torch.float32

    if device.type == "cpu" and _cpu_has_bf16():
        return torch.bfloat16
    return torch.float32


def weights_dtype(precision: torch.dtype) -> torch.dtype:
    """Return the dtype of the weights for this compute precision.

    float64 for float64, else float32.
    """
    return torch.float64 if precision == torch.float64 else torch.float32


def autocast_for(precision: torch.dtype, device: torch.device) -> torch.autocast:
    """Return the autocast context for a forward pass in `precision`.

    Disabled unless it has 16 bits.
    """
    return torch.autocast(device.type, precision, enabled=precision.itemsize == 2)


class _ExactFloat32:
    """Turns TF32 off for the whole process while any thread asks for it.

    For the whole process, because torch offers nothing else.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._before: list[str] = []
        self._matmul_before = ""

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            for operations in self._operations():
                self._before.append(operations.fp32_precision)

            self._matmul_before = _older_matmul_setting()
            if self._matmul_before:
                torch.set_float32_matmul_precision("highest")
            for operations in self._operations():
                operations.fp32_precision = "ieee"

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if self._matmul_before:
                torch.set_float32_matmul_precision(self._matmul_before)
            for operations, before in zip(self._operations(), self._before, strict=True):
                operations.fp32_precision = before
            self._before.clear()

    @staticmethod
    def _operations() -> list[Any]:
        """Those that TF32 can change, and what set_float32_matmul_precision changes besides."""
        backends: Any = torch.backends
        return [backends.cudnn.conv, backends.cuda.matmul, backends.mkldnn.matmul]


def _older_matmul_setting() -> str:
    """Return what set_float32_matmul_precision, or TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, has set.

    "" if it is void. torch has an older and a newer setting for the products of matrices. It raises
    an error wherever it finds that they contradict each other, so both are changed. If a program
    has changed the newer one alone, they do already.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""


_exact_float32 = _ExactFloat32()


@contextmanager
def exact_float32() -> Iterator[None]:
    """Context manager in which GPUs compute float32 in 24 bits of mantissa.

    By default torch lets cuDNN round the inputs of float32 convolutions to the 11 bits of TF32.
    """
    _exact_float32.enter()
    try:
        yield
    finally:
        _exact_float32.leave()


def _cpu_has_bf16() -> bool:
    """Return whether the processor has bfloat16 instructions; False if that is unknown."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16"} & set(flags))
