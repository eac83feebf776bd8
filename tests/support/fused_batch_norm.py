"""Slow versions of torch's kernels for synchronized batch normalization, which exist for CUDA only.

They take and return what the kernels do, and compute it the same way where that matters: the
merging kernel goes through the processes one by one, divides by each count, and keeps the number of
values as a whole number, so that a count of 0 gives nan. Source:
ATen/native/cuda/Normalization.cuh, which torch installs (BSD license).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from utils.distributed import sync_bn
from utils.distributed.sync_bn import NON_CHANNEL_DIMS, PER_CHANNEL


@contextmanager
def slow_kernels() -> Iterator[None]:
    """Context manager: SyncBatchNorm2d uses the fused kernels on the CPU, by their slow
    versions.
    """
    with ExitStack() as patches:
        patches.enter_context(patch.object(sync_bn, "has_fused_kernels", lambda x: True))
        for kernel in (
            batch_norm_stats,
            batch_norm_gather_stats_with_counts,
            batch_norm_elemt,
            batch_norm_backward_reduce,
            batch_norm_backward_elemt,
        ):
            patches.enter_context(patch.object(torch, kernel.__name__, kernel))
        yield


def check(x: Tensor, *per_channel: Tensor | None) -> None:
    """Raise ValueError for what the kernels refuse, or for which they would read the wrong
    memory.
    """
    if torch.is_grad_enabled():
        raise ValueError("the kernels have no gradient")
    dense = x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)
    if not dense or x.numel() == 0:
        raise ValueError("the kernels need values without gaps in memory")
    expected = torch.promote_types(x.dtype, torch.float32)
    if any(values is not None and values.dtype != expected for values in per_channel):
        raise ValueError(f"values per channel of {x.dtype} must be {expected}")


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    check(x)
    dtype = torch.promote_types(x.dtype, torch.float32)
    var, mean = torch.var_mean(x.double(), NON_CHANNEL_DIMS, correction=0)
    return mean.to(dtype), (var + eps).rsqrt().to(dtype)


def batch_norm_gather_stats_with_counts(
    of_type: Tensor,
    means: Tensor,
    inverse_deviations: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    dtype = of_type.dtype if running_mean is None else running_mean.dtype
    if torch.is_grad_enabled() or counts.dtype != dtype or means.shape[:1] != counts.shape:
        raise ValueError(
            f"counts of {counts.dtype} {list(counts.shape)} for {dtype} {list(means.shape)}"
        )
    average, var_n = torch.zeros_like(means[0]), torch.zeros_like(means[0])
    number = torch.zeros((), dtype=torch.int32)
    for mean, inverse_deviation, count in zip(means, inverse_deviations, counts, strict=True):
        own = (inverse_deviation.pow(-2) - eps) * count
        factor = 1.0 / (number + count)
        var_n = var_n + own + (average - mean).square() * number * count * factor
        average = number * factor * average + count * factor * mean
        number = (number + count).to(torch.int32)
    if running_mean is not None:
        running_mean.lerp_(average, momentum)
        running_var.lerp_(var_n / (number - 1), momentum)
    return average, (var_n / number + eps).rsqrt()


def batch_norm_elemt(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inverse_deviation: Tensor,
    eps: float,
) -> Tensor:
    check(x, weight, bias, mean, inverse_deviation)
    scale = inverse_deviation if weight is None else inverse_deviation * weight
    y = (x - mean.view(PER_CHANNEL)) * scale.view(PER_CHANNEL)
    return (y if bias is None else y + bias.view(PER_CHANNEL)).to(x.dtype)


def batch_norm_backward_reduce(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse_deviation: Tensor,
    weight: Tensor | None,
    wants_dx: bool,
    wants_dweight: bool,
    wants_dbias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    check(x, weight, mean, inverse_deviation)
    check(dy)
    sum_dy = dy.double().sum(NON_CHANNEL_DIMS).to(mean.dtype)
    sum_dy_xmu = (
        (dy.double() * (x.double() - mean.double().view(PER_CHANNEL)))
        .sum(NON_CHANNEL_DIMS)
        .to(mean.dtype)
    )
    return (
        sum_dy if wants_dx else None,
        sum_dy_xmu if wants_dx else None,
        sum_dy_xmu * inverse_deviation if wants_dweight else None,
        sum_dy if wants_dbias else None,
    )


def batch_norm_backward_elemt(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse_deviation: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    counts: Tensor,
) -> Tensor:
    check(x, weight, mean, inverse_deviation, sum_dy, sum_dy_xmu)
    check(dy)
    if counts.dtype != torch.int32:
        raise ValueError(f"counts of {counts.dtype}")
    share = 1 / counts.sum().to(mean.dtype)
    scale = inverse_deviation if weight is None else inverse_deviation * weight
    slope = sum_dy_xmu * share * inverse_deviation.square()
    centered = x - mean.view(PER_CHANNEL)
    dx = dy - (sum_dy * share).view(PER_CHANNEL) - centered * slope.view(PER_CHANNEL)
    return (dx * scale.view(PER_CHANNEL)).to(x.dtype)
