"""--batch-size -1: the largest batch whose training step stays within a share of the free memory, found by trying.

What is chosen was measured, not extrapolated: gradients, the optimizer's state, the averaged weights and the assignment
of crowded images come on top of a forward pass, and do not grow in proportion to it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from utils.distributed.memory import free_memory, release_memory, reserved_by
from utils.nested import tensors_in
from utils.printable import one_line
from utils.terminal import FaultError

SHARE = 0.8  # of a GPU's free memory; the rest is for fragments, and for batches more crowded than those tried
CPU_BUDGET = 2 * 2**30  # bytes for a process: RAM is not there to be filled, and caches the images
MOST = 1024  # images in a batch of all processes: with more there are few optimizer steps to an epoch
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


def choose_batch(
    step: Callable[[int], None],
    world_min: Callable[[int], int],
    *,
    device: torch.device,
    images: int,
    shares: int = 1,
    local_processes: int = 1,
) -> tuple[int, str]:
    """The batch size, a multiple of `shares` and the same on every process; and a sentence on it for the log.

    step: a whole training step of so many images, one share of a batch: as memory-hungry as steps get, on copies, so
    that the run does not begin with the trials in it, and without collectives, because processes may try different
    sizes. world_min: the least of a number over all processes. images: to train on. shares: processes, or devices of
    DataParallel, among which a batch is shared out. local_processes: of this machine.
    Raises ValueError, alike on every process, if no batch fits or there are fewer images than shares.
    """
    most = min(images, MOST) // shares
    if most < 1:
        raise ValueError(f"--batch-size -1: {images} training images cannot be shared out to {shares}")
    step_memory(lambda: step(1), device)  # loads kernels and libraries, whose memory is then no longer free
    budget = world_min(memory_budget(device, local_processes))
    needs: dict[int, int | None] = {}

    def need(batch: int) -> int | None:
        needs[batch] = step_memory(lambda: step(batch), device)
        return needs[batch]

    own = largest_batch(need, budget, most=most)
    share = world_min(own)  # the others are waited for even if nothing fits here
    if share < 1:
        raise ValueError(
            f"--batch-size -1: not even one image fits in {format_gib(budget)}; use a smaller --imgsz or model"
        )
    parts = f", {shares} shares of {share}" if shares > 1 else ""
    limit = f"; there are {images} training images" if images < MOST else f"; more than {MOST} are not tried"
    return share * shares, (
        f"--batch-size -1: batch {share * shares}{parts}: a step of {own} images takes {format_gib(needs[own] or 0)}, "
        f"and may take {format_gib(budget)}{limit if share == most else ''}"
    )


def largest_batch(need: Callable[[int], int | None], budget: int, *, most: int) -> int:
    """The largest batch in 1..most whose need is within the budget, to an eighth of it; 0 if not even that of 1 is.

    need: bytes that a batch takes, None if more than there are. Each next batch is where the last two that fit say that
    the budget ends, at most four times the last; once one does not fit, the interval is halved. What is returned was
    tried and fits, and one larger by an eighth (or by 1) was tried and does not, or is more than `most`.

    >>> largest_batch(lambda batch: 3 + 2 * batch, 23, most=1024), largest_batch(lambda batch: batch, 999, most=40)
    (10, 40)
    """
    fitting, bad = [(0, 0)], most + 1
    while bad - (good := fitting[-1][0]) > (eighth := max(good // 8, 1)):
        guess = (good + bad) // 2 if bad <= most else min(max(_guess(fitting, budget), good + eighth), most)
        taken = need(guess)
        if taken is not None and taken <= budget:
            fitting.append((guess, taken))
        else:
            bad = guess
    return good


def _guess(fitting: list[tuple[int, int]], budget: int) -> int:
    """How large a batch may be, by a line through the last two (batch, need) that fit."""
    if len(fitting) < 3:
        return 2 * fitting[-1][0]
    (before, less), (good, taken) = fitting[-2:]
    if taken <= less:
        return 2 * good
    end = good + (budget - taken) * (good - before) // (taken - less)
    return min(end - end // 32, 4 * good)  # a bit less: a miss costs more trials than that


def memory_budget(device: torch.device, local_processes: int = 1) -> int:
    """Bytes that a training step may take: of a GPU 80 % of what is free, of RAM 2 GiB.

    Of RAM at most half of what is free over the processes of this machine, for trials go beyond the budget, and there
    nothing stops a process before the kernel ends it.
    """
    free = free_memory(device)
    if device.type == "cpu":
        return min(CPU_BUDGET, free // 2 // local_processes)
    return int(free * SHARE)


def step_memory(step: Callable[[], None], device: torch.device) -> int | None:
    """Bytes that `step` holds at its peak beyond those held before; None if memory runs out.

    On a GPU what the allocator takes from the device; elsewhere the bytes of all tensors alive at once, a number that
    is the same each time, unlike a process's resident memory, which depends on what the heap kept from earlier. What a
    kernel allocates for itself is not in it. Random numbers continue afterwards as if nothing had been drawn.
    """
    need = None
    try:
        with torch.random.fork_rng([] if device.index is None else [device], device_type=device.type):
            need = tensors_of(step, device) if device.type in ("cpu", "mps") else reserved_by(step, device)
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
    release_memory(device)  # not in the handler: there the error still holds the step's tensors
    return need


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out: some of those that do are plain RuntimeErrors."""
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or any(words in str(error) for words in OUT_OF_MEMORY)


@contextmanager
def memory_advice(
    batch_size: int, image_size: int, device: torch.device, processes: int, stride: int = 32
) -> Iterator[None]:
    """Says in one sentence what to try where memory runs out in the block."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        batch, size = batch_size // 2 // processes * processes, image_size * 3 // 4 // stride * stride
        smaller = [f"--batch-size {batch}"] * (batch > 0) + [f"--imgsz {size}"] * (size >= 2 * stride)
        raise FaultError(
            f"out of memory on {device} with --batch-size {batch_size} and --imgsz {image_size}: try "
            f"{', '.join([*smaller, '--checkpoint-activations'])}; --batch-size -1 measures what fits "
            f"({one_line(error, 200) or type(error).__name__})"
        ) from error


def tensors_of(step: Callable[[], None], device: torch.device) -> int:
    """The most bytes that tensors made in `step` hold at once on a device."""
    with _StorageCount(device) as count:
        step()
    return count.peak


class _StorageCount(TorchDispatchMode):
    """Counts the bytes of storages that operations return, until they are freed; views and in-place results add none.

    Not torch.profiler, which also counts what kernels allocate for themselves, but writes lines to stderr and starts
    CUDA's tracing on the way.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device_type = device.type
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._seen.update(tensor.untyped_storage() for tensor in tensors_in((*args, *kwargs.values())))
        result = func(*args, **kwargs)
        for tensor in tensors_in((result,)):
            storage = tensor.untyped_storage()
            if storage not in self._seen and tensor.device.type == self.device_type:
                self._seen.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _free(self, nbytes: int) -> None:
        self.now -= nbytes


def initialize_state(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter a gradient and the optimizer its state: all batches of a run but the first find them so.

    Weights may move: for copies.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def format_gib(size: int) -> str:
    """Bytes as GiB, small ones as MiB.

    >>> format_gib(2 * 2**30), format_gib(100 * 2**20)
    ('2.0 GiB', '100 MiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
