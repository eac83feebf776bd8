"""Copies between host and device that nobody waits for."""

import weakref
from collections import deque
from contextlib import suppress

import torch
from torch import Tensor


def to_device(images: Tensor, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 [B, H, W, 3] to [B, 3, H, W] in [0, 1], channels last in memory."""
    return images.to(device, non_blocking=True).permute(0, 3, 1, 2).to(dtype).div_(255)


class AsyncHostCopy:
    """Hands values of a device to the host: on a CPU at once, from a GPU when two more have been passed on.

    By then it has computed them long since, so that the host waits for nothing, and all processes learn of a value at
    the same step.
    """

    BEHIND = 2

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self._under_way: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def push(self, value: Tensor) -> list[Tensor]:
        """Those that have come by now, on the CPU, in their order: one at most."""
        if not self._gpu:
            return [value.cpu()]
        host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        host.copy_(value, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._under_way.append((host, event))
        return [self._next()] if len(self._under_way) > self.BEHIND else []

    def drain(self) -> list[Tensor]:
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
