"""Shared fixtures of the tests of studies."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory, if possible: SQLite waits for the disk ten times for each trial."""
    memory = Path("/dev/shm")  # noqa: S108
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("study")
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
