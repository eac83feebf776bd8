"""Choose the parallel mode: one process, DataParallel, DistributedDataParallel or sharded."""

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import nn

from utils.distributed.devices import describe
from utils.distributed.precision import choose_precision
from utils.distributed.replica import DistributedReplica, Model, Replica
from utils.distributed.sync_bn import synchronize_batch_norm
from utils.distributed.world import World


def build_replica(
    model: Model, world: World, *, sharded_layers: Sequence[nn.Module] | None, accumulates: bool
) -> Replica[Model]:
    """Wrap the model for the parallel mode of the run.

    sharded_layers: the layers whose weights are gathered separately in a sharded run; None for
    other runs. accumulates: whether gradients may be accumulated over several batches per optimizer
    step.
    """
    if world.size == 1:
        return Replica(model, world)
    if sharded_layers is not None:
        # imports half a second of torch that other runs do not use
        from utils.distributed.sharding import ShardedReplica

        return ShardedReplica(model, world, list(sharded_layers))
    return DistributedReplica(model, world, accumulates)


def synchronize_if_asked(
    model: nn.Module, world: World, *, sync_bn: bool, shard: bool, say: Callable[[str], None]
) -> bool:
    """Synchronize BatchNorm if asked, and return whether it is.

    Args:
        model: changed in place.
        world: of the processes.
        sync_bn: whether it was asked for.
        shard: whether the run is sharded, which needs it.
        say: receives a line for each flag that has no effect.
    """
    synchronized = sync_bn or shard
    if synchronized:
        synchronize_batch_norm(model)
    if shard and world.size == 1:
        say("--shard: there is one process, so nothing is sharded")
    if synchronized and world.devices:
        say("--sync-bn: DataParallel still normalizes on each GPU separately")
    return synchronized


def agree_on_precision(wanted: str, world: World, *, sharded: bool) -> torch.dtype:
    """Return the dtype to compute in, from `choose_precision`, the same in all processes.

    Raises: ValueError if it differs between processes, or for float16 in a sharded run.
    """
    precision = choose_precision(wanted, world.device)
    world.require_same(f"--amp {wanted}", str(precision))
    if sharded and precision == torch.float16:
        raise ValueError(
            "--shard: this GPU trains in float16, which needs unsharded gradients; choose --amp "
            "fp32"
        )
    return precision


def describe_mode(world: World, *, shard: bool) -> list[str]:
    """Return lines about devices and parallel mode, for the log at the start. A collective."""
    used = [describe(device) for device in world.devices or (world.device,)]
    everywhere = Counter(name for names in world.all_gather_object(used) for name in names)
    devices = []
    for name, count in everywhere.items():
        devices.append(name if count == 1 else f"{count} x {name}")
    lines = [f"devices: {'; '.join(devices)}" if len(devices) > 1 else f"device: {devices[0]}"]

    if shard and world.size > 1:
        lines.append(
            "experimental: weights, gradients and optimizer state are sharded over the processes"
        )
    if world.devices:
        lines.append(
            f"DataParallel over {len(world.devices)} GPUs; one process per GPU is faster: --spawn "
            "or torchrun"
        )
    return lines
