"""What several tests need: a tiny drawn data set, a tiny model, and one CPU thread so that sums have one order."""

from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.support.lying_server import Answer, Server

NAMES = ("disc", "square", "bar")
SIDE = 96


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data YAML of 8 drawn images of 2 to 3 objects, the same for training and validation."""
    return draw_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def tiny_model() -> str:
    return str(Path(__file__).parent / "tables" / "tiny.yaml")


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """serve(answer, ...) starts a server that gives these answers in turn."""
    servers = []

    def start(*answers: Answer) -> Server:
        servers.append(Server(*answers))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def draw_tiny_data(root: Path) -> Path:
    """Write the eight images, their labels and the YAML under root."""
    random = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for number in range(8):
        image = random.integers(90, 130, (SIDE, SIDE, 3)).astype(np.uint8)
        rows = []
        places = random.permutation([(26, 26), (70, 26), (26, 70), (70, 70)])[: 2 + number % 2]
        for x, y in places.tolist():
            kind, half = int(random.integers(3)), int(random.integers(9, 20))
            high = half // 2 if kind == 2 else half
            colour = [0, 0, 0]
            colour[kind] = 255
            if kind == 0:
                cv2.circle(image, (x, y), half, colour, -1)
            else:
                cv2.rectangle(image, (x - half, y - high), (x + half, y + high), colour, -1)
            shares = [(x + 0.5) / SIDE, (y + 0.5) / SIDE, (2 * half + 1) / SIDE, (2 * high + 1) / SIDE]
            rows.append(" ".join([str(kind), *(f"{v:.6f}" for v in shares)]))
        cv2.imwrite(str(root / "images" / f"{number}.png"), image)
        (root / "labels" / f"{number}.txt").write_text("\n".join(rows) + "\n")
    file = root / "tiny.yaml"
    file.write_text(f"path: .\ntrain: images\nval: images\nnames: [{', '.join(NAMES)}]\n")
    return file
