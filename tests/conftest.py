"""What several tests need: a tiny drawn data set, and one CPU thread so that sums have one order."""

from pathlib import Path

import pytest
import torch

from data import shapes


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data YAML of 8 drawn images, the same for training and validation."""
    root = tmp_path_factory.mktemp("data") / "tiny"
    shapes.generate(root, train=8, val=2, size=96)
    file = root / "tiny.yaml"
    names = ", ".join(shapes.NAMES)
    file.write_text(f"path: .\ntrain: images/train\nval: images/train\nnames: [{names}]\n")
    return file


@pytest.fixture(scope="session")
def tiny_model() -> str:
    return str(Path(__file__).parent / "tables" / "tiny.yaml")
