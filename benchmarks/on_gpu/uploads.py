"""Copies from shared, page-locked memory to the device, as the loader's: right, and how fast."""

import os
from collections.abc import Iterator
from time import perf_counter

import torch

from benchmarks.on_gpu.stage import Finding, Scope
from utils.distributed.devices import wait_for
from utils.distributed.host_copies import Uploads, page_lock
from utils.shared_memory import SharedBytes

PLACES = 4  # of the ring
COPIES = 64
BUSY_CYCLES = 20_000_000  # about 10 ms of a GPU
CHILD_BYTE = 7


def check_uploads(scope: Scope) -> Iterator[Finding]:
    """A ring of shared memory, to which a forked process writes.

    Its places are used again while copies are queued.
    """
    device = scope.world.device
    place_bytes = 3 * scope.sizes.img**2 * 4  # four images
    ring = SharedBytes(PLACES * place_bytes)
    page_lock(ring.tensor, device, ring)
    if scope.on_gpu:
        is_pinned = ring.tensor.is_pinned()
        yield Finding(f"the shared memory is page-locked: {is_pinned}", is_pinned)

    yield Finding("a forked process writes into the same memory", written_by_child(ring))

    wrong = wrong_copies(ring, place_bytes, device)
    yield Finding(f"{COPIES} copies through {PLACES} places, wrong: {wrong or 'none'}", not wrong)

    hosts = {"shared": ring.tensor, "ordinary": torch.ones_like(ring.tensor)}
    for name, host in hosts.items():
        speed = gigabytes_per_second(host, device)
        yield Finding(f"copies from {name} memory: {speed:.1f} GB/s", values={"gb_s": speed})


def written_by_child(ring: SharedBytes) -> bool:
    """Whether this process sees what a forked one, as a DataLoader worker is, writes."""
    child = os.fork()
    if child == 0:
        try:
            ring.tensor.numpy()[:] = CHILD_BYTE
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == 0 and bool((ring.tensor == CHILD_BYTE).all())


def wrong_copies(ring: SharedBytes, place_bytes: int, device: torch.device) -> list[int]:
    """Numbers of the copies that hold other bytes than were sent.

    Their place was overwritten too early, or read too late. Each copy is followed by work that
    keeps the GPU busy, so that the host is far ahead of it.
    """
    uploads = Uploads(device)
    sums = []
    for number in range(COPIES):
        uploads.wait(number - PLACES)
        start = number % PLACES * place_bytes
        place = ring.tensor[start : start + place_bytes]
        place.fill_(number)
        on_device = uploads.send(place, number)
        if device.type == "cuda":
            torch.cuda._sleep(BUSY_CYCLES)
        sums.append(on_device.sum(dtype=torch.int64))
        del on_device  # its memory may be used for the next copy
    return [number for number, total in enumerate(sums) if int(total) != number * place_bytes]


def gigabytes_per_second(host: torch.Tensor, device: torch.device) -> float:
    """The speed of a copy to the device, the best of five."""
    seconds = []
    for _ in range(5):
        wait_for(device)
        started = perf_counter()
        host.to(device, non_blocking=True, copy=True)
        wait_for(device)
        seconds.append(perf_counter() - started)
    return host.nbytes / min(seconds) / 1e9
