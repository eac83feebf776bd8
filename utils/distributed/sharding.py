"""Shard weights, gradients and optimizer state over the processes (`--shard`, experimental).

Source: ZeRO, arXiv 1910.02054, stage 3, as implemented by torch's fully_shard. Outside this file a
sharded run looks like any other: state dicts are unsharded on every process, and checkpoints are
the same. The moving average of the weights is unsharded too: the weights are gathered for it after
each optimizer step.
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
    """Fully sharded: a layer's weights are gathered before it runs.

    Its gradients are averaged and scattered after. layers: the layers that are gathered separately.
    Parameters are replaced by shards in place, so build the optimizer afterwards. BatchNorm must be
    synchronized: its statistics are not sharded, and torch does not make them equal.
    """

    def __init__(self, model: Model, world: World, layers: list[nn.Module]) -> None:
        super().__init__(model, world)
        # for sharding; activations stay channels last
        model.to(memory_format=torch.contiguous_format)
        mesh = init_device_mesh(world.device.type, (world.size,))
        for layer in layers:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        self.sharded: Any = fully_shard(model, mesh=mesh)

    def __call__(self, images: Tensor) -> Any:
        # a warning about views in the output, a problem only for in-place changes
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            return super().__call__(images)

    def gradients(self, *, last: bool) -> AbstractContextManager[object]:
        self.sharded.set_requires_gradient_sync(last)
        return nullcontext()

    def state_dict(self) -> Mapping[str, Tensor]:
        return _gather_full(self.model.state_dict())

    def live_state(self) -> Mapping[str, Tensor]:
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.model.load_state_dict(_shard_like(dict(state), self.model.state_dict()))

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return _gather_full(optimizer.state_dict())

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        sharded = {
            index: {name: _shard_like(value, parameters[index]) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        optimizer.load_state_dict(state | {"state": sharded})

    def clip_gradients(self, max_norm: float) -> Tensor:
        return _gather_full(super().clip_gradients(max_norm))  # type: ignore[no-any-return]

    def sync_buffers(self, world: World, *, synchronized: bool) -> None:
        world.broadcast_(self.model.buffers())


def _gather_full(value: Any) -> Any:
    """Gather every sharded tensor in nested dicts and lists.

    A collective: all processes must make the same calls.
    """

    def gather(leaf: Any) -> Any:
        return leaf.full_tensor() if isinstance(leaf, DTensor) else leaf

    return _map_leaves(gather, value)


def _map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Return nested dicts and lists with `change` applied to everything else in them."""
    if isinstance(value, Mapping):
        return {key: _map_leaves(change, entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_map_leaves(change, entry) for entry in value]
    return change(value)


def _shard_like(value: Any, reference: Any) -> Any:
    """Shard a tensor, or a dict of tensors, like `reference`.

    Values without shards, such as step counts, stay.
    """
    if isinstance(value, dict):
        return {key: _shard_like(entry, reference[key]) for key, entry in value.items()}
    if (
        not isinstance(reference, DTensor)
        or not isinstance(value, Tensor)
        or value.shape != reference.shape
    ):
        return value
    return distribute_tensor(
        value.to(reference.device), reference.device_mesh, reference.placements
    )
