"""Activation checkpointing: a layer keeps only its input, and the backward pass computes the rest.

Source: arXiv 1604.06174, section 4.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recomputed(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)`; the backward pass computes its inner maps again.

    They are freed at once. Values, gradients and running statistics are bit-identical to those of
    `layer(x)`. Not for layers that draw random numbers: the state of the generators is not saved,
    so the second pass would draw other numbers.
    """
    return checkpoint(
        layer,
        x,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), preserve_batchnorm_statistics(layer)),
    )


@contextmanager
def preserve_batchnorm_statistics(layer: nn.Module) -> Iterator[None]:
    """Let every BatchNorm of `layer` update copies of its statistics, and restore its own on exit.

    Only those in training mode update any. Without this, the second forward pass would count its
    batch twice. Switching `track_running_stats` off does not work: BatchNorm then saves fewer
    tensors for the backward pass than the first time, which `checkpoint` refuses.
    """
    own_buffers = []
    for module in layer.modules():
        if isinstance(module, _BatchNorm) and module.training:
            for name, buffer in module.named_buffers(recurse=False):
                own_buffers.append((module, name, buffer))

    for norm, name, buffer in own_buffers:
        setattr(norm, name, buffer.clone())
    try:
        # always ends with an exception: `checkpoint` stops the layer once it has every tensor it
        # needs
        yield
    finally:
        for norm, name, buffer in own_buffers:
            setattr(norm, name, buffer)
