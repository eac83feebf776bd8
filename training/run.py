"""A new or resumed run: its settings, its checkpoint, which is read once, and its folder."""

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from data import Dataset, Draws, Images, Transforms
from data.dataset_yaml import find_data, find_hyp
from data.layouts import is_other_path
from models.detector import Detector
from training.batch_size.find import find_batch_size
from training.checkpoints.contents import (
    Checkpoint,
    Description,
    read_checkpoint,
    refuse_damaged,
)
from training.checkpoints.manager import PREEMPTED
from training.checkpoints.restart import (
    MARKS,
    PreviousAttempt,
    find_previous_attempt,
)
from training.checkpoints.resume import (
    OF_DATA,
    SETTINGS,
    batch_after_resize,
    find_last,
    resumed_config,
    run_folder,
)
from training.checkpoints.status import RUNNING, write_status
from training.distillation.distillation import Distillation
from training.distillation.teacher_file import (
    check_new_teacher,
    digest_of_teacher,
    require_unchanged_teacher,
    with_moved_teacher,
    with_teacher_digest,
)
from training.global_batch import GlobalBatch
from training.settings.augmentations import build_transforms, report_change, text_digest, with_text
from training.settings.class_weights import (
    choose_class_weights,
    describe_class_weights,
    file_of,
    weights_in_order,
)
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp, read_hyp, write_hyp
from training.settings.recipe import AUTO, Recipe, TrainedWeights, choose_recipe
from training.start import check_model, names_of_weights
from training.state import TrainState
from utils import __version__
from utils.distributed.world import World
from utils.files.checkpoint_file import digest_of_checkpoint
from utils.files.disk import lock_folder
from utils.files.folders import new_run_folder, remove_partial_files, require_writable
from utils.files.writers import write_json, write_text, write_yaml
from utils.log import FINISHED, Say
from utils.metrics.fitness import Fitness, parse_fitness
from utils.printable import counted, printable

TRANSFORMS = "augmentations.yaml"  # in the run folder: a copy of the file of --augmentations
NOT_SEARCHED: Mapping[str, float] = {}


@dataclass
class Run:
    """A new run, or a run that is resumed from the checkpoint `saved`.

    config, hyp: the settings as flags, files and checkpoint give them, until `resolve_settings`
    chooses those that are "auto".
    """

    config: TrainConfig
    hyp: Hyp
    saved: Checkpoint | None
    attempt: PreviousAttempt
    world: World
    transforms: Transforms | None = None  # of --augmentations
    recipe: Recipe | None = None  # of a new run with --hyp auto
    searched: Mapping[str, float] = field(default_factory=dict)  # values that a search has chosen
    class_weights_file: str = ""  # of --class-weights, "" if it names none
    folder: Path = Path()  # set by `open_folder`

    @property
    def fitness(self) -> Fitness:
        """The number that decides which epoch is the best."""
        return parse_fitness(self.config.fitness)

    @property
    def teacher(self) -> str:
        """The file of --teacher, "" without one."""
        return "".join(self.config.teacher[:1])

    @property
    def loggers_file(self) -> str:
        """The checkpoint that names loggers or their account; "" if the command line does."""
        is_from_file = self.config.has_loggers_beyond(self.config.given)
        return self.config.resume if self.saved and is_from_file else ""

    def old_classes(self) -> list[str]:
        """Return the classes of the model that --add-classes extends; without it none.

        Raises ValueError as `load_detector` does.
        """
        if not self.config.add_classes:
            return []
        if self.saved is None:
            return names_of_weights(self.config.weights, download=self.config.download)
        description = self.saved.description
        with refuse_damaged(self.config.resume):
            return description.names[: -description.table["class_groups"][-1]]

    def check_data(self, data: Dataset, say: Say) -> None:
        """Raise ValueError if a resumed run was trained on other classes.

        Also if --fitness names a class without labels: one that the data do not have, or an old one
        with --add-classes. Logs a line if the images of a resumed run have changed, how often they
        are drawn, or the file of --class-weights.
        """
        self.fitness.require_classes(data.names[data.unlabeled :])
        if self.saved is None:
            return
        description = self.saved.description
        if data.names != description.names:
            raise ValueError(
                f"{self.config.resume}: its class names differ from those of {data.file}"
            )
        if data.digests["train"] != description.images:
            say(
                f"{data.file}: since {self.config.resume} was written the training images or their "
                "labels have changed"
            )
        elif description.draws not in ("", data.draws.digest()):
            say(
                f"{data.file}: since {self.config.resume} was written the weights of its data sets "
                "have changed: images are drawn more or less often than before"
            )
        self._report_changed_class_weights(description.class_weights_file, data, say)

    def _report_changed_class_weights(self, file: str, data: Dataset, say: Say) -> None:
        """Log a line if the file of --class-weights has changed since the run began."""
        with suppress(ValueError):  # it is gone, or is on another machine
            if file and self._choose_class_weights((file,), data) != self.config.class_weights:
                say(
                    f"{printable(file)} has changed: the run keeps the class weights that it began "
                    "with"
                )

    def resolve_settings(
        self,
        data: Dataset,
        images: Images,
        model: Detector,
        trained: TrainedWeights | None,
        *,
        distillation: Distillation,
        image_size: int,
        precision: torch.dtype,
        say: Say,
    ) -> tuple[TrainConfig, Hyp, GlobalBatch]:
        """Return the final settings, with nothing "auto" and the batch size that is used.

        Args:
            images: the training images, where they are read from.
            model: on this process's device, to measure --batch-size -1 with a copy of it.
            trained: the trained weights that a new run starts from, None for random ones.
            distillation: what a teacher adds to the loss and to the stride.
            image_size: in pixels, a multiple of the largest stride of the model and its teacher.
            precision: of the forward pass.

        Raises ValueError if the processes' choices differ, no batch fits in memory, or there are
        too few images for the processes.
        """
        # The recipe: optimizer, batch size and hyper-parameters.
        if self.saved is None:
            all_searched = self.searched.keys() == self.hyp.as_dict().keys()
            if self.config.hyp == AUTO and not all_searched:
                self._choose_recipe(data, trained)
            recipe = {"optimizer": self.config.optimizer, "batch_size": self.config.batch_size}
            self.world.require_same("the recipe", recipe | self.hyp.as_dict())

        # The batch size that is used: measured for -1, and limited by the number of images.
        labels = data.labels["train"]
        batch = GlobalBatch(self.config.batch_size, self.world.size, nominal=self.hyp.nominal_batch)
        if batch.size == -1:
            size = find_batch_size(
                self.config,
                self.hyp,
                model,
                labels,
                images,
                distillation=distillation,
                image_size=image_size,
                precision=precision,
                world=self.world,
                say=say,
            )
            batch = replace(batch, size=size)
        batch = batch.limited_to(data.draws.least_per_pass, say)

        # stored in the checkpoint: another number of processes resumes with the same batch size,
        # other files with the same classes and weights, and val.py and detect.py, which know
        # nothing of a teacher's stride, take the same image size
        self.config = replace(
            self.config,
            batch_size=batch.size,
            imgsz=image_size,
            classes=tuple(data.chosen_words),
            class_weights=self._class_weights(data, say),
        )
        return self.config, self.hyp, batch

    def _class_weights(self, data: Dataset, say: Say) -> tuple[str, ...]:
        """Return the final value of --class-weights; log it."""
        if not self.config.class_weights:
            return ()
        words = self._choose_class_weights(self.config.class_weights, data)
        self.world.require_same("--class-weights", list(words))
        say(describe_class_weights(words[data.unlabeled :]))

        # Of --add-classes: those of the old model may be named, but are not trained.
        old_classes = data.names[: data.unlabeled]
        weights = weights_in_order(words, data.names)[: data.unlabeled]
        untrained = [name for name, one in zip(old_classes, weights, strict=True) if one != 1]
        if untrained:
            say(
                f"--class-weights: no effect on {shlex.join(untrained)}, which the old model "
                "finds: it is not trained"
            )
        return words

    def _choose_class_weights(self, given: tuple[str, ...], data: Dataset) -> tuple[str, ...]:
        """Return NAME=WEIGHT for each class. given, errors: as for `choose_class_weights`."""
        labels = data.labels["train"]
        return choose_class_weights(given, data.names, labels, data.draws, known=data.spec.names)

    def _choose_recipe(self, data: Dataset, trained: TrainedWeights | None) -> None:
        cfg = self.config
        # the batch size is the recipe's to choose if no flag does
        given_batch_size = cfg.batch_size if "batch_size" in cfg.given else None
        recipe = choose_recipe(
            cfg.optimizer,
            images=data.draws.least_per_pass,
            epochs=cfg.epochs,
            classes=len(data.names),
            trained=trained,
            sharded=cfg.shard,
            batch_size=given_batch_size,
            processes=max(self.world.size, len(self.world.devices)),
            unit=data.unit,
        )
        self.recipe = replace(recipe, hyp=replace(recipe.hyp, **self.searched))
        batch_size = recipe.batch_size or cfg.batch_size
        self.config = replace(cfg, optimizer=recipe.optimizer, batch_size=batch_size)
        self.hyp = self.recipe.hyp

    def describe(self, table: dict[str, Any], data: Dataset) -> Description:
        """Return the description of the run in its checkpoints. table: the model's."""
        return Description(
            table=table,
            names=data.names,
            data=str(data.file),
            images=data.digests["train"],
            draws=data.draws.digest(),
            class_weights_file=self.class_weights_file,
            config=self.config.as_dict(),
            hyp=self.hyp.as_dict(),
            versions={"kestrel": __version__, "torch": str(torch.__version__)},
        )

    def restore(self, state: TrainState[Any], draws: Draws) -> None:
        """Load the checkpoint into `state`; a new run does nothing.

        draws: how often an epoch draws each training image.

        Raises ValueError if the checkpoint does not fit.
        """
        if self.saved is None:
            return
        with refuse_damaged(self.config.resume):
            state.load(self.saved)
            progress = state.progress
            progress.batch = batch_after_resize(
                progress.batch,
                first=draws.before(progress.epoch),
                end=draws.before(progress.epoch + 1),
                before=self.saved.description.config["batch_size"],
                now=state.batch.size,
            )

    def open_folder(self, data: Dataset, say: Say) -> None:
        """Create or reopen the run's folder, lock it, and write the settings into it.

        Call it after all checks. It stays locked until `close_folder`, or until this process ends.
        data: what was found in it is written, and its YAML if no user has written one. say: logs
        the chosen recipe.

        Raises ValueError if another run has locked the folder, or it cannot be created.
        """
        path = ""
        if self.world.is_main:
            folder = self._find_or_create_folder()
            self._lock = lock_folder(folder)
            path = str(folder)
        self.folder = Path(self.world.broadcast_object(path))
        data.save(self.folder)
        if data.is_written:
            # its YAML has the final classes
            self.config = replace(
                self.config, data=(str(data.file),), names=(), merge=(), data_weights=()
            )
        if not self.world.is_main:
            return

        # Remove what an interrupted or earlier run in it has left.
        (self.folder / "weights").mkdir(exist_ok=True)
        remove_partial_files(self.folder)
        self._put_aside(self.folder / "weights" / "last.pt", say)
        (self.folder / PREEMPTED).unlink(missing_ok=True)
        write_status(self.folder, RUNNING)

        write_yaml(self.folder / SETTINGS, self.config.as_dict())
        write_hyp(self.folder / "hyp.yaml", self.config.optimizer, self.hyp)
        (self.folder / TRANSFORMS).unlink(missing_ok=True)  # an earlier run may have left it
        if self.transforms:
            write_text(self.folder / TRANSFORMS, self.transforms.file.text)
        report = {
            split: found.as_dict() | {"digest": data.digests[split]}
            for split, found in data.reports.items()
        }
        write_json(self.folder / "data_report.json", report)
        if any(self.attempt.marks):  # of launchers, by which they find the run after a restart
            write_json(self.folder / MARKS, self.attempt.marks)
        if self.recipe:
            self._say_recipe(self.recipe, say)

    def _put_aside(self, last: Path, say: Say) -> None:
        """Rename a last.pt that this run does not continue, which --resume would take for its own.

        It is that of an earlier run in the folder, or of the epochs after the checkpoint that is
        resumed.
        """
        if not last.exists():
            return
        continued = self.saved is not None and os.path.samefile(self.config.resume, last)
        if not continued:
            kept = last.with_name("last_before.pt")
            last.replace(kept)
            say(f"{printable(last)}: not continued by this run, and kept as {kept.name}")

    def _find_or_create_folder(self) -> Path:
        if self.saved:
            return run_folder(self.config.resume)
        if self.attempt.run:
            return Path(self.attempt.run)
        return new_run_folder(Path(self.config.project), self.config.name, self.config.exist_ok)

    def _say_recipe(self, recipe: Recipe, say: Say) -> None:
        say(recipe.describe(str(self.folder / "hyp.yaml"), self.config.batch_size))
        if advice := recipe.advice(self.config.batch_size):
            say(advice)

    def close_folder(self, metrics: dict[str, Any]) -> None:
        """Write metrics.json, with the status "finished", and unlock the folder."""
        if self.world.is_main:
            write_status(self.folder, FINISHED, **metrics)
            self._lock.release()


def open_run(
    flags: TrainConfig,
    world: World,
    say: Say,
    searched: Mapping[str, float] = NOT_SEARCHED,
    *,
    in_search: bool = False,
) -> Run:
    """Return the run to train.

    It is a new one, the one that --resume names, or the one that this launch began before a
    restart.

    searched: hyper-parameters of a new run that replace those of the file or the recipe.
    in_search: the run is one of a search, which itself finds what a restarted launch continues.

    Raises SystemExit(0) if a launcher has restarted a run that is done, and ValueError if
    there is nothing to resume, the checkpoint does not fit, or processes have different settings or
    read different checkpoints.
    """
    attempt = PreviousAttempt()
    if not in_search:
        # --name may have folders before it
        attempt = find_previous_attempt(Path(flags.project, flags.name).parent, world)
    if attempt.done:
        say(f"restarted by the launcher, but the run in {attempt.run} is done")
        raise SystemExit(0)
    if attempt.checkpoint:
        flags = replace(flags, resume=attempt.checkpoint)
        say("restarted by the launcher")
    elif flags.resume:
        flags = replace(flags, resume=find_last(flags.resume, Path(flags.project), say))
    if flags.resume and (in_search or attempt.checkpoint):
        # the command line began the run, which may have a data YAML of its own since
        flags = replace(flags, given=flags.given - set(OF_DATA))

    saved = read_checkpoint(flags.resume) if flags.resume else None
    digest = digest_of_checkpoint(Path(flags.resume)) if saved else ""
    digests = world.all_gather_object(digest)
    if len(set(digests)) > 1:
        raise ValueError(
            f"{flags.resume}: differs between the processes; all machines must read the same file"
        )

    if saved:
        cfg, hyp = _resumed_settings(flags, saved, say)
    else:
        check_model(flags.cfg, flags.weights, download=flags.download)
        check_new_teacher(flags)
        if world.is_main:
            require_writable(Path(flags.project), "--project")
        cfg, hyp = _new_settings(flags, say)
        hyp = replace(hyp, **searched)
    if cfg.teacher and hyp.distillation == 0:
        raise ValueError(f"{cfg.hyp}: distillation is 0: --teacher would have no effect")
    digests_of_files = {"augmentations": text_digest(cfg), "teacher": digest_of_teacher(cfg)}
    same = cfg.training() | hyp.as_dict() | digests_of_files
    world.require_same("the command line", same)
    GlobalBatch(cfg.batch_size, world.size)  # raises ValueError if it cannot be split
    transforms = build_transforms(cfg, say)
    file = saved.description.class_weights_file if saved else file_of(cfg.class_weights)
    return Run(
        cfg,
        hyp,
        saved,
        attempt,
        world,
        transforms,
        searched=searched,
        class_weights_file=file,
    )


def _resumed_settings(flags: TrainConfig, saved: Checkpoint, say: Say) -> tuple[TrainConfig, Hyp]:
    if "data" in flags.given:
        paths = [name if is_other_path(name) else str(find_data(name)) for name in flags.data]
        flags = replace(flags, data=tuple(paths))
    with suppress(ValueError):  # the run has its own text: the file may be gone
        flags = with_text(flags)
    flags = with_moved_teacher(flags, saved)
    cfg, changes = resumed_config(flags, saved)
    with refuse_damaged(cfg.resume):
        hyp = Hyp(**saved.description.hyp)

    model = cfg.cfg or cfg.weights or "yolov5n.yaml"
    done = f"{saved.epoch} of {counted(cfg.epochs, 'epoch')} done"
    say(f"resuming {cfg.resume}: {model}, {done}")
    for line in changes:
        say(line)
    report_change(cfg, say)
    require_unchanged_teacher(cfg)
    return cfg, hyp


def _new_settings(flags: TrainConfig, say: Say) -> tuple[TrainConfig, Hyp]:
    """Return the settings with the optimizer and hyper-parameters of the file of --hyp.

    With --hyp auto they are chosen later, from the data. say: logs a line if the file names no
    optimizer. Raises ValueError as read_hyp does, and if the optimizer does not go with the
    settings.
    """
    flags = with_teacher_digest(with_text(flags))
    if flags.hyp == AUTO:
        return flags, Hyp()
    optimizer, hyp = read_hyp(find_hyp(flags.hyp))
    if flags.optimizer != AUTO:
        return flags, hyp
    if optimizer == AUTO:
        optimizer = "SGD"
        say(f"--optimizer SGD, for which YOLOv5's files were tuned: {flags.hyp} names no optimizer")
    try:
        return replace(flags, optimizer=optimizer), hyp
    except ValueError as error:
        raise ValueError(f"{flags.hyp}: optimizer is {optimizer}: {error}") from None
