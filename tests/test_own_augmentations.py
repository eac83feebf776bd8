"""train.py --augmentations: the transforms are kept in the run, and a resumed run uses those."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml

import train
from utils.distributed.world import World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("albumentations") is None, reason="needs albumentations"),
]
TEXT = "# mine\n- {name: InvertImg, p: 1}\n- {name: HorizontalFlip, p: 1}\n"


def test_resumed_run_keeps_its_transforms_although_the_file_changed(
    tiny_data: Path, micro_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(TEXT)
    words = f"--data {tiny_data} --cfg {micro_model} --img 64 --batch 4 --workers 0 --device cpu"
    flags = [*words.split(), "--project", str(tmp_path), "--noplots", "--augmentations", str(file)]
    cpu = World(torch.device("cpu"))
    train.main(train.parse_args([*flags, "--epochs", "1"])[0], cpu)
    said = capsys.readouterr().out
    assert f"--augmentations {file}: 2 transforms of Albumentations " in said

    # args.yaml, a copy of the file, and both checkpoints
    run = tmp_path / "exp"
    assert yaml.safe_load((run / "args.yaml").read_text())["augmentations"] == [str(file), TEXT]
    assert (run / "augmentations.yaml").read_text() == TEXT
    for name in ("last.pt", "best.pt"):
        saved = torch.load(run / "weights" / name, weights_only=True)
        assert saved["config"]["augmentations"] == [str(file), TEXT]

    file.write_text("- {name: Blurr}\n")
    resumed = ["--resume", str(run), "--epochs", "2", "--noplots"]
    train.main(train.parse_args(resumed)[0], cpu)
    said = capsys.readouterr().out
    assert f"{file} has changed: the run keeps the transforms that it began with" in said
    assert f"--augmentations {file}: 2 transforms of Albumentations " in said
    assert (run / "augmentations.yaml").read_text() == TEXT
