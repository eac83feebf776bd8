"""Places where the host waits for the GPU in a training step: CUDA itself reports them.

Steps are those of train.py's `train_one_epoch`. A wait in the backward pass is reported at the call
of backward(); torch's profiler then names the operation that waits there.
"""

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.on_gpu.stage import Finding, Scope
from benchmarks.profile_step import profiled
from benchmarks.timed_steps import Setting, fixed_batches, train_through
from utils.distributed.world import World

ROOT = Path(__file__).resolve().parents[2]
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Muon")
PRECISIONS = ("fp32", "bf16", "fp16")
WARMUP = 3  # steps
WATCHED = 3  # steps
WARNING = "called a synchronizing CUDA operation"
WAITING = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "cudaStreamSynchronize",
)


def look_for_waits(scope: Scope) -> Iterator[Finding]:
    """Every head with every precision, and every optimizer with every precision."""
    world = scope.world
    on_purpose: Counter[str] = Counter()
    with recorded_waits(world.device, on_purpose):
        torch.ones(3, device=world.device).sum().item()
    yield Finding(f"one wait on purpose, seen: {on_purpose.total()}", on_purpose.total() == 1)

    for setting in settings(scope):
        name = f"{setting.cfg}, {setting.optimizer}, {setting.amp}"
        found = waits_of(setting, world)
        text = f"{name}: {describe(found) or 'no wait'}"
        yield Finding(text, not found, {"waits": found.total()})
        if found:
            operations = waiting_operations(setting, world)
            yield Finding(f"{name}: operations {describe(operations)}")


def settings(scope: Scope) -> Iterator[Setting]:
    """A setting for each head and precision, with the optimizers in turn: all pairs of two."""
    sizes = scope.sizes
    common = Setting(img=sizes.check_img, batch=sizes.check_batch, steps=WATCHED, warmup=WARMUP)
    for row, cfg in enumerate(sizes.check_models):
        for column, amp in enumerate(PRECISIONS):
            optimizer = OPTIMIZERS[(row + column) % len(OPTIMIZERS)]
            yield replace(common, cfg=cfg, amp=amp, optimizer=optimizer)


def waits_of(setting: Setting, world: World) -> Counter[str]:
    """Waits in the steps after the warm-up, by place.

    The last step ends the epoch, which may wait: it is left out.
    """
    found: Counter[str] = Counter()
    last = setting.warmup + setting.steps
    with ExitStack() as recording:

        def watch(number: int) -> None:
            if number == setting.warmup:
                recording.enter_context(recorded_waits(world.device, found))
            if number == last:
                recording.close()

        batches = fixed_batches(setting, world, last + 1, seed=0)
        train_through(batches, setting, world, watch=watch, tuned=False)
    return found


@contextmanager
def recorded_waits(device: torch.device, found: Counter[str]) -> Iterator[None]:
    """Count the waits for a GPU in the block, by place."""

    def record(message: Any, *_: Any, **__: Any) -> None:
        if WARNING in str(message):
            found[calling_place()] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = record
        set_sync_debug_mode(device, "warn")
        try:
            yield
        finally:
            set_sync_debug_mode(device, "default")


def set_sync_debug_mode(device: torch.device, mode: str) -> None:
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


def calling_place() -> str:
    """The innermost line that is being run, of all and of the project without benchmarks."""
    not_shown = (str(ROOT / "benchmarks"), warnings.__file__)
    stack = [
        frame for frame in traceback.extract_stack() if not frame.filename.startswith(not_shown)
    ]
    ours = [frame for frame in stack if frame.filename.startswith(str(ROOT))]

    innermost = [*stack[-1:], *ours[-1:]]
    places = [f"{short_path(frame.filename)}:{frame.lineno}" for frame in innermost]
    return " in ".join(dict.fromkeys(places))  # one place if they are the same


def short_path(file: str) -> str:
    """The path within the project or within its package."""
    path = Path(file)
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    return "/".join(path.parts[-3:])


def waiting_operations(setting: Setting, world: World) -> Counter[str]:
    """Operations that wait in all profiled steps, each with what called it.

    That is a node of the backward pass if there is one, or else the outermost operation.
    """
    found: Counter[str] = Counter()
    for event in profiled(setting, world).events() or ():
        if event.name not in WAITING:
            continue

        names = [event.name]  # of the event and its callers, the outermost last
        caller = event.cpu_parent
        while caller is not None:
            names.append(caller.name)
            caller = caller.cpu_parent
        nodes = [name for name in names if name.startswith("autograd::engine")]

        cause = nodes[0] if nodes else names[-1]
        found[f"{event.name} in {cause}"] += 1
    return found


def describe(found: Counter[str]) -> str:
    """Counts as text, the most frequent first."""
    counts = [f"{count} x {what}" for what, count in found.most_common(8)]
    return ", ".join(counts)
