"""A new or resumed run: its settings, its checkpoint, which is read once, and its folder."""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from training.checkpoints.contents import (
    Checkpoint,
    Description,
    read_checkpoint,
    refuse_damaged,
)
from training.checkpoints.manager import PREEMPTED
from training.checkpoints.restart import (
    MARKS,
    METRICS,
    PreviousAttempt,
    find_previous_attempt,
)
from training.checkpoints.resume import (
    SETTINGS,
    batch_after_resize,
    find_last,
    resumed_config,
    run_folder,
)
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp, read_hyp, write_hyp
from training.settings.recipe import AUTO, SMALLEST_BATCH, Recipe, TrainedWeights, choose_recipe
from training.state import TrainState
from utils.distributed.world import World
from utils.files.checkpoint_file import fingerprint
from utils.files.disk import lock_folder
from utils.files.folders import new_run_folder, remove_partial_files
from utils.files.writers import write_json, write_yaml
from utils.log import Say
from utils.printable import counted

FINISHED = (METRICS, PREEMPTED)  # files that say how a run ended


class TrainingData(Protocol):
    """The attributes of `data.Dataset` that a run needs."""

    @property
    def file(self) -> Path: ...

    @property
    def unit(self) -> str: ...

    @property
    def names(self) -> list[str]: ...

    @property
    def labels(self) -> Mapping[str, Sized]: ...  # the images of each split

    digests: dict[str, str]  # of each split's labels


@dataclass
class Run:
    """A new run, or a run that is resumed from the checkpoint `saved`."""

    config: TrainConfig
    hyp: Hyp
    saved: Checkpoint | None
    attempt: PreviousAttempt
    world: World
    recipe: Recipe | None = None  # of a new run with --hyp auto, set by `fit_to`
    folder: Path = Path()  # set by `open_folder`

    def fit_to(self, data: TrainingData, trained: TrainedWeights | None, say: Say) -> TrainConfig:
        """Choose the settings of a new run that are "auto", or check a resumed run; return all
        settings.

        trained: the trained weights that a new run starts from, None for random ones. A resumed run
        raises ValueError if it was trained on other classes, and logs a line if its images have
        changed. Raises ValueError if the processes' choices differ.
        """
        if self.saved is None:
            if self.config.hyp == AUTO:
                self._choose_recipe(data, trained)
            chosen = {"optimizer": self.config.optimizer, "batch_size": self.config.batch_size}
            self.world.require_same("the recipe", chosen | self.hyp.as_dict())
            return self.config
        if data.names != self.saved.description.names:
            raise ValueError(
                f"{self.config.resume}: its class names differ from those of {data.file}"
            )
        if data.digests["train"] != self.saved.description.images:
            say(
                f"{data.file}: since {self.config.resume} was written the training images or their "
                "labels have changed"
            )
        return self.config

    def _choose_recipe(self, data: TrainingData, trained: TrainedWeights | None) -> None:
        cfg = self.config
        is_free = "batch_size" not in cfg.given and SMALLEST_BATCH % self.world.size == 0
        self.recipe = choose_recipe(
            cfg.optimizer,
            images=len(data.labels["train"]),
            epochs=cfg.epochs,
            classes=len(data.names),
            trained=trained,
            sharded=cfg.shard,
            batch_size=None if is_free else cfg.batch_size,
            unit=data.unit,
        )
        batch_size = self.recipe.batch_size or cfg.batch_size
        self.config = replace(cfg, optimizer=self.recipe.optimizer, batch_size=batch_size)
        self.hyp = self.recipe.hyp

    def describe(self, table: dict[str, Any], data: TrainingData) -> Description:
        """The description of the run in its checkpoints. table: of the model."""
        return Description(
            table=table,
            names=data.names,
            data=str(data.file),
            images=data.digests["train"],
            config=self.config.as_dict(),
            hyp=self.hyp.as_dict(),
            versions={"torch": str(torch.__version__)},
        )

    def restore(self, state: TrainState[Any], images: int) -> None:
        """Load the checkpoint into `state`; a new run does nothing. images: number of training
        images.

        Raises ValueError if the checkpoint does not fit.
        """
        if self.saved is None:
            return
        with refuse_damaged(self.config.resume):
            state.load(self.saved)
            sizes = {"before": self.saved.description.config["batch_size"], "now": state.batch.size}
            progress = state.progress
            progress.batch = batch_after_resize(
                progress.batch, epoch=progress.epoch, images=images, **sizes
            )

    def open_folder(self, report: dict[str, Any], say: Say) -> None:
        """Create or reopen the run's folder, lock it until this process ends, and write the
        settings into it.

        Call it after all checks. report: of the data set. say: logs the chosen recipe. Raises
        ValueError if another run has locked the folder, or it cannot be created.
        """
        cfg, path = self.config, ""
        if self.world.is_main:
            resumed = run_folder(cfg.resume) if self.saved else self.attempt.run
            path = str(resumed or new_run_folder(Path(cfg.project), cfg.name, cfg.exist_ok))
        self.folder = Path(self.world.broadcast_object(path))
        if not self.world.is_main:
            return
        self._lock = lock_folder(self.folder)
        (self.folder / "weights").mkdir(exist_ok=True)
        remove_partial_files(self.folder)
        for name in FINISHED:
            (self.folder / name).unlink(missing_ok=True)
        write_yaml(self.folder / SETTINGS, cfg.as_dict())
        write_hyp(self.folder / "hyp.yaml", cfg.optimizer, self.hyp)
        write_json(self.folder / "data_report.json", report)
        if self.recipe:
            say(self.recipe.describe(str(self.folder / "hyp.yaml"), cfg.batch_size))
            if advice := self.recipe.advice(cfg.batch_size):
                say(advice)
        if any(self.attempt.marks):
            write_json(self.folder / MARKS, self.attempt.marks)

    def close_folder(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Write metrics.json, which marks the run as done, unlock the folder, and return the
        metrics.
        """
        if self.world.is_main:
            write_json(self.folder / METRICS, metrics)
            self._lock.release()
        return metrics


def open_run(
    cfg: TrainConfig,
    world: World,
    say: Say,
    *,
    find_hyp: Callable[[str], Path],
    find_data: Callable[[str], Path],
    check_model: Callable[..., None],
) -> Run:
    """The run to train: a new one, the one that --resume names, or the one that this launch began
    before a restart.

    find_hyp, find_data: return the files of --hyp and --data. check_model:
    `training.start.check_model`. Raises SystemExit(0) if a launcher has restarted a run that is
    done, and ValueError if there is nothing to resume, the checkpoint does not fit, or processes
    have different settings or read different checkpoints.
    """
    attempt = find_previous_attempt(Path(cfg.project), world)
    if attempt.done:
        say(f"restarted by the launcher, but the run in {attempt.run} is done")
        raise SystemExit(0)
    if attempt.checkpoint:
        cfg = replace(cfg, resume=attempt.checkpoint)
        say("restarted by the launcher")
    elif cfg.resume:
        cfg = replace(cfg, resume=find_last(cfg.resume, Path(cfg.project), say))
    saved = read_checkpoint(cfg.resume) if cfg.resume else None
    if len(set(world.all_gather_object(fingerprint(Path(cfg.resume)) if saved else ""))) > 1:
        raise ValueError(
            f"{cfg.resume}: differs between the processes; all machines must read the same file"
        )
    if saved is None:
        check_model(cfg.cfg, cfg.weights, download=cfg.download)
        cfg, hyp = (cfg, Hyp()) if cfg.hyp == AUTO else with_hyp_file(cfg, find_hyp(cfg.hyp), say)
    else:
        if "data" in cfg.given:
            cfg = replace(cfg, data=str(find_data(cfg.data)))
        cfg, changes = resumed_config(cfg, saved)
        with refuse_damaged(cfg.resume):
            hyp = Hyp(**saved.description.hyp)
        model = cfg.cfg or cfg.weights or "yolov5n.yaml"
        done = f"{model}, {saved.epoch} of {counted(cfg.epochs, 'epoch')} done"
        for line in (f"resuming {cfg.resume}: {done}", *changes):
            say(line)
    world.require_same("the command line", cfg.training() | hyp.as_dict())
    return Run(cfg, hyp, saved, attempt, world)


def with_hyp_file(cfg: TrainConfig, file: Path, say: Say) -> tuple[TrainConfig, Hyp]:
    """Return the settings with the optimizer of a hyper-parameter file, if none is given, and its
    hyper-parameters.

    say: logs a line if the file names no optimizer. Raises ValueError as read_hyp does, and if the
    optimizer does not go with the settings.
    """
    optimizer, hyp = read_hyp(file)
    if cfg.optimizer != AUTO:
        return cfg, hyp
    if optimizer == AUTO:
        optimizer = "SGD"
        say(f"--optimizer SGD, for which YOLOv5's files were tuned: {cfg.hyp} names no optimizer")
    try:
        return replace(cfg, optimizer=optimizer), hyp
    except ValueError as error:
        raise ValueError(f"{cfg.hyp}: optimizer is {optimizer}: {error}") from None
