"""Rendezvous of the processes of a run through keys in a store, which also reports failures.

The store survives a restart (torch's launcher keeps it), and so do the keys of processes that died.
So each attempt (start or restart) of a run is a generation with its own key prefix. Its rank 0
creates the generation, and the others join by writing a random greeting that this rank 0 must
return. The keys of torch's process groups, which restarts would mix up (pytorch issue 167288), have
the generation's prefix too.
"""

import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch.distributed as dist

from utils.distributed.launch import RankInfo
from utils.terminal import FaultError
from utils.threads import run_in_background

POLL_S = 0.02
# timeout of one attempt to connect: a machine that is switched off does not answer at all
TRY_S = 5.0
GENERATION = "kestrel/generation"  # key of the number of attempts so far
FAILED = "failed"  # key of the first failure of an attempt


class PeerFailedError(RuntimeError):
    """Another process of the run failed and reports its error; `code`: the exit code for all."""

    def __init__(self, code: int) -> None:
        super().__init__(f"another process of the run failed, exit code {code}")
        self.code = code


def hosts_store(rank_info: RankInfo, url: str) -> bool:
    """Return whether this process hosts the store, which ends with it.

    Rank 0 does, unless the launcher hosts it (env://).

    >>> [hosts_store(RankInfo(hosted=True), url) for url in ("env://", "tcp://a:1")]
    [False, True]
    >>> hosts_store(RankInfo(rank=1), "tcp://a:1")
    False
    """
    return rank_info.rank == 0 and (not rank_info.hosted or url.startswith(("tcp:", "file:")))


def open_store(
    rank_info: RankInfo, url: str, timeout_s: float, *, again: bool = False
) -> dist.Store:
    """Connect to the store of the run; rank 0 hosts it, unless the launcher does.

    url: as Launch.dist_url. again: whether this is a further connection of the same process. Raises
    ValueError if the address is missing or invalid, and FaultError if the store cannot be reached.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        # torch would wait for the folder, for minutes
        if Path(rest).is_dir() or not Path(rest).parent.is_dir():
            raise ValueError(
                f"--dist-url {url}: give a file, not a folder, in a folder that exists"
            )
        return dist.FileStore(rest, -1)

    if scheme == "tcp":
        host, _, port = rest.rstrip("/").rpartition(":")
        host = host.strip("[]")
    else:
        host = rank_info.host
        port = str(rank_info.port)
    if scheme == "env" and (not host or port == "0"):
        raise ValueError(
            "MASTER_ADDR and MASTER_PORT are not set: give --dist-url tcp://HOST:PORT, or use "
            "torchrun"
        )
    if not 0 < int(port) < 65536:
        raise ValueError(f"{host} port {port}: a port is a number from 1 to 65535")

    is_host = hosts_store(rank_info, url) and not again
    timeout = timedelta(seconds=timeout_s)
    deadline = time.monotonic() + timeout_s

    def connect() -> dist.Store:
        if not is_host:
            _wait_for_host(host, int(port), deadline)
        return dist.TCPStore(
            host, int(port), is_master=is_host, timeout=timeout, wait_for_workers=False
        )

    try:
        return _within(timeout_s, connect)
    except (dist.DistError, OSError) as error:
        if is_host:
            problem = "cannot listen on this port"
        else:
            problem = f"no answer within {timeout_s:g} s (--dist-timeout)"
        raise FaultError(f"{host} port {port}: {problem}") from error


def _within(seconds: float, work: Callable[[], dist.Store]) -> dist.Store:
    """Return the result of `work`; raise TimeoutError after `seconds`.

    A name server may not answer, and torch's client waits forever if another program listens on the
    port.
    """
    try:
        return run_in_background(work).result(seconds)
    except FutureTimeoutError:  # TimeoutError itself from Python 3.11 on
        raise TimeoutError from None


def _wait_for_host(host: str, port: int, deadline: float) -> None:
    """Wait until the port accepts connections.

    torch would also wait, but twice as long and with pages of warnings. deadline: in
    time.monotonic() seconds; after it OSError is raised.
    """
    while True:
        left_s = max(deadline - time.monotonic(), POLL_S)
        try:
            socket.create_connection((host, port), timeout=min(left_s, TRY_S)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(10 * POLL_S)


@dataclass(frozen=True)
class Rendezvous:
    """All processes of one attempt of a run; they exchange values through the store."""

    store: dist.Store
    generation: int
    rank: int
    size: int
    # numbers of the exchanges, which all processes make in one order
    _numbers: Iterator[int] = field(default_factory=count)

    def wait(self, key: str) -> bytes:
        """Wait for a key and return its value.

        Unlike a wait in a collective it has no timeout: rank 0 may work long. Raises
        PeerFailedError as soon as another process has failed, or `PeerWatch` reports that one has
        died.
        """
        while not self.store.check([key]):
            self.raise_if_failed()
            time.sleep(POLL_S)
        return self.store.get(key)

    def raise_if_failed(self) -> None:
        """Raise PeerFailedError if a process has failed."""
        if self.store.check([FAILED]):
            raise PeerFailedError(json.loads(self.store.get(FAILED))["code"])

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's JSON-serializable value; floats keep their bits. Others wait for it."""
        key = f"share/{next(self._numbers)}"
        if self.rank == 0:
            self.store.set(key, json.dumps(value))
        return json.loads(self.wait(key))

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the JSON-serializable values of all processes, in rank order."""
        key = f"exchange/{next(self._numbers)}"
        self.store.set(f"{key}/{self.rank}", json.dumps(value))
        return [json.loads(self.wait(f"{key}/{rank}")) for rank in range(self.size)]

    def claim_failure(self, code: int) -> tuple[bool, int]:
        """Report a failure to the others; return whether it is the first, and the first's code."""
        own = json.dumps({"code": code, "rank": self.rank})
        first = self.store.compare_set(FAILED, "", own).decode()
        return first == own, json.loads(first)["code"]

    def wait_for_failure(self, seconds: float) -> None:
        """Wait at most so many seconds for another process to claim a failure."""
        deadline = time.monotonic() + seconds
        while not self.store.check([FAILED]) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def wait_for_all_to_end(self, seconds: float) -> None:
        """Wait until all processes are about to end, so that no exit interrupts the others."""
        deadline = time.monotonic() + seconds
        with suppress(dist.DistError):
            self.store.set(f"ended/{self.rank}", "")  # its silence from now on is not a failure
            self.store.add("ended", 1)
            while self.store.add("ended", 0) < self.size and time.monotonic() < deadline:
                time.sleep(POLL_S)

            # Rank 0 leaves last: it may host the store.
            left = self.store.add("left", 1)
            while self.rank == 0 and left < self.size and time.monotonic() < deadline:
                time.sleep(POLL_S)
                left = self.store.add("left", 0)


def join_rendezvous(store: dist.Store, rank_info: RankInfo, timeout_s: float) -> Rendezvous:
    """Wait for all processes of this attempt of the run and return their rendezvous.

    Raises FaultError, which names the missing ranks, after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    if rank_info.rank == 0:
        generation = _open(store, rank_info, deadline, timeout_s)
    else:
        generation = _join(store, rank_info, deadline, timeout_s)
    return Rendezvous(of_generation(store, generation), generation, rank_info.rank, rank_info.size)


def of_generation(store: dist.Store, generation: int) -> dist.Store:
    """Return the part of the store for one attempt of the run: a prefix of its keys."""
    return dist.PrefixStore(f"kestrel/{generation}", store)


def _open(store: dist.Store, rank_info: RankInfo, deadline: float, timeout_s: float) -> int:
    """Create a generation, return the greetings of all other ranks, and return its number."""
    generation = store.add(GENERATION, 1)
    own = of_generation(store, generation)
    missing = set(range(1, rank_info.size))
    while missing:
        for rank in sorted(missing):
            if own.check([f"hello/{rank}"]):
                greeting = own.get(f"hello/{rank}").decode()
                own.set(f"welcome/{rank}", greeting)
                missing.discard(rank)

        if missing and time.monotonic() > deadline:
            ranks = ", ".join(map(str, sorted(missing)))
            raise FaultError(
                f"rank {ranks} of {rank_info.size} processes did not connect within {timeout_s:g} s"
            )
        if missing:
            time.sleep(POLL_S)
    own.set("all", "")
    return generation


def _join(store: dist.Store, rank_info: RankInfo, deadline: float, timeout_s: float) -> int:
    """Greet rank 0 in the newest generation until it returns the greeting; return its number."""
    greeting = secrets.token_hex(16)
    greeted = 0  # the generation that has this process's greeting
    own = store
    while True:
        generation = store.add(GENERATION, 0)
        if generation > greeted:
            own = of_generation(store, generation)
            own.set(f"hello/{rank_info.rank}", greeting)
            greeted = generation

        answered = greeted > 0 and own.check([f"welcome/{rank_info.rank}"])
        welcome = answered and own.get(f"welcome/{rank_info.rank}").decode() == greeting
        if welcome and own.check(["all"]):
            return generation

        if time.monotonic() > deadline:
            who = "another" if welcome else "rank 0"
            raise FaultError(
                f"{who} of {rank_info.size} processes did not connect within {timeout_s:g} s"
            )
        time.sleep(POLL_S)
