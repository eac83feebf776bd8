"""--evolve: search for hyper-parameters by mutation, one training after another.

The state of a search is in its folder: evolve.json (the flags, and what the first generation has
chosen for the data), evolve.csv (a row per generation that is done) and the run folder of the next
one, generations/N. What comes next follows from these, so a search that was killed continues as if
it had not been: the generation that was interrupted resumes from its last.pt, or starts again if it
has none. Of the generations that are done no file is needed.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from training.checkpoints.restart import MARKS, find_previous_attempt
from training.checkpoints.status import is_done, write_status
from training.distillation.teacher_file import with_teacher_of_search
from training.nonfinite import NonFiniteError
from training.results import METRICS_FILE
from training.search.history import read_history, write_history
from training.search.mutation import Generation, best_of, fixed_keys, next_hyp
from training.search.outcome import KEPT_METRICS, failure_of, read_best_metrics, read_settings
from training.search.state import Base, State, read_state, write_state
from training.search.trial import Trial
from training.settings.config import TrainConfig, flag
from training.settings.hyperparameters import OPTIMIZER, Hyp
from utils.distributed.memory import release_memory
from utils.distributed.world import World
from utils.files.disk import FolderLock, lock_folder
from utils.files.folders import (
    RUN_MARK,
    lies_in,
    new_run_folder,
    newest_first,
    remove_partial_files,
)
from utils.files.writers import write_json, write_text
from utils.log import FINISHED, RunLog, Say
from utils.loggers.sink import warn_of_destinations
from utils.printable import counted, one_line, printable
from utils.terminal import FaultError, print_lines

PROJECT = "runs/evolve"
STATE = "evolve.json"
HISTORY = "evolve.csv"
GENERATIONS = "generations"
BEST_HYP = "hyp_evolve.yaml"
PICTURE = "evolve.png"
CHANGEABLE = (
    "download",
    "entity",
    "evolve",
    "loggers",
    "project",
    "resume_evolve",
)  # flags that --resume-evolve does not ignore

Train = Callable[[TrainConfig, World, Trial], object]


def evolve(flags: TrainConfig, world: World, train: Train) -> None:
    """Search for hyper-parameters as the flags say.

    train: trains with some settings and writes the run folder that they name.

    Raises ValueError for invalid settings, or if there is no search to continue. Other errors of a
    training end the search, except NonFiniteError: such a generation has failed, and counts.
    """
    log = RunLog(active=world.is_main)
    search = open_search(flags, world, log.say)
    if search.config.has_loggers_beyond(flags.given):
        warn_of_destinations(
            search.config.loggers,
            log,
            account=search.config.entity,
            named_in=str(search.folder / STATE),
        )
    with search.running():
        search.refresh()
        while len(search.generations) < search.config.evolve:
            search.train_next(train)
            search.refresh()
    search.close()


@dataclass
class Search:
    """A search: its folder, the flags that it began with, and the generations that are done.

    is_new: whether this process has created the folder. base: None until the first generation is
    done.
    """

    folder: Path
    config: TrainConfig
    generations: list[Generation]
    world: World
    say: Say
    is_new: bool
    lock: FolderLock | None = None  # on rank 0
    base: Base | None = None

    @property
    def command(self) -> str:
        """What continues the search."""
        return f"--resume-evolve {quote(printable(self.folder))}"

    def run_folder(self, number: int) -> Path:
        """Return the run folder of a generation."""
        return self.folder / GENERATIONS / str(number)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Say how to continue if the block ends early.

        If not even the first training could begin, for example because of a wrong flag, the folder
        is removed.
        """
        try:
            yield
        except ValueError:
            if self.world.is_main and self.is_new and not self.run_folder(0).exists():
                self._remove()
            raise
        except KeyboardInterrupt:
            if self.world.is_main:
                with suppress(OSError):  # Ctrl-C has also ended the program that reads the output
                    print_lines(f"continue with {self.command}")
            raise
        except FaultError as error:
            raise FaultError(f"{error}; continue with {self.command}") from error

    def _remove(self) -> None:
        for name in (STATE, MARKS, RUN_MARK, "lock"):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # it holds files of the user
            self.folder.rmdir()

    # ---- one generation

    def train_next(self, train: Train) -> None:
        """Train the next generation, and append it to the history."""
        number = len(self.generations)
        config, trial = self._settings(number)
        self.say(f"generation {number} of {self.config.evolve - 1}")
        failure = ""
        try:
            train(config, self.world, trial)
        except NonFiniteError as error:
            failure = failure_of(error)
        release_memory(self.world.device)

        result = None
        if self.world.is_main:
            result = asdict(self._result(number, failure))
        generation = Generation(**self.world.broadcast_object(result))
        self.generations.append(generation)
        self._base()  # stored before the row, so that the first run folder is not needed again
        if self.world.is_main:
            write_history(self.folder / HISTORY, self.generations)
        self.say(self._describe(generation))

    def _settings(self, number: int) -> tuple[TrainConfig, Trial]:
        """Return what the training of a generation needs.

        The first one trains as train.py would without --evolve. Its optimizer, batch size and
        hyper-parameters, which may have been chosen for the data, are the base of the others.
        """
        config = replace(
            self.config,
            evolve=0,
            resume_evolve="",
            project=str(self.folder),
            name=f"{GENERATIONS}/{number}",
            exist_ok=True,
            noplots=True,
            resume=self._prepare_run_folder(number),
        )
        trial = Trial(continue_with=self.command)
        if number == 0:
            return config, trial

        base = self._base()
        config = replace(
            config,
            optimizer=base.optimizer,
            batch_size=base.batch_size,
            given=config.given | {"optimizer", "batch_size"},
        )
        fixed = fixed_keys(
            self.generations[0].hyp,
            noautoanchor=config.noautoanchor,
            taught=bool(config.teacher),
        )
        return config, replace(trial, hyp=next_hyp(self.generations, config.seed, fixed=fixed))

    def _prepare_run_folder(self, number: int) -> str:
        """Return the checkpoint that a generation resumes from; "" to start it.

        Removes the run folder of a training that has ended without its row: it starts again.
        """
        checkpoint = ""
        if self.world.is_main:
            run = self.run_folder(number)
            last = run / "weights" / "last.pt"
            if not lies_in(last, self.folder):
                raise ValueError(
                    f"{printable(run)}: is a link, or contains one; a search writes into its own "
                    "folder only"
                )
            if is_done(run):
                shutil.rmtree(run)
            elif last.exists():
                checkpoint = str(last)
        return str(self.world.broadcast_object(checkpoint))

    def _base(self) -> Base:
        """Return what the first generation has chosen; write it into evolve.json once.

        Raises ValueError if it is nowhere.
        """
        if self.base is None:
            own = asdict(self._read_base()) if self.world.is_main else None
            self.base = Base(**self.world.broadcast_object(own))
            if self.world.is_main:
                write_state(self.folder / STATE, State(self.config, self.base))
        return self.base

    def _read_base(self) -> Base:
        """Return what the run folder of the first generation says. Raises ValueError."""
        run = self.run_folder(0)
        try:
            settings = read_settings(run)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{printable(run)}: does not say the optimizer and the batch size of the search's "
                f"first training ({one_line(error)}); put its hyp.yaml and args.yaml back, or "
                "begin a new search with --evolve"
            ) from None
        return Base(settings.optimizer, settings.batch_size)

    def _result(self, number: int, failure: str) -> Generation:
        """Return a generation that was trained, from the files of its run folder."""
        run = self.run_folder(number)
        hyp = read_settings(run).hyp
        metrics = dict.fromkeys(("fitness", *KEPT_METRICS), 0.0)
        if not failure:
            metrics = read_best_metrics(run)
        return Generation(number, metrics.pop("fitness"), metrics, hyp, failure)

    def _describe(self, generation: Generation) -> str:
        best = best_of(self.generations)
        result = f"fitness {generation.fitness:.5g}"
        if generation.failure:
            result = f"failed: {generation.failure}"
        best_text = ""
        if best:
            best_text = f"; best so far: generation {best.number}, fitness {best.fitness:.5g}"
        return f"generation {generation.number}: {result}{best_text}"

    # ---- what follows from the history

    def refresh(self) -> None:
        """Write the best hyper-parameters and the picture, and remove weights nobody needs."""
        if not self.generations:
            return
        base = self._base()
        if not self.world.is_main:
            return
        from utils.plots.search import plot_search  # loads matplotlib

        best = best_of(self.generations)
        if best:
            self._write_best(best, base.optimizer)
        plot_search(self.folder / HISTORY, self.folder / PICTURE, list(Hyp().as_dict()))
        for generation in self.generations:
            weights = self.run_folder(generation.number) / "weights"
            if not lies_in(weights, self.folder):
                continue
            if generation is not best:
                shutil.rmtree(weights, ignore_errors=True)
            (weights / "last.pt").unlink(missing_ok=True)

    def _write_best(self, best: Generation, optimizer: str) -> None:
        values = yaml.safe_dump({OPTIMIZER: optimizer, **best.hyp}, sort_keys=False)
        title = (
            f"# the best of {counted(len(self.generations), 'generation')}: "
            f"number {best.number}, fitness {best.fitness:.5g}\n"
        )
        write_text(self.folder / BEST_HYP, title + values)

    def close(self) -> None:
        """Say what was found, and mark the search as done."""
        best = best_of(self.generations)
        base = self._base()
        if best is None:
            self.say(f"all {counted(len(self.generations), 'generation')} failed; see {HISTORY}")
        else:
            first = self.generations[0]
            gain = f"{best.fitness - first.fitness:+.5g} against generation 0"
            if first.failure:
                gain = "generation 0 failed"
            self.say(
                f"best: generation {best.number}, fitness {best.fitness:.5g}, {gain}; train with "
                f"--hyp {quote(str(self.folder / BEST_HYP))} --batch-size {base.batch_size}"
            )
        if self.world.is_main:
            found = {} if best is None else {"generation": best.number, **best.metrics}
            write_status(self.folder, FINISHED, best=found)
            if self.lock:
                self.lock.release()
        self.world.wait_for_main()


# ---------------------------------------------------------------------- new, or continued


def open_search(flags: TrainConfig, world: World, say: Say) -> Search:
    """Return a new search, or the one that the flags, or a launcher's restart, continue.

    Raises SystemExit(0) if a launcher has restarted a search that is done, and ValueError if there
    is nothing to continue.
    """
    project = Path(flags.project if "project" in flags.given else PROJECT)
    attempt = find_previous_attempt(project, world)
    if attempt.done:
        say(f"restarted by the launcher, but the search in {attempt.run} is done")
        raise SystemExit(0)

    given = attempt.run
    if not given and flags.resume_evolve:
        found = str(find_search(flags.resume_evolve, project)) if world.is_main else ""
        given = str(world.broadcast_object(found))
    if given:
        search = _reopened(Path(given), flags, world, say)
    else:
        search = _created(project, flags, world, say)

    if world.is_main:
        (search.folder / METRICS_FILE).unlink(missing_ok=True)
        remove_partial_files(search.folder)
        write_state(search.folder / STATE, State(search.config, search.base))
        if any(attempt.marks):
            write_json(search.folder / MARKS, attempt.marks)
    return search


def find_search(given: str, project: Path) -> Path:
    """Return the folder of a search: given, of a file in it, or the newest one under `project`.

    given: "newest", a folder, or a file in it, such as evolve.csv. Raises ValueError if there is
    none.
    """
    if given == "newest":
        states = newest_first(project, f"*/{STATE}")
        if not states:
            raise ValueError(
                f"--resume-evolve finds no search under {printable(project)}: begin one with "
                "--evolve"
            )
        return states[0].parent
    folder = Path(given)
    if not folder.is_dir() and folder.name in (STATE, HISTORY):
        folder = folder.parent
    if not (folder / STATE).is_file():
        raise ValueError(f"--resume-evolve {printable(given)}: there is no {STATE} of a search")
    return folder


def _created(project: Path, flags: TrainConfig, world: World, say: Say) -> Search:
    flags = with_teacher_of_search(flags)
    path = ""
    lock = None
    if world.is_main:
        used = project / flags.name / STATE
        if flags.exist_ok and used.exists():
            raise ValueError(
                f"{printable(used)}: a search is there; continue it with --resume-evolve "
                f"{printable(used.parent)}, or choose another --name"
            )
        path = str(new_run_folder(project, flags.name, flags.exist_ok))
        lock = lock_folder(Path(path))
    folder = Path(world.broadcast_object(path))
    trainings = counted(flags.evolve, "training")
    say(f"--evolve: {trainings}, one after another; writing to {folder}")
    config = replace(flags, resume_evolve="")
    return Search(folder, config, [], world, say, is_new=not flags.exist_ok, lock=lock)


def _reopened(folder: Path, flags: TrainConfig, world: World, say: Say) -> Search:
    """Return a search with its own flags, but the number of trainings that is given now.

    Raises ValueError if it is done, or another process is at it.
    """
    state = read_state(folder / STATE, world)
    # never from a file, which may be a stranger's
    config = replace(state.config, download=flags.download)
    config = with_loggers_of(config, flags)
    generations = _read_generations(folder, world)
    if flags.evolve:
        config = replace(config, evolve=flags.evolve)
    done = len(generations)
    # a process that was killed after the last training has not written all files
    is_closed = world.broadcast_object(world.is_main and is_done(folder))
    if done > config.evolve or (done == config.evolve and is_closed):
        raise ValueError(
            f"{printable(folder)}: its {counted(done, 'training')} are done; to continue, give "
            f"--evolve a number above {done}"
        )

    lock = lock_folder(folder) if world.is_main else None
    ignored = sorted(flag(name) for name in flags.given - set(CHANGEABLE))
    say(f"continuing the search in {folder}: {done} of {counted(config.evolve, 'training')} done")
    if ignored:
        say(
            "--resume-evolve keeps the search's own settings; these flags have no effect: "
            f"{', '.join(ignored)}"
        )
    return Search(folder, config, generations, world, say, is_new=False, lock=lock, base=state.base)


def _read_generations(folder: Path, world: World) -> list[Generation]:
    """Return the generations of a search that rank 0 finds in its history.

    Raises ValueError if the history is damaged or rows are missing: generations that are done would
    be trained again, and their weights removed.
    """
    rows = []
    if world.is_main:
        rows = [asdict(one) for one in read_history(folder / HISTORY)]
        done = len(rows)
        # the next one may have a folder, but no row yet
        begun = [number for number in _numbered_folders(folder / GENERATIONS) if number > done]
        if begun:
            raise ValueError(
                f"{printable(folder / HISTORY)}: has {counted(done, 'generation')}, but "
                f"{GENERATIONS}/{min(begun)} is there; put the missing rows back, or remove the "
                f"folders of these generations, from {done} on, to train them again"
            )
    return [Generation(**row) for row in world.broadcast_object(rows)]


def _numbered_folders(parent: Path) -> list[int]:
    """Return the numbers of the folders in `parent` that are called by a number."""
    names = [path.name for path in parent.glob("*")]
    return [int(name) for name in names if name.isascii() and name.isdecimal()]


def with_loggers_of(config: TrainConfig, flags: TrainConfig) -> TrainConfig:
    """Return the settings with the loggers, and their account, that the command line names."""
    given = flags.given & {"loggers", "entity"}
    changed: dict[str, Any] = {name: getattr(flags, name) for name in given}
    if "wandb" not in changed.get("loggers", config.loggers):
        changed.setdefault("entity", "")
    return replace(config, **changed, given=config.given | given)
