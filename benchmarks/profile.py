"""Where a training step goes: its parts by the clock, and the operations that take longest.

Claim: none; this is to look with. Results of a look are in LOG.md.

    python benchmarks/profile.py --device cpu --cfg yolov5n.yaml --img 320 --batch 16 --amp bf16
    python benchmarks/profile.py --device 0 --cfg yolov5n.yaml --img 640 --batch 64 --trace trace.json

train.py's own `train_one_epoch` on one batch that lies on the device, `--steps` times after a warm-up, under torch's
profiler; `--trace` is for chrome://tracing. Parts: forward, loss, backward, optimizer (with clipping, averages and the
check for finite numbers), and the rest, which is the loop itself.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder, whose profile.py would hide Python's

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.scaling import Setting, fixed_batches, train_through
from models import Detector
from models.losses import AnchorLoss
from utils.distributed import World
from utils.run_state import Learner

PARTS = {"forward": (Detector, "forward"), "loss": (AnchorLoss, "forward"), "optimizer": (Learner, "step")}
BACKWARD = (torch.Tensor, "backward")


@contextmanager
def labelled() -> Iterator[None]:
    """The parts of a step have names for the profiler."""

    def named(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with record_function(f"part: {name}"):
                return real(*args, **kwargs)

        return call

    patches = [
        patch.object(owner, method, named(name, getattr(owner, method)))
        for name, (owner, method) in {**PARTS, "backward": BACKWARD}.items()
    ]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", default="cpu", help="cpu, or a GPU's number")
    add("--cfg", default="yolov5n.yaml")
    add("--img", type=int, default=320)
    add("--batch", type=int, default=16)
    add("--amp", default="auto", help="auto, fp32, bf16 or fp16")
    add("--boxes", type=int, default=10, help="in an image")
    add("--steps", type=int, default=5)
    add("--rows", type=int, default=25, help="operations shown")
    add("--trace", type=Path, help="file for chrome://tracing")
    options = parser.parse_args()

    device = torch.device("cuda", int(options.device)) if options.device.isdecimal() else torch.device(options.device)
    names = ("cfg", "img", "batch", "amp", "boxes", "steps")
    setting, world = Setting(**{name: getattr(options, name) for name in names}), World(device)
    train_through(fixed_batches(setting, world, 3, seed=0), setting, world)
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with labelled(), profile(activities=activities, record_shapes=True) as found:
        train_through(fixed_batches(setting, world, setting.steps, seed=0), setting, world)

    print(f"{options.cfg}, {options.img} px, batch {options.batch}, {options.boxes} boxes; ms a step\n")
    rows = found.key_averages()
    total = 0.0
    for event in sorted((e for e in rows if e.key.startswith("part: ")), key=lambda e: -e.cpu_time_total):
        own = event.device_time_total if on_gpu else event.cpu_time_total
        total += own
        print(f"{event.key.removeprefix('part: '):>12} {own / setting.steps / 1000:9.2f}")
    print(f"{'together':>12} {total / setting.steps / 1000:9.2f}\n")
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    shaped = found.key_averages(group_by_input_shape=True)
    operations = [e for e in shaped if not e.key.startswith("part: ")]
    for event in sorted(operations, key=lambda e: -getattr(e, by))[: options.rows]:
        shapes = str([shape for shape in event.input_shapes if shape])[:80]
        own = getattr(event, by) / setting.steps / 1000
        print(f"{own:9.2f} {event.count // setting.steps:>4} x {event.key:36} {shapes}")
    if options.trace:
        found.export_chrome_trace(str(options.trace))


if __name__ == "__main__":
    main()
