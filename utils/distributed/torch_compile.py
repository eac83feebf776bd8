"""torch.compile, tried before it counts, with a way back to what is not compiled."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from utils.distributed.replica import preserve_buffers
from utils.distributed.world import World
from utils.nested import tensors_in
from utils.printable import one_line


def compile_model(model: nn.Module, mode: str, images: Tensor, autocast: torch.autocast, world: World) -> str:
    """Have torch compile a model, in training mode, for batches like `images`; what came of it in a sentence.

    mode: torch.compile's: default, reduce-overhead (CUDA graphs) or max-autotune. A forward and a backward pass, which
    leave no other trace, are tried here: where torch cannot, on any process, the model runs as before on all of them.
    Raises ValueError for several devices in one process.
    """
    if world.devices:
        raise ValueError("--compile: DataParallel cannot; use a process for each GPU (--spawn) or one GPU")
    started, failure = time.perf_counter(), ""
    model.compile(mode=mode, dynamic=False)
    with preserve_buffers(model):
        try:
            with autocast:
                raw = model(images)
            learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
            total = torch.stack([part.sum() for part in tensors_in(raw)]).sum()
            torch.autograd.grad(total, learning)  # tells no hook, such as DDP's
        except Exception as error:  # of any kind: Python, Triton and C++ compilers have a part in it
            failure = _in_words(error)
    if failures := list(filter(None, world.all_gather_object(failure))):
        model._compiled_call_impl = None  # as torch has it before
        return f"--compile {mode}: torch cannot compile the model, which runs as before ({failures[0]})"
    return f"--compile {mode}: compiled in {time.perf_counter() - started:.0f} s"


def compile_or_fall_back(function: Callable[..., Tensor], say: Callable[[str], None]) -> Callable[..., Tensor]:
    """`function` as torch compiles it with its first calls. Where torch cannot it is called itself; `say` is told."""
    faster: Callable[..., Tensor] | None = torch.compile(function)

    def call(*given: object) -> Tensor:
        nonlocal faster
        if faster is not None:
            try:
                return faster(*given)
            except Exception as error:
                say(f"--compile: torch cannot compile {function.__name__} ({_in_words(error)})")
                faster = None
        return function(*given)

    return call


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"
