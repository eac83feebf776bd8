"""Weights that are a web page or a pointer of Git LFS are called so, wherever they are read."""

from pathlib import Path

import pytest
import torch

from models.loading import load_backend
from models.weights import load_detector
from utils.files import checkpoint_file

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["best.pt", "yolox_s.pth", "best.onnx", "best.torchscript"])
def test_web_page_in_place_of_weights_is_called_so(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("<!doctype html><title>Sign in</title>")
    with pytest.raises(ValueError, match=rf"{name}: is a web page \(HTML\), "):
        load_backend(path, CPU)


@pytest.mark.parametrize("read", [load_detector, checkpoint_file.load])
def test_pointer_of_git_lfs_in_place_of_a_checkpoint_is_called_so(tmp_path, read) -> None:
    path = tmp_path / "last.pt"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 14\n")
    with pytest.raises(ValueError, match=r"last\.pt: is a pointer of Git LFS, .* git lfs pull$"):
        read(path)
