"""Threads: how many may run, a function over items, items ahead of a consumer, a job beside it."""

import math
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any, TypeVar, cast

from utils.control_groups import cpu_quota
from utils.terminal import FaultError

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")
BLOCK = 64  # items per thread and block
JOIN_S = 10.0  # the longest time to wait for a prefetching thread to end
POLL_S = 0.1  # how often a waiting thread looks whether the other one has ended


def machine_cores() -> int:
    """Return the number of cores that all processes here have together, at least 1.

    They are those of the machine, or of a container whose CPU time is limited; a part of a core
    counts as one.
    """
    cores = os.cpu_count() or 1
    return max(1, math.ceil(min(cores, cpu_quota())))


def usable_cores() -> int:
    """Return the number of cores that this process may run on, at least 1.

    Fewer than `machine_cores` in a job of SLURM or a container that is bound to some of them.
    """
    bound_to = machine_cores()
    if hasattr(os, "sched_getaffinity"):  # Linux
        bound_to = min(bound_to, len(os.sched_getaffinity(0)))
    return max(1, bound_to)


# ---- a function over many items


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Iterate over the results in the order of the items, with all items of a block at work.

    An error is raised after the block that it is in, not after all items.

    >>> list(map_in_threads(abs, [-3, 2, -1], threads=2)), list(map_in_threads(abs, [], threads=2))
    ([3, 2, 1], [])
    """
    remaining = iter(items)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        while block := list(islice(remaining, BLOCK * max(1, threads))):
            yield from pool.map(function, block)


def map_ahead(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    start: Callable[[], None] = lambda: None,
    *,
    size: Callable[[Item], int] = lambda _: 0,
    most: int = 1,
) -> Iterator[Result]:
    """Iterate over the results in the order of the items, at most two per thread ahead.

    So only few are in memory. With one thread there is none ahead, and each item is asked for when
    its result is; `function` is then called in the thread of the caller.

    Args:
        function: called in several threads at the same time.
        items: to call it with.
        threads: how many there are.
        start: called first in each other thread.
        size: of an item, in bytes for example.
        most: no item is begun while those ahead have this size or more together.

    >>> list(map_ahead(abs, [-3, 2, -1], threads=2)), list(map_ahead(abs, [], threads=2))
    ([3, 2, 1], [])
    """
    if threads <= 1:
        yield from map(function, items)
        return

    remaining = iter(items)
    started: deque[tuple[Future[Result], int]] = deque()
    with ThreadPoolExecutor(threads, initializer=start) as pool:
        try:
            while True:
                size_ahead = sum(item_size for _, item_size in started)
                while len(started) < 2 * threads and size_ahead < most:
                    try:
                        item = next(remaining)
                    except StopIteration:
                        break
                    item_size = size(item)
                    size_ahead += item_size
                    started.append((pool.submit(function, item), item_size))
                if not started:
                    return
                future, _ = started.popleft()
                yield future.result()
        finally:
            for future, _ in started:
                future.cancel()


# ---- iterating ahead of the consumer


def prefetch(
    items: Iterable[T], ahead: int, stop: Callable[[], object] = lambda: None
) -> Generator[T, None, None]:
    """Iterate over the items, up to `ahead` of which a background thread has ready.

    Raises what `items` raises. The thread ends when the iterator is closed or no longer used; an
    item that it waits for meanwhile is dropped. stop: called then, to end the waiting of `items`
    for a next item, if they can wait for long.

    >>> list(prefetch([1, 2, 3], ahead=2)), list(prefetch([], ahead=1))
    ([1, 2, 3], [])
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
    closed = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not closed.is_set():
            with suppress(queue.Full):
                ready.put((item, error), timeout=POLL_S)
                break

    def produce() -> None:
        iterator = iter(items)
        try:
            for item in iterator:
                put(item, None)
                if closed.is_set():
                    break
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)
        finally:
            if isinstance(iterator, Generator):
                iterator.close()  # it may itself prefetch

    thread = threading.Thread(target=produce, daemon=True, name="prefetch")
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield cast(T, item)
    finally:
        closed.set()
        stop()
        thread.join(JOIN_S)  # a thread that computes while Python exits could crash the process


# ---- one job beside the caller


def run_in_background(work: Callable[[], T], after: "Future[Any] | None" = None) -> "Future[T]":
    """Run `work` in a new thread and return its future.

    after: `work` starts when this future has ended or failed. The thread is a daemon, so an
    interrupted process can exit without waiting for it.

    >>> run_in_background(lambda: 1 + 1).result()
    2
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            if after is not None:
                after.exception()
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class BackgroundTask:
    """One background job at a time, whose result is collected by `wait`.

    what: names the job in error messages.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._future: Future[Any] | None = None
        self._take: Callable[[Any], None] = lambda _: None

    def start(self, work: Callable[[], T], take: Callable[[T], None]) -> None:
        """Start `work`, after waiting for the previous job.

        take: called by `wait` with the result of `work`.
        """
        self.wait()
        self._future = run_in_background(work)
        self._take = take

    @property
    def busy(self) -> bool:
        """Return whether a job is running."""
        return self._future is not None and not self._future.done()

    def wait(self) -> None:
        """Wait for the job and pass its result to `take`, unless that was done before.

        Raises what the job raised; FaultError if it ran out of host memory (MemoryError never
        means GPU memory).
        """
        future = self._future
        self._future = None
        if future is None:
            return

        error = future.exception()
        if isinstance(error, MemoryError):
            raise FaultError(f"out of memory (host RAM, not GPU memory): {self.what}") from error
        self._take(future.result())


# ---- threads and forks

# Held while DataLoader workers are forked, and while another thread runs a program. A worker that
# is forked meanwhile would inherit the pipe to the program, and a reader of a pipe waits until
# every process has closed its other end: as long as the worker lives.
fork_lock = threading.Lock()


@cache  # once in a process: the hook cannot be removed
def single_thread_after_fork() -> None:
    """Let torch use one thread in child processes that this process forks.

    A child has none of its parent's threads, but OpenMP still waits for them: torch's first
    parallel step never ends. With one thread it asks for no others. Does nothing on systems without
    fork.
    """
    if hasattr(os, "register_at_fork"):
        import torch

        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
