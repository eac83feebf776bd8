"""Threads that end this process if it is stuck while another one fails, dies or goes silent."""

import math
import sys
import threading
from collections.abc import Callable
from itertools import count

import torch.distributed as dist

from utils.distributed.rendezvous import PeerFailedError, Rendezvous

ASK_S = 0.5  # between two questions to the store
# at most between two heartbeats; not less, since a store may be a file, which each of them extends
HEARTBEAT_S = 30.0
PEER_DIED = "another process of the run died, probably out of memory"


class PeerWatch:
    """Threads that end this process if it is stuck while another one fails, dies or goes silent.

    rendezvous: with its own connection, because a wait in the main thread blocks the main thread's
    connection. grace_s: how long the main thread has to notice the failure itself. end: called with
    the exit code. timeout_s: how long the store and the other processes may take to answer. If the
    network is cut, torch's client and the main thread wait for 15 minutes; for a process that was
    killed, `Rendezvous.wait` waits forever.

    Each process writes heartbeats, numbers that change, to the store. Rank 0 watches those of all
    others, and these watch that of rank 0. All times are counted, not read from a clock: the
    process may be suspended and resumed.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        grace_s: float,
        end: Callable[[int], object],
        timeout_s: float = math.inf,
    ) -> None:
        self.rendezvous = rendezvous
        self.grace_s = grace_s
        self.end = end
        self.timeout_s = timeout_s
        self._stopped = threading.Event()
        # exit code of a failure that another process has reported, or 1 if this one has found it
        # dead
        self.code = 0
        self._store_lost = False
        self._silent_s = 0.0  # how long the store has not answered

        # Heartbeats. Times are numbers of questions.
        silence_s = timeout_s + grace_s  # a collective ends before it
        beat_s = min(silence_s / 20, HEARTBEAT_S)
        self._silent_questions = silence_s / ASK_S
        self._questions_per_beat = max(1, int(beat_s / ASK_S))
        self._watched = [*range(1, rendezvous.size)] if rendezvous.rank == 0 else [0]
        # by rank: its last heartbeat, and the question that read it first
        self._beats: dict[int, tuple[bytes, int]] = {}

        self._threads = [
            threading.Thread(target=self._poll, daemon=True),
            threading.Thread(target=self._check, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=1)

    def _poll(self) -> None:
        """Ask the store again and again: for failures, and for heartbeats."""
        for question in count():
            if self.code or self._store_lost or self._stopped.wait(ASK_S):
                return
            try:
                self.rendezvous.raise_if_failed()
                self._exchange_heartbeats(question)
                self._silent_s = 0.0
            except PeerFailedError as failure:
                self.code = failure.code
            except dist.DistError:
                # the host of the store, rank 0 or the launcher, died without reporting a failure
                self._store_lost = True

    def _exchange_heartbeats(self, question: int) -> None:
        """Write this process's heartbeat, and claim the failure of a process that is silent."""
        store = self.rendezvous.store
        if question % self._questions_per_beat == 0:
            store.set(f"heartbeat/{self.rendezvous.rank}", str(question))

        # One of the watched ranks in turn.
        rank = self._watched[question % len(self._watched)]
        key = f"heartbeat/{rank}"
        beat = store.get(key) if store.check([key]) else b""
        last_beat, since = self._beats.get(rank, (b"", question))
        if beat != last_beat:
            since = question
        self._beats[rank] = (beat, since)

        is_silent = question - since > self._silent_questions
        if is_silent and not store.check([f"ended/{rank}"]):
            is_first, self.code = self.rendezvous.claim_failure(1)
            if is_first:
                self._report(
                    f"rank {rank} gave no sign of life for {self.timeout_s:g} s (--dist-timeout)"
                )

    def _check(self) -> None:
        """End this process when it is still there a grace period after a failure."""
        while not self._stopped.wait(ASK_S):
            self._silent_s += ASK_S
            if self._failed() and not self._stopped.wait(self.grace_s) and self._failed():
                if not self.code:
                    self._report(self._reason())
                self.end(self.code or 1)
                return

    def _failed(self) -> bool:
        return self.code > 0 or self._store_lost or self._silent_s > self.timeout_s

    def _reason(self) -> str:
        if self._store_lost:
            return PEER_DIED
        silence = f"the store did not answer within {self.timeout_s:g} s (--dist-timeout)"
        return f"{silence}: its machine or the network is down"

    def _report(self, reason: str) -> None:
        print(f"error: {reason}", file=sys.stderr, flush=True)
