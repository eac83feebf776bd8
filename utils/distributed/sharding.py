"""Weights, gradients and optimizer state in slices, one for each process (`--shard`, experimental).

Source: ZeRO, arXiv 1910.02054, stage 3, as torch's fully_shard builds it. Outside of this file a sharded run looks like
any other: states are whole, on every process, and checkpoints the same. So is the moving average: each optimizer step
gathers the weights for it.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from utils.distributed.replica import Model, Replica
from utils.distributed.world import World


class ShardedReplica(Replica[Model]):
    """Fully sharded: a layer's weights are gathered before it runs, its gradients averaged and scattered after.

    layers: those that are gathered each on its own. Parameters become slices in place, so build the optimizer
    afterwards. BatchNorm must be synchronised: its statistics are not sharded, and torch does not align them.
    """

    def __init__(self, model: Model, world: World, layers: list[nn.Module]) -> None:
        super().__init__(model, world)
        model.to(memory_format=torch.contiguous_format)  # what is sliced must be; activations stay channels last
        mesh = init_device_mesh(world.device.type, (world.size,))
        for layer in layers:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        self.sharded: Any = fully_shard(model, mesh=mesh)

    def __call__(self, images: Tensor) -> Any:
        with warnings.catch_warnings():  # of views in the output, which only a change in place would harm
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            return super().__call__(images)

    def gradients(self, *, last: bool) -> AbstractContextManager[object]:
        self.sharded.set_requires_gradient_sync(last)
        return nullcontext()

    def state_dict(self) -> Mapping[str, Tensor]:
        return whole(self.model.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.model.load_state_dict(like(dict(state), self.model.state_dict()))

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return whole(optimizer.state_dict())

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        sliced = {
            number: {name: like(value, parameters[number]) for name, value in own.items()}
            for number, own in state["state"].items()
        }
        optimizer.load_state_dict(state | {"state": sliced})

    def clip_gradients(self, most: float) -> Tensor:
        return whole(super().clip_gradients(most))  # type: ignore[no-any-return]

    def sync_buffers(self, world: World, *, synchronised: bool) -> None:
        world.broadcast_(self.model.buffers())


def whole(value: Any) -> Any:
    """Nested records with every sliced tensor put together. A collective: all processes must ask alike."""
    return _map(lambda leaf: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf, value)


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _map(change, entry) for key, entry in value.items()}
    return [_map(change, entry) for entry in value] if isinstance(value, list) else change(value)


def like(value: Any, model: Any) -> Any:
    """A whole tensor, or a record of them, sliced like `model` where that is; a count, which has no slices, stays."""
    if isinstance(value, dict):
        return {key: like(entry, model[key]) for key, entry in value.items()}
    if not isinstance(model, DTensor) or not isinstance(value, Tensor) or value.shape != model.shape:
        return value
    return distribute_tensor(value.to(model.device), model.device_mesh, model.placements)
