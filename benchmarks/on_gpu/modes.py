"""Modes that only a GPU has: DataParallel's precision; CUDA graphs with gradient accumulation."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import train
from benchmarks.on_gpu.commands import Command
from benchmarks.on_gpu.stage import Finding, Scope
from benchmarks.on_gpu.trainings import training_words
from benchmarks.timed_steps import Setting, fixed_batches, train_through
from benchmarks.trainings.bits import rows_without_time
from models.heads.cells import OutputConv
from utils.distributed.world import World

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}  # of --amp
MAX_DIFFERENCE = 0.05  # relative, of training losses with and without compilation, in float32


def check_data_parallel(scope: Scope) -> Iterator[Finding]:
    """DataParallel with two replicas on one GPU: the dtypes that convolutions compute in."""
    alone = scope.world
    world = replace(alone, devices=(alone.device, alone.device))
    setting = Setting(cfg=scope.sizes.model, img=scope.sizes.check_img, batch=4, steps=2, warmup=1)
    for amp, expected in DTYPES.items():
        computed = convolution_dtypes(replace(setting, amp=amp), world)
        names = ", ".join(str(dtype) for dtype in computed)
        text = f"DataParallel, --amp {amp}: convolutions compute in {names}"
        yield Finding(text, computed == {expected})


def convolution_dtypes(setting: Setting, world: World) -> set[torch.dtype]:
    """The dtypes that convolutions of two steps compute in, but for those always in float32."""
    computed: set[torch.dtype] = set()

    def watch_convolutions(replica: Any) -> None:
        for module in replica.model.modules():
            if isinstance(module, nn.Conv2d) and not isinstance(module, OutputConv):
                module.register_forward_hook(lambda _, __, output: computed.add(output.dtype))

    batches = fixed_batches(setting, world, 2, seed=0)
    train_through(batches, setting, world, change=watch_convolutions)
    return computed


def check_graphs(scope: Scope) -> Iterator[Finding]:
    """`--compile reduce-overhead`, several batches per step: the losses of uncompiled training."""
    sizes = scope.sizes
    common = f"--cfg {sizes.graph_model} --img {sizes.check_img} --batch {sizes.long_check_batch}"
    common += " --epochs 2 --amp fp32 --cache ram --noval"
    common += " --hyp hyp.scratch-low.yaml --optimizer SGD"
    commands = {}
    for mode in ("off", "reduce-overhead"):
        words = training_words(scope, f"graphs-{mode}", *common.split(), "--compile", mode)
        commands[mode] = Command(
            train.run_script, words, scope.folder / "output" / f"graphs-{mode}.txt"
        )
    ended = {mode: command.end() for mode, command in commands.items()}

    for mode, done in ended.items():
        lines = [line for line in done.lines if "--compile" in line or "per optimizer step" in line]
        yield from done.findings(f"--compile {mode}", lines)
    if any(done.code for done in ended.values()):
        return

    expected = training_losses(scope, "graphs-off")
    found = training_losses(scope, "graphs-reduce-overhead")
    relative = (found - expected).abs() / expected.abs().clamp(min=1e-6)
    difference = float(relative.max())
    text = f"training losses of two epochs: largest relative difference {difference:.1e}"
    yield Finding(text, difference <= MAX_DIFFERENCE, {"difference": difference})


def training_losses(scope: Scope, name: str) -> Tensor:
    """The training losses in a run's results.csv, a row for each epoch."""
    losses = []
    for row in rows_without_time(scope.folder / "runs" / name):
        losses.append([float(row[key]) for key in row if key.startswith("train/")])
    return torch.tensor(losses)
