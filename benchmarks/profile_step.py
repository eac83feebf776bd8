r"""Profile of a training step: the time of its parts, the longest operations, the memory in use.

Claim: a step of YOLOX or YOLO11 with 500 boxes in each image takes at most 1.5 times the time and
twice the memory of 10 boxes. LOG.md has results of this tool.

    python benchmarks/profile_step.py --device cpu --cfg yolov5n.yaml --img 320 --batch 16 \
        --amp bf16
    python benchmarks/profile_step.py --cfg yolox_nano.yaml --img 640 --boxes 500
    python benchmarks/profile_step.py --cfg yolo11n.yaml --boxes 500
    python benchmarks/profile_step.py --device 0 --cfg yolov5n.yaml --img 640 --batch 64 \
        --trace trace.json

It runs train.py's `train_one_epoch` on one batch that is on the device already, `--steps` steps
after a warm-up, twice. The first run times the parts, with the device synchronized before and after
each: forward, loss, backward, optimizer (with clipping, EMA and the check for finite numbers), and
the rest, which is the loop itself. The second run records operations with torch's profiler, on a
GPU by the time of the kernels that each starts. `--trace` writes a file for chrome://tracing.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.timed_steps import Setting, fixed_batches, train_through
from models import Detector
from models.head_registry import HEADS
from training.state import TrainState
from utils.distributed.devices import pick_devices, wait_for
from utils.distributed.launch import RankInfo
from utils.distributed.memory import memory_gib
from utils.distributed.world import World

PARTS: list[tuple[str, type, str]] = [
    ("forward", Detector, "forward"),
    *(("loss", family.loss, "forward") for family in HEADS.values()),
    ("optimizer", TrainState, "step"),
    ("backward", torch.Tensor, "backward"),
]


@contextmanager
def clocked(device: torch.device) -> Iterator[dict[str, float]]:
    """Sum up the seconds of each part of a step during the block."""
    seconds: dict[str, float] = {name: 0.0 for name, _, _ in PARTS}

    def timed(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            wait_for(device)
            started = time.perf_counter()
            result = real(*args, **kwargs)
            wait_for(device)
            seconds[name] += time.perf_counter() - started
            return result

        return call

    with ExitStack() as patches:
        for name, owner, method in PARTS:
            call = timed(name, getattr(owner, method))
            patches.enter_context(patch.object(owner, method, call))
        yield seconds


def parts(setting: Setting, world: World) -> dict[str, float]:
    """Milliseconds of each part of a step, of the rest, and of the whole step."""
    batches = fixed_batches(setting, world, setting.warmup + setting.steps, seed=0)
    with clocked(world.device) as seconds:

        def watch(number: int) -> None:
            if number == setting.warmup:
                seconds.update(dict.fromkeys(seconds, 0.0))

        train_through(batches, setting, world, watch=watch)

    total = sum(batches.seconds(setting.warmup))
    found = {**seconds, "rest": total - sum(seconds.values()), "total": total}
    return {name: 1000 * value / setting.steps for name, value in found.items()}


def profiled(setting: Setting, world: World) -> profile:
    """torch's profile of the steps after the warm-up."""
    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = schedule(wait=0, warmup=setting.warmup, active=setting.steps)

    with profile(
        activities=activities, schedule=plan, record_shapes=True, acc_events=True
    ) as found:

        def watch(number: int) -> None:
            if number > 0:
                found.step()

        batches = fixed_batches(setting, world, setting.warmup + setting.steps, seed=0)
        train_through(batches, setting, world, watch=watch)
    return found


def print_operations(found: profile, setting: Setting, device: torch.device, rows: int) -> None:
    """Print the operations that take longest, with the shapes of their inputs."""
    on_gpu = device.type == "cuda"
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"  # microseconds

    averages = found.key_averages(group_by_input_shape=True)
    on_host = [event for event in averages if event.device_type == DeviceType.CPU]
    operations = [event for event in on_host if not event.key.startswith("ProfilerStep")]
    operations.sort(key=lambda event: -getattr(event, by))

    for event in operations[:rows]:
        shapes = str([shape for shape in event.input_shapes if shape])[:80]
        milliseconds = getattr(event, by) / setting.steps / 1000
        print(f"{milliseconds:9.2f} {event.count // setting.steps:>4} x {event.key:36} {shapes}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cpu", help="cpu, or a GPU's number")
    add("--cfg", default="yolov5n.yaml")
    add("--img", type=int, default=320)
    add("--batch", type=int, default=16)
    add("--amp", default="auto", help="auto, fp32, bf16 or fp16")
    add("--boxes", type=int, default=10, help="boxes per image")
    add("--steps", type=int, default=5)
    add("--rows", type=int, default=25, help="number of operations shown")
    add("--trace", type=Path, help="write a trace file for chrome://tracing")
    options = parser.parse_args()

    (device,) = pick_devices(options.device, RankInfo())
    names = ("cfg", "img", "batch", "amp", "boxes", "steps")
    setting = Setting(**{name: getattr(options, name) for name in names})
    world = World(device)

    batch = f"batch {options.batch}, {options.boxes} boxes"
    print(f"{options.cfg}, {options.img} px, {batch}; ms per step\n")
    for name, milliseconds in parts(setting, world).items():
        print(f"{name:>12} {milliseconds:9.2f}")
    print(f"\n{memory_gib(world.device):.2f} GiB of memory in use\n")

    found = profiled(setting, world)
    print_operations(found, setting, device, options.rows)
    if options.trace:
        found.export_chrome_trace(str(options.trace))


if __name__ == "__main__":
    main()
