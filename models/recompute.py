"""Activation checkpointing: of a layer the backward pass keeps the input alone, and computes the rest a second time.

Source: arXiv 1604.06174, section 4.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recomputed(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)`, whose inner maps are freed at once and computed again when the backward pass needs them.

    Values, gradients and running statistics are those of `layer(x)` to the bit. Not for a layer that draws random
    numbers, which would be others the second time: their state is not kept, because no layer here draws any.
    """
    return checkpoint(
        layer,
        x,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), statistics_set_aside(layer)),
    )


@contextmanager
def statistics_set_aside(layer: nn.Module) -> Iterator[None]:
    """Within it every BatchNorm of `layer` in training mode updates copies of its statistics, its own stay untouched.

    A second forward pass would count its batch twice. Switching `track_running_stats` off for it is no cure: BatchNorm
    then saves fewer tensors for the backward pass than it did the first time, which `checkpoint` refuses.
    """
    norms = [module for module in layer.modules() if isinstance(module, _BatchNorm) and module.training]
    own = [(norm, name, buffer) for norm in norms for name, buffer in norm.named_buffers(recurse=False)]
    for norm, name, buffer in own:
        setattr(norm, name, buffer.clone())
    try:
        yield  # left by an exception each time: `checkpoint` stops a layer when all it needs is there
    finally:
        for norm, name, buffer in own:
            setattr(norm, name, buffer)
