# ruff: noqa: F401 - the imports are for type checkers
"""Processes and devices: launchers, rendezvous, collectives, model replicas.

Independent of training code.
"""

from typing import TYPE_CHECKING

from utils.lazy_listing import lazy_listing

if TYPE_CHECKING:
    from utils.distributed.devices import (
        describe,
        loader_workers,
        pick_devices,
        processes_for,
        random_state,
        set_random_state,
        tuned_convolutions,
        wait_for,
    )
    from utils.distributed.host_copies import AsyncHostCopy, Uploads, page_lock, to_device
    from utils.distributed.launch import Launch, RankInfo, read_launch, read_rank_info, spawn
    from utils.distributed.memory import (
        free_memory,
        free_ram,
        memory_gib,
        release_memory,
        reserved_by,
        ring_budget,
    )
    from utils.distributed.modes import (
        agree_on_precision,
        build_replica,
        describe_mode,
        synchronize_if_asked,
    )
    from utils.distributed.precision import (
        autocast_for,
        choose_precision,
        exact_float32,
        weights_dtype,
        widest_float,
    )
    from utils.distributed.replica import (
        Replica,
        preserve_buffers,
        running_statistics,
        sync_buffers,
    )
    from utils.distributed.session import distributed_session
    from utils.distributed.sync_bn import SyncBatchNorm2d, synchronize_batch_norm
    from utils.distributed.torch_compile import (
        compile_model,
        compile_or_fall_back,
        first_failure,
        is_traced,
        mode_without_reuse,
    )
    from utils.distributed.world import World

__all__, __getattr__ = lazy_listing(
    __name__,
    {
        "devices": [
            "describe",
            "loader_workers",
            "pick_devices",
            "processes_for",
            "random_state",
            "set_random_state",
            "tuned_convolutions",
            "wait_for",
        ],
        "host_copies": ["AsyncHostCopy", "Uploads", "page_lock", "to_device"],
        "launch": ["Launch", "RankInfo", "read_launch", "read_rank_info", "spawn"],
        "memory": [
            "free_memory",
            "free_ram",
            "memory_gib",
            "release_memory",
            "reserved_by",
            "ring_budget",
        ],
        "modes": ["agree_on_precision", "build_replica", "describe_mode", "synchronize_if_asked"],
        "precision": [
            "autocast_for",
            "choose_precision",
            "exact_float32",
            "weights_dtype",
            "widest_float",
        ],
        "replica": ["Replica", "preserve_buffers", "running_statistics", "sync_buffers"],
        "session": ["distributed_session"],
        "sync_bn": ["SyncBatchNorm2d", "synchronize_batch_norm"],
        "torch_compile": [
            "compile_model",
            "compile_or_fall_back",
            "first_failure",
            "is_traced",
            "mode_without_reuse",
        ],
        "world": ["World"],
    },
)
