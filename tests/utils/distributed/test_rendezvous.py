"""Rendezvous, repeated attempts with one store, and reports of failures. Threads take the place of
processes.
"""

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.support.stores import connect_store, start_store
from utils.distributed.launch import RankInfo
from utils.distributed.rendezvous import (
    FAILED,
    GENERATION,
    PeerFailedError,
    Rendezvous,
    join_rendezvous,
    of_generation,
    open_store,
)
from utils.terminal import FaultError

Connect = Callable[[], dist.Store]


@pytest.fixture(params=["tcp", "file", "hash"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """connect(): opens a connection to one shared store."""
    host = start_store() if request.param == "tcp" else dist.HashStore()
    if request.param == "file":
        return lambda: dist.FileStore(str(tmp_path / "store"), -1)
    if request.param == "hash":
        return lambda: host
    return lambda: connect_store(host)


def run_concurrently(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Call all functions at the same time; returns the result or exception of each."""

    def outcome(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(outcome, works))


def run_with_deadline(work: Callable[[], Any], seconds: float) -> Any:
    """The result or exception of `work`, or a text if it runs longer than `seconds`, so that the
    tests do not hang.
    """
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.extend(run_concurrently([work])), daemon=True)
    thread.start()
    thread.join(seconds)
    return outcomes[0] if outcomes else f"still running after {seconds:g} s"


def join_task(
    connect: Connect, rank: int, size: int, timeout_s: float = 20, late_s: float = 0
) -> Callable[[], Rendezvous]:
    def work() -> Rendezvous:
        time.sleep(late_s)
        return join_rendezvous(connect(), RankInfo(rank, size), timeout_s)

    return work


def join_all(connect: Connect, size: int) -> list[Rendezvous]:
    all_ranks = run_concurrently([join_task(connect, rank, size) for rank in range(size)])
    assert all(isinstance(rendezvous, Rendezvous) for rendezvous in all_ranks), all_ranks
    return all_ranks


# ---------------------------------------------------------------------- attempts


def test_all_processes_join_with_their_ranks(connect):
    all_ranks = join_all(connect, 3)
    assert [(m.generation, m.rank, m.size) for m in all_ranks] == [(1, 0, 3), (1, 1, 3), (1, 2, 3)]


def test_single_process_rendezvous_returns_its_own_values(connect):
    rendezvous = join_rendezvous(connect(), RankInfo(), 1)
    assert (rendezvous.broadcast_object({"a": None}), rendezvous.all_gather_object("b")) == (
        {"a": None},
        ["b"],
    )


@pytest.mark.parametrize("late", [0, 1], ids=["rank 0 late", "rank 1 late"])
def test_generations_over_one_store_are_isolated(connect, late):
    """The launcher's store survives restarts. Each attempt (generation) ends with a failure
    here.
    """
    for generation in range(1, 5):
        works = [join_task(connect, rank, 2, late_s=0.1 * (rank == late)) for rank in range(2)]
        all_ranks = run_concurrently(works)
        assert [m.generation for m in all_ranks] == [generation] * 2
        assert (
            run_concurrently([lambda m=m: m.broadcast_object(m.generation) for m in all_ranks])
            == [generation] * 2
        )
        for rendezvous in all_ranks:
            rendezvous.raise_if_failed()
        all_ranks[generation % 2].claim_failure(generation)


def test_join_into_dead_generation_is_repeated_in_the_next(connect):
    """Rank 1 connects first and finds the generation of a rank 0 that died after accepting another
    rank 1.
    """
    store = connect()
    store.add(GENERATION, 1)
    old = of_generation(store, 1)
    for key, text in (("hello/1", "another"), ("welcome/1", "another"), ("all", "")):
        old.set(key, text)
    all_ranks = run_concurrently([join_task(connect, 0, 2, late_s=0.3), join_task(connect, 1, 2)])
    assert [m.generation for m in all_ranks] == [2, 2]
    assert old.get("hello/1") != b"another"  # rank 1 wrote its greeting there first


def test_new_generation_may_have_fewer_processes(connect):
    join_all(connect, 4)
    all_ranks = join_all(connect, 2)
    assert [m.generation for m in all_ranks] == [2, 2]
    assert run_concurrently([lambda m=m: m.all_gather_object(m.rank) for m in all_ranks]) == [
        [0, 1],
        [0, 1],
    ]


def test_missing_ranks_are_named_after_timeout(connect):
    first, second = run_concurrently([join_task(connect, 0, 4, 0.5), join_task(connect, 2, 4, 1)])
    assert isinstance(first, FaultError)
    assert str(first) == "rank 1, 3 of 4 processes did not connect within 0.5 s"
    assert isinstance(second, FaultError)
    assert str(second) == "another of 4 processes did not connect within 1 s"


def test_missing_rank_0_is_named_after_timeout(connect):
    store = connect()
    store.add(GENERATION, 1)
    for key in ("hello/1", "welcome/1", "all"):  # of an attempt whose processes died
        of_generation(store, 1).set(key, "another")
    with pytest.raises(FaultError, match=r"^rank 0 of 2 processes did not connect within 0.3 s$"):
        join_rendezvous(store, RankInfo(1, 2), 0.3)


# ---------------------------------------------------------------------- exchanges and failures


def test_broadcasts_and_gathers_keep_their_order(connect):
    values = [0.1 + 0.2, math.inf, 5e-324, [None, {"ä": "\n"}], "", 2**60, []]

    def exchange(m: Rendezvous) -> list[Any]:
        time.sleep(0.05 * m.rank)
        received = [m.broadcast_object(value if m.rank == 0 else "mine") for value in values]
        gathered = m.all_gather_object({"rank": m.rank})
        return [*received, gathered, m.broadcast_object(m.rank), m.all_gather_object(m.rank)]

    gathered = [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    expected = [*values, gathered, 0, [0, 1, 2]]
    assert (
        run_concurrently([lambda m=m: exchange(m) for m in join_all(connect, 3)]) == [expected] * 3
    )


def test_nan_can_be_broadcast(connect):
    assert math.isnan(join_rendezvous(connect(), RankInfo(), 1).broadcast_object(math.nan))


def test_broadcast_does_not_wait_for_receivers(connect):
    first, second = join_all(connect, 2)
    assert [first.broadcast_object(value) for value in "abc"] == ["a", "b", "c"]
    assert [second.broadcast_object("") for _ in "abc"] == ["a", "b", "c"]


def test_first_claimed_failure_is_kept(connect):
    first, second = join_all(connect, 2)
    first.raise_if_failed()
    assert second.claim_failure(2) == (True, 2)
    assert first.claim_failure(1) == (False, 2)
    for rendezvous in (first, second):
        with pytest.raises(PeerFailedError) as caught:
            rendezvous.raise_if_failed()
        assert caught.value.code == 2


def test_only_one_of_simultaneous_failures_is_first(connect):
    all_ranks = join_all(connect, 4)
    claims = run_concurrently([lambda m=m: m.claim_failure(10 + m.rank) for m in all_ranks])
    winner = [first for first, _ in claims].index(True)
    assert sum(first for first, _ in claims) == 1
    assert {code for _, code in claims} == {10 + winner}


@pytest.mark.parametrize(
    "waiting",
    [lambda m: m.broadcast_object(0), lambda m: m.all_gather_object(0)],
    ids=["broadcast", "all_gather"],
)
def test_waiting_collective_ends_with_failure_of_peer(connect, waiting):
    first, second = join_all(connect, 2)

    def fail() -> None:
        time.sleep(0.2)
        first.claim_failure(7)

    _, error = run_concurrently([fail, lambda: waiting(second)])
    assert isinstance(error, PeerFailedError)
    assert error.code == 7


def test_wait_for_failure_ends_on_timeout_or_failure(connect):
    first, second = join_all(connect, 2)
    began = time.monotonic()
    second.wait_for_failure(0.3)
    assert 0.3 <= time.monotonic() - began < 2
    first.claim_failure(1)
    began = time.monotonic()
    second.wait_for_failure(30)
    assert time.monotonic() - began < 2


def test_wait_for_all_to_end_waits_for_all_ranks(connect):
    def end(rendezvous: Rendezvous) -> float:
        time.sleep(0.2 * rendezvous.rank)
        rendezvous.wait_for_all_to_end(20)
        return time.monotonic()

    began = time.monotonic()
    ends = run_concurrently([lambda m=m: end(m) for m in join_all(connect, 3)])
    assert max(ends) - min(ends) < 0.4
    assert 0.4 <= min(ends) - began < 10


def test_wait_for_all_to_end_times_out_without_missing_rank(connect):
    rendezvous = join_all(connect, 2)[0]
    began = time.monotonic()
    rendezvous.wait_for_all_to_end(0.3)
    assert 0.3 <= time.monotonic() - began < 2


def test_wait_for_all_to_end_returns_when_store_is_closed():
    host = start_store()
    client = connect_store(host)
    rendezvous = Rendezvous(client, 1, 0, 2)
    del host
    rendezvous.wait_for_all_to_end(20)


# ---------------------------------------------------------------------- the store


def test_rank_0_hosts_store_unless_launcher_does():
    host = open_store(
        RankInfo(0, 2, host="127.0.0.1", port=0), f"tcp://127.0.0.1:{(port := free_port())}", 5
    )
    again = open_store(RankInfo(0, 2), f"tcp://127.0.0.1:{port}", 5, again=True)
    other = open_store(RankInfo(1, 2, host="127.0.0.1", port=port), "env://", 5)
    hosted = open_store(RankInfo(0, 2, host="127.0.0.1", port=port, hosted=True), "env://", 5)
    host.set("a", "b")
    assert [store.get("a") for store in (again, other, hosted)] == [b"b"] * 3


def free_port() -> int:
    store = start_store()
    port = store.port
    del store
    return port


def test_unreachable_store_is_reported_after_timeout():
    port, began = free_port(), time.monotonic()
    with pytest.raises(
        FaultError, match=rf"^127.0.0.1 port {port}: no answer within 1 s \(--dist-timeout\)$"
    ):
        open_store(RankInfo(1, 2), f"tcp://127.0.0.1:{port}", 1)
    assert time.monotonic() - began < 4


def test_hanging_host_lookup_is_reported_after_timeout(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: time.sleep(30))
    error = run_with_deadline(lambda: open_store(RankInfo(1, 2), "tcp://somewhere:29500", 1), 8)
    assert isinstance(error, FaultError), error
    assert str(error) == "somewhere port 29500: no answer within 1 s (--dist-timeout)"


def test_port_in_use_is_reported():
    host = start_store()
    with pytest.raises(
        FaultError, match=rf"^127.0.0.1 port {host.port}: cannot listen on this port$"
    ):
        open_store(RankInfo(0, 2), f"tcp://127.0.0.1:{host.port}", 1)


def test_silent_listener_is_reported_after_timeout():
    """Another program may use the port."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        error = run_with_deadline(
            lambda: open_store(RankInfo(1, 2), f"tcp://127.0.0.1:{port}", 1), 8
        )
    assert isinstance(error, FaultError), error
    assert str(error) == f"127.0.0.1 port {port}: no answer within 1 s (--dist-timeout)"


@pytest.mark.parametrize(
    ("rank_info", "url", "sentence"),
    [
        (RankInfo(0, 2), "env://", "MASTER_ADDR and MASTER_PORT are not set"),
        (RankInfo(1, 2, host="a"), "env://", "MASTER_ADDR and MASTER_PORT are not set"),
        (RankInfo(1, 2, host="127.0.0.1", port=65536), "env://", "port 65536"),
        (RankInfo(0, 2), "tcp://127.0.0.1:99999", "port 99999"),
        (RankInfo(0, 2), "tcp://127.0.0.1:0", "port 0"),
        (RankInfo(0, 2), "file:///", "file:///"),
    ],
)
def test_invalid_store_addresses_are_refused(rank_info, url, sentence):
    error = run_with_deadline(lambda: open_store(rank_info, url, 1), 8)
    assert isinstance(error, ValueError), error
    assert sentence in str(error)


def test_waiting_connection_does_not_block_a_second_one(connect):
    """A wait on the main thread's connection must not block the watch."""
    main, watch = connect(), connect()
    if main is watch:
        pytest.skip("a HashStore is one object without connections")
    main.set_timeout(timedelta(seconds=1))

    def wait() -> float:
        with pytest.raises(RuntimeError):
            main.wait(["never"])
        return time.monotonic()

    def check() -> float:
        time.sleep(0.2)
        assert not watch.check([FAILED])
        return time.monotonic()

    waited, checked = run_concurrently([wait, check])
    assert checked < waited
