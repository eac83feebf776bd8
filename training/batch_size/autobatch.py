"""--batch-size -1: find the largest batch whose training step fits in a share of the free memory.

The search, by trial steps:

1. The budget is what a step may take: a share of the free memory (`memory_budget`).
2. Each process searches for the largest batch that fits in it: larger and larger batches along a
   line through the last measurements, then halving the interval (`largest_batch`).
3. All processes take the smallest of their results; a step that is too slow for all trials is
   checked at the end (`checked_batch`).

What a step takes is measured (`step_memory`), not extrapolated: gradients, optimizer state,
averaged weights and the assignment of images with many boxes need memory in addition to the forward
pass, and do not grow in proportion to it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from utils.distributed.memory import free_memory, release_memory, reserved_by
from utils.nested import tensors_in
from utils.printable import counted, one_line
from utils.terminal import FaultError

# Of a GPU's free memory; the rest is for fragmentation, and for batches with more boxes than the
# trials.
SHARE = 0.8
CPU_BUDGET = 2 * 2**30  # bytes per process; the rest of the RAM caches the images
# Images in a batch over all processes; larger batches leave few optimizer steps per epoch.
MAX_BATCH = 1024
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


@dataclass(frozen=True)
class FinalTrial:
    """A step that is too slow for all trials, because the model is compiled first, for example.

    how: what is different, for the log.
    """

    how: str
    step: Callable[[int], None]


def choose_batch(
    step: Callable[[int], None],
    world_min: Callable[[int], int],
    *,
    device: torch.device,
    images: int,
    shares: int = 1,
    local_processes: int = 1,
    check: FinalTrial | None = None,
) -> tuple[int, str]:
    """Return the batch size, and a sentence about it for the log.

    The size is a multiple of `shares` and the same on every process. Raises ValueError, on every
    process, if no batch fits or there are fewer images than shares.

    Args:
        step: runs a training step on the given number of images, one share of a batch. It must need
            as much memory as any step of the run, work on copies, so that the trials do not change
            the run, and use no collectives, because processes may try different sizes.
        world_min: the minimum of a number over all processes, a collective.
        device: that the step runs on.
        images: number of training images.
        shares: processes, or devices of DataParallel, that split a batch.
        local_processes: processes on this machine.
        check: is run with the batch of the search, and with smaller ones until it fits.
    """
    most = min(images, MAX_BATCH) // shares
    if most < 1:
        raise ValueError(
            f"--batch-size -1: {counted(images, 'training image')} are too few for {shares} "
            "processes or devices"
        )

    # The first step loads kernels and libraries, whose memory the budget excludes.
    step_memory(lambda: step(1), device)
    budget = world_min(memory_budget(device, local_processes))

    # Search on this process, and take the minimum of all: a collective, also if nothing fits here.
    needs: dict[int, int | None] = {}

    def need(batch: int) -> int | None:
        needs[batch] = step_memory(lambda: step(batch), device)
        return needs[batch]

    largest = largest_batch(need, budget, most=most)
    share = world_min(largest)

    checked = ""
    if check is not None:

        def need_of_check(batch: int) -> int | None:
            return step_memory(lambda: check.step(batch), device)

        share, taken = checked_batch(need_of_check, budget, share, world_min)
        checked = f"; {check.how}, a step of {counted(share, 'image')} needs {format_gib(taken)}"

    if share < 1:
        raise ValueError(
            f"--batch-size -1: not even one image fits in {format_gib(budget)}; use a smaller "
            "--imgsz or model"
        )

    # The sentence for the log.
    parts = f" ({shares} x {share})" if shares > 1 else ""
    trial = f"a step of {counted(largest, 'image')} needs {format_gib(needs[largest] or 0)}"
    limit = ""
    if share == most and images < MAX_BATCH:
        limit = f"; limited by the {counted(images, 'training image')}"
    elif share == most:
        limit = f"; more than {MAX_BATCH} are not tried"
    sentence = (
        f"--batch-size -1: batch {share * shares}{parts}: {trial} "
        f"of the allowed {format_gib(budget)}{checked}{limit}"
    )
    return share * shares, sentence


def checked_batch(
    need: Callable[[int], int | None], budget: int, batch: int, world_min: Callable[[int], int]
) -> tuple[int, int]:
    """Return the largest batch up to `batch` that fits on every process, and its bytes on this one.

    Both are 0 if none fits. All processes try the same batches: after one that does not fit, the
    one whose bytes would fit in proportion, or an eighth less if memory ran out.

    need: bytes that a batch takes, None if memory runs out.
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
    """Return the largest batch in 1..most that needs at most `budget` bytes, to within an eighth.

    0 if a batch of 1 does not fit. The next batch to try is where a line through the last two that
    fit reaches the budget, at most four times the last; after one that does not fit, the interval
    is halved. The returned batch was tried and fits; a batch larger by an eighth (or by 1) was
    tried and does not fit, or exceeds `most`.

    need: bytes that a batch takes, None if memory runs out.

    >>> largest_batch(lambda batch: 3 + 2 * batch, 23, most=1024)
    10
    >>> largest_batch(lambda batch: batch, 999, most=40)
    40
    """
    fitting = [(0, 0)]  # (batch, bytes) of the trials that fit, smallest first
    too_large = most + 1  # the smallest batch that does not fit, or may not be tried
    while True:
        largest, _ = fitting[-1]
        eighth = max(largest // 8, 1)
        if too_large - largest <= eighth:
            return largest

        if too_large <= most:
            batch = (largest + too_large) // 2
        else:
            batch = max(_extrapolated(fitting, budget), largest + eighth)
            batch = min(batch, most)

        taken = need(batch)
        if taken is not None and taken <= budget:
            fitting.append((batch, taken))
        else:
            too_large = batch


def _extrapolated(fitting: list[tuple[int, int]], budget: int) -> int:
    """Return the batch at which a line through the last two trials that fit reaches the budget.

    fitting: (batch, bytes) of the trials, the first of which is (0, 0) and was not measured. Twice
    the last batch if there are fewer than two, or if memory does not grow between them.
    """
    last, last_need = fitting[-1]
    if len(fitting) < 3:
        return 2 * last
    previous, previous_need = fitting[-2]
    if last_need <= previous_need:
        return 2 * last

    remaining = budget - last_need
    end = last + remaining * (last - previous) // (last_need - previous_need)
    # Slightly less: a batch that does not fit costs more trials.
    return min(end - end // 32, 4 * last)


def memory_budget(device: torch.device, local_processes: int = 1) -> int:
    """Return the bytes that a training step may take: 80 % of a GPU's free memory, or 2 GiB of RAM.

    Of RAM the processes of this machine together take at most half of what is free: trials exceed
    the budget, and a process that runs out of RAM gets no error but is killed by the kernel.
    """
    free = free_memory(device)
    if device.type == "cpu":
        return min(CPU_BUDGET, free // 2 // local_processes)
    return int(free * SHARE)


def step_memory(step: Callable[[], None], device: torch.device) -> int | None:
    """Return the peak bytes that `step` allocates beside those allocated before.

    None if memory runs out. On a GPU, what the allocator takes from the device. Elsewhere, the
    bytes of all tensors that exist at the same time: this number is the same each time, unlike the
    process's resident memory, which depends on what the heap kept from earlier. It does not include
    what a kernel allocates internally. The random state is restored afterwards.
    """
    peak = None
    random_devices = [] if device.index is None else [device]
    try:
        with torch.random.fork_rng(random_devices, device_type=device.type):
            if device.type in ("cpu", "mps"):
                peak = peak_tensor_bytes(step, device)
            else:
                peak = reserved_by(step, device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise

    # Not in the handler, where the error still references the step's tensors.
    release_memory(device)
    return peak


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory; some such errors are plain RuntimeErrors."""
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or any(words in str(error) for words in OUT_OF_MEMORY)


@contextmanager
def memory_advice(
    batch_size: int,
    image_size: int,
    device: torch.device,
    processes: int,
    stride: int = 32,
    *,
    may_recompute: bool = True,
) -> Iterator[None]:
    """Raise FaultError, with advice on what to change, if the block runs out of memory.

    Args:
        batch_size: images in a batch over all processes.
        image_size: side in pixels.
        device: that runs out of memory.
        processes: of which the batch size must be a multiple.
        stride: of which the side must be a multiple.
        may_recompute: whether --checkpoint-activations would help, and can be given.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise

        # Half of the batch and three quarters of the side, if they are still usable.
        flags = []
        half_batch = batch_size // 2 // processes * processes
        if half_batch > 0:
            flags.append(f"--batch-size {half_batch}")
        smaller_size = image_size * 3 // 4 // stride * stride
        if smaller_size >= 2 * stride:
            flags.append(f"--imgsz {smaller_size}")
        if may_recompute:
            flags.append("--checkpoint-activations")

        cause = one_line(error, 200) or type(error).__name__
        smaller = f"try {', '.join(flags)}; " if flags else ""
        raise FaultError(
            f"out of memory on {device} with --batch-size {batch_size} and --imgsz {image_size}: "
            f"{smaller}--batch-size -1 finds the largest batch that fits ({cause})"
        ) from error


def peak_tensor_bytes(step: Callable[[], None], device: torch.device) -> int:
    """Return the peak bytes of tensors created in `step` that exist together on a device."""
    with _StorageCount(device) as count:
        step()
    return count.peak


class _StorageCount(TorchDispatchMode):
    """Counts the bytes of storages that operations return, until they are freed.

    Views and in-place results add none. torch.profiler would also count what kernels allocate
    internally, but it writes to stderr and starts CUDA tracing.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device_type = device.type
        self.now = 0
        self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((*args, *kwargs.values()))
        self._seen.update(tensor.untyped_storage() for tensor in given)

        result = func(*args, **kwargs)

        for tensor in tensors_in((result,)):
            storage = tensor.untyped_storage()
            is_new = storage not in self._seen
            if is_new and tensor.device.type == self.device_type:
                self._seen.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _free(self, nbytes: int) -> None:
        self.now -= nbytes


def initialize_state(optimizer: torch.optim.Optimizer) -> None:
    """Allocate the gradients and the optimizer's state, as before every step but a run's first.

    Weights may change: use it on copies.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def format_gib(size: int) -> str:
    """Return a number of bytes as text, in GiB or, if it is below one, in MiB.

    >>> format_gib(2 * 2**30), format_gib(100 * 2**20)
    ('2.0 GiB', '100 MiB')
    """
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / 2**20:.0f} MiB"
