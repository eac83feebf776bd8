"""Train the trials of a study, one after another, until none is left."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from training.batch_size.autobatch import is_out_of_memory
from training.distillation.teacher_file import with_teacher_of_search
from training.nonfinite import NonFiniteError
from training.search.evolve import Train
from training.search.outcome import failure_of, read_best_metrics, read_settings
from training.search.trial import Trial, TrialPrunedError
from training.settings.config import PER_MACHINE, TrainConfig
from training.tune.flags import TuneFlags
from training.tune.results import BEST_HYP, best_command, write_results
from training.tune.space import Value, settings_with
from training.tune.storage import Storage
from training.tune.study import Claim, Study, StudySettings
from utils.distributed.memory import release_memory
from utils.distributed.world import World
from utils.files.folders import RUN_MARK, RUN_MARK_TEXT, make_folder
from utils.log import RunLog, Say
from utils.printable import one_line, printable
from utils.terminal import FaultError, print_lines

AGAIN = "the same command"
# flags that may differ between processes and machines; the paths are typed alike
COMPARED_PATHS = ("data", "weights", "cfg", "hyp", "augmentations", "teacher")


def tune(own: TuneFlags, flags: TrainConfig, world: World, train: Train) -> None:
    """Train trials of a study until none is left, together with other processes.

    own, flags: of the command line. train: trains with some settings and writes the run folder
    that they name.

    Raises ValueError for invalid settings. Other errors of a training end this process, except
    those that follow from the values of its trial: they are recorded.
    """
    say = RunLog(active=world.is_main).say
    folder = Path(flags.project, flags.name)
    with ExitStack() as stack:
        study = None
        if world.is_main:
            study = stack.enter_context(open_study(own, flags, folder, say))
            say(f"{study.describe()} so far, in {study.storage.shown}; writing to {folder}")
        trials = Trials(study, flags, folder, world, train, say)
        while True:
            claim = study.claim() if study else None
            shared = world.broadcast_object(asdict(claim) if claim else None)
            if shared is None:
                break
            trials.run(Claim(**shared))
        if study:
            _say_result(study, flags, say)
    world.wait_for_main()


def open_study(own: TuneFlags, flags: TrainConfig, folder: Path, say: Say) -> Study:
    """Return the study of these flags, and create its folder. Raises ValueError."""
    make_folder(folder, "--project")
    mark = folder / RUN_MARK
    if not mark.exists():
        mark.write_text(RUN_MARK_TEXT)
    settings = StudySettings(
        name=own.study or flags.name,
        space=own.space,
        trials=own.trials,
        pruner=own.pruner,
        seed=flags.seed,
        epochs=flags.epochs,
        compared=compared_settings(own, flags),
    )
    return Study(settings, Storage(own.storage, folder), folder, say)


def compared_settings(own: TuneFlags, flags: TrainConfig) -> dict[str, Any]:
    """Return what must be the same in all processes of a study, as plain values."""
    values = with_teacher_of_search(flags).as_dict()
    shared = {name: value for name, value in values.items() if name not in PER_MACHINE}
    paths = {name: values[name] for name in COMPARED_PATHS}
    of_space = {f"the range of {one.name}": one.as_dict() for one in own.space}
    return {**shared, **paths, **of_space, "the pruner": own.pruner}


@dataclass(frozen=True)
class Trials:
    """What trains the trials of a study, with the flags of the command line.

    study: None on other ranks than 0. folder: of the study. train: as for `tune`.
    """

    study: Study | None
    flags: TrainConfig
    folder: Path
    world: World
    train: Train
    say: Say

    def run(self, claim: Claim) -> None:
        """Train a trial and record what became of it.

        Raises what the training raises, unless the values of the trial are its cause.
        """
        shown = ", ".join(f"{name} {_short(value)}" for name, value in claim.values.items())
        self.say(f"trial {claim.number}: {shown}")
        try:
            failure, pruned = self._outcome(claim)
        except BaseException as error:
            if self.study:
                with suppress(Exception):  # the error of the training matters more
                    self.study.fail(claim)
            _say_how_to_continue(error, self.world)
            raise
        release_memory(self.world.device)

        if self.study:
            self._record(self.study, claim, failure, pruned=pruned)
            write_results(self.study)

    def _outcome(self, claim: Claim) -> tuple[str, bool]:
        """Train; return why the trial failed, "" if it did not, and whether it ended early."""
        try:
            config, hyp = self._settings(claim)
        except ValueError as error:  # values that are allowed alone, but not together
            return one_line(error), False

        validated = self._pruning(claim, config.epochs)
        try:
            self.train(config, self.world, Trial(hyp, continue_with=AGAIN, validated=validated))
        except TrialPrunedError:
            return "", True
        except NonFiniteError as error:
            return failure_of(error), False
        except FaultError as error:
            # With several processes the others do not know of it.
            cause = error.__cause__
            if self.world.size > 1 or cause is None or not is_out_of_memory(cause):
                raise
            return one_line(str(error).partition(":")[0]), False
        return "", False

    def _settings(self, claim: Claim) -> tuple[TrainConfig, Mapping[str, float]]:
        """Return the flags and hyper-parameters of a trial. Raises ValueError."""
        config, hyp = settings_with(self.flags, claim.values)
        # A launcher that restarts processes finds a run directly under --project, and would
        # continue an earlier trial.
        config = replace(
            config,
            project=str(self.folder),
            name=f"trials/{claim.number}",
            exist_ok=True,
            noplots=True,
        )
        return config, hyp

    def _pruning(self, claim: Claim, epochs: int) -> Callable[[int, float], None]:
        """Return what is called after each validation: it ends a trial that is worse than others.

        epochs: of the trial.
        """

        def validated(epoch: int, fitness: float) -> None:
            should_end = self.study.report(claim, epoch, fitness) if self.study else False
            is_last = epoch >= epochs
            if self.world.broadcast_collective(should_end and not is_last):
                raise TrialPrunedError("others were better after as many epochs")

        return validated

    def _record(self, study: Study, claim: Claim, failure: str, *, pruned: bool) -> None:
        """Tell the study what became of a trial. failure, pruned: of `_outcome`."""
        if failure or pruned:
            study.prune(claim, failure)
            result = f"failed: {failure}" if failure else "ended early"
            self.say(f"trial {claim.number}: {result}")
            return
        run = self.folder / "trials" / str(claim.number)
        metrics = read_best_metrics(run)
        study.complete(claim, metrics["fitness"], asdict(read_settings(run)))
        self.say(f"trial {claim.number}: fitness {metrics['fitness']:.5g}")


def _short(value: Value) -> str:
    return f"{value:.5g}" if isinstance(value, float) else printable(str(value))


def _say_how_to_continue(error: BaseException, world: World) -> None:
    if isinstance(error, KeyboardInterrupt) and world.is_main:
        with suppress(OSError):  # Ctrl-C has also ended the program that reads the output
            print_lines(f"continue with {AGAIN}")


def _say_result(study: Study, flags: TrainConfig, say: Say) -> None:
    say(study.describe())
    best = study.best()
    if best is None:
        say("no trial is complete yet")
        return
    hyp_file = study.folder / BEST_HYP
    say(f"best: trial {best.number}, fitness {best.value:.5g}; train with its settings:")
    say(f"    {best_command(flags, hyp_file, best)}")
