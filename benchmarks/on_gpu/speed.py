"""Speed: steps of several models and batch sizes, compiled steps, a step's parts, the loader."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks import loader, profile_step
from benchmarks.on_gpu.commands import run_command
from benchmarks.on_gpu.machine import measured_bandwidth
from benchmarks.on_gpu.stage import Finding, Scope
from benchmarks.step import MB_PER_IMAGE, images_per_second, most_memory_gib, watch_memory
from benchmarks.timed_steps import Setting
from utils.distributed.memory import memory_gib
from utils.printable import one_line

WARMUP = 3  # steps
BOXES = 10  # per image


def time_first_batch(scope: Scope) -> Iterator[Finding]:
    """Eager steps of each model with the first batch size."""
    yield from eager(scope, scope.sizes.batches[0])


def time_second_batch(scope: Scope) -> Iterator[Finding]:
    """Eager steps of each model with the second batch size."""
    yield from eager(scope, scope.sizes.batches[1])


def time_third_batch(scope: Scope) -> Iterator[Finding]:
    """Eager steps of each model with the third batch size."""
    yield from eager(scope, scope.sizes.batches[2])


def eager(scope: Scope, batch: int) -> Iterator[Finding]:
    for cfg in scope.sizes.models:
        yield timed(scope, cfg, batch, "off")


def time_compiled_yolov5n(scope: Scope) -> Iterator[Finding]:
    """Compiled steps of yolov5n with the first batch size."""
    yield timed(scope, "yolov5n.yaml", scope.sizes.batches[0], "default")


def time_compiled_yolo26n(scope: Scope) -> Iterator[Finding]:
    """Compiled steps of yolo26n with the first batch size."""
    yield timed(scope, "yolo26n.yaml", scope.sizes.batches[0], "default")


def timed(scope: Scope, cfg: str, batch: int, compiled: str) -> Finding:
    """Images/s, memory and share of the bandwidth limit of a setting; an error is a finding too."""
    sizes = scope.sizes
    device = scope.world.device
    setting = Setting(
        cfg=cfg, img=sizes.img, batch=batch, steps=sizes.steps, warmup=WARMUP, boxes=BOXES
    )
    mode = "eager" if compiled == "off" else f"compiled ({compiled})"
    name = f"{Path(cfg).stem}, batch {batch}, {mode}"

    watch_memory(device)
    try:
        speed = images_per_second(setting, scope.world, compiled)
    except Exception as error:  # of any type: the other settings are measured all the same
        return Finding(f"{name}: {type(error).__name__}: {one_line(error)}", False)

    peak = most_memory_gib(device) or memory_gib(device)
    values = {"model": cfg, "batch": batch, "compiled": compiled, "images_s": speed, "gib": peak}
    text = f"{name}: {speed:.0f} images/s, {1000 * batch / speed:.1f} ms per step, {peak:.1f} GiB"
    share = share_of_limit(scope, cfg, speed)
    if share:
        values["share_of_limit"] = share
        text += f", {share:.0%} of the bandwidth limit"
    return Finding(text, values=values)


def share_of_limit(scope: Scope, cfg: str, speed: float) -> float:
    """Images/s divided by what the bandwidth allows (benchmarks/step.py); 0 if unknown."""
    bandwidth = measured_bandwidth(scope)  # TB/s
    if not bandwidth or not scope.on_gpu:
        return 0.0

    megabytes = MB_PER_IMAGE.get(cfg, 0) * (scope.sizes.img / 640) ** 2
    return speed * megabytes / 1e6 / bandwidth


def profile_parts(scope: Scope) -> Iterator[Finding]:
    """The parts of a step and the operations that take longest, by benchmarks/profile_step.py."""
    sizes = scope.sizes
    batch = sizes.batches[0]
    words = f"--device {scope.device} --cfg {sizes.model} --img {sizes.img} --batch {batch}"
    words += f" --steps {min(sizes.steps, 5)} --rows 12"
    done = run_command(profile_step.main, words.split(), scope.folder / "output" / "profile.txt")
    yield from done.findings(f"profile_step.py {words}", done.lines[1:])


def time_loader(scope: Scope) -> Iterator[Finding]:
    """The training loader alone, from files and caches, by benchmarks/loader.py."""
    sizes = scope.sizes
    words = ["--data", scope.data, "--device", scope.device]
    words += ["--img", str(sizes.img), "--batch", str(sizes.batch)]
    words += ["--workers", str(sizes.workers), "--passes", str(sizes.loader_passes)]
    done = run_command(loader.main, words, scope.folder / "output" / "loader.txt")
    rows = [line.strip("| ") for line in done.lines if line.startswith("| ") and "---" not in line]
    yield from done.findings(f"loader.py, {sizes.workers} workers", rows)
