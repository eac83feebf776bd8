"""A logger in a thread of its own, so that it can neither end nor delay a training."""

import threading
import time

from utils.log import INTERRUPTED
from utils.loggers.base import LoggedRun, Logger, without_login
from utils.loggers.journal import JournalReader
from utils.terminal import MAY_BLOCK

CHUNK = 500  # records that a logger gets at once


class Follower:
    """Feeds a logger the records of a journal, as far as they may be sent.

    The journal is the queue: a slow logger falls behind in it, and costs no memory.

    failure: why the logger is left out, "" while it is not.
    """

    def __init__(self, logger: Logger, run: LoggedRun, reader: JournalReader) -> None:
        self.logger = logger
        self.failure = ""
        self._run = run
        self._reader = reader

        # Guarded by the condition.
        self._changed = threading.Condition()
        self._limit = 0  # records that may be sent
        self._status = ""  # how the run has ended
        self._sent = 0
        self._closed = False  # its run
        self._busy_since: float | None = None  # when the call began that the logger is in

        # While it is alive, the process ends without the exit handlers: see utils/terminal.py.
        name = f"{MAY_BLOCK} {logger.title}"
        self._thread = threading.Thread(target=self._work, daemon=True, name=name)
        self._thread.start()

    # ---- of the training's thread: none of these waits, except the two with a number of seconds

    def send(self, limit: int) -> None:
        """Let the logger have the first `limit` records."""
        with self._changed:
            self._limit = limit
            self._changed.notify_all()

    def seconds_busy(self) -> float:
        """Return for how long the logger has not returned from a call."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def leave_out(self, reason: str) -> None:
        """Send nothing more, and expect nothing more."""
        with self._changed:
            self.failure = self.failure or reason
            self._changed.notify_all()

    def wait_until_sent(self, seconds: float) -> bool:
        """Wait until the logger has all that it may have; return whether it was in time."""
        with self._changed:
            return self._changed.wait_for(self._is_up_to_date, seconds)

    def finish(self, status: str) -> None:
        """Let the logger close its run when it has all that it may have."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def join(self, seconds: float) -> bool:
        """Wait until the run is closed, or the logger has failed; return whether it was in time."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._closed or bool(self.failure), seconds)
        if in_time and not self.failure:
            self._thread.join()  # it has nothing left to do
        return in_time

    def _is_up_to_date(self) -> bool:
        return self._sent >= self._limit or bool(self.failure)

    # ---- of the logger's thread

    def _work(self) -> None:
        try:
            self._follow()
        except Exception as error:
            text = without_login(str(error))
            self.leave_out(f"{type(error).__name__}: {text}" if text else type(error).__name__)
        self._reader.close()
        if self.failure:
            # The thread stays, because what has failed may have exit handlers that block.
            threading.Event().wait()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _follow(self) -> None:
        self._begin_call()
        known = self.logger.start(self._run)
        self._end_call(0)
        while self._wait_for_work():
            limit = self._limit
            records = self._reader.next_records(limit, CHUNK)
            new = [record for record in records if record.number >= known]
            self._begin_call()
            if new:
                self.logger.log(new)
            self._end_call(self._reader.position)
        if not self.failure:
            self._begin_call()
            self.logger.finish(self._status or INTERRUPTED)
            self._end_call(self._sent)

    def _wait_for_work(self) -> bool:
        """Wait for records; return whether there are any, False when the run has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._sent < self._limit or bool(self._status or self.failure)
            )
            return self._sent < self._limit and not self.failure

    def _begin_call(self) -> None:
        self._busy_since = time.monotonic()

    def _end_call(self, sent: int) -> None:
        with self._changed:
            self._busy_since = None
            self._sent = sent
            self._changed.notify_all()
