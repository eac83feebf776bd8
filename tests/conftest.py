"""Shared fixtures: a tiny drawn data set, a tiny model, and one CPU thread so that sums have a
fixed order.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.support.exporting import Exports
from tests.support.scripted_server import Answer, Server

NAMES = ("disc", "square", "bar")
SIDE = 96


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data YAML of 8 drawn images with 2 or 3 objects each, the same for training and
    validation.
    """
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


@pytest.fixture(scope="session")
def exports(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """exports("onnx", "--nms") is the path of a file that export.py has written."""
    return Exports(tmp_path_factory.mktemp("exports"), tiny_model)


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


def draw_tiny_data(root: Path) -> Path:
    """Write the eight images, their labels and the data YAML under root; return the path of the
    YAML.
    """
    random = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for number in range(8):
        image = random.integers(90, 130, (SIDE, SIDE, 3)).astype(np.uint8)
        rows = []
        centers = random.permutation([(26, 26), (70, 26), (26, 70), (70, 70)])[: 2 + number % 2]
        for x, y in centers.tolist():
            class_id, half_width = int(random.integers(3)), int(random.integers(9, 20))
            half_height = half_width // 2 if class_id == 2 else half_width
            color = [0, 0, 0]
            color[class_id] = 255
            if class_id == 0:
                cv2.circle(image, (x, y), half_width, color, -1)
            else:
                corners = (x - half_width, y - half_height), (x + half_width, y + half_height)
                cv2.rectangle(image, *corners, color, -1)
            size = (2 * half_width + 1) / SIDE, (2 * half_height + 1) / SIDE
            box = [(x + 0.5) / SIDE, (y + 0.5) / SIDE, *size]
            rows.append(" ".join([str(class_id), *(f"{v:.6f}" for v in box)]))
        cv2.imwrite(str(root / "images" / f"{number}.png"), image)
        (root / "labels" / f"{number}.txt").write_text("\n".join(rows) + "\n")
    file = root / "tiny.yaml"
    file.write_text(f"path: .\ntrain: images\nval: images\nnames: [{', '.join(NAMES)}]\n")
    return file
