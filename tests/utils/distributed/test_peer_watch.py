"""PeerWatch: ends a process that is stuck while another one fails, dies or stops answering.
Processes are threads.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support.stores import connect_store, start_store
from utils.distributed.peer_watch import PeerWatch
from utils.distributed.rendezvous import FAILED, PeerFailedError, Rendezvous


class ExitRecorder:
    """Replaces os._exit."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.called = threading.Event()
        self.began = time.monotonic()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.after = time.monotonic() - self.began
        self.called.set()


Start = Callable[..., tuple[Rendezvous, ExitRecorder, PeerWatch]]


@pytest.fixture(params=["tcp", "file"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """start(rank, size, grace_s, timeout_s): a process's rendezvous, its replacement of os._exit,
    and its watch.
    """
    host = start_store()
    watches = []

    def connect() -> dist.Store:
        if request.param == "file":
            return dist.FileStore(str(tmp_path / "store"), -1)
        return connect_store(host)

    def one(
        rank: int, size: int = 2, grace_s: float = 0.5, timeout_s: float = 600
    ) -> tuple[Rendezvous, ExitRecorder, PeerWatch]:
        ended = ExitRecorder()
        watches.append(PeerWatch(Rendezvous(connect(), 1, rank, size), grace_s, ended, timeout_s))
        return Rendezvous(connect(), 1, rank, size), ended, watches[-1]

    yield one
    for watch in watches:
        watch.stop()


def test_failure_of_peer_ends_process_after_grace_period(start):
    (first, _, _), (_, ended, _) = start(0), start(1)
    first.claim_failure(3)
    assert ended.called.wait(5)
    assert ended.codes == [3]
    assert ended.after >= 0.5  # the grace period


def test_stopped_in_grace_period_does_not_end_process(start):
    (first, _, _), (_, ended, watch) = start(0), start(1, grace_s=1)
    first.claim_failure(3)
    time.sleep(0.8)  # noticed, within the grace period
    watch.stop()
    assert not ended.called.wait(1.2)


def test_does_nothing_without_failure(start):
    (first, _, _), (_, ended, watch) = start(0), start(1, grace_s=0)
    assert not ended.called.wait(1.2)
    watch.stop()
    first.claim_failure(1)
    assert not ended.called.wait(0.8)


def test_closed_store_ends_process(capsys):
    host = start_store()
    client = connect_store(host)
    ended = ExitRecorder()
    watch = PeerWatch(Rendezvous(client, 1, 1, 2), 0.2, ended)
    time.sleep(0.7)
    assert not ended.codes
    del host
    assert ended.called.wait(5)
    watch.stop()
    assert ended.codes == [1]
    assert (
        capsys.readouterr().err
        == "error: another process of the run died, probably out of memory\n"
    )


# ---------------------------------------------------------------------- heartbeats


@pytest.mark.parametrize(("silent", "size"), [(1, 2), (0, 2), (2, 3)])
def test_process_that_died_ends_all_others(start, capsys, silent, size):
    """A process that was killed claims no failure: its heartbeat stops, here that of the watch of
    rank `silent`.
    """
    started = [start(rank, size, grace_s=0.5, timeout_s=1) for rank in range(size)]
    time.sleep(2.5)
    assert not any(ended.codes for _, ended, _ in started)
    started[silent][2].stop()
    others = [process for rank, process in enumerate(started) if rank != silent]
    for rendezvous, ended, _ in others:
        with pytest.raises(PeerFailedError, match="exit code 1"):
            rendezvous.wait("a key that the dead process would write")
        assert ended.called.wait(5)
        assert ended.codes == [1]
    assert capsys.readouterr().err == (
        f"error: rank {silent} gave no sign of life for 1 s (--dist-timeout)\n"
    )


def test_process_that_never_wrote_a_heartbeat_is_reported(start, capsys):
    _, ended, _ = start(0, timeout_s=1)
    assert ended.called.wait(6)
    assert capsys.readouterr().err.startswith("error: rank 1 gave no sign of life for 1 s")


def test_process_that_ended_in_order_is_not_reported(start, capsys):
    (first, ended, _), (second, _, watch) = start(0, timeout_s=1), start(1, timeout_s=1)
    second.wait_for_all_to_end(0)
    watch.stop()
    assert not ended.called.wait(4)
    assert not first.store.check([FAILED])
    assert capsys.readouterr().err == ""


def test_heartbeats_are_seldom_written_to_the_store(start):
    """A store may be a file that grows with each write: a heartbeat every 30 s with the default of
    --dist-timeout.
    """
    written: list[str] = []
    _, _, watch = start(0, grace_s=10)
    watch.stop()

    class CountingStore:
        def check(self, keys: list[str]) -> bool:
            return False

        def set(self, key: str, value: str) -> None:
            written.append(value)

    watch.rendezvous = Rendezvous(CountingStore(), 1, 0, 2)  # type: ignore[arg-type]
    for question in range(600):  # 300 s, one every 0.5 s
        watch._exchange_heartbeats(question)
    assert written == [str(60 * number) for number in range(10)]
