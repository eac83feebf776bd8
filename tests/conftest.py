"""Shared fixtures: a tiny drawn data set, a tiny model, and one CPU thread so that sums have a
fixed order.

Fixtures import what they need: the process that hands out the tests runs none of them.
"""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.doctest import DoctestModule

from tests.support.scripted_server import Answer, Server
from utils.threads import usable_cores

Collectors = list[pytest.Collector]

if TYPE_CHECKING:
    from tests.support.exporting import Exports

MAX_PROCESSES = 8  # of up to 2 GB each
# New objects after which garbage is looked for. Python's 700 costs a compiled loss a fifth of its
# time.
GARBAGE_EVERY = 50_000
# The files that take a minute or more beside two others, longest first.
LONGEST = (
    "test_families.py",
    "test_docs.py",
    "test_failures.py",
    "test_processes.py",
    "test_resume.py",
    "test_compiled_loss.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes of -n auto: one more than there are cores, because tests wait
    for disks, processes and time limits; but not so many that a container with a few cores of a
    large machine runs out of memory.
    """
    return min(usable_cores() + 1, MAX_PROCESSES)


def pytest_configure(config: pytest.Config) -> None:
    keep_compiled_modules(config)
    gc.set_threshold(GARBAGE_EVERY, 20, 100)
    if hasattr(config.option, "loadscopereorder"):  # newer versions of pytest-xdist
        config.option.loadscopereorder = False  # the order of pytest_collection_modifyitems


def keep_compiled_modules(config: pytest.Config) -> None:
    """Let the test processes, and those that they start, share compiled modules where the
    environment (PYTHONDONTWRITEBYTECODE) forbids to write them beside their sources.

    Otherwise hundreds of processes would compile Kestrel and torch again, for seconds each.
    """
    kept = getattr(config, "cache", None)  # None with -p no:cacheprovider
    if sys.dont_write_bytecode and kept is not None:
        folder = str(kept.mkdir("bytecode"))
        sys.dont_write_bytecode = False
        sys.pycache_prefix = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, Collectors, Collectors]:
    """Look for doctests only in files that have some: in the others it takes a tenth of the time
    of the collection, in each test process.
    """
    collectors = yield
    others = [found for found in collectors if not isinstance(found, DoctestModule)]
    if len(others) < len(collectors) and ">>>" not in file_path.read_text(encoding="utf-8"):
        return others
    return collectors


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, then those with many slow tests, so that no process is left with
    one at the end.
    """
    slow_tests = Counter(item.path for item in items if item.get_closest_marker("slow"))
    places = {name: place for place, name in enumerate(LONGEST)}

    def order(item: pytest.Item) -> tuple[int, int]:
        return places.get(item.path.name, len(LONGEST)), -slow_tests[item.path]

    items.sort(key=order)


@pytest.fixture(autouse=True, scope="module")
def _frozen_objects() -> None:
    """Leave what the imports, the collection and the files before have made out of the garbage
    collections of each file.

    Each of these would look at a million objects, for a third of a second, and a search or a test
    of a batch size collects after every training.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _local_loggers() -> Iterator[None]:
    """No test sends a run to the server of a developer; and slow disks are waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("MLFLOW_TRACKING_URI", "")
        patch.setenv("KESTREL_LOGGER_WAIT", "200")
        yield


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data YAML of 8 drawn images with 2 or 3 objects each, the same for training and
    validation.
    """
    from tests.support.tiny_data import draw_tiny_data

    return draw_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def tiny_model() -> str:
    return str(Path(__file__).parent / "tables" / "tiny.yaml")


@pytest.fixture(scope="session")
def micro_model() -> str:
    """A table with five layers, for runs whose subject is not the model: its steps take a third of
    the time of the tiny one's.
    """
    return str(Path(__file__).parent / "tables" / "micro.yaml")


@pytest.fixture
def val_without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """val.py draws no pictures, which take most of the time of a small validation."""
    monkeypatch.setattr("val.draw_results", lambda *_: None)


@pytest.fixture(scope="session")
def onnx_functions() -> Iterator[None]:
    """torch reads the sources of its 500 ONNX functions once, and not for each export: a quarter of
    the time of a small one.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        read_once = cache(ONNXRegistry.from_torchlib)
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(read_once))
        yield


@pytest.fixture(scope="session")
def exports(onnx_functions: None, tmp_path_factory: pytest.TempPathFactory) -> "Exports":
    """exports("onnx", "--nms") is the path of a file that export.py has written."""
    from tests.support.exporting import Exports

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of the whole test run
    return Exports(folder / "exports")


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """The programs that a test starts have the default handlers of SIGINT and SIGHUP.

    A shell without job control starts background commands with SIGINT ignored, and nohup with
    SIGHUP ignored, which programs inherit. A handler of this process they do not inherit.
    """
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is signal.SIG_IGN:
        before[hangup] = signal.signal(hangup, lambda *_: None)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """serve(answer, ...) starts a server that gives these answers in order."""
    servers = []

    def start(*answers: Answer) -> Server:
        servers.append(Server(*answers))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
