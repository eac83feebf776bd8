"""PeerWatch: ends a process that is stuck while another one fails, dies or stops answering.

Processes are threads. They ask the store five times as often as the product does, and all times of
the tests are multiples of that: PeerWatch counts its questions and reads no clock.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support.launching import wait_until
from tests.support.stores import connect_store, start_store
from utils.distributed import peer_watch
from utils.distributed.peer_watch import PeerWatch
from utils.distributed.rendezvous import FAILED, PeerFailedError, Rendezvous

PRODUCT_ASK_S = peer_watch.ASK_S
ASK_S = 0.1  # between two questions to the store
TIMEOUT_S = 4 * ASK_S
GRACE_S = 2 * ASK_S
SILENCE_S = TIMEOUT_S + GRACE_S  # after which a process counts as dead


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_watch, "ASK_S", ASK_S)


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
        rank: int, size: int = 2, grace_s: float = GRACE_S, timeout_s: float = 600
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
    assert ended.after >= GRACE_S


def test_stopped_in_grace_period_does_not_end_process(start):
    (first, _, _), (_, ended, watch) = start(0), start(1, grace_s=10 * ASK_S)
    first.claim_failure(3)
    wait_until(lambda: watch.code == 3, 5, "the failure is noticed")
    time.sleep(2 * ASK_S)  # within the grace period
    watch.stop()
    assert not ended.called.wait(10 * ASK_S)


def test_does_nothing_without_failure(start):
    (first, _, _), (_, ended, watch) = start(0), start(1, grace_s=0)
    assert not ended.called.wait(4 * ASK_S)
    watch.stop()
    first.claim_failure(1)
    assert not ended.called.wait(4 * ASK_S)


def test_closed_store_ends_process(capsys):
    host = start_store()
    client = connect_store(host)
    ended = ExitRecorder()
    watch = PeerWatch(Rendezvous(client, 1, 1, 2), GRACE_S, ended)
    time.sleep(4 * ASK_S)
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


@pytest.mark.parametrize(("silent", "size"), [(0, 2), (2, 3)])
def test_process_that_died_ends_all_others(start, capsys, silent, size):
    """A process that was killed claims no failure: its heartbeat stops, here that of the watch of
    rank `silent`.
    """
    started = [start(rank, size, timeout_s=TIMEOUT_S) for rank in range(size)]
    time.sleep(2 * SILENCE_S)
    assert not any(ended.codes for _, ended, _ in started)
    started[silent][2].stop()
    others = [process for rank, process in enumerate(started) if rank != silent]
    for rendezvous, ended, _ in others:
        with pytest.raises(PeerFailedError, match="exit code 1"):
            rendezvous.wait("a key that the dead process would write")
        assert ended.called.wait(5)
        assert ended.codes == [1]
    assert capsys.readouterr().err == (
        f"error: rank {silent} gave no sign of life for {TIMEOUT_S:g} s (--dist-timeout)\n"
    )


def test_process_that_never_wrote_a_heartbeat_is_reported(start, capsys):
    _, ended, _ = start(0, timeout_s=TIMEOUT_S)
    assert ended.called.wait(6)
    message = f"error: rank 1 gave no sign of life for {TIMEOUT_S:g} s"
    assert capsys.readouterr().err.startswith(message)


def test_process_that_ended_in_order_is_not_reported(start, capsys):
    first, ended, _ = start(0, timeout_s=TIMEOUT_S)
    second, _, watch = start(1, timeout_s=TIMEOUT_S)
    second.wait_for_all_to_end(0)
    watch.stop()
    assert not ended.called.wait(2 * SILENCE_S + GRACE_S)
    assert not first.store.check([FAILED])
    assert capsys.readouterr().err == ""


def test_heartbeats_are_seldom_written_to_the_store(monkeypatch):
    """A store may be a file that grows with each write: a heartbeat every 30 s with the default of
    --dist-timeout.
    """
    monkeypatch.setattr(peer_watch, "ASK_S", PRODUCT_ASK_S)
    written: list[str] = []
    host = start_store()
    watch = PeerWatch(Rendezvous(connect_store(host), 1, 0, 2), 10, ExitRecorder(), 600)
    watch.stop()

    class CountingStore:
        def check(self, keys: list[str]) -> bool:
            return False

        def set(self, key: str, value: str) -> None:
            written.append(value)

    watch.rendezvous = Rendezvous(CountingStore(), 1, 0, 2)  # type: ignore[arg-type]
    for question in range(round(300 / PRODUCT_ASK_S)):
        watch._exchange_heartbeats(question)
    assert written == [str(60 * number) for number in range(10)]
