"""Wrappers of the model for training: a single process, DataParallel, or DistributedDataParallel.

All have one interface, so the training step does not depend on the mode.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel

from utils.distributed.world import World
from utils.nested import tensors_in

Model = TypeVar("Model", bound=nn.Module)


def is_sharded(parameter: Tensor) -> bool:
    """Return whether each process has only a part of the parameter: it is a DTensor of torch.

    Its attribute tells, because the import of its class takes half a second.
    """
    return hasattr(parameter, "placements")


class Replica(Generic[Model]):
    """The model in a single process, with DataParallel if the world has several devices.

    module: the module that a training forward pass calls; it shares its parameters with `model`.
    """

    def __init__(self, model: Model, world: World) -> None:
        self.model: Model = model
        self.module: nn.Module = model
        if world.devices:
            self.module = ThreadedReplicas(model, list(world.devices))
        # Listed once, at the first step: a walk through the model takes the host a millisecond.
        self._parameters: list[nn.Parameter] = []
        self._live: dict[str, Tensor] | None = None

    def __call__(self, images: Tensor) -> Any:
        return self.module(images)

    def without_exchange(self, images: Tensor) -> Any:
        """Return the output of training, for a backward pass that exchanges no gradients."""
        with self.gradients(last=False):
            return self(images)

    def warm_up(self, images: Tensor) -> None:
        """Fix the order of the gradient all-reduce before the first step.

        images: [1, 3, H, W], zeros.
        """

    def gradients(self, *, last: bool) -> AbstractContextManager[object]:
        """Return a context manager for a forward and backward pass.

        last: the last pass before an optimizer step.
        """
        return nullcontext()

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the model's unsharded weights and buffers.

        A collective in sharded runs: call it on all processes.
        """
        return self.model.state_dict()

    def live_state(self) -> Mapping[str, Tensor]:
        """Return the entries of `state_dict` as the model's own parameters and buffers.

        They change with training. They are listed once, so this is cheap in every step. A
        collective in sharded runs.
        """
        if self._live is None:
            owned: dict[str, Tensor] = {}
            owned.update(self.model.named_parameters(remove_duplicate=False))
            owned.update(self.model.named_buffers(remove_duplicate=False))
            self._live = {key: owned[key] for key in self.model.state_dict()}
        return self._live

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.model.load_state_dict(state)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the unsharded state of the model's optimizer.

        A collective in sharded runs: call it on all processes.
        """
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        optimizer.load_state_dict(state)

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip the total gradient norm to `max_norm`; return the norm before clipping.

        It is the same on all processes.
        """
        if not self._parameters:
            self._parameters = list(self.model.parameters())
        return nn.utils.clip_grad_norm_(self._parameters, max_norm)

    def sync_buffers(self, world: World, *, synchronized: bool) -> None:
        """Make the model identical on all processes, with the function `sync_buffers`."""
        sync_buffers(self.model, world, synchronized=synchronized)


class ThreadedReplicas(DataParallel):
    """torch's DataParallel, but each replica computes in the autocast dtype of the caller.

    Every replica runs in a thread of its own, and the dtype of autocast belongs to a thread. torch
    passes on only whether autocast is enabled, so that bfloat16 would become the default of GPUs:
    float16, without a gradient scaler.
    """

    def __init__(self, model: nn.Module, devices: list[torch.device]) -> None:
        super().__init__(_InAutocast(model), devices)

    def forward(self, images: Tensor) -> Any:
        device_type = images.device.type
        dtype = None
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
        return super().forward(images, dtype=dtype)


class _InAutocast(nn.Module):
    """Runs a model in autocast to the given dtype, in any thread; None: without autocast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, dtype: torch.dtype | None) -> Any:
        with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
            return self.model(images)


class DistributedReplica(Replica[Model]):
    """DistributedDataParallel, which averages gradients in the last backward pass of a step.

    accumulates: whether an optimizer step may have several backward passes. If not, static_graph is
    used, which with `no_sync` fails an internal assertion of torch (pytorch issue 143580).
    """

    def __init__(self, model: Model, world: World, accumulates: bool) -> None:
        super().__init__(model, world)
        # Buffers are not broadcast: BatchNorm's are synchronized, or averaged once per epoch.
        parameters = inspect.signature(DistributedDataParallel).parameters
        is_renamed = "forward_sync_buffers" in parameters  # from torch 2.13 on
        broadcast = "forward_sync_buffers" if is_renamed else "broadcast_buffers"
        no_broadcast: dict[str, Any] = {broadcast: False}

        device_ids = None
        if world.device.type != "cpu":
            device_ids = [world.device]
            use_plain_strides(model)
        self.wrapped = DistributedDataParallel(
            model,
            device_ids=device_ids,
            gradient_as_bucket_view=True,
            static_graph=not accumulates,
            **no_broadcast,
        )
        self.module = self.wrapped

    def warm_up(self, images: Tensor) -> None:
        """Run two forward and backward passes and restore gradients and buffers.

        After the first backward pass (the second with static_graph) torch rebuilds its gradient
        buckets, and three or more processes then sum the gradients in another order. Without this
        warm-up, the first step after a restart would differ in the last bits from the same step of
        an uninterrupted run.
        """
        with preserve_buffers(self.model):
            for _ in range(2):
                sums = [raw.sum() for raw in tensors_in(self(images))]
                torch.stack(sums).sum().backward()
        self.model.zero_grad(set_to_none=True)

    def gradients(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.wrapped.no_sync()


@torch.no_grad()
def use_plain_strides(model: nn.Module) -> None:
    """Give weights whose order in memory is also the plain one the strides of the plain one.

    A 1x1 convolution in channels last is in both orders, but has strides that only the first would
    give. cuDNN gives its gradient those of the second, so that DistributedDataParallel warns that
    they differ. The values stay where they are.
    """
    for parameter in model.parameters():
        if parameter.is_contiguous():
            parameter.data = parameter.data.flatten().view(parameter.shape)


@contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Restore a model's buffers, such as BatchNorm statistics, after the block."""
    saved = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in zip(model.buffers(), saved, strict=True):
            buffer.copy_(value)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the means and variances of a model's BatchNorm layers.

    Forward passes in training change them in place.
    """
    statistics = []
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            statistics += [module.running_mean, module.running_var]
    return [buffer for buffer in statistics if buffer is not None]


def sync_buffers(model: nn.Module, world: World, *, synchronized: bool) -> None:
    """Make the model identical on all processes: broadcast weights and buffers from rank 0.

    synchronized: whether BatchNorm is synchronized. If not, each process has its own running
    statistics; they are replaced by their mean over the processes.
    """
    if world.size == 1:
        return  # a walk through the model takes the host longer than a step of a small one
    if not synchronized:
        world.all_reduce_mean_(running_statistics(model))
    world.broadcast_([*model.parameters(), *model.buffers()])
