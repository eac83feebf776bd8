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


class Replica(Generic[Model]):
    """The model in a single process, with DataParallel if the world has several devices.

    module: the module that a training forward pass calls; it shares its parameters with `model`.
    """

    def __init__(self, model: Model, world: World) -> None:
        self.model: Model = model
        self.module: nn.Module = (
            ThreadedReplicas(model, list(world.devices)) if world.devices else model
        )
        self._live: dict[str, Tensor] | None = None

    def __call__(self, images: Tensor) -> Any:
        return self.module(images)

    def without_exchange(self, images: Tensor) -> Any:
        """The output for images as in training, for a backward pass that exchanges no gradients
        with processes.
        """
        with self.gradients(last=False):
            return self(images)

    def warm_up(self, images: Tensor) -> None:
        """Fix the order of the gradient all-reduce before the first step. images: [1, 3, H, W],
        zeros.
        """

    def gradients(self, *, last: bool) -> AbstractContextManager[object]:
        """Context manager for a forward and backward pass. last: the last pass before an optimizer
        step.
        """
        return nullcontext()

    def state_dict(self) -> Mapping[str, Tensor]:
        """The model's unsharded weights and buffers. A collective in sharded runs: call it on all
        processes.
        """
        return self.model.state_dict()

    def live_state(self) -> Mapping[str, Tensor]:
        """The entries of `state_dict` as the model's own parameters and buffers, listed once: cheap
        in every step.

        They change with training. A collective in sharded runs.
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
        """The unsharded state of the model's optimizer. A collective in sharded runs: call it on
        all processes.
        """
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        optimizer.load_state_dict(state)

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip the total gradient norm to `max_norm`; returns the norm before clipping, the same on
        all processes.
        """
        return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

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
        kind = images.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return super().forward(images, dtype=dtype)


class _InAutocast(nn.Module):
    """Runs a model in autocast to the given dtype, in any thread; without autocast if it is
    None.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, dtype: torch.dtype | None) -> Any:
        with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
            return self.model(images)


class DistributedReplica(Replica[Model]):
    """DistributedDataParallel: gradients are averaged over the processes in the last backward pass
    of a step.

    accumulates: whether an optimizer step may have several backward passes. If not, static_graph is
    used, which with `no_sync` fails an internal assertion of torch (pytorch issue 143580).
    """

    def __init__(self, model: Model, world: World, accumulates: bool) -> None:
        super().__init__(model, world)
        # from torch 2.13 on
        renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if renamed else "broadcast_buffers"
        settings: dict[str, Any] = {
            "device_ids": [world.device] if world.device.type != "cpu" else None,
            "gradient_as_bucket_view": True,
            "static_graph": not accumulates,
            buffers: False,  # BatchNorm statistics are synchronized, or averaged once per epoch
        }
        self.wrapped = DistributedDataParallel(model, **settings)
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
                torch.stack([raw.sum() for raw in tensors_in(self(images))]).sum().backward()
        self.model.zero_grad(set_to_none=True)

    def gradients(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.wrapped.no_sync()


@contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Context manager that restores a model's buffers, such as BatchNorm statistics, after its
    block.
    """
    saved = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in zip(model.buffers(), saved, strict=True):
            buffer.copy_(value)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The means and variances of a model's BatchNorm layers, which forward passes in training
    change in place.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [
        buffer
        for norm in norms
        for buffer in (norm.running_mean, norm.running_var)
        if buffer is not None
    ]


def sync_buffers(model: nn.Module, world: World, *, synchronized: bool) -> None:
    """Make the model identical on all processes: broadcast weights and buffers from rank 0.

    synchronized: whether BatchNorm is synchronized. If not, each process has its own running
    statistics; they are replaced by their mean over the processes.
    """
    world.all_reduce_mean_([] if synchronized else running_statistics(model))
    world.broadcast_([*model.parameters(), *model.buffers()])
