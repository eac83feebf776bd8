"""training/run.py: open a new or resumed run, check its data, restore its state, and own its
folder.
"""

import json
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
import yaml

from data import Draws
from tests.support.exporting import lively_detector, save_checkpoint
from tests.support.small_run import (
    CPU,
    NAMES,
    complete_epoch,
    end_epoch,
    files_of,
    run_folder,
    small_description,
    small_state,
)
from tests.support.thread_ranks import run_ranks, thread_worlds
from training import run as run_module
from training.checkpoints.restart import MARKS, launcher_mark
from training.checkpoints.status import write_status
from training.distillation.distillation import Distillation
from training.run import open_run
from training.settings.config import LISTS, TrainConfig
from training.settings.hyperparameters import Hyp, read_hyp
from training.settings.recipe import TrainedWeights
from utils import __version__
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.files.folders import RUN_MARK
from utils.log import FINISHED

TRAINED = TrainedWeights(0.2, all_classes=False)
HYPS = Path(__file__).parents[2] / "data" / "hyps"
MAY_CHANGE = {
    "epochs": 9,
    "batch_size": 4,
    "patience": 3,
    "workers": 2,
    "save_minutes": 1.5,
    "save_period": 2,
    "nosave": True,
    "noval": True,
    "val_period": 2,
    "noplots": True,
    "data": ("other.yaml",),
    "cache": "off",
    "compile": "default",
    "cache_dir": "cached",
    "loggers": ("tensorboard",),
    "entity": "me",
}
MAY_NOT_CHANGE = {
    "weights": "other.pt",
    "cfg": "yolov5s.yaml",
    "add_classes": True,
    "ignore_old": 0.5,
    "hyp": "hyp.VOC.yaml",
    "imgsz": 320,
    "tile": 320,
    "tile_overlap": 0.5,
    "rect": True,
    "noautoanchor": True,
    "multi_scale": True,
    "single_cls": True,
    "val_split": 0.5,
    "group": "a",
    "names": ("a", "b"),
    "merge": ("a=b",),
    "classes": ("a",),
    "data_weights": (2.0, 1.0),
    "strict": True,
    "optimizer": "AdamW",
    "image_weights": True,
    "repeat_factor": 0.1,
    "class_weights": ("auto",),
    "sync_bn": True,
    "shard": True,
    "checkpoint_activations": True,
    "name": "other",
    "exist_ok": True,
    "cos_lr": True,
    "label_smoothing": 0.1,
    "freeze": (3,),
    "seed": 1,
    "amp": "fp32",
    "close_mosaic": 2,
    "fitness": "AP75",
}


class FakeReport:
    def as_dict(self) -> dict:
        return {"images": 3}


@dataclass
class FakeData:
    """The data set that small_description() describes."""

    file: Path = Path("shapes.yaml")
    is_written: bool = False
    reports: dict = field(default_factory=dict)
    unit: str = "image"
    names: list = field(default_factory=lambda: list(NAMES))
    unlabeled: int = 0  # classes of a model that --add-classes extends
    digests: dict = field(default_factory=lambda: {"train": "abc", "val": "def"})
    labels: dict = field(default_factory=lambda: {"train": range(200), "val": range(9)})  # images
    chosen_words: tuple = ()
    spec: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(names=NAMES))
    factor: float = 1.0  # how often an epoch draws each image

    @property
    def draws(self) -> Draws:
        return Draws(np.full(len(self.labels["train"]), self.factor))

    def save(self, folder: Path) -> None:
        """Nothing: a user has written the YAML, unless is_written is set."""
        if self.is_written:
            self.file = folder / "data.yaml"


@pytest.fixture(autouse=True)
def _not_launched(monkeypatch):
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _restored():
    """Restore what `opened` replaces: in the threads of several ranks it replaces the replaced."""
    names = ("find_hyp", "find_data", "check_model")
    real = {name: getattr(run_module, name) for name in names}
    yield
    for name, function in real.items():
        setattr(run_module, name, function)


def never(path):
    raise AssertionError(f"{path} is not searched for")


def opened(cfg, world=None, *, find_data=never, find_hyp=never, check_model=lambda *_, **__: None):
    """The run, and the lines that it logs."""
    said = []
    found = {"find_hyp": find_hyp, "find_data": find_data, "check_model": check_model}
    with patch.multiple(run_module, **found):
        return open_run(cfg, world or World(CPU), said.append), said


def resolve(run, data=None, trained=None, *, say=never):
    """The final settings of a run of a data set, whose images are not read."""
    model = images = None  # only needed to measure a batch
    distillation = Distillation(model, stride=32)
    cfg, hyp, batch = run.resolve_settings(
        data or FakeData(),
        images,
        model,
        trained,
        distillation=distillation,
        image_size=64,
        precision=torch.float32,
        say=say,
    )
    assert (cfg, hyp) == (run.config, run.hyp)
    assert (cfg.batch_size, hyp.nominal_batch) == (batch.size, batch.nominal)
    return cfg


def new_run(project, world=None, **flags):
    """A new run with these flags."""
    cfg = TrainConfig(project=str(project), **flags, given=frozenset(flags))
    return opened(cfg, world, find_hyp=lambda name: HYPS / name)[0]


def saved_run(folder, *, epochs=1, batch=0, hyp=None, class_weights_file="", **config):
    """The last.pt of a run that is interrupted after so many epochs and batches."""
    state = small_state()
    for _ in range(epochs):
        end_epoch(state)
        complete_epoch(state, 0.5)
    state.progress.batch = batch
    description = replace(
        small_description(**config), **({"hyp": Hyp(**hyp).as_dict()} if hyp else {})
    )
    description = replace(description, class_weights_file=class_weights_file)
    last = run_folder(folder) / "weights" / "last.pt"
    checkpoint_file.save(last, state.checkpoint(description).as_dict())
    return last


def resume_flags(last, project, /, **given):
    """The settings of a command line with --resume, and with the flags `given`."""
    return TrainConfig(
        **{"project": str(project)} | given,
        resume=str(last),
        given=frozenset({*given, "resume", "project"}),
    )


def resumed_run(last, world=None, **given):
    """The run that resumes from a checkpoint with these flags."""
    return opened(resume_flags(last, last.parents[2], **given), world, find_data=Path)[0]


# ---------------------------------------------------------------------- opening


def test_model_of_a_new_run_is_checked_first(tmp_path):
    checked = []
    opened(
        TrainConfig(cfg="a", weights="b"),
        check_model=lambda *given, **more: checked.append((given, more)),
    )
    assert checked == [(("a", "b"), {"download": False})]


def test_new_run_has_the_given_settings_and_no_checkpoint(tmp_path):
    cfg = TrainConfig(project=str(tmp_path), epochs=7, hyp="hyp.VOC.yaml")
    run, said = opened(cfg, find_hyp=lambda name: HYPS / name)
    assert (run.config, run.saved, said) == (replace(cfg, optimizer="SGD"), None, [])
    assert run.hyp.as_dict() != Hyp().as_dict()
    assert files_of(tmp_path) == set()  # the folder is created after all checks


def test_resumed_run_has_the_settings_of_its_checkpoint(tmp_path):
    """Its hyper-parameters too: `never` fails if a file of them is searched for."""
    last = saved_run(tmp_path / "exp", epochs=2, imgsz=320, optimizer="AdamW", hyp={"lr0": 0.5})
    for given in (last, tmp_path / "exp", "newest"):
        run, said = opened(resume_flags(given, tmp_path))
        assert (run.config.imgsz, run.config.optimizer, run.config.resume) == (
            320,
            "AdamW",
            str(last),
        )
        assert run.hyp == Hyp(lr0=0.5)
        assert run.saved.epoch == 2
        assert said == [f"resuming {last}: yolov5n.yaml, 2 of 100 epochs done"]


# "augmentations" is a file whose text is kept: tests/training/settings/test_augmentations.py;
# "teacher" one whose digest is: tests/test_teacher.py
SEPARATE = {
    "resume",
    "project",
    "download",
    "augmentations",
    "teacher",
    "evolve",
    "resume_evolve",
}


def test_every_flag_is_known_to_these_tests():
    fields = TrainConfig().as_dict().keys()
    assert MAY_CHANGE.keys() | MAY_NOT_CHANGE.keys() | SEPARATE == fields


@pytest.mark.parametrize("name", MAY_CHANGE)
def test_flag_changes_a_resumed_run(tmp_path, name):
    last = saved_run(tmp_path / "exp")
    run, said = opened(resume_flags(last, tmp_path, **{name: MAY_CHANGE[name]}), find_data=Path)
    value = MAY_CHANGE[name]
    assert getattr(run.config, name) == value
    before = small_description().config[name]
    if name in LISTS:
        before, value = " ".join(before) or "none", " ".join(value)
    flag = "--" + name.replace("_", "-")
    assert said[1:] == [f"--resume changes {flag} from {before} to {value}"]


@pytest.mark.parametrize("name", MAY_NOT_CHANGE)
def test_flag_that_may_not_change_keeps_its_value_and_is_reported(tmp_path, name):
    last = saved_run(tmp_path / "exp")
    run, said = opened(resume_flags(last, tmp_path, **{name: MAY_NOT_CHANGE[name]}))
    assert getattr(run.config, name) == getattr(TrainConfig(), name)
    sentence = (
        "--resume keeps the run's own settings; these flags have no effect: --"
        + name.replace("_", "-")
    )
    assert said[1:] == [sentence]


def test_moved_data_set_of_a_resumed_run_is_searched_for(tmp_path):
    last = saved_run(tmp_path / "exp")
    cfg = resume_flags(last, tmp_path, data=("moved.yaml",))
    run, _ = opened(cfg, find_data=lambda name: Path("/elsewhere") / name)
    assert run.config.data == (str(Path("/elsewhere/moved.yaml")),)


@pytest.mark.parametrize(
    ("entry", "value"),
    [("hyp", {"lr0": "x"}), ("hyp", {"bogus": 1.0}), ("config", {"epochs": 0}), ("epoch", 7)],
)
def test_damaged_checkpoint_is_refused(tmp_path, entry, value):
    last = saved_run(tmp_path / "exp")
    saved = checkpoint_file.load(last)
    checkpoint_file.save(
        last, saved | {entry: saved[entry] | value if isinstance(value, dict) else value}
    )
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(last))}: is damaged, or was written by another program"
    ):
        opened(resume_flags(last, tmp_path))


def test_run_is_not_resumed_where_nothing_was_saved(tmp_path):
    run_folder(tmp_path / "exp")
    with pytest.raises(ValueError, match="its run has saved nothing yet"):
        opened(resume_flags(tmp_path / "exp", tmp_path))


# ---------------------------------------------------------------------- restarted by a launcher


def mark_run(folder, monkeypatch):
    """Make this process one that a launcher has restarted, and the run in `folder` that of its
    first attempt.
    """
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (folder / MARKS).write_text(json.dumps([launcher_mark(os.environ)]))


def test_restarted_run_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    last = saved_run(tmp_path / "exp", imgsz=320)
    mark_run(tmp_path / "exp", monkeypatch)
    run, said = opened(TrainConfig(project=str(tmp_path)))
    assert (run.config.resume, run.config.imgsz, run.saved.epoch) == (str(last), 320, 1)
    assert said == [
        "restarted by the launcher",
        f"resuming {last}: yolov5n.yaml, 1 of 100 epochs done",
    ]


def test_restarted_run_without_checkpoint_begins_again_in_its_folder(tmp_path, monkeypatch):
    folder = run_folder(tmp_path / "exp")
    mark_run(folder, monkeypatch)
    run = new_run(tmp_path)
    assert run.saved is None
    run.open_folder(FakeData(), never)
    assert run.folder == folder
    run.close_folder({})


def test_restarted_run_that_is_done_exits(tmp_path, monkeypatch):
    saved_run(tmp_path / "exp")
    mark_run(tmp_path / "exp", monkeypatch)
    write_status(tmp_path / "exp", FINISHED)
    with pytest.raises(SystemExit) as ended:
        opened(TrainConfig(project=str(tmp_path)))
    assert ended.value.code == 0


def test_restarted_run_keeps_the_data_that_it_has_written(tmp_path, monkeypatch):
    """Its YAML has the final classes, which the flags of the first attempt would change again."""
    last = saved_run(tmp_path / "exp")
    mark_run(tmp_path / "exp", monkeypatch)
    given = {"data": ("a.zip", "b.zip"), "merge": ("truck=car",), "data_weights": (1.0, 3.0)}
    run, said = opened(TrainConfig(project=str(tmp_path), **given, given=frozenset(given)))
    assert run.config.data == (small_description().data,)
    assert (run.config.merge, run.config.data_weights) == ((), ())
    assert said[1:] == [f"resuming {last}: yolov5n.yaml, 1 of 100 epochs done"]


def test_restarted_run_is_found_in_folders_of_its_name(tmp_path, monkeypatch):
    last = saved_run(tmp_path / "team" / "exp")
    mark_run(tmp_path / "team" / "exp", monkeypatch)
    run, _ = opened(TrainConfig(project=str(tmp_path), name="team/exp"))
    assert run.config.resume == str(last)


def test_run_of_a_search_is_continued_by_the_search(tmp_path, monkeypatch):
    saved_run(tmp_path / "exp")
    mark_run(tmp_path / "exp", monkeypatch)
    cfg = TrainConfig(project=str(tmp_path), given=frozenset())
    monkeypatch.setattr(run_module, "check_model", lambda *_, **__: None)
    assert open_run(cfg, World(CPU), never, in_search=True).saved is None


def test_run_that_a_search_continues_keeps_the_data_that_it_has_written(tmp_path, monkeypatch):
    last = saved_run(tmp_path / "exp")
    given = {"data": ("a.zip",), "merge": ("truck=car",), "resume": str(last)}
    cfg = TrainConfig(project=str(tmp_path), **given, given=frozenset(given))
    monkeypatch.setattr(run_module, "find_data", never)
    run = open_run(cfg, World(CPU), lambda *_: None, in_search=True)
    assert (run.config.data, run.config.merge) == ((small_description().data,), ())


def test_merged_classes_move_with_their_data(tmp_path):
    last = saved_run(tmp_path / "exp")
    given = {"data": ("a.zip",), "merge": ("truck=car",), "resume": str(last)}
    cfg = TrainConfig(project=str(tmp_path), **given, given=frozenset(given))
    run, said = opened(cfg, find_data=Path)
    assert run.config.merge == ("truck=car",)
    assert any("--resume changes --merge from none to truck=car" in line for line in said)

    alone = TrainConfig(
        project=str(tmp_path), merge=("truck=car",), resume=str(last), given=frozenset({"merge"})
    )
    run, said = opened(alone)
    assert run.config.merge == ()
    assert any("no effect: --merge" in line for line in said)


def test_last_checkpoint_of_another_run_is_put_aside(tmp_path, monkeypatch):
    """With --exist-ok. A restart before the first save would continue it, and so would --resume."""
    old = saved_run(tmp_path / "exp").read_bytes()
    said: list[str] = []
    cfg = TrainConfig(project=str(tmp_path), exist_ok=True)
    run = opened(cfg)[0]
    run.open_folder(FakeData(), said.append)
    weights = tmp_path / "exp" / "weights"
    assert not (weights / "last.pt").exists()
    assert (weights / "last_before.pt").read_bytes() == old
    assert said == [f"{weights}/last.pt: not continued by this run, and kept as last_before.pt"]
    run.close_folder({})


@pytest.mark.parametrize("resumed", ["last.pt", "epoch1.pt"])
def test_last_checkpoint_stays_if_it_is_resumed(tmp_path, resumed):
    last = saved_run(tmp_path / "exp")
    shutil.copy(last, last.with_name("epoch1.pt"))
    run = opened(resume_flags(last.with_name(resumed), tmp_path))[0]
    run.open_folder(FakeData(), lambda *_: None)
    assert last.exists() == (resumed == "last.pt")
    run.close_folder({})


# ---------------------------------------------------------------------- several processes


@pytest.mark.parametrize("other", [{"epochs": 2}, {"epochs": 1, "batch": 3}, {"seed": 1}])
def test_ranks_that_read_different_checkpoints_are_refused(tmp_path, other):
    lasts, worlds = (
        [saved_run(tmp_path / "a"), saved_run(tmp_path / "b", **other)],
        thread_worlds(2),
    )

    def refused(last, world):
        with pytest.raises(
            ValueError, match="differs between the processes; all machines must read the same file"
        ):
            resumed_run(last, world)
        return True

    works = [partial(refused, last, world) for last, world in zip(lasts, worlds, strict=True)]
    assert run_ranks(works, worlds) == [True, True]


def test_ranks_that_read_different_teachers_are_refused(tmp_path, micro_model):
    """The same name on two machines."""
    detector = lively_detector(micro_model)
    teachers = [save_checkpoint(tmp_path / f"{name}.pt", detector) for name in "ab"]
    teachers[1].write_bytes(teachers[1].read_bytes() + b"\0")
    worlds = thread_worlds(2)

    def refused(teacher, world):
        cfg = {"hyp": "hyp.scratch-low.yaml", "optimizer": "SGD", "teacher": (str(teacher),)}
        with pytest.raises(ValueError, match=r"the command line differs between .*: teacher "):
            new_run(tmp_path, world, **cfg)
        return True

    works = [partial(refused, *pair) for pair in zip(teachers, worlds, strict=True)]
    assert run_ranks(works, worlds) == [True, True]


def test_ranks_that_read_the_same_checkpoint_resume(tmp_path):
    last, worlds = saved_run(tmp_path / "exp"), thread_worlds(2)
    runs = run_ranks([partial(resumed_run, last, world) for world in worlds], worlds)
    assert [run.saved.epoch for run in runs] == [1, 1]


# ---------------------------------------------------------------------- data


def test_resumed_run_refuses_other_classes(tmp_path):
    run, said = resumed_run(saved_run(tmp_path / "exp")), []
    run.check_data(FakeData(), said.append)
    assert said == []
    for names in (NAMES[:1], NAMES[::-1], [*NAMES, "bar"]):
        with pytest.raises(
            ValueError, match=r"last\.pt: its class names differ from those of shapes\.yaml$"
        ):
            run.check_data(FakeData(names=names), said.append)


def test_resumed_run_reports_changed_training_images(tmp_path):
    """Changed validation images are not reported: they do not change the training."""
    last, said = saved_run(tmp_path / "exp"), []
    run = resumed_run(last)
    run.check_data(FakeData(digests={"train": "abc", "val": "new"}), said.append)
    assert said == []
    run.check_data(FakeData(digests={"train": "new", "val": "def"}), said.append)
    assert said == [
        f"shapes.yaml: since {last} was written the training images or their labels have changed"
    ]


@pytest.mark.parametrize(
    ("given", "is_from_file"),
    [
        ({}, True),
        ({"loggers": ("wandb",)}, True),  # the account is still that of the checkpoint
        ({"loggers": ("wandb",), "entity": "me"}, False),
        ({"loggers": ()}, False),
    ],
)
def test_resumed_run_knows_whether_a_file_names_its_loggers(tmp_path, given, is_from_file):
    last = saved_run(tmp_path / "exp", loggers=("wandb",), entity="stranger")
    run, _ = opened(resume_flags(last, tmp_path, **given))
    assert run.loggers_file == (str(last) if is_from_file else "")
    assert new_run(tmp_path, loggers=("wandb",)).loggers_file == ""


def test_resumed_run_reports_changed_weights(tmp_path):
    """Those of data sets, which count from here on, and the file of class weights, which does not.

    A checkpoint of an older format does not know how often images were drawn.
    """
    file, said = tmp_path / "weights.yaml", []
    words = tuple(f"{name}=2.0" for name in NAMES)
    last = saved_run(tmp_path / "exp", class_weights=words, class_weights_file=str(file))
    run = resumed_run(last)
    file.write_text("".join(f"{name}: 2\n" for name in NAMES))
    run.check_data(FakeData(), said.append)
    assert said == []

    file.write_text(f"{NAMES[0]}: 3\n")
    run.check_data(FakeData(factor=2.0), said.append)
    assert said == [
        f"shapes.yaml: since {last} was written the weights of its data sets have changed: images "
        "are drawn more or less often than before",
        f"{file} has changed: the run keeps the class weights that it began with",
    ]

    file.unlink()
    older = replace(run.saved.description, draws="")
    replace(run, saved=replace(run.saved, description=older)).check_data(
        FakeData(factor=2.0), never
    )


def test_new_run_accepts_any_data(tmp_path):
    new_run(tmp_path).check_data(FakeData(names=["other"], digests={"train": "new"}), never)


def test_description_has_settings_hyperparameters_and_data(tmp_path):
    run = new_run(tmp_path, epochs=7, hyp="hyp.VOC.yaml")
    description = run.describe({"nc": 2}, FakeData())
    assert (description.table, description.names, description.data) == (
        {"nc": 2},
        NAMES,
        "shapes.yaml",
    )
    assert description.images == "abc"
    assert (description.config, description.hyp) == (run.config.as_dict(), run.hyp.as_dict())
    assert description.versions == {"kestrel": __version__, "torch": str(torch.__version__)}


# ---------------------------------------------------------------------- state


def test_restored_state_continues_where_the_checkpoint_was_saved(tmp_path):
    run = resumed_run(saved_run(tmp_path / "exp", epochs=2, batch=3))
    state = small_state()
    run.restore(state, Draws.once(160))
    progress = state.progress
    assert (progress.epoch, progress.batch, len(progress.results)) == (2, 3, 2)
    assert progress.early_stopping.best_epoch == 0
    assert state.ema.model.weight.eq(2).all()  # end_epoch fills it with the epoch's number


def test_restored_state_of_another_batch_size_has_trained_as_many_images(tmp_path):
    """160 images: 3 batches of 16 are 48 images, or 6 batches of 8."""
    run = resumed_run(saved_run(tmp_path / "exp", batch=3), batch_size=8)
    state = small_state(batch_size=8)
    run.restore(state, Draws.once(160))
    assert (state.progress.epoch, state.progress.batch) == (1, 6)


def test_new_run_restores_nothing(tmp_path):
    state = small_state()
    new_run(tmp_path).restore(state, Draws.once(160))
    assert (state.progress.epoch, state.progress.batch) == (0, 0)


def test_checkpoint_of_another_model_is_refused(tmp_path):
    last = saved_run(tmp_path / "exp")
    saved = checkpoint_file.load(last)
    checkpoint_file.save(
        last, saved | {"model": {"weight": torch.zeros(5, 2), "bias": torch.zeros(5)}}
    )
    run = resumed_run(last)
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(last))}: is damaged, or was written by another program"
    ):
        run.restore(small_state(), Draws.once(160))


# ---------------------------------------------------------------------- folder


def test_new_run_writes_its_settings_into_a_new_folder(tmp_path):
    for name in ("exp", "exp2"):
        run = new_run(tmp_path, epochs=7, hyp="hyp.VOC.yaml")
        run.open_folder(FakeData(reports={"train": FakeReport()}), never)
        assert run.folder == tmp_path / name
        assert files_of(run.folder) - {"lock"} == {
            RUN_MARK,
            "args.yaml",
            "hyp.yaml",
            "data_report.json",
            "metrics.json",
        }
        assert (run.folder / "weights").is_dir()
        assert yaml.safe_load((run.folder / "args.yaml").read_text()) == run.config.as_dict()
        assert read_hyp(run.folder / "hyp.yaml") == (run.config.optimizer, run.hyp)
        found = json.loads((run.folder / "data_report.json").read_text())
        assert found == {"train": {"images": 3, "digest": "abc"}}
        run.close_folder({"best": 0.5})
        assert json.loads((run.folder / "metrics.json").read_text()) == {
            "status": "finished",
            "best": 0.5,
        }


def test_run_names_the_yaml_that_was_written_for_its_data(tmp_path):
    run = new_run(tmp_path, data=(str(tmp_path / "export.zip"),), names=("a",), merge=("a=b",))
    run.open_folder(FakeData(is_written=True), never)
    config = run.config
    assert (config.data, config.names, config.merge) == ((str(run.folder / "data.yaml"),), (), ())
    written = yaml.safe_load((run.folder / "args.yaml").read_text())
    assert (written["data"], written["merge"]) == (list(config.data), [])
    run.close_folder({})


def test_resumed_run_reopens_its_folder_and_is_not_marked_as_done(tmp_path):
    """A run that is resumed under another --project and --name stays where it was."""
    last = saved_run(tmp_path / "exp", epochs=1)
    for name in ("metrics.json", "preempted.json", "results.csv", "weights/best.pt"):
        (tmp_path / "exp" / name).write_text("{}")
    run = resumed_run(last, epochs=9, project=str(tmp_path / "other"), name="other")
    run.open_folder(FakeData(), never)
    assert run.folder == tmp_path / "exp"
    kept = {"weights/last.pt", "weights/best.pt", "results.csv"}
    assert files_of(tmp_path / "exp") - {"lock"} == kept | {
        "args.yaml",
        "hyp.yaml",
        "data_report.json",
        "metrics.json",
    }
    assert json.loads((run.folder / "metrics.json").read_text()) == {"status": "running"}
    assert yaml.safe_load((run.folder / "args.yaml").read_text())["epochs"] == 9
    assert not (tmp_path / "other").exists()
    run.close_folder({})


def test_folder_is_locked_while_files_are_written(tmp_path, monkeypatch):
    """From before the first file until after the last one."""
    found = []

    class Lock:
        def __init__(self, folder):
            self.folder = folder
            found.append(files_of(folder))

        def release(self):
            found.append(files_of(self.folder))

    monkeypatch.setattr("training.run.lock_folder", Lock)
    run = new_run(tmp_path)
    run.open_folder(FakeData(), never)
    run.close_folder({})
    settings = {"args.yaml", "hyp.yaml", "data_report.json", "metrics.json"}
    assert found == [{RUN_MARK}, settings | {RUN_MARK}]


def test_folder_that_another_run_has_locked_does_not_change(tmp_path, monkeypatch):
    def refuse(folder):
        raise ValueError(f"{folder}: another run is writing there")

    last = saved_run(tmp_path / "exp")
    (tmp_path / "exp" / "preempted.json").write_text("{}")
    monkeypatch.setattr("training.run.lock_folder", refuse)
    run = resumed_run(last)
    with pytest.raises(ValueError, match="another run is writing there"):
        run.open_folder(FakeData(), never)
    assert files_of(tmp_path / "exp") == {"weights/last.pt", "preempted.json"}


def test_launcher_is_recorded_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    run = new_run(tmp_path)
    run.open_folder(FakeData(), never)
    assert json.loads((run.folder / MARKS).read_text()) == [launcher_mark(os.environ)]
    run.close_folder({})


def test_only_rank_0_writes_into_the_folder_and_all_ranks_know_it(tmp_path, monkeypatch):
    worlds, written = thread_worlds(2), []
    for name in ("write_yaml", "write_hyp", "write_json"):
        real = getattr(run_module, name)
        monkeypatch.setattr(
            run_module,
            name,
            lambda path, *values, real=real: (written.append(path), real(path, *values)),
        )

    def run(world):
        own = new_run(tmp_path / str(world.rank), world)
        own.open_folder(FakeData(), never)
        own.close_folder({"best": 0.5})
        return own.folder

    folder = tmp_path / "0" / "exp"
    assert run_ranks([partial(run, world) for world in worlds], worlds) == [folder] * 2
    assert written == [folder / name for name in ("args.yaml", "hyp.yaml", "data_report.json")]
    assert json.loads((folder / "metrics.json").read_text())["status"] == "finished"
    assert not (tmp_path / "1").exists()


# ---------------------------------------------------------------------- automatic settings


def test_new_run_chooses_settings_that_are_not_given(tmp_path):
    run, lines = new_run(tmp_path), []
    cfg = resolve(run)
    assert (cfg, cfg.optimizer, cfg.hyp, run.hyp.nominal_batch, run.hyp.lrf) == (
        run.config,
        "Muon",
        "auto",
        16,
        0.05,
    )
    run.open_folder(FakeData(), lines.append)
    assert lines == [run.recipe.describe(str(run.folder / "hyp.yaml"), run.config.batch_size)]
    assert "200 images x 100 epochs, 2 classes, random weights: --optimizer Muon" in lines[0]
    assert read_hyp(run.folder / "hyp.yaml") == (run.config.optimizer, run.hyp)


# 30 images x 100 epochs: 3,000 / 16 = 187 steps, 3,000 / 8 = 375. A size that was given, or that
# processes cannot share, is kept.
@pytest.mark.parametrize(
    ("given", "processes", "expected"),
    [
        ({}, 1, 4),
        ({}, 2, 4),
        ({}, 4, 8),
        ({}, 8, 16),
        ({}, 16, 16),
        ({"batch_size": 16}, 1, 16),
        ({"batch_size": -1}, 1, 24),  # measured
    ],
)
def test_new_run_chooses_its_batch_size(tmp_path, monkeypatch, given, processes, expected):
    worlds = thread_worlds(processes)
    monkeypatch.setattr(run_module, "find_batch_size", lambda *_, **__: 24)

    def choose(world):
        run = new_run(tmp_path, world, **given)
        cfg = resolve(run, FakeData(labels={"train": range(30)}))
        line = run.recipe.describe("hyp.yaml", cfg.batch_size)
        assert (f"--batch-size {expected} " in line) == (expected < 16)
        return cfg.batch_size

    assert run_ranks([partial(choose, world) for world in worlds], worlds) == [expected] * processes


@pytest.mark.parametrize(("given", "expected"), [("auto", "Muon"), ("Adam", "Adam")])
def test_hyp_file_of_a_run_gives_the_same_run_again(tmp_path, given, expected):
    """Its optimizer too, unless the command line has another one."""
    first = new_run(tmp_path)
    resolve(first)
    first.open_folder(FakeData(), lambda _: None)
    again, lines = new_run(tmp_path, hyp=str(first.folder / "hyp.yaml"), optimizer=given), []
    resolve(again, FakeData(labels={"train": range(10**6)}))
    assert (again.config.optimizer, again.hyp) == (expected, first.hyp)
    again.open_folder(FakeData(), lines.append)
    assert not lines


def test_optimizer_of_a_file_that_the_flags_exclude_is_refused(tmp_path):
    (tmp_path / "my.yaml").write_text("optimizer: Muon")
    with pytest.raises(
        ValueError,
        match=r"my\.yaml: optimizer is Muon: --shard and --optimizer Muon cannot be used",
    ):
        new_run(tmp_path, hyp=str(tmp_path / "my.yaml"), shard=True)


def test_new_run_with_few_steps_says_so(tmp_path):
    run, lines = new_run(tmp_path, batch_size=64), []
    resolve(run)
    run.open_folder(FakeData(), lines.append)
    assert lines[1].startswith("only 312 optimizer steps: ")
    assert len(lines) == 2


def test_run_from_trained_weights_takes_their_recipe(tmp_path):
    run = new_run(tmp_path)
    assert resolve(run, FakeData(unit="tile"), TRAINED).optimizer == "AdamW"
    assert (
        run.recipe.reason == "200 tiles x 100 epochs, 2 classes, trained weights, some classes new"
    )


@pytest.mark.parametrize("differs", ["trained weights", "--hyp"])
def test_ranks_that_choose_different_recipes_are_refused(tmp_path, differs):
    """Where --weights is set on one machine only, or --hyp is auto there and the defaults' file
    elsewhere.
    """
    worlds = thread_worlds(2)

    def refused(world):
        is_other = world.rank > 0
        flags = {"optimizer": "AdamW", "hyp": "hyp.scratch-low.yaml" if is_other else "auto"}
        run = new_run(tmp_path, world, **(flags if differs == "--hyp" else {}))
        trained = TRAINED if differs == "trained weights" and is_other else None
        with pytest.raises(ValueError, match="the recipe differs between the processes: "):
            resolve(run, trained=trained)
        return True

    assert run_ranks([partial(refused, world) for world in worlds], worlds) == [True, True]


def test_hyp_file_without_an_optimizer_is_trained_with_sgd(tmp_path):
    """Unless the command line names another one."""
    file = tmp_path / "my.yaml"
    file.write_text("lr0: 0.02")
    for given, expected in (("auto", "SGD"), ("Adam", "Adam")):
        run, said = opened(TrainConfig(hyp=str(file), optimizer=given), find_hyp=Path)
        why = f"--optimizer SGD, for which YOLOv5's files were tuned: {file} names no optimizer"
        assert said == ([why] if given == "auto" else [])
        assert resolve(run, FakeData(labels={"train": range(10**6)}), TRAINED).optimizer == expected
        assert (run.hyp, run.recipe) == (Hyp(lr0=0.02), None)


def test_new_run_keeps_settings_that_are_given(tmp_path):
    run = new_run(tmp_path, optimizer="Adam", hyp="hyp.VOC.yaml")
    assert resolve(run).optimizer == "Adam"
    assert run.hyp.lr0 == 0.00334
    run.open_folder(FakeData(), never)  # and logs no recipe


def test_resumed_run_keeps_the_chosen_settings(tmp_path):
    """More images, which change the choice of a new run, do not change that of a run that is
    resumed.
    """
    run = resumed_run(saved_run(tmp_path / "exp", epochs=2, optimizer="AdamW", hyp={"lr0": 0.5}))
    cfg = resolve(run, FakeData(labels={"train": range(10**6)}))
    assert (cfg.optimizer, run.hyp.lr0, run.recipe) == ("AdamW", 0.5, None)
