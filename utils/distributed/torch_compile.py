"""torch.compile with a test run first, and a fallback to the uncompiled model or function."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from utils.distributed.replica import preserve_buffers
from utils.distributed.world import World
from utils.nested import tensors_in
from utils.printable import one_line


def compile_model(model: nn.Module, mode: str, images: Tensor, autocast: torch.autocast, world: World) -> str:
    """Compile a model in training mode for batches shaped like `images`, and return a message about the result.

    mode: of torch.compile: default, reduce-overhead (CUDA graphs) or max-autotune. One forward and backward pass is run
    as a test; it leaves gradients and buffers unchanged. If it fails on any process, all processes run uncompiled.
    Raises ValueError for several devices in one process.
    """
    if world.devices:
        raise ValueError("--compile: not possible with DataParallel; use one process per GPU (--spawn) or one GPU")
    started, failure = time.perf_counter(), ""
    model.compile(mode=mode, dynamic=False)
    with preserve_buffers(model):
        try:
            with autocast:
                raw = model(images)
            trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
            total = torch.stack([part.sum() for part in tensors_in(raw)]).sum()
            torch.autograd.grad(total, trainable)  # unlike backward(), runs no hooks, such as DDP's
        except Exception as error:  # of any type: Python, Triton and C++ compilers take part
            failure = _describe(error)
    if failures := list(filter(None, world.all_gather_object(failure))):
        model._compiled_call_impl = None  # its value before model.compile()
        return f"--compile {mode}: torch cannot compile the model, so it runs uncompiled ({failures[0]})"
    return f"--compile {mode}: compiled in {time.perf_counter() - started:.0f} s"


def compile_or_fall_back(function: Callable[..., Tensor], say: Callable[[str], None]) -> Callable[..., Tensor]:
    """Compile `function` at its first call; if torch cannot, report it with `say` and call `function` itself."""
    compiled: Callable[..., Tensor] | None = torch.compile(function)

    def call(*arguments: object) -> Tensor:
        nonlocal compiled
        if compiled is not None:
            try:
                return compiled(*arguments)
            except Exception as error:
                say(f"--compile: torch cannot compile {function.__name__} ({_describe(error)})")
                compiled = None
        return function(*arguments)

    return call


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"
