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
    PendingEpoch,
    checked_checkpoint,
    read_checkpoint,
)
from training.checkpoints.resume import resumed_config
from training.early_stopping import EarlyStopping
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


def test_checkpoint_from_before_the_loggers_can_be_resumed():
    saved = entries(format=1, epoch=1)
    del saved["recorded"], saved["draws"], saved["class_weights_file"]
    checkpoint = checked_checkpoint("last.pt", saved)
    assert (checkpoint.recorded, checkpoint.format) == (0, FORMAT)


def test_checkpoint_that_does_not_say_how_often_images_are_drawn_can_be_resumed():
    saved = entries(format=2, recorded=7)
    del saved["draws"], saved["class_weights_file"]
    checkpoint = checked_checkpoint("last.pt", saved)
    assert (checkpoint.recorded, checkpoint.description.draws) == (7, "")


def test_checkpoint_entries_round_trip():
    saved = checked_checkpoint("last.pt", entries(names=["a"], ema_updates=3))
    assert (saved.description.names, saved.ema_updates, saved.pending) == (["a"], 3, {})
    again = checked_checkpoint("last.pt", saved.as_dict())
    assert {k: v for k, v in again.as_dict().items() if k not in ("losses", "statistics")} == {
        k: v for k, v in saved.as_dict().items() if k not in ("losses", "statistics")
    }
    assert saved.as_dict().keys() == ENTRIES.keys()


def test_pending_epoch_is_read():
    pending = {"time": 1.5, "losses": {"box": 0.5}, "lr": 0.1, "pace": "fast"}
    saved = checked_checkpoint("last.pt", entries(epoch=2, pending=pending))
    assert saved.pending_epoch() == PendingEpoch(**pending)
    assert checked_checkpoint("last.pt", entries()).pending_epoch() is None


@pytest.mark.parametrize("found", [0, FORMAT + 1, "1", None, True])
def test_other_format_is_reported_as_other_version(found):
    what = f"format {found}" if type(found) is int else "no format number"
    sentence = (
        f"last.pt: written by another version of Kestrel ({what}; this one reads {FORMAT}): "
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
# raise FORMAT, and only then write the new digest here; after the first release, convert the format
# before.
FORMAT_DIGESTS = {3: "9965e1d45de55ecb"}
SETTINGS_OF_FORMAT_1 = """
weights:str cfg:str data:list hyp:str epochs:int batch_size:int imgsz:int tile:int
tile_overlap:float rect:bool resume:str nosave:bool noval:bool val_period:int noautoanchor:bool
noplots:bool multi_scale:bool single_cls:bool optimizer:str workers:int image_weights:bool
sync_bn:bool shard:bool checkpoint_activations:bool project:str name:str exist_ok:bool
cos_lr:bool label_smoothing:float patience:int freeze:list save_period:int save_minutes:float
seed:int amp:str compile:str close_mosaic:int cache:str cache_dir:str download:bool lr0:float
lrf:float momentum:float weight_decay:float nominal_batch:float warmup_epochs:float
warmup_momentum:float warmup_bias_lr:float box:float cls:float cls_pw:float obj:float
obj_pw:float anchor_t:float anchors:float fl_gamma:float hsv_h:float hsv_s:float hsv_v:float
degrees:float translate:float scale:float shear:float perspective:float flipud:float
fliplr:float mosaic:float mixup:float copy_paste:float
"""


def test_changed_entries_require_a_new_format():
    kinds = {name: kind.__name__ for name, kind in ENTRIES.items()}
    digest = hashlib.sha256(json.dumps(kinds, sort_keys=True).encode()).hexdigest()[:16]
    assert {FORMAT: digest} == FORMAT_DIGESTS


def test_removed_or_changed_settings_require_a_new_format():
    """A new setting does not: older checkpoints have its default."""
    settings = {name: type(value).__name__ for name, value in TrainConfig().as_dict().items()}
    settings |= dict.fromkeys(Hyp().as_dict(), "float")
    of_format = dict(one.split(":") for one in SETTINGS_OF_FORMAT_1.split())
    assert of_format.items() <= settings.items()


def test_setting_that_a_checkpoint_does_not_know_has_its_default():
    old = TrainConfig(epochs=7).as_dict()
    del old["val_period"]
    saved = checked_checkpoint("last.pt", entries(config=old, best=EarlyStopping(0).state_dict()))
    cfg, _ = resumed_config(TrainConfig(resume="last.pt"), saved)
    assert (cfg.epochs, cfg.val_period) == (7, 1)
    assert Hyp(**{}) == Hyp()


def test_checkpoint_records_declare_all_entries():
    assert set(vars(Description)["__annotations__"]) | set(vars(Checkpoint)["__annotations__"]) == {
        *ENTRIES,
        "description",
    }
