"""Synchronised batch normalisation over all processes, for the CPU too, where torch's SyncBatchNorm is not supported.

B images of this process (0 is allowed), C channels, H W cells, P processes. Each layer costs one all-gather of 2C + 1
numbers in the forward pass and one all-reduce of 2C numbers in the backward pass. Every process must take part in both.

A single process uses the same code, because torch's BatchNorm is less precise on a CPU: for channels-last maps it sums
the values one by one in float32. After 20 steps of yolov5n it differs from float64 by 1e-3, this layer by 1e-5.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from utils.distributed.precision import widest_float

NON_CHANNEL_DIMS = (0, 2, 3)
PER_CHANNEL = (1, -1, 1, 1)  # view of [C] that broadcasts against [B, C, H, W]


def synchronize_batch_norm(model: nn.Module, device_type: str) -> nn.Module:
    """Synchronise every BatchNorm2d of `model` over the processes, and return the model, which may itself be one.

    Parameters and buffers stay the same tensors with the same names, so an existing optimizer remains valid.
    """
    if device_type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = SyncBatchNorm2d  # only the computation differs; the state is the same
    return model


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose training statistics cover the images of all processes in the default process group, if any.

    In evaluation mode it equals BatchNorm2d to the bit. A process without images takes part with an empty map; its loss
    must depend on the output, so that its backward pass runs this layer too.
    Raises ValueError if all processes together have fewer than two values per channel.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        mean, var, count = global_moments(x)
        if self.track_running_stats:
            self._update_running_stats(mean, var * (count / (count - 1)))
        weight, bias = (None if p is None else p.to(mean.dtype) for p in (self.weight, self.bias))
        return NormalizeByAll.apply(x, weight, bias, mean, var, count, self.eps)

    @torch.no_grad()
    def _update_running_stats(self, mean: Tensor, unbiased_var: Tensor) -> None:
        """Update the running statistics with the weight `momentum`; if that is None, average over all batches."""
        if self.num_batches_tracked is None or self.running_mean is None or self.running_var is None:
            return
        self.num_batches_tracked.add_(1)
        weight = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(unbiased_var.to(self.running_var.dtype), weight)


def _processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@torch.no_grad()
def global_moments(x: Tensor) -> tuple[Tensor, Tensor, int]:
    """Mean [C], biased variance [C] and number of values per channel of `x` [B, C, H, W] over all processes.

    The dtype is float32, or float64 if `x` is float64. All processes get the same bits, because all merge the same rows
    in the same order. Raises ValueError on all processes if there are fewer than two values per channel.
    """
    row = local_moments(x)
    table = row[None]
    if (processes := _processes()) > 1:
        table = row.new_empty(processes, len(row))
        dist.all_gather(list(table), row)
    mean, m2, count = merge_moments(table.to(widest_float(x.device)))
    if count < 2:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got {count} in {processes} processes together"
        )
    return mean.to(row.dtype), (m2 / count).to(row.dtype), count


def local_moments(x: Tensor) -> Tensor:
    """[2C + 1]: per channel the mean and M2 (sum of squared deviations), then the number of values; zeros if empty.

    Source: the corrected two-pass algorithm of Chan, Golub and LeVeque, The American Statistician 37 (1983), eq. 1.7.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    channels = x.shape[1]
    if x.numel() == 0:
        return x.new_zeros(2 * channels + 1, dtype=dtype)
    count = x.numel() // channels
    approx_mean = x.mean(NON_CHANNEL_DIMS, dtype=dtype)
    centred = x - approx_mean.view(PER_CHANNEL)
    error = centred.mean(NON_CHANNEL_DIMS)  # rounding error of approx_mean, which matters if the mean is large
    m2 = centred.square_().sum(NON_CHANNEL_DIMS) - count * error.square()
    return torch.cat((approx_mean + error, m2, m2.new_tensor([count])))


def merge_moments(table: Tensor) -> tuple[Tensor, Tensor, int]:
    """Mean [C], M2 [C] and number of values of the union of P sets, each given as a row of `table` [P, 2C + 1].

    An empty set is a row of zeros. If all sets are empty, the mean is 0.
    Source: Chan, Golub and LeVeque, as above, eq. 2.1, extended to more than two sets.

    >>> merge_moments(torch.tensor([[2.0, 2.0, 3.0], [6.0, 2.0, 2.0]]))  # of 1, 2, 3 and of 5, 7
    (tensor([3.6000]), tensor([23.2000]), 5)
    """
    channels = table.shape[1] // 2
    means, m2s, counts = table.split([channels, channels, 1], dim=1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count.clamp(min=1)
    m2 = (m2s + counts * (means - mean).square()).sum(0)
    return mean, m2, int(count)


class NormalizeByAll(torch.autograd.Function):
    """Batch normalisation with given global moments; its gradient includes the values of all processes.

    With N values per channel, xhat = (x - mean) / sqrt(var + eps), and sums over all processes,
    dx = weight / sqrt(var + eps) * (dy - sum(dy) / N - xhat * sum(dy * xhat) / N).
    The gradients of weight and bias cover only this process; DistributedDataParallel sums them up.
    Source: arXiv 1502.03167, section 3.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        count: int,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.count = count
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inv = ctx.saved_tensors
        wants_dx, wants_dweight, wants_dbias = ctx.needs_input_grad[:3]
        centred = x - mean.view(PER_CHANNEL)
        dbias = dy.sum(NON_CHANNEL_DIMS, dtype=mean.dtype)
        dweight = (dy * centred).sum(NON_CHANNEL_DIMS) * inv
        dx = None
        if wants_dx:
            sums = torch.stack((dbias, dweight))  # [2, C]
            if _processes() > 1:
                dist.all_reduce(sums)
            offset, slope = sums / ctx.count
            scale = inv if weight is None else inv * weight
            dx = centred.mul_((-slope * inv).view(PER_CHANNEL)).add_(dy).sub_(offset.view(PER_CHANNEL))
            dx = dx.mul_(scale.view(PER_CHANNEL)).to(x.dtype)
        return dx, dweight if wants_dweight else None, dbias if wants_dbias else None, None, None, None, None
