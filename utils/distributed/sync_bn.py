"""Synchronized batch normalization over all processes, without host waits and for the CPU too.

torch's SyncBatchNorm does not support the CPU, and on a GPU the host waits three times in each
layer, because it leaves out processes without images by boolean masks.

B images of this process (0 is allowed), C channels, H W cells, P processes. Each layer costs one
all-gather of 2C + 1 numbers in the forward pass and one all-reduce of 2C numbers in the backward
pass. Every process must take part in both.

On CUDA the kernels of torch's SyncBatchNorm are used, and a single process uses torch's BatchNorm.
Elsewhere a single process uses the same code as several, because torch's BatchNorm is less precise
on a CPU: for channels-last maps it sums the values one by one in float32. After 20 steps of yolov5n
it differs from float64 by 1e-3, this layer by 1e-5.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from utils.distributed.precision import widest_float

NON_CHANNEL_DIMS = (0, 2, 3)
PER_CHANNEL = (1, -1, 1, 1)  # view of [C] that broadcasts against [B, C, H, W]
# number of values that a process without images reports to the fused kernels, which divide by it
NO_VALUES = 1e-30


def synchronize_batch_norm(model: nn.Module) -> nn.Module:
    """Synchronize every BatchNorm2d of `model`, which may itself be one, and return the model.

    Parameters and buffers stay the same tensors with the same names, so an existing optimizer
    remains valid.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            # only the computation differs; the state is the same
            module.__class__ = SyncBatchNorm2d
    return model


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose training statistics cover the images of all processes.

    Those are the processes of the default process group, if there is one. In evaluation mode it
    equals BatchNorm2d to the bit. A process without images takes part with an empty map; its loss
    must depend on the output, so that its backward pass runs this layer too. Raises ValueError if
    all processes together have fewer than two values per channel.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)

        # torch.compile has no description of these kernels, and would interrupt its graph at each
        # layer.
        fused = has_fused_kernels(x) and not torch.compiler.is_compiling()
        if fused and _processes() == 1:
            return super().forward(x)

        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = None if self.weight is None else self.weight.to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)

        if fused:
            x = _dense(x)
            mean, inverse_deviation, counts = self._fused_statistics(x)
            return FusedNormalizeByAll.apply(
                x, weight, bias, mean, inverse_deviation, counts, self.eps
            )

        mean, var, count = global_moments(x)
        if self.track_running_stats:
            self._update_running_stats(mean, var, count)
        return NormalizeByAll.apply(x, weight, bias, mean, var, count, self.eps)

    @torch.no_grad()
    def _fused_statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Update the running statistics; return mean, 1 / sqrt(var + eps) [C], counts int32 [P].

        Two of torch's kernels for CUDA do this: one for this process, one that merges the
        processes' results.
        """
        row = fused_moments(x, self.eps)
        table = _gather(row)  # [P, 2C + 1]
        columns = [self.num_features, self.num_features, 1]
        means, inverse_deviations, counts = table.split(columns, 1)
        counts = counts.flatten()
        _check_count(x, counts.sum)

        # The second kernel can update running statistics of its own dtype, and by a constant
        # momentum.
        running_mean = self.running_mean
        running_var = self.running_var
        momentum = self.momentum
        in_kernel = (
            self.track_running_stats
            and running_mean is not None
            and running_mean.dtype == row.dtype
            and momentum is not None
        )
        mean, inverse_deviation = torch.batch_norm_gather_stats_with_counts(
            x if in_kernel else row,  # only its dtype matters, and only without running statistics
            means,
            inverse_deviations,
            running_mean if in_kernel else None,
            running_var if in_kernel else None,
            momentum or 0.0,
            self.eps,
            counts,
        )

        if in_kernel and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        elif self.track_running_stats and not in_kernel:
            var = inverse_deviation.pow(-2) - self.eps
            self._update_running_stats(mean, var, counts.sum())
        return mean, inverse_deviation, counts.to(torch.int32)

    @torch.no_grad()
    def _update_running_stats(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Move the running statistics towards a batch's, by `momentum`; None averages all batches.

        var: biased. count: number of values, a scalar tensor. Averaging over all batches reads the
        number of batches on the host.
        """
        if (
            self.num_batches_tracked is None
            or self.running_mean is None
            or self.running_var is None
        ):
            return
        self.num_batches_tracked.add_(1)

        weight = self.momentum
        if weight is None:
            weight = 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        unbiased_var = var * (count / (count - 1))
        self.running_var.lerp_(unbiased_var.to(self.running_var.dtype), weight)


def has_fused_kernels(x: Tensor) -> bool:
    """Return whether torch has kernels for synchronized batch normalization on `x`'s device."""
    return x.is_cuda


def _processes() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1


def _dense(x: Tensor) -> Tensor:
    """Return `x` [B, C, H, W] channels last or contiguous, as the fused kernels need it."""
    if x.is_contiguous(memory_format=torch.channels_last):
        return x
    return x.contiguous()


def _gather(row: Tensor) -> Tensor:
    """Return the rows [C] of all processes, [P, C]."""
    processes = _processes()
    if processes == 1:
        return row[None]

    table = row.new_empty(processes, len(row))
    if dist.get_backend() == "nccl":
        # The older name is deprecated where the newer one exists.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(table, row)
    else:
        dist.all_gather(list(table), row)
    return table


def _check_count(x: Tensor, count: Callable[[], Tensor]) -> None:
    """Raise ValueError on all processes if they have fewer than two values per channel together.

    x: the values of this process. count: returns the number of all, a scalar tensor; it is read
    only by a process that has fewer than two values itself, so that the host does not wait in other
    cases.
    """
    own_count = x.numel() // x.shape[1]
    if own_count >= 2:
        return
    total = int(count())
    if total < 2:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got {total} in {_processes()} "
            "processes together"
        )


@torch.no_grad()
def global_moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean [C], biased variance [C] and values per channel (a scalar) over all processes.

    x: [B, C, H, W], the values of this process. The dtype is float32, or float64 if `x` is float64.
    All processes get the same bits, because all merge the same rows in the same order. Raises
    ValueError on all processes if there are fewer than two values per channel.
    """
    row = local_moments(x)
    table = _gather(row).to(widest_float(x.device))  # [P, 2C + 1]
    mean, m2, count = merge_moments(table)
    _check_count(x, lambda: count)
    return mean.to(row.dtype), (m2 / count).to(row.dtype), count


def local_moments(x: Tensor) -> Tensor:
    """Return [2C + 1]: the means, the M2s (sums of squared deviations), the number of values.

    They are zeros if `x` [B, C, H, W] is empty.

    Source: the corrected two-pass algorithm of Chan, Golub and LeVeque, The American Statistician
    37 (1983), eq. 1.7.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    channels = x.shape[1]
    if x.numel() == 0:
        return x.new_zeros(2 * channels + 1, dtype=dtype)

    count = x.numel() // channels
    approx_mean = x.mean(NON_CHANNEL_DIMS, dtype=dtype)
    centered = x - approx_mean.view(PER_CHANNEL)

    # The rounding error of approx_mean, which matters if the mean is large.
    error = centered.mean(NON_CHANNEL_DIMS)
    mean = approx_mean + error
    m2 = centered.square_().sum(NON_CHANNEL_DIMS) - count * error.square()  # in place: no new map
    return torch.cat((mean, m2, m2.new_full((1,), count)))


@torch.no_grad()
def fused_moments(x: Tensor, eps: float) -> Tensor:
    """Return [2C + 1]: the means, each 1 / sqrt(variance + eps), the number of values.

    A kernel for CUDA computes them. A process without images reports a mean of 0, an inverse
    deviation of 1 and a number of values so small that it has no effect on the others: of 0 values
    the kernel that merges the rows would make nan.
    """
    channels = x.shape[1]
    if x.numel() == 0:
        dtype = torch.promote_types(x.dtype, torch.float32)
        mean = x.new_zeros(channels, dtype=dtype)
        inverse_deviation = mean + 1
        count = mean.new_full((1,), NO_VALUES)
    else:
        mean, inverse_deviation = torch.batch_norm_stats(x, eps)
        count = mean.new_full((1,), x.numel() // channels)
    return torch.cat((mean, inverse_deviation, count))


def merge_moments(table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean [C], M2 [C] and number of values (a scalar) of the union of P sets.

    table: a row for each set, [P, 2C + 1]. An empty set is a row of zeros. If all sets are empty,
    the mean is 0. Source: Chan, Golub and LeVeque, as above, eq. 2.1, extended to more than two
    sets.

    >>> merge_moments(torch.tensor([[2.0, 2.0, 3.0], [6.0, 2.0, 2.0]]))  # of 1, 2, 3 and of 5, 7
    (tensor([3.6000]), tensor([23.2000]), tensor(5.))
    """
    channels = table.shape[1] // 2
    means, m2s, counts = table.split([channels, channels, 1], dim=1)
    count = counts.sum()
    total = (counts * means).sum(0)
    mean = total / count.clamp(min=1)

    between_sets = counts * (means - mean).square()  # [P, C]
    m2 = (m2s + between_sets).sum(0)
    return mean, m2, count


class NormalizeByAll(torch.autograd.Function):
    """Batch normalization with given global moments; its gradient covers all processes' values.

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
        count: Tensor,
        eps: float,
    ) -> Tensor:
        inverse_deviation = (var + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, inverse_deviation, count)
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse_deviation, count = ctx.saved_tensors
        wants_dx, wants_dweight, wants_dbias = ctx.needs_input_grad[:3]
        centered = x - mean.view(PER_CHANNEL)

        # sum(dy) and sum(dy * xhat) of this process, [C].
        dbias = dy.sum(NON_CHANNEL_DIMS, dtype=mean.dtype)
        dweight = (dy * centered).sum(NON_CHANNEL_DIMS) * inverse_deviation

        dx = None
        if wants_dx:
            sums = torch.stack((dbias, dweight))  # [2, C]
            if _processes() > 1:
                dist.all_reduce(sums)
            mean_dy, mean_dy_xhat = sums / count

            # In the memory of `centered`, which is as large as the map:
            # (xhat * -mean_dy_xhat + dy - mean_dy) * scale
            slope = -mean_dy_xhat * inverse_deviation
            scale = inverse_deviation if weight is None else inverse_deviation * weight
            dx = centered.mul_(slope.view(PER_CHANNEL))
            dx = dx.add_(dy).sub_(mean_dy.view(PER_CHANNEL))
            dx = dx.mul_(scale.view(PER_CHANNEL)).to(x.dtype)
        return (
            dx,
            dweight if wants_dweight else None,
            dbias if wants_dbias else None,
            None,
            None,
            None,
            None,
        )


class FusedNormalizeByAll(torch.autograd.Function):
    """`NormalizeByAll` by torch's kernels for CUDA, in float32 for x in 16 bits.

    inverse_deviation: 1 / sqrt(var + eps), [C]. counts: int32, number of values of each process,
    [P]. Source: as torch's SyncBatchNorm calls them (torch/nn/modules/_functions.py, BSD license).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        inverse_deviation: Tensor,
        counts: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse_deviation, counts)
        if x.numel() == 0:
            return torch.empty_like(x)
        return torch.batch_norm_elemt(x, weight, bias, mean, inverse_deviation, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse_deviation, counts = ctx.saved_tensors
        wants_dx, wants_dweight, wants_dbias = ctx.needs_input_grad[:3]
        dy = _dense(dy)

        if x.numel() == 0:  # it still takes part in the all-reduce
            sum_dy = sum_dy_xmu = dweight = dbias = torch.zeros_like(mean)
        else:  # xmu: x - mean
            sum_dy, sum_dy_xmu, dweight, dbias = torch.batch_norm_backward_reduce(
                dy, x, mean, inverse_deviation, weight, wants_dx, wants_dweight, wants_dbias
            )

        dx = None
        if wants_dx:
            sums = torch.stack((sum_dy, sum_dy_xmu))  # [2, C]
            dist.all_reduce(sums)
            if x.numel() == 0:
                dx = torch.empty_like(x)
            else:
                dx = torch.batch_norm_backward_elemt(
                    dy, x, mean, inverse_deviation, weight, sums[0], sums[1], counts
                )
        return (
            dx,
            dweight if wants_dweight else None,
            dbias if wants_dbias else None,
            None,
            None,
            None,
            None,
        )
