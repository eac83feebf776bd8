"""torch.compile with a test run first, and a fallback to the uncompiled model or function."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from utils.distributed.replica import preserve_buffers
from utils.distributed.world import World
from utils.nested import tensors_in
from utils.printable import one_line

WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def mode_without_reuse(
    mode: str, batches_per_step: int, device: torch.device, say: Callable[[str], None]
) -> str:
    """Return the mode of torch.compile to use: one without CUDA graphs if gradients accumulate.

    A gradient that a CUDA graph has computed may lie in the graph's own memory, which the graph
    overwrites when it runs for the next batch (pytorch issues 96693, 169545). With one batch per
    step the gradients have been used by then.

    say: receives a log line if the mode is another one than `mode`.
    """
    uses_graphs = mode in WITHOUT_GRAPHS and device.type == "cuda"
    if not uses_graphs or batches_per_step == 1:
        return mode

    other_mode = WITHOUT_GRAPHS[mode]
    say(
        f"--compile {mode}: without CUDA graphs, because the gradients of {batches_per_step} "
        f"batches are accumulated for each optimizer step, so the mode is {other_mode}; "
        "a larger --batch-size accumulates fewer"
    )
    return other_mode


def compile_model(
    model: nn.Module,
    mode: str,
    images: Tensor,
    autocast: torch.autocast,
    world: World,
    *,
    forward: Callable[[Tensor], Any] | None = None,
) -> str:
    """Compile a model in training mode, and return a message about the result.

    One forward and backward pass is run as a test; it leaves gradients and buffers unchanged. If it
    fails on any process, all processes run uncompiled.

    Args:
        model: compiled in place.
        mode: of torch.compile: default, reduce-overhead (CUDA graphs) or max-autotune.
        images: a batch; the model is compiled for batches of its shape.
        autocast: entered for the forward pass.
        world: of the processes that compile together.
        forward: calls the model as training does, by default the model itself. It must be the
            forward pass of DistributedDataParallel if that wraps the model: the first call
            compiles, and only there torch splits the graph where the gradients of a bucket are
            complete, so that they are all-reduced while the rest of the backward pass runs.

    Raises: ValueError for several devices in one process.
    """
    if world.devices:
        raise ValueError(
            "--compile: not possible with DataParallel; use one process per GPU (--spawn) or one "
            "GPU"
        )
    started = time.perf_counter()
    call = forward or model
    model.compile(mode=mode, dynamic=False)

    def trial() -> None:
        with preserve_buffers(model):
            with autocast:
                raw = call(images)
            sums = [part.sum() for part in tensors_in(raw)]
            total = torch.stack(sums).sum()
            trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
            torch.autograd.grad(total, trainable)  # unlike backward(), runs no hooks, such as DDP's

    failure = first_failure(trial, world)
    if failure:
        model._compiled_call_impl = None  # its value before model.compile()
        return (
            f"--compile {mode}: torch cannot compile the model, so it runs uncompiled ({failure})"
        )
    elapsed_s = time.perf_counter() - started
    return f"--compile {mode}: compiled in {elapsed_s:.0f} s"


def first_failure(trial: Callable[[], None], world: World) -> str:
    """Run `trial` on all processes; return the first error of any of them as text, else ""."""
    failure = ""
    try:
        trial()
    except Exception as error:  # of any type: Python, Triton and C++ compilers take part
        failure = _describe(error)

    for each in world.all_gather_object(failure):
        if each:
            return each
    return ""


def compile_or_fall_back(
    function: Callable[..., Tensor], say: Callable[[str], None]
) -> Callable[..., Tensor]:
    """Compile `function` for each shape of its arguments, which must be few.

    torch compiles at most eight. If torch cannot compile it, `say` receives a log line, and
    `function` itself is called.
    """
    compiled: Callable[..., Tensor] | None = torch.compile(function, dynamic=False)

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


def is_traced(reference: Tensor) -> bool:
    """Return whether `reference` is the placeholder of a trace: results of it must not be kept."""
    return torch.compiler.is_compiling() or type(reference) is not Tensor


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"
