"""Where the processes of a run find each other, and how they learn of each other's failures: keys in a store.

The store outlives a restart (torch's launcher keeps it), and so do the keys of the processes that died. So each life of
a run is a generation with keys of its own, which its rank 0 opens, and the others join by a greeting that only that
rank 0 can have answered. Torch's own keys, mixed up by restarts (pytorch issue 167288), then lie in the generation too.
"""

import json
import math
import secrets
import socket
import sys
import threading
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

from utils.background import run_in_background
from utils.distributed.launch import RankInfo
from utils.terminal import FaultError

POLL_S = 0.02
ASK_S = 0.5
TRY_S = 5.0  # for one attempt to connect: a machine that is switched off does not answer at all
GENERATION, FAILED = "kestrel/generation", "failed"
PEER_GONE = "another process of the run died, probably out of memory"


class PeerFailedError(RuntimeError):
    """Another process of the run has failed and says why itself; `code` is the exit code that it chose for all."""

    def __init__(self, code: int) -> None:
        super().__init__(f"another process of the run failed, exit code {code}")
        self.code = code


def hosts_store(place: RankInfo, url: str) -> bool:
    """Whether others lose the store when this process ends: rank 0's, unless the launcher hosts what it names.

    >>> [hosts_store(RankInfo(hosted=True), url) for url in ("env://", "tcp://a:1")], hosts_store(RankInfo(rank=1), "tcp://a:1")
    ([False, True], False)
    """
    return place.rank == 0 and (not place.hosted or url.startswith(("tcp:", "file:")))


def open_store(place: RankInfo, url: str, timeout_s: float, *, again: bool = False) -> dist.Store:
    """A connection to the store that all processes of a run reach; rank 0 hosts it, unless the launcher does.

    url: as Launch.dist_url. again: for a further connection. Raises ValueError if the launcher's variables do not say
    where it is, and FaultError if it is not there.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if Path(rest).is_dir() or not Path(rest).parent.is_dir():  # torch would wait for the folder, for minutes
            raise ValueError(f"--dist-url {url}: it is no file, or in no folder")
        return dist.FileStore(rest, -1)
    if scheme == "tcp":
        host, _, port = rest.rstrip("/").rpartition(":")
        host = host.strip("[]")
    else:
        host, port = place.host, str(place.port)
    if scheme == "env" and (not host or port == "0"):
        raise ValueError("MASTER_ADDR and MASTER_PORT are not set: give --dist-url tcp://HOST:PORT, or use torchrun")
    if not 0 < int(port) < 65536:
        raise ValueError(f"{host} port {port}: a port lies between 1 and 65535")
    serves, timeout = hosts_store(place, url) and not again, timedelta(seconds=timeout_s)
    until = time.monotonic() + timeout_s

    def connect() -> dist.Store:
        if not serves:
            _await_host(host, int(port), until)
        return dist.TCPStore(host, int(port), is_master=serves, timeout=timeout, wait_for_workers=False)

    try:
        return _within(timeout_s, connect)
    except (dist.DistError, OSError) as error:
        what = "cannot be listened on" if serves else f"nobody answered within {timeout_s:g} s (--dist-timeout)"
        raise FaultError(f"{host} port {port}: {what}") from error


def _within(seconds: float, work: Callable[[], dist.Store]) -> dist.Store:
    """What `work` returns. A name server may be silent, and torch's client waits forever where another program listens.

    Raises TimeoutError.
    """
    try:
        return run_in_background(work).result(seconds)
    except FutureTimeoutError:  # TimeoutError itself from Python 3.11 on
        raise TimeoutError from None


def _await_host(host: str, port: int, until: float) -> None:
    """Wait until somebody listens there; torch would do so too, but twice as long, and with pages of warnings.

    until: by time.monotonic(). Raises OSError.
    """
    while True:
        try:
            left_s = max(until - time.monotonic(), POLL_S)
            return socket.create_connection((host, port), timeout=min(left_s, TRY_S)).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(10 * POLL_S)


@dataclass(frozen=True)
class Rendezvous:
    """All processes of one life of a run, and what they have told each other."""

    store: dist.Store
    generation: int
    rank: int
    size: int
    _numbers: Iterator[int] = field(default_factory=count)  # of what is shared: all processes share in one order

    def wait(self, key: str) -> bytes:
        """The value of a key, once it is there. Unlike a wait in a collective it has no limit.

        Raises PeerFailedError as soon as another process has failed.
        """
        while not self.store.check([key]):
            self.raise_if_failed()
            time.sleep(POLL_S)
        return self.store.get(key)

    def raise_if_failed(self) -> None:
        """Raises PeerFailedError if a process has failed."""
        if self.store.check([FAILED]):
            raise PeerFailedError(json.loads(self.store.get(FAILED))["code"])

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value for all, of what JSON can hold; floats keep their bits. The others wait for rank 0."""
        key = f"share/{next(self._numbers)}"
        if self.rank == 0:
            self.store.set(key, json.dumps(value))
        return json.loads(self.wait(key))

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        key = f"exchange/{next(self._numbers)}"
        self.store.set(f"{key}/{self.rank}", json.dumps(value))
        return [json.loads(self.wait(f"{key}/{rank}")) for rank in range(self.size)]

    def claim_failure(self, code: int) -> tuple[bool, int]:
        """Tell the others of a failure: whether this process is the first, and the exit code of the one that was."""
        mine = json.dumps({"code": code, "rank": self.rank})
        first = self.store.compare_set(FAILED, "", mine).decode()
        return first == mine, json.loads(first)["code"]

    def failure_within(self, seconds: float) -> None:
        """Wait so long for another process to claim a failure."""
        until = time.monotonic() + seconds
        while not self.store.check([FAILED]) and time.monotonic() < until:
            time.sleep(POLL_S)

    def leave_together(self, seconds: float) -> None:
        """Wait until all processes are about to end, so that none is cut short by what another's end sets off."""
        until = time.monotonic() + seconds
        with suppress(dist.DistError):
            self.store.add("ended", 1)
            while self.store.add("ended", 0) < self.size and time.monotonic() < until:
                time.sleep(POLL_S)
            left = self.store.add("left", 1)
            while self.rank == 0 and left < self.size and time.monotonic() < until:  # it may host the store
                time.sleep(POLL_S)
                left = self.store.add("left", 0)


def join_rendezvous(store: dist.Store, place: RankInfo, timeout_s: float) -> Rendezvous:
    """The meeting of this life of the run, when all its processes are there.

    Raises FaultError that names who is missing.
    """
    until = time.monotonic() + timeout_s
    generation = (_open if place.rank == 0 else _join)(store, place, until, timeout_s)
    return Rendezvous(of_generation(store, generation), generation, place.rank, place.size)


def of_generation(store: dist.Store, generation: int) -> dist.Store:
    """The part of the store that one life of the run has for itself."""
    return dist.PrefixStore(f"kestrel/{generation}", store)


def _open(store: dist.Store, place: RankInfo, until: float, timeout_s: float) -> int:
    generation = store.add(GENERATION, 1)
    own = of_generation(store, generation)
    missing = set(range(1, place.size))
    while missing:
        for rank in [rank for rank in missing if own.check([f"hello/{rank}"])]:
            own.set(f"welcome/{rank}", own.get(f"hello/{rank}").decode())
            missing.discard(rank)
        if missing and time.monotonic() > until:
            ranks = ", ".join(map(str, sorted(missing)))
            raise FaultError(f"of {place.size} processes rank {ranks} did not come within {timeout_s:g} s")
        time.sleep(POLL_S if missing else 0)
    own.set("all", "")
    return generation


def _join(store: dist.Store, place: RankInfo, until: float, timeout_s: float) -> int:
    greeting, greeted, own = secrets.token_hex(16), 0, store
    while True:
        generation = store.add(GENERATION, 0)
        if generation > greeted:
            own, greeted = of_generation(store, generation), generation
            own.set(f"hello/{place.rank}", greeting)
        answered = greeted > 0 and own.check([f"welcome/{place.rank}"])
        welcome = answered and own.get(f"welcome/{place.rank}").decode() == greeting
        if welcome and own.check(["all"]):
            return generation
        if time.monotonic() > until:
            who = "another process" if welcome else "rank 0"
            raise FaultError(f"{who} of {place.size} did not come within {timeout_s:g} s")
        time.sleep(POLL_S)


class PeerWatch:
    """Threads that end this process when another one fails, or the store falls silent, while this one is stuck.

    meeting: with a connection of its own, since a wait in the main thread's blocks that one. grace_s: what the main
    thread gets to notice by itself. end: called with the exit code. patience_s: how long the store may leave a question
    unanswered; where the network is cut, torch's client waits for a quarter of an hour, and so does the main thread.
    """

    def __init__(
        self, meeting: Rendezvous, grace_s: float, end: Callable[[int], object], patience_s: float = math.inf
    ) -> None:
        self.meeting, self.grace_s, self.end, self.patience_s = meeting, grace_s, end, patience_s
        self._over = threading.Event()
        self.code = 0  # of a failure that another process has told of
        self._gone, self._silent_s = False, 0.0  # what the store is
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._ask, self._judge)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=1)

    def _ask(self) -> None:
        while not (self.code or self._gone or self._over.wait(ASK_S)):
            try:
                self.meeting.raise_if_failed()
                self._silent_s = 0.0
            except PeerFailedError as failure:
                self.code = failure.code
            except dist.DistError:  # its host is gone: rank 0 or the launcher, without a word
                self._gone = True

    def _judge(self) -> None:
        while not self._over.wait(ASK_S):
            self._silent_s += ASK_S  # counted, not read from a clock: a process may be stopped and go on
            if self._lost() and not self._over.wait(self.grace_s) and self._lost():
                if not self.code:
                    print(f"error: {self._what_is_lost()}", file=sys.stderr, flush=True)
                self.end(self.code or 1)
                return

    def _lost(self) -> bool:
        return self.code > 0 or self._gone or self._silent_s > self.patience_s

    def _what_is_lost(self) -> str:
        if self._gone:
            return PEER_GONE
        told = f"the store did not answer within {self.patience_s:g} s (--dist-timeout)"
        return f"{told}: its machine or the network is gone"
