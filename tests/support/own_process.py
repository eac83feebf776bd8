"""Run a measurement in a new process, so that earlier tests do not affect it."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")


def run_in_new_process(function: Callable[..., T], *arguments: object) -> T:
    """Call a module-level function in a new process, which may start others, and return the
    result.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
