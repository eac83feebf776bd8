"""The model as a process calls it in training: bare, on several devices, or as one of many that average gradients.

One interface for all of them, so that the training step knows no modes.
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
    """One process, or DataParallel over the devices of the world.

    module: what a training forward pass calls; it shares its parameters with `model`.
    """

    def __init__(self, model: Model, world: World) -> None:
        self.model: Model = model
        self.module: nn.Module = DataParallel(model, list(world.devices)) if world.devices else model

    def __call__(self, images: Tensor) -> Any:
        return self.module(images)

    def warm_up(self, images: Tensor) -> None:
        """Settle, before the first step, in which order gradients are exchanged. images: [1, 3, H, W], zeros."""

    def gradients(self, *, last: bool) -> AbstractContextManager[object]:
        """The block of a forward and backward pass; `last`: of those whose gradients one optimizer step adds up."""
        return nullcontext()

    def state_dict(self) -> Mapping[str, Tensor]:
        """The model's whole weights and statistics. All processes must ask alike."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.model.load_state_dict(state)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The whole state of an optimizer of the model's parameters. All processes must ask alike."""
        return optimizer.state_dict()

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        optimizer.load_state_dict(state)

    def clip_gradients(self, most: float) -> Tensor:
        """Scale all gradients together to a norm of at most `most`: what it was before, the same on all processes."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), most)

    def sync_buffers(self, world: World, *, synchronised: bool) -> None:
        """Make the copies of all processes one, as `sync_buffers` does."""
        sync_buffers(self.model, world, synchronised=synchronised)


class DistributedReplica(Replica[Model]):
    """DistributedDataParallel: gradients are averaged over the processes with the last backward pass of a step.

    accumulates: whether steps may have several backward passes; if not, the graph is declared static, which together
    with `no_sync` trips an internal assertion of torch (pytorch issue 143580).
    """

    def __init__(self, model: Model, world: World, accumulates: bool) -> None:
        super().__init__(model, world)
        renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters  # from torch 2.13 on
        buffers = "forward_sync_buffers" if renamed else "broadcast_buffers"
        settings: dict[str, Any] = {
            "device_ids": [world.device] if world.device.type != "cpu" else None,
            "gradient_as_bucket_view": True,
            "static_graph": not accumulates,
            buffers: False,  # the statistics of BatchNorm are synchronised, or averaged once an epoch
        }
        self.wrapped = DistributedDataParallel(model, **settings)
        self.module = self.wrapped

    def warm_up(self, images: Tensor) -> None:
        """Two forward and backward passes that leave no other trace.

        After its first backward pass (its second, where the graph is static) torch puts the gradients together anew,
        and three and more processes then add them up in another order: without this the first step after a restart
        would have other last bits than it has in a run that goes through.
        """
        with preserve_buffers(self.model):
            for _ in range(2):
                torch.stack([raw.sum() for raw in tensors_in(self(images))]).sum().backward()
        self.model.zero_grad(set_to_none=True)

    def gradients(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.wrapped.no_sync()


@contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[None]:
    """A block whose forward passes leave no trace in a model's buffers, such as BatchNorm's statistics."""
    kept = [buffer.clone() for buffer in model.buffers()]
    yield
    for buffer, value in zip(model.buffers(), kept, strict=True):
        buffer.copy_(value)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The means and variances of a model's BatchNorm layers, which forward passes in training change in place."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None]


def sync_buffers(model: nn.Module, world: World, *, synchronised: bool) -> None:
    """Make the model one and the same on all processes: weights from rank 0, BatchNorm's statistics too.

    synchronised: whether BatchNorm is; if not, each process has its own running statistics, and their mean over the
    processes takes their place.
    """
    world.all_reduce_mean_([] if synchronised else running_statistics(model))
    world.broadcast_([*model.parameters(), *model.buffers()])
