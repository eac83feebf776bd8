"""training/settings/augmentations.py: a run keeps the text of the file of --augmentations."""

from pathlib import Path

import pytest

from training.settings.augmentations import (
    build_transforms,
    report_change,
    text_digest,
    with_text,
)
from training.settings.config import TrainConfig

TEXT = "- {name: Blur, p: 0.5}\n"


def test_run_without_the_flag_has_no_transforms():
    cfg = TrainConfig()
    assert with_text(cfg) is cfg
    assert build_transforms(cfg, pytest.fail) is None
    assert text_digest(cfg) == "none"
    report_change(cfg, pytest.fail)


def test_text_of_the_file_becomes_a_setting(tmp_path: Path):
    file = tmp_path / "my.yaml"
    file.write_text(TEXT)
    cfg = with_text(TrainConfig(augmentations=(str(file),)))
    assert cfg.as_dict()["augmentations"] == [str(file), TEXT]

    # machines may have it at other paths, but need the same text
    elsewhere = TrainConfig(augmentations=("other.yaml", TEXT))
    assert elsewhere.training() == cfg.training()
    assert text_digest(elsewhere) == text_digest(cfg) != text_digest(with_text(TrainConfig()))
    assert text_digest(TrainConfig(augmentations=("my.yaml", TEXT + "\n"))) != text_digest(cfg)


def test_changed_file_of_a_resumed_run_is_reported(tmp_path: Path):
    file = tmp_path / "my.yaml"
    cfg = TrainConfig(augmentations=(str(file), TEXT))
    report_change(cfg, pytest.fail)  # it is gone

    file.write_text(TEXT)
    report_change(cfg, pytest.fail)

    said: list[str] = []
    file.write_text("nonsense: [")
    report_change(cfg, said.append)
    assert said == [f"{file} has changed: the run keeps the transforms that it began with"]


def test_missing_file_is_refused():
    with pytest.raises(ValueError, match=r"^none\.yaml cannot be read: No such file or directory$"):
        with_text(TrainConfig(augmentations=("none.yaml",)))
