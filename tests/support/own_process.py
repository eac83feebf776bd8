"""Measurements in a process of their own, where what earlier tests have left behind does not count."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")


def in_own_process(function: Callable[..., T], *arguments: object) -> T:
    """What `function`, one of a module's own, returns in a new process, which may start others."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
