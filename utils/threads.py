"""Apply a function to many items in several threads."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
BLOCK = 64  # items per thread and block


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Iterate over the results in the order of the items. Works in blocks, so that an early error
    is raised early.

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
) -> Iterator[Result]:
    """Iterate over the results in the order of the items, at most two per thread ahead, so few are
    in memory.

    With one thread there is none ahead, and each item is asked for when its result is; `function`
    is then called in the thread of the caller. start: called first in each other thread.

    >>> list(map_ahead(abs, [-3, 2, -1], threads=2)), list(map_ahead(abs, [], threads=2))
    ([3, 2, 1], [])
    """
    if threads <= 1:
        yield from map(function, items)
        return
    remaining, started = iter(items), deque[Future[Result]]()
    with ThreadPoolExecutor(threads, initializer=start) as pool:
        try:
            while True:
                started.extend(
                    pool.submit(function, item)
                    for item in islice(remaining, 2 * threads - len(started))
                )
                if not started:
                    return
                yield started.popleft().result()
        finally:
            for future in started:
                future.cancel()


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
