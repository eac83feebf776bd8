"""A model in the mode of its run: one process, DataParallel, DistributedDataParallel, sharded."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from utils.distributed.precision import choose_precision
from utils.distributed.replica import DistributedReplica, Model, Replica
from utils.distributed.sharding import ShardedReplica
from utils.distributed.sync_bn import synchronize_batch_norm
from utils.distributed.world import World


def build_replica(
    model: Model, world: World, *, sharded_layers: Sequence[nn.Module] | None, accumulates: bool
) -> Replica[Model]:
    """The model as the run's mode calls it.

    sharded_layers: what is gathered each on its own if the run is sharded, else None. accumulates: whether an optimizer
    step may take several batches.
    """
    if world.size == 1:
        return Replica(model, world)
    if sharded_layers is not None:
        return ShardedReplica(model, world, list(sharded_layers))
    return DistributedReplica(model, world, accumulates)


def synchronize_if_asked(
    model: nn.Module, world: World, *, sync_bn: bool, shard: bool, say: Callable[[str], None]
) -> bool:
    """Whether BatchNorm is synchronised, as it is now if it was to be; says where that changes nothing."""
    synchronised = sync_bn or shard
    if synchronised:
        synchronize_batch_norm(model, world.device.type)
    if shard and world.size == 1:
        say("--shard: there is one process, so nothing is sharded")
    if synchronised and world.devices:
        say("--sync-bn: DataParallel normalises on each GPU by itself all the same")
    return synchronised


def agree_on_precision(wanted: str, world: World, *, sharded: bool) -> torch.dtype:
    """The dtype to compute in, the same on all processes; as `choose_precision`.

    Raises ValueError if processes choose differently, or for float16 in a sharded run.
    """
    precision = choose_precision(wanted, world.device)
    world.require_same(f"--amp {wanted}", str(precision))
    if sharded and precision == torch.float16:
        raise ValueError("--shard: this GPU trains in float16, which needs whole gradients; choose --amp fp32")
    return precision


def describe_mode(world: World, *, shard: bool) -> list[str]:
    """What to say of the mode at a run's start."""
    lines = []
    if shard and world.size > 1:
        lines.append("experimental: weights, gradients and the optimizer's state are sharded over the processes")
    if world.devices:
        lines.append(f"DataParallel over {len(world.devices)} GPUs; a process for each is faster: --spawn, or torchrun")
    return lines
