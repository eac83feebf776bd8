"""Modes that only a GPU has: DataParallel's precision, and CUDA graphs of `--compile` with gradient
accumulation.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import train
from benchmarks.on_gpu.commands import Command
from benchmarks.on_gpu.resuming import read_rows
from benchmarks.on_gpu.stage import Finding, Scope
from benchmarks.on_gpu.trainings import training_words
from benchmarks.timed_steps import Setting, fixed_batches, train_through
from models.heads.cells import OutputConv
from utils.distributed.world import World

MAX_DIFFERENCE = 0.05  # relative, of training losses with and without compilation, in float32


def check_data_parallel(scope: Scope) -> Iterator[Finding]:
    """DataParallel with two replicas on one GPU, in each precision: the dtype that convolutions
    compute in.
    """
    alone = scope.world
    world = replace(alone, devices=(alone.device, alone.device))
    for amp, expected in (
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("fp32", torch.float32),
    ):
        setting = Setting(
            cfg=scope.sizes.model, img=scope.sizes.check_img, batch=4, steps=2, warmup=1, amp=amp
        )
        computed = convolution_dtypes(setting, world)
        names = ", ".join(str(dtype) for dtype in computed)
        yield Finding(
            f"DataParallel, --amp {amp}: convolutions compute in {names}", computed == {expected}
        )


def convolution_dtypes(setting: Setting, world: World) -> set[torch.dtype]:
    """The dtypes that the convolutions of two training steps compute in, without those that always
    use float32.
    """
    computed: set[torch.dtype] = set()

    def watch_convolutions(replica: Any) -> None:
        for module in replica.model.modules():
            if isinstance(module, nn.Conv2d) and not isinstance(module, OutputConv):
                module.register_forward_hook(lambda _, __, output: computed.add(output.dtype))

    batches = fixed_batches(setting, world, 2, seed=0)
    train_through(batches, setting, world, change=watch_convolutions)
    return computed


def check_graphs(scope: Scope) -> Iterator[Finding]:
    """`--compile reduce-overhead` with several batches per optimizer step: the losses of the
    uncompiled training.
    """
    common = [
        "--cfg",
        scope.sizes.graph_model,
        "--batch",
        "8",
        "--epochs",
        "2",
        "--amp",
        "fp32",
        "--cache",
        "ram",
    ]
    common += [
        "--hyp",
        "hyp.scratch-low.yaml",
        "--optimizer",
        "SGD",
        "--noval",
        "--img",
        str(scope.sizes.check_img),
    ]
    commands = {}
    for mode in ("off", "reduce-overhead"):
        words = training_words(scope, f"graphs-{mode}", *common, "--compile", mode)
        commands[mode] = Command(train.run, words, scope.folder / "output" / f"graphs-{mode}.txt")
    ended = {mode: command.end() for mode, command in commands.items()}

    for mode, done in ended.items():
        lines = [line for line in done.lines if "--compile" in line or "per optimizer step" in line]
        yield from done.findings(f"--compile {mode}", lines)
    if any(done.code for done in ended.values()):
        return

    expected, found = (training_losses(scope, f"graphs-{mode}") for mode in ended)
    difference = float(((found - expected).abs() / expected.abs().clamp(min=1e-6)).max())
    text = f"training losses of two epochs: largest relative difference {difference:.1e}"
    yield Finding(text, difference <= MAX_DIFFERENCE, {"difference": difference})


def training_losses(scope: Scope, name: str) -> Tensor:
    """The training losses in a run's results.csv, a row for each epoch."""
    rows = read_rows(scope.folder / "runs" / name)
    return torch.tensor(
        [[float(row[key]) for key in row if key.startswith("train/")] for row in rows]
    )
