"""Asynchronous copies between host and device."""

import weakref
from collections import deque
from contextlib import suppress

import torch
from torch import Tensor


def to_device(images: Tensor, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert images to `dtype` [B, 3, H, W] in [0, 1] on the device, channels last in memory.

    images: uint8 [B, H, W, 3].
    """
    copied = images.to(device, non_blocking=True)
    channels_first = copied.permute(0, 3, 1, 2)  # a view, channels last in memory
    return channels_first.to(dtype).div_(255)


class AsyncHostCopy:
    """Copies values from a device to the host, without waiting for the device.

    A GPU's value is ready after two more values have been pushed. By then the GPU has computed it,
    so the host does not wait, and all processes get a value at the same step. A CPU's value is
    ready at once.
    """

    DELAY = 2  # values

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self._pending: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def push(self, value: Tensor) -> list[Tensor]:
        """Start to copy `value`; return the values that are ready, on the CPU: one at most."""
        if not self._gpu:
            return [value.cpu()]

        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        host.copy_(value, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending.append((host, event))

        if len(self._pending) <= self.DELAY:
            return []
        return [self._next()]

    def drain(self) -> list[Tensor]:
        """Wait for all pending values and return them in order."""
        return [self._next() for _ in range(len(self._pending))]

    def _next(self) -> Tensor:
        """Wait for the oldest pending value and return it."""
        host, event = self._pending.popleft()
        event.synchronize()
        return host


class Uploads:
    """Copies host memory to a device.

    Copies to a GPU are asynchronous, on a stream of their own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pending: dict[int, torch.cuda.Event] = {}

    def send(self, host: Tensor, key: int | None = None) -> Tensor:
        """Copy a tensor to the device.

        key: for host memory that is overwritten later, but not before `wait(key)`.
        """
        if self._stream is None:
            is_overwritten = key is not None
            return host.to(self._device, copy=is_overwritten)

        with torch.cuda.stream(self._stream):
            copied = host.to(self._device, non_blocking=True)
            done = torch.cuda.Event()
            done.record()

        # The stream that computes waits for the copy, and its memory is not freed before that.
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(done)
        copied.record_stream(computing)
        if key is not None:
            self._pending[key] = done
        return copied

    def wait(self, key: int | None = None) -> None:
        """Wait until the host memory that was sent with this key may be overwritten.

        key: None for the memory of all keys.
        """
        keys = list(self._pending) if key is None else [key]
        for sent in keys:
            done = self._pending.pop(sent, None)
            if done is not None:
                done.synchronize()


def page_lock(memory: Tensor, device: torch.device, owner: object) -> None:
    """Page-lock (pin) host memory until `owner` is deleted.

    Copies from it to a GPU are asynchronous then. If the system does not allow page-locking, the
    host waits for each copy.
    """
    if device.type != "cuda":
        return
    cuda = torch.cuda.cudart()
    failed = int(cuda.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) != 0
    if failed:
        with suppress(RuntimeError):  # CUDA reports the failure again at its next call
            torch.zeros(1, device=device)
    else:
        weakref.finalize(owner, lambda locked: cuda.cudaHostUnregister(locked.data_ptr()), memory)
