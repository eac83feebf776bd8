r"""Speed of the training step alone: images/s, memory, share of the bandwidth limit.

Goal: on an H200, yolov5n, s and m at 640 px in bfloat16 reach 80 % of the eager-mode limit: what
the memory bandwidth allows if convolution, normalization, activation and concatenation each read
and write memory (6,200, 3,200 and 1,700 images/s). Measured: 22 to 25, 33 and 37 % of it
(benchmarks/results/gpu_*).

    python benchmarks/step.py --device 0 --cfg yolov5n.yaml yolov5s.yaml yolov5m.yaml --img 640 \
        --batch 64 128
    python benchmarks/step.py --device cpu --cfg yolov5n.yaml --img 320 --batch 16 \
        --amp fp32 bf16 --boxes 10 500

It times train.py's `train_one_epoch` (benchmarks/timed_steps.py), with an optimizer step for each
batch. Rows take turns, `--rounds` times. On a GPU, GB/s is images/s times the bytes moved per
image: 3 times the bytes counted for a forward pass (552, 1083, 2023 MB for n, s, m at 640 px). The
limit is --bandwidth divided by those bytes.
"""

import argparse
import os
import sys
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import product
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.report import add_report_flags, file_report, table_row
from benchmarks.timed_steps import Setting, fixed_batches, train_through
from utils.distributed.devices import describe, pick_devices
from utils.distributed.launch import RankInfo
from utils.distributed.memory import release_memory
from utils.distributed.world import World

# MB that a step moves per image at 640 px
MB_PER_IMAGE = {
    "yolov5n.yaml": 552,
    "yolov5s.yaml": 1083,
    "yolov5m.yaml": 2023,
    "yolov5l.yaml": 3236,
}


def images_per_second(setting: Setting, world: World, compiled: str) -> float:
    """images/s, by the median of `setting.steps` steps after a warm-up.

    compiled: torch.compile's mode, or off.
    """
    batches = fixed_batches(setting, world, setting.warmup + setting.steps, seed=0)
    train_through(batches, setting, world, compiled=compiled)
    return setting.batch / median(batches.seconds(setting.warmup))


def watch_memory(device: torch.device) -> None:
    """Release what is cached, and begin to watch for `most_memory_gib`."""
    release_memory(device)
    if device.type == "cuda":
        torch.cuda.init()  # the next function fails before CUDA is used
        torch.cuda.reset_peak_memory_stats(device)


def most_memory_gib(device: torch.device) -> float:
    """The most GiB reserved on a GPU since `watch_memory`; 0 for other devices."""
    if device.type != "cuda":
        return 0.0
    return torch.cuda.max_memory_reserved(device) / 2**30


@dataclass
class Measured:
    """The measurements of a row of the report."""

    setting: Setting
    compiled: str  # torch.compile's mode, or off
    speeds: list[float] = field(default_factory=list)  # images/s, one value per round
    peak_gib: float = 0.0  # 0 if unknown

    def measure(self, world: World) -> None:
        """Measure one round."""
        torch._dynamo.reset()  # else it stops compiling after about eight shapes
        watch_memory(world.device)
        self.speeds.append(images_per_second(self.setting, world, self.compiled))
        self.peak_gib = max(self.peak_gib, most_memory_gib(world.device))


def row(setting: Setting, compiled: str, speeds: list[float], peak: float, bandwidth: float) -> str:
    """A row of the report. peak: GiB, 0 if unknown. bandwidth: TB/s, 0 if unknown."""
    speed = median(speeds)
    cells = [setting.cfg, setting.batch, setting.amp, setting.boxes, compiled]
    cells.append(f"{speed:.1f} ({min(speeds):.1f} to {max(speeds):.1f})")
    cells.append(f"{peak:.2f}" if peak else "-")

    if bandwidth:
        megabytes = MB_PER_IMAGE.get(setting.cfg, 0) * (setting.img / 640) ** 2
        gigabytes_s = speed * megabytes / 1000
        cells += [f"{gigabytes_s:.0f}", f"{speed * megabytes / bandwidth / 1000:.0%}"]
    else:
        cells += ["-", "-"]
    return table_row(cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cpu", help="cpu, or a GPU's number")
    add("--cfg", nargs="+", default=["yolov5n.yaml"])
    add("--img", type=int, default=320)
    add("--batch", type=int, nargs="+", default=[16])
    add("--amp", nargs="+", default=["auto"], help="auto, fp32, bf16, fp16")
    add("--boxes", type=int, nargs="+", default=[10], help="boxes per image")
    add("--compile", nargs="+", default=["off"], help="torch.compile modes, or off")
    add("--steps", type=int, default=10)
    add("--warmup", type=int, default=3)
    add("--rounds", type=int, default=3)
    about_bandwidth = "memory bandwidth of the GPU in TB/s; an H200 was measured at 4.3"
    add("--bandwidth", type=float, default=0.0, help=about_bandwidth)
    add_report_flags(parser)
    options = parser.parse_args()

    (device,) = pick_devices(options.device, RankInfo())
    world = World(device)
    common = Setting(img=options.img, steps=options.steps, warmup=options.warmup)
    measured = []
    for cfg, batch, amp, boxes, compiled in product(
        options.cfg, options.batch, options.amp, options.boxes, options.compile
    ):
        setting = replace(common, cfg=cfg, batch=batch, amp=amp, boxes=boxes)
        measured.append(Measured(setting, compiled))

    for _ in range(options.rounds):
        for each in measured:
            each.measure(world)

    lines = [
        f"# Step: {options.img} px; {options.about}; {describe(device)}; torch "
        f"{torch.__version__}, {date.today()}",
        "",
        "A batch on the device, an optimizer step per batch; medians (minimum to maximum) of "
        f"{options.rounds} rounds in turns, each of {options.steps} steps after {options.warmup} "
        f"for warm-up. Load average at the end {os.getloadavg()[0]:.1f}.",
        "",
        "| model | batch | --amp | boxes per image | compiled | images/s | GiB | GB/s | of the "
        "limit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        row(each.setting, each.compiled, each.speeds, each.peak_gib, options.bandwidth)
        for each in measured
    ]
    file_report([*lines, ""], options.out)


if __name__ == "__main__":
    main()
