"""--batch-size -1: find the largest batch whose training step fits in a share of the free memory,
by trial steps.

The result is measured, not extrapolated: gradients, optimizer state, averaged weights and the
assignment of images with many boxes need memory in addition to the forward pass, and do not grow in
proportion to it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from utils.distributed.memory import free_memory, release_memory, reserved_by
from utils.nested import tensors_in
from utils.printable import counted, one_line
from utils.terminal import FaultError

# of a GPU's free memory; the rest is for fragmentation, and for batches with more boxes than the
# trials
SHARE = 0.8
CPU_BUDGET = 2 * 2**30  # bytes per process; the rest of the RAM caches the images
# images in a batch over all processes; larger batches leave few optimizer steps per epoch
MAX_BATCH = 1024
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


def choose_batch(
    step: Callable[[int], None],
    world_min: Callable[[int], int],
    *,
    device: torch.device,
    images: int,
    shares: int = 1,
    local_processes: int = 1,
    check: Callable[[int], None] | None = None,
) -> tuple[int, str]:
    """The batch size, a multiple of `shares` and the same on every process, and a sentence about it
    for the log.

    step: runs a training step on the given number of images, one share of a batch. It must need as
    much memory as any step of the run, work on copies, so that the trials do not change the run,
    and use no collectives, because processes may try different sizes. world_min: the minimum of a
    number over all processes. images: number of training images. shares: processes, or devices of
    DataParallel, that split a batch. local_processes: processes on this machine. check: a step that
    is too slow for all trials, because it compiles the model first. It is run with the batch that
    was found, and with smaller ones until it fits. Raises ValueError, on every process, if no batch
    fits or there are fewer images than shares.
    """
    most = min(images, MAX_BATCH) // shares
    if most < 1:
        raise ValueError(
            f"--batch-size -1: {counted(images, 'training image')} are too few for {shares} "
            "processes or devices"
        )
    # loads kernels and libraries, so that the budget excludes their memory
    step_memory(lambda: step(1), device)
    budget = world_min(memory_budget(device, local_processes))
    needs: dict[int, int | None] = {}

    def need(batch: int) -> int | None:
        needs[batch] = step_memory(lambda: step(batch), device)
        return needs[batch]

    largest = largest_batch(need, budget, most=most)
    share = world_min(largest)  # a collective: also called if nothing fits on this process
    checked = ""
    if check is not None:
        share, taken = checked_batch(
            lambda size: step_memory(lambda: check(size), device), budget, share, world_min
        )
        checked = f"; compiled, a step of {share} images needs {format_gib(taken)}"
    if share < 1:
        raise ValueError(
            f"--batch-size -1: not even one image fits in {format_gib(budget)}; use a smaller "
            "--imgsz or model"
        )
    parts = f" ({shares} x {share})" if shares > 1 else ""
    limit = (
        f"; limited by the {counted(images, 'training image')}"
        if images < MAX_BATCH
        else f"; more than {MAX_BATCH} are not tried"
    )
    return share * shares, (
        f"--batch-size -1: batch {share * shares}{parts}: a step of {counted(largest, 'image')} "
        "needs "
        f"{format_gib(needs[largest] or 0)} of the allowed {format_gib(budget)}{checked}"
        f"{limit if share == most else ''}"
    )


def checked_batch(
    need: Callable[[int], int | None], budget: int, batch: int, world_min: Callable[[int], int]
) -> tuple[int, int]:
    """The largest batch, `batch` or smaller, that fits on every process, and its bytes on this one;
    0 if none does.

    need: bytes that a batch takes, None if memory runs out. All processes try the same batches:
    after one that does not fit, the one whose bytes would fit in proportion, or an eighth less if
    memory ran out.
    """
    while batch > 0:
        taken = need(batch)
        if taken is None:
            wanted = min(batch * 7 // 8, batch - 1)
        elif taken > budget:
            wanted = min(batch * budget // taken, batch - 1)
        else:
            wanted = batch
        agreed = world_min(wanted)
        if agreed == batch:
            return batch, taken or 0
        batch = agreed
    return 0, 0


def largest_batch(need: Callable[[int], int | None], budget: int, *, most: int) -> int:
    """The largest batch in 1..most that needs at most `budget` bytes, to within an eighth; 0 if a
    batch of 1 does not.

    need: bytes that a batch takes, None if memory runs out. The next batch to try is where a line
    through the last two that fit reaches the budget, at most four times the last; after one that
    does not fit, the interval is halved. The returned batch was tried and fits; a batch larger by
    an eighth (or by 1) was tried and does not fit, or exceeds `most`.

    >>> largest_batch(lambda batch: 3 + 2 * batch, 23, most=1024)
    10
    >>> largest_batch(lambda batch: batch, 999, most=40)
    40
    """
    fitting, bad = [(0, 0)], most + 1
    while bad - (good := fitting[-1][0]) > (eighth := max(good // 8, 1)):
        guess = (
            (good + bad) // 2
            if bad <= most
            else min(max(_guess(fitting, budget), good + eighth), most)
        )
        taken = need(guess)
        if taken is not None and taken <= budget:
            fitting.append((guess, taken))
        else:
            bad = guess
    return good


def _guess(fitting: list[tuple[int, int]], budget: int) -> int:
    """The next batch to try, from a line through the last two (batch, need) that fit."""
    if len(fitting) < 3:
        return 2 * fitting[-1][0]
    (previous, previous_need), (last, last_need) = fitting[-2:]
    if last_need <= previous_need:
        return 2 * last
    end = last + (budget - last_need) * (last - previous) // (last_need - previous_need)
    # slightly less: a batch that does not fit costs more trials
    return min(end - end // 32, 4 * last)


def memory_budget(device: torch.device, local_processes: int = 1) -> int:
    """Bytes that a training step may take: 80 % of a GPU's free memory, or 2 GiB of RAM.

    Of RAM the processes of this machine together take at most half of what is free: trials exceed
    the budget, and a process that runs out of RAM gets no error but is killed by the kernel.
    """
    free = free_memory(device)
    if device.type == "cpu":
        return min(CPU_BUDGET, free // 2 // local_processes)
    return int(free * SHARE)


def step_memory(step: Callable[[], None], device: torch.device) -> int | None:
    """Peak bytes that `step` allocates in addition to those allocated before; None if memory runs
    out.

    On a GPU, what the allocator takes from the device. Elsewhere, the bytes of all tensors that
    exist at the same time:
    this number is the same each time, unlike the process's resident memory, which depends on what
    the heap kept from earlier. It does not include what a kernel allocates internally. The random
    state is restored afterwards.
    """
    need = None
    try:
        with torch.random.fork_rng(
            [] if device.index is None else [device], device_type=device.type
        ):
            need = (
                peak_tensor_bytes(step, device)
                if device.type in ("cpu", "mps")
                else reserved_by(step, device)
            )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # not in the handler, where the error still references the step's tensors
    release_memory(device)
    return need


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory; some such errors are plain RuntimeErrors."""
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or any(words in str(error) for words in OUT_OF_MEMORY)


@contextmanager
def memory_advice(
    batch_size: int, image_size: int, device: torch.device, processes: int, stride: int = 32
) -> Iterator[None]:
    """Raise FaultError, with advice on what to change, if the block runs out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        batch, size = (
            batch_size // 2 // processes * processes,
            image_size * 3 // 4 // stride * stride,
        )
        smaller = [f"--batch-size {batch}"] * (batch > 0) + [f"--imgsz {size}"] * (
            size >= 2 * stride
        )
        raise FaultError(
            f"out of memory on {device} with --batch-size {batch_size} and --imgsz {image_size}: "
            "try "
            f"{', '.join([*smaller, '--checkpoint-activations'])}; --batch-size -1 finds the "
            "largest batch that fits "
            f"({one_line(error, 200) or type(error).__name__})"
        ) from error


def peak_tensor_bytes(step: Callable[[], None], device: torch.device) -> int:
    """Peak bytes of the tensors created in `step` that exist at the same time on a device."""
    with _StorageCount(device) as count:
        step()
    return count.peak


class _StorageCount(TorchDispatchMode):
    """Counts the bytes of storages that operations return, until they are freed; views and in-place
    results add none.

    torch.profiler would also count what kernels allocate internally, but it writes to stderr and
    starts CUDA tracing.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device_type = device.type
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._seen.update(
            tensor.untyped_storage() for tensor in tensors_in((*args, *kwargs.values()))
        )
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
    """Allocate the gradients and the optimizer's state, which every step of a run after the first
    finds allocated.

    Weights may change: use it on copies.
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
