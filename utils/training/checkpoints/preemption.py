"""When a run is saved in the midst of an epoch: by the clock, and when a signal announces that it will be killed.

Clusters and rented machines send SIGTERM or SIGUSR1 some seconds before they kill. Only one process may hear it, or the
clock of one may strike, but all must save after the same step: what one wishes travels with the counts that the loss
sums over all processes anyway.
"""

import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from utils.background import BackgroundTask
from utils.distributed.host_copies import AsyncHostCopy
from utils.distributed.world import World
from utils.terminal import AgreedExit

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]


class InterruptedRunError(Exception):
    """A signal was heard where nothing can be saved."""


class PreemptedExit(AgreedExit):  # not an error: what was asked for is done
    """The end of a run that was saved because a signal asked for it."""


class SaveTrigger:
    """Says at which steps to save. As a context it hears the signals, and only notes them.

    minutes: between two times; 0: only signals count. background: work of this process; all learn when it is done.
    """

    def __init__(self, world: World, minutes: float, background: BackgroundTask) -> None:
        self.world, self.seconds, self.background = world, minutes * 60 if minutes else float("inf"), background
        self.heard = 0  # the signal that this process was sent
        self._saved = time.monotonic()
        # How often, since the last step, any process wished to save, and was at work aside.
        self._told = torch.zeros(2, dtype=torch.int64, device=world.device)
        self._later = AsyncHostCopy(world.device)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "SaveTrigger":
        if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: one that was not set by Python

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.heard = number

    def signal_received(self) -> bool:
        """Whether this process was sent a signal."""
        return bool(self.heard)

    def _wanted(self) -> bool:
        return self.signal_received() or (self.world.is_main and time.monotonic() - self._saved >= self.seconds)

    def all_reduce_sum(self, counts: Tensor) -> Tensor:
        """As World.all_reduce_sum of a tensor of one dimension; takes along what this process has to tell."""
        if self.world.size == 1:
            return counts
        own = [counts.new_full((1,), telling) for telling in (self._wanted(), self.background.busy)]
        both = self.world.all_reduce_sum(torch.cat([counts, *own]))
        self._told = self._told + both[-2:]
        return both[:-2]

    def check(self) -> tuple[bool, bool]:
        """After a step, whether to save, and whether no process works aside. All are told the same."""
        if self.world.size == 1:
            return self._wanted(), not self.background.busy
        told, self._told = self._told, torch.zeros_like(self._told)
        heard = [one.tolist() for one in self._later.push(told)]
        return any(wishes for wishes, _ in heard), any(not busy for _, busy in heard)

    def mark_saved(self) -> None:
        """Note that all is saved, and wait for rank 0, which has written it."""
        self._later.drain()
        with suppress(dist.DistError):  # the launcher is gone; it has asked for the end, which the next step brings
            self.world.wait_for_main()
        self._saved = time.monotonic()

    def agreed_signal(self) -> str:
        """The name of the signal that any process was sent, or "". A collective, for the launcher may be gone."""
        heard = int(self.world.all_gather_rows(torch.tensor([self.heard])).max())
        return signal.Signals(heard).name if heard else ""

    def barrier(self) -> None:
        """Wait for all processes. A collective too."""
        self.world.all_gather_rows(torch.zeros(1))
