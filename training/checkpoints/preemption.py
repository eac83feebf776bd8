"""When to save within an epoch: at a time interval, and on a signal that the run will be killed.

Clusters and rented machines send SIGTERM or SIGUSR1 some seconds before they kill a process, and a
system sends SIGHUP when the connection to the terminal is lost. Perhaps only one process receives
the signal or reaches the interval, but all must save after the same step. So each process appends
its request to the counts that the loss all-reduces anyway.
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

from utils.distributed.host_copies import AsyncHostCopy
from utils.distributed.world import World
from utils.terminal import AgreedExit
from utils.threads import BackgroundTask

SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)
]


def is_ignored_hangup(number: int) -> bool:
    """Return whether a signal is SIGHUP, and this process ignores it, as under nohup."""
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) is signal.SIG_IGN


class InterruptedRunError(Exception):
    """A signal was received where the run cannot be saved."""


class PreemptedExit(AgreedExit):
    """The exit of a run that was saved because of a signal. Not an error."""


class SaveTrigger:
    """Decides after which steps to save.

    As a context manager it records the signals instead of letting them end the process. A SIGHUP
    that is ignored, as under nohup, stays ignored.

    minutes: between saves; 0: only on signals. background: a task of each process; `check` says
    when it is done on all.
    """

    def __init__(self, world: World, minutes: float, background: BackgroundTask) -> None:
        self.world = world
        self.seconds = minutes * 60 if minutes else float("inf")  # between saves
        self.background = background
        self._signal = 0  # number of the signal that this process received, or 0
        self._saved = time.monotonic()  # when

        # Over the batches since the last step, and over all processes: the number of requests to
        # save, and of background tasks that were running.
        self._counts: Tensor | None = None  # int64 [2]; None before the first batch of a step
        self._host_counts = AsyncHostCopy(world.device)
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "SaveTrigger":
        # Python can set signal handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if not is_ignored_hangup(number):
                    self._previous_handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            # None: a handler that was not set by Python
            signal.signal(number, handler or signal.SIG_DFL)
        self._previous_handlers = {}

    def _record(self, number: int, _: FrameType | None) -> None:
        self._signal = number

    def signal_received(self) -> bool:
        """Return whether this process received a signal."""
        return bool(self._signal)

    def _save_requested(self) -> bool:
        if self.signal_received():
            return True
        return self.world.is_main and time.monotonic() - self._saved >= self.seconds

    def all_reduce_sum(self, counts: Tensor) -> Tensor:
        """Return the sum of a one-dimensional tensor over all processes, as World.all_reduce_sum.

        Two more numbers of this process are sent with it, for `check`: whether it requests to save,
        and whether its background task is running.
        """
        if self.world.size == 1:
            return counts
        save_requested = counts.new_full((1,), self._save_requested())
        busy = counts.new_full((1,), self.background.busy)
        sums = self.world.all_reduce_sum(torch.cat([counts, save_requested, busy]))

        appended = sums[-2:]
        if self._counts is None:
            self._counts = appended
        else:
            self._counts = self._counts + appended
        return sums[:-2]

    def check(self) -> tuple[bool, bool]:
        """Return whether to save after this step, and whether no background task is running.

        The answers are the same on all processes. Raises RuntimeError if the loss did not sum its
        counts over all processes: none would learn of another one's request.
        """
        if self.world.size == 1:
            return self._save_requested(), not self.background.busy

        counts = self._counts
        self._counts = None
        if counts is None:
            raise RuntimeError(
                "the loss did not call `total`, as Loss.forward must once in each forward pass"
            )
        # On a GPU the counts of an earlier step arrive, so that the host does not wait.
        save = False
        all_idle = False
        for arrived in self._host_counts.push(counts):
            requests, busy = arrived.tolist()
            save = save or requests > 0
            all_idle = all_idle or busy == 0
        return save, all_idle

    def mark_saved(self) -> None:
        """Restart the interval after a save, and wait for rank 0, which writes the file."""
        self._host_counts.drain()
        # DistError: a launcher that exits stops the store through which processes wait. It has sent
        # them a signal, too, which ends the run after the next step.
        with suppress(dist.DistError):
            self.world.wait_for_main()
        self._saved = time.monotonic()

    def agreed_signal(self) -> str:
        """Return the name of the signal that any process received, or "". A collective."""
        # Not through the launcher's store, as World.broadcast_object: the launcher may have exited.
        number = int(self.world.all_gather_rows(torch.tensor([self._signal])).max())
        return signal.Signals(number).name if number else ""

    def barrier(self) -> None:
        """Wait for all processes. A collective, for the same reason."""
        self.world.all_gather_rows(torch.zeros(1))
