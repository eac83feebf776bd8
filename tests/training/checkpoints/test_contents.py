"""training/checkpoints/contents.py: what a checkpoint contains, and which formats can be
read.
"""

import hashlib
import json
import re

import pytest
import torch

from training.checkpoints.contents import (
    ENTRIES,
    FORMAT,
    Checkpoint,
    Description,
    checked_checkpoint,
    read_checkpoint,
)
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp


def entries(**changes):
    """The entries of a file of a run of one epoch."""
    made = {name: kind() for name, kind in ENTRIES.items() if kind is not torch.Tensor}
    made |= {
        "format": FORMAT,
        "epoch": 1,
        "results": [{"epoch": 1.0}],
        "config": TrainConfig().as_dict(),
    }
    return made | {"losses": torch.zeros(1, 4), "statistics": torch.zeros(1, 2)} | changes


def test_checkpoint_entries_round_trip():
    saved = checked_checkpoint("last.pt", entries(names=["a"], ema_updates=3))
    assert (saved.description.names, saved.ema_updates, saved.pending) == (["a"], 3, None)
    again = checked_checkpoint("last.pt", saved.as_dict())
    assert {k: v for k, v in again.as_dict().items() if k not in ("losses", "statistics")} == {
        k: v for k, v in saved.as_dict().items() if k not in ("losses", "statistics")
    }
    assert saved.as_dict().keys() == ENTRIES.keys()


def test_pending_epoch_is_read():
    pending = {"time": 1.5, "losses": {"box": 0.5}, "lr": 0.1, "pace": "fast"}
    saved = checked_checkpoint("last.pt", entries(epoch=2, open=pending))
    assert saved.pending is not None
    assert vars(saved.pending) == pending


def test_format_3_checkpoint_is_converted():
    """In format 3, `compile` was "" where it is "off" now; such a checkpoint is not damaged."""
    old = entries(format=3, config=TrainConfig().as_dict() | {"compile": ""})
    saved = checked_checkpoint("last.pt", old)
    assert saved.description.config["compile"] == "off"
    assert saved.format == FORMAT
    assert TrainConfig(**saved.description.config | {"freeze": (0,)}).compile == "off"
    kept = checked_checkpoint(
        "last.pt", entries(format=3, config=TrainConfig().as_dict() | {"compile": "default"})
    )
    assert kept.description.config["compile"] == "default"


def test_format_4_checkpoint_has_no_tiles():
    config = {
        name: value
        for name, value in TrainConfig().as_dict().items()
        if not name.startswith("tile")
    }
    saved = checked_checkpoint("last.pt", entries(format=4, config=config))
    assert saved.format == FORMAT
    assert TrainConfig(**saved.description.config | {"freeze": (0,)}).tile == 0


@pytest.mark.parametrize("found", [2, FORMAT + 1, "4", None, True])
def test_other_format_is_reported_as_other_version(found):
    what = f"format {found}" if type(found) is int else "no format number"
    sentence = (
        f"last.pt: written by another version of Kestrel ({what}; this one reads 3 to {FORMAT}): "
        "resume it with the "
        "version that wrote it, or start a new run from its weights with --weights"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        checked_checkpoint("last.pt", entries(format=found))


def test_checkpoint_without_optimizer_cannot_be_resumed():
    best = {name: value for name, value in entries().items() if name != "optimizer"}
    with pytest.raises(
        ValueError, match=r"contains no training state to resume; fine-tune from it with --weights"
    ):
        checked_checkpoint("last.pt", best)


def test_missing_checkpoint_cannot_be_read_for_resume(tmp_path):
    with pytest.raises(ValueError, match="cannot be read as a checkpoint: No such file"):
        read_checkpoint(str(tmp_path / "last.pt"))


# The meaning of a checkpoint as one digest per format. If this test fails, the meaning has changed:
# raise FORMAT, have `upgraded` convert the format before or refuse it, and only then write the new
# digest here.
FORMAT_DIGESTS = {6: "2c395052897fe2b3"}


def test_changed_entries_or_settings_require_a_new_format():
    settings = {name: type(value).__name__ for name, value in TrainConfig().as_dict().items()}
    parts = [
        {name: kind.__name__ for name, kind in ENTRIES.items()},
        settings,
        sorted(Hyp().as_dict()),
    ]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    assert {FORMAT: digest} == FORMAT_DIGESTS


def test_checkpoint_records_declare_all_entries():
    assert set(vars(Description)["__annotations__"]) | set(vars(Checkpoint)["__annotations__"]) == {
        *ENTRIES,
        "description",
    }
