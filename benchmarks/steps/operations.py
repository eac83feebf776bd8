r"""Operations of a training step, and those that would make the host wait for a GPU.

Claim: with SGD a step of yolov5n takes at most 900 operations, of yolo11n and yolox_nano 1,210, of
yolo26n 1,860; none of them makes the host wait for the device. benchmarks/results/operations_* has
the numbers before and after the losses were written for few operations.

    python benchmarks/steps/operations.py \
        --cfg yolov5n.yaml yolo11n.yaml yolo26n.yaml yolox_nano.yaml

On a GPU each operation starts a kernel, which costs the host some 5 to 10 microseconds: with small
models and batches this, and not arithmetic, is what bounds the speed. The number of operations can
be counted on any machine. This runs train.py's `train_one_epoch` on the CPU as it would run on a
GPU (fused optimizers, values fetched later), and counts by torch's profiler. Views, which compute
nothing, and allocations do not count, and an operation on a list of tensors counts once. Dispatch
modes cannot be used: some formulas of torch take another way when one is active.

Sorted writes are counted separately: an assignment to places that may repeat, which is also the
gradient of `x[index]`. A GPU sorts the places first, which takes some thirty kernels.
"""

import argparse
import contextlib
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

import training.checkpoints.preemption
import training.nonfinite
import training.progress
import training.state
from benchmarks.report import table_row
from benchmarks.timed_steps import Setting, fixed_batches, train_through
from models import Detector
from models.head_registry import HEADS
from models.losses import anchor_based
from tests.support.meta_device import NeverReadyHostCopy, use_fused
from training.averages.ema import EMA
from training.optimizers import build_optimizer
from training.state import TrainState
from utils.distributed.world import World

LABEL = "part of a step: "
REST = "rest"  # the loop itself: images and targets, the learning rate, the sums of the losses
SORTED = "_index_put_impl_"
# Operations that need a value on the host, or whose result's size depends on values.
READS_VALUE = ("item", "_local_scalar_dense", "is_nonzero", "equal", "allclose")
VALUE_SIZED = ("nonzero", "masked_select", "unique", "_unique2", "bincount", "repeat_interleave")
WAITS = (*READS_VALUE, *VALUE_SIZED)
# The beginnings of names of operations that compute nothing: allocations and views.
NO_KERNEL = ("empty", "new_empty", "resize_", "set_")
VIEWS = ("_unsafe_view", "as_strided_", "detach", "lift_fresh")
WARMUP = 2  # steps before the one that is counted: the first creates the optimizer's state
PARTS: list[tuple[str, type, str]] = [
    ("forward", Detector, "forward"),
    *(("loss", family.loss, "forward") for family in HEADS.values()),
    ("backward", torch.Tensor, "backward"),
    ("optimizer", TrainState, "step"),
    ("EMA", EMA, "update"),
]


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Use fused optimizers, a GPU's indexing, and copies to the host that are not ready at once."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(anchor_based, "_rows_at", operator.getitem))
        for module in (training.progress, training.nonfinite, training.checkpoints.preemption):
            patches.enter_context(patch.object(module, "AsyncHostCopy", NeverReadyHostCopy))

        def fused(*args: Any, **kwargs: Any) -> torch.optim.Optimizer:
            return use_fused(build_optimizer(*args, **kwargs))

        patches.enter_context(patch.object(training.state, "build_optimizer", fused))
        yield


@contextmanager
def labeled_parts() -> Iterator[None]:
    """Let the profiler show which part of a step an operation belongs to."""

    def labeled(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with record_function(LABEL + name):
                return real(*args, **kwargs)

        return call

    with ExitStack() as patches:
        for name, owner, method in PARTS:
            call = labeled(name, getattr(owner, method))
            patches.enter_context(patch.object(owner, method, call))
        yield


def profiled_step(setting: Setting) -> list[FunctionEvent]:
    """The outermost events of one step of train.py's `train_one_epoch`, after WARMUP others."""
    recorder = profile(activities=[ProfilerActivity.CPU])

    def watch(number: int) -> None:
        if number == WARMUP:
            recorder.start()
        elif number == WARMUP + 1:
            recorder.stop()

    world = World(torch.device("cpu"))
    batches = fixed_batches(setting, world, WARMUP + 2, seed=0)
    with as_on_a_gpu(), labeled_parts():
        train_through(batches, setting, world, watch=watch)
    return roots(recorder)


def roots(recorder: profile) -> list[FunctionEvent]:
    """The recorded events that no other event contains."""
    return [event for event in recorder.events() or [] if event.cpu_parent is None]


def operations(events: Iterable[FunctionEvent], part: str = REST) -> Iterator[tuple[str, str]]:
    """Yield part and name of each operation below `events` that would start a kernel on a GPU.

    Of nested operations the outermost one with a kernel is counted: what its kernel for the CPU
    calls, such as the conversion of a number or one operation for each tensor of a list, has no
    counterpart on a GPU.
    """
    for event in events:
        name = event.name.removeprefix("aten::")
        is_of_torch = name != event.name
        if event.name.startswith(LABEL):
            yield from operations(event.cpu_children, event.name.removeprefix(LABEL))
        elif is_of_torch and is_kernel(name, innermost=not event.cpu_children):
            yield part, name
        else:
            yield from operations(event.cpu_children, part)


@cache
def is_kernel(name: str, *, innermost: bool = True) -> bool:
    """Whether an operation of torch computes itself: no view, no allocation, not made of others.

    innermost: whether it calls no others, so that a function for all devices counts too.

    >>> [is_kernel(name) for name in ("add", "copy_", "_foreach_lerp_", "view", "empty", "reshape")]
    [True, True, True, False, False, False]
    """
    if name.startswith((*NO_KERNEL, *VIEWS)):
        return False

    packet = getattr(torch.ops.aten, name)
    every = [getattr(packet, overload) for overload in packet.overloads()]
    overloads = [each for each in every if torch._C._dispatch_has_kernel(each.name())]
    if any(overload.is_view for overload in overloads):
        return False

    def is_registered(key: str) -> bool:
        has_kernel_for = torch._C._dispatch_has_kernel_for_dispatch_key
        return any(has_kernel_for(overload.name(), key) for overload in overloads)

    of_device = is_registered("CPU") or name.startswith(("_foreach_", "_fused_"))
    return of_device or (innermost and not is_registered("CompositeImplicitAutograd"))


def host_waits(events: Iterable[FunctionEvent], where: str = "") -> Iterator[str]:
    """Yield name and place of each operation that needs a value or a size on the host.

    Only the outermost one is named: `item` calls `_local_scalar_dense`. Fused optimizers are left
    out: their kernels for a CPU read values, those for a GPU do not.
    """
    place = where or "the loop"
    for event in events:
        name = event.name.removeprefix("aten::")
        is_of_torch = name != event.name
        if is_of_torch and name in WAITS:
            yield f"{name} in {place}"
        elif name.startswith("_fused_"):
            continue
        elif name in ("index", SORTED) and indexed_by_mask(event):
            yield f"{name} by a mask in {place}"
        else:
            inside = where if is_of_torch else event.name
            yield from host_waits(event.cpu_children, inside)


def indexed_by_mask(event: FunctionEvent) -> bool:
    """Whether an indexing operation turns a mask into places, whose number the host needs."""
    return any(child.name == "aten::nonzero" for child in event.cpu_children)


def counted(setting: Setting) -> tuple[Counter[str], Counter[str], list[str]]:
    """Operations and sorted writes of each part of a step, and what makes the host wait."""
    events = profiled_step(setting)
    each: Counter[str] = Counter()
    sorted_writes: Counter[str] = Counter()
    for part, name in operations(events):
        each[part] += 1
        sorted_writes[part] += name == SORTED
    return each, sorted_writes, list(host_waits(events))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    models = ["yolov5n.yaml", "yolo11n.yaml", "yolo26n.yaml", "yolox_nano.yaml"]
    add("--cfg", nargs="+", default=models)
    add("--img", type=int, default=128)
    add("--batch", type=int, default=2)
    add("--amp", default="fp32", help="fp32 or bf16")
    add("--optimizer", default="SGD")
    add("--names", metavar="PART", help="also list the operations of this part by name")
    options = parser.parse_args()

    parts = [*dict.fromkeys(name for name, _, _ in PARTS), REST]
    run = f"torch {torch.__version__}, {options.amp}, {options.optimizer}"
    print(f"{run}; operations, of them sorted writes\n")
    print(table_row(["model", *parts, "whole step", "host waits"]))
    print(table_row(["---"] * (len(parts) + 3)))

    for cfg in options.cfg:
        setting = Setting(
            cfg=cfg,
            img=options.img,
            batch=options.batch,
            amp=options.amp,
            optimizer=options.optimizer,
        )
        each, sorted_writes, waits = counted(setting)
        cells = [f"{each[part]}, {sorted_writes[part]}" for part in parts]
        total = f"{each.total()}, {sorted_writes.total()}"
        print(table_row([cfg, *cells, total, ", ".join(waits) or "none"]), flush=True)

        if options.names:
            events = profiled_step(setting)
            names = Counter(name for part, name in operations(events) if part == options.names)
            for name, number in names.most_common():
                print(f"{number:5} {name}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
