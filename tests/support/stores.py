"""Stores of torch.distributed over TCP, on this machine."""

import torch.distributed as dist


def start_store() -> dist.TCPStore:
    """Host a store on a free port, until the object is deleted."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def connect_store(host: dist.TCPStore) -> dist.TCPStore:
    """Open a further connection to a hosted store."""
    return dist.TCPStore("127.0.0.1", host.port, is_master=False, wait_for_workers=False)
