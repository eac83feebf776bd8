"""A study: the trials of all processes that run the same command, and which of them are theirs.

A trial has an index from 0 to the number of trials, which only one trial that has not failed may
have. So the number of trials holds over all processes, and a trial that was killed is trained
again, by any of them. What is suggested depends on (seed, index) and the trials that are done.

A process holds a lock in the folder of the study as long as it lives. A trial whose process does
not hold its lock any more was killed. Of a process with another folder, such as that of another
machine, nothing is known.
"""

import re
import secrets
import shutil
import socket
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.tune.space import Parameter, Value
from training.tune.storage import PURPOSE, Storage
from utils.files.disk import exclusive_access, lock_folder
from utils.files.folders import lies_in
from utils.log import Say
from utils.optional_packages import import_optional
from utils.printable import counted, excerpt, printable

POLL_S = 0.1
CLAIM_S = 60.0  # the longest time between a trial's first entry and its index
WORKER = re.compile(r"[\w-]{1,255}", re.ASCII)  # a process, and its folder
RANDOM_TRIALS = 10  # before TPE has something to model
SETTINGS_OF_TRIAL = {"optimizer", "batch_size", "hyp"}  # stored when a training ends


@dataclass(frozen=True)
class Claim:
    """A trial of this process. number: in the study, also of its folder. index: see above."""

    number: int
    index: int
    values: Mapping[str, Value]


@dataclass(frozen=True)
class StudySettings:
    """What a study searches, and how.

    name: in the storage. trials: in all. epochs: of a training. compared: plain values that must be
    the same in all processes of the study.
    """

    name: str
    space: tuple[Parameter, ...]
    trials: int
    pruner: str
    seed: int
    epochs: int
    compared: Mapping[str, Any]


class Study:
    """One process's view of a study. Only rank 0 has one.

    As a context manager it holds the lock of this process. Raises ValueError if the storage cannot
    be opened, or a study with other settings is in it.
    """

    def __init__(self, settings: StudySettings, storage: Storage, folder: Path, say: Say) -> None:
        self.settings = settings
        self.storage = storage
        self.folder = folder
        self.say = say
        self.optuna = import_optional("optuna", PURPOSE)
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=self.optuna.exceptions.ExperimentalWarning)
        self.states = self.optuna.trial.TrialState
        host = re.sub(r"[^\w-]", "_", socket.gethostname(), flags=re.ASCII)
        self.worker = f"{host}-{secrets.token_hex(4)}"
        self.own: dict[int, Any] = {}  # Optuna's trials of this process, by number

    def __enter__(self) -> "Study":
        with self.turn():
            self.study = self._open()
            self._require_same_settings()
        own = self._worker_folder(self.worker)
        own.mkdir(parents=True)
        self._lock = lock_folder(own)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.own:  # else others find that its trials have ended
            shutil.rmtree(self._worker_folder(self.worker), ignore_errors=True)
        self._lock.release()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let one process of this machine at a time decide; turn storage errors into sentences."""
        with (
            exclusive_access(self.folder / "turn", quiet=True),
            self.storage.errors_in_a_sentence(),
        ):
            yield

    def _worker_folder(self, worker: str) -> Path:
        return self.folder / "workers" / worker

    def _open(self) -> Any:
        pruners = self.optuna.pruners
        epochs = self.settings.epochs
        first_pruned = epochs // 5 + 1  # none in the first fifth
        pruner = {
            "median": pruners.MedianPruner(n_warmup_steps=first_pruned),
            "hyperband": pruners.HyperbandPruner(min_resource=1, max_resource=epochs),
            "none": pruners.NopPruner(),
        }[self.settings.pruner]
        return self.optuna.create_study(
            study_name=self.settings.name,
            storage=self.storage.open(),
            direction="maximize",
            pruner=pruner,
            load_if_exists=True,
        )

    def _require_same_settings(self) -> None:
        """Raise ValueError if trials of the study had other settings."""
        wanted = dict(self.settings.compared)
        with self.storage.readable_entries():
            stored = dict(self.study.user_attrs.get("settings", {}))
        self._fail_dead_trials()
        counting = [trial for trial in self.trials() if trial.state != self.states.FAIL]
        if not counting:
            self.study.set_user_attr("settings", wanted)
            return
        differing = [key for key in {**wanted, **stored} if wanted.get(key) != stored.get(key)]
        if differing:
            key = differing[0]
            before = printable(str(stored.get(key)))
            now = printable(str(wanted.get(key)))
            raise ValueError(
                f"the study {printable(self.settings.name)} in {self.storage.shown} was begun with "
                f"{key} {before}, now it is {now}: choose another --name for a new study"
            )

    def trials(self) -> Sequence[Any]:
        """Return all trials, as Optuna's frozen trials.

        Raises FaultError if one of them was changed by hand, so that it cannot be read.
        """
        with self.storage.readable_entries():
            found: Sequence[Any] = self.study.get_trials(deepcopy=False)
            for trial in found:
                require_readable(trial)
        return found

    # ---- claiming a trial

    def claim(self) -> Claim | None:
        """Return the next trial for this process; None if there are none left."""
        while True:
            with self.turn():
                self._fail_dead_trials()
                taken = {index_of(trial) for trial in self.trials() if self._counts(trial)}
                free = [index for index in range(self.settings.trials) if index not in taken]
                if not free:
                    return None
                claim = self._ask(free[0])
                if claim is not None:
                    return claim

    def _counts(self, trial: Any) -> bool:
        return bool(trial.state != self.states.FAIL)

    def _ask(self, index: int) -> Claim | None:
        """Return a new trial with this index; None if another machine was first."""
        entropy = np.random.SeedSequence([self.settings.seed, index])
        self.study.sampler = self.optuna.samplers.TPESampler(
            n_startup_trials=RANDOM_TRIALS,
            constant_liar=True,  # trials that are running count, so that processes differ
            seed=int(entropy.generate_state(1)[0]),
        )
        trial = self.study.ask()
        trial.set_user_attr("worker", self.worker)
        trial.set_user_attr("index", index)

        if index in self._earlier_indices(trial.number):
            self.study.tell(trial, state=self.states.FAIL)
            return None

        values = {one.name: one.suggest(trial) for one in self.settings.space}
        self.own[trial.number] = trial
        return Claim(trial.number, index, values)

    def _earlier_indices(self, number: int) -> set[int]:
        """Return the indices of the trials before this one that have not failed.

        It waits for those that were begun on another machine at this moment, and have no index yet.
        """
        deadline = time.monotonic() + CLAIM_S
        while True:
            indices = {index_of(one) for one in self.trials()[:number] if self._counts(one)}
            if -1 not in indices or time.monotonic() > deadline:
                return indices
            time.sleep(POLL_S)

    def _fail_dead_trials(self) -> None:
        """Mark the trials as failed whose process was killed, if that can be seen from here."""
        running = [trial for trial in self.trials() if trial.state == self.states.RUNNING]
        dead = {worker for worker in map(worker_of, running) if self._is_dead(worker)}
        for trial in running:
            age_s = time.time() - trial.datetime_start.timestamp()
            never_claimed = not worker_of(trial) and age_s > CLAIM_S
            if worker_of(trial) in dead or never_claimed:
                self.study.tell(trial.number, state=self.states.FAIL, skip_if_finished=True)
                self.say(f"trial {trial.number} was killed: it is trained again")
        for worker in dead:
            shutil.rmtree(self._worker_folder(worker), ignore_errors=True)

    def _is_dead(self, worker: str) -> bool:
        """Return whether a process has a folder here, and its lock is free.

        The storage may be a stranger's: a name that leads out of the folder is nobody's.
        """
        if worker == self.worker or not WORKER.fullmatch(worker):
            return False
        folder = self._worker_folder(worker)
        if not lies_in(folder, self.folder) or not folder.is_dir():
            return False
        try:
            lock_folder(folder, wait_s=0).release()
        except ValueError:
            return False
        return True

    # ---- what becomes of it

    def report(self, claim: Claim, epoch: int, fitness: float) -> bool:
        """Record the fitness of an epoch, from 1; return whether to end the trial early."""
        trial = self.own[claim.number]
        with self.storage.errors_in_a_sentence():
            if self._is_finished(claim):
                return True
            trial.report(fitness, epoch)
            return bool(trial.should_prune())

    def _is_finished(self, claim: Claim) -> bool:
        """Return whether somebody has ended a trial meanwhile, for example in the dashboard."""
        return bool(self.trials()[claim.number].state.is_finished())

    def complete(self, claim: Claim, fitness: float, notes: Mapping[str, Any]) -> None:
        """Record the result of a trial. notes: plain values that are stored with it."""
        self._tell(claim, notes, values=fitness)

    def prune(self, claim: Claim, failure: str = "") -> None:
        """Record a trial that ended early, or that failed because of its values.

        The sampler learns from both. failure: the reason, "" if others were better.
        """
        notes = {"failure": failure} if failure else {}
        self._tell(claim, notes, state=self.states.PRUNED)

    def fail(self, claim: Claim) -> None:
        """Give a trial back, for example after Ctrl-C: it is trained again."""
        self._tell(claim, {}, state=self.states.FAIL)

    def _tell(self, claim: Claim, notes: Mapping[str, Any], **result: Any) -> None:
        trial = self.own.pop(claim.number)
        with self.storage.errors_in_a_sentence():
            if self._is_finished(claim):
                self.say(f"trial {claim.number} was ended by somebody else: its result is dropped")
                return
            for key, value in notes.items():
                trial.set_user_attr(key, value)
            self.study.tell(trial, **result)

    def best(self) -> Any | None:
        """Return the completed trial of the highest fitness, the first of equal ones, or None.

        Trials that somebody has completed by hand have no settings, and are left out.
        """
        completed = [
            trial
            for trial in self.trials()
            if trial.state == self.states.COMPLETE and trial.user_attrs.keys() >= SETTINGS_OF_TRIAL
        ]
        return max(completed, key=lambda trial: (trial.value, -trial.number), default=None)

    def describe(self) -> str:
        """Return how many trials there are of each kind, as text."""
        names = {"COMPLETE": "complete", "PRUNED": "ended early", "RUNNING": "running"}
        states = [trial.state.name for trial in self.trials()]
        counts = {word: states.count(state) for state, word in names.items()}
        parts = [f"{count} {word}" for word, count in counts.items() if count]
        total = counted(self.settings.trials, "trial")
        return f"{', '.join(parts) or 'none'} of {total}"


def require_readable(trial: Any) -> None:
    """Raise TypeError if a trial's own values have other types than those of `Study`."""
    types = {"worker": str, "index": int, "optimizer": str, "batch_size": int, "hyp": dict}
    for name, expected in types.items():
        value = trial.user_attrs.get(name)
        if value is not None and type(value) is not expected:
            raise TypeError(f"trial {trial.number}: {name} is {excerpt(str(value))}")
    if not isinstance(trial.value, float | None):
        raise TypeError(f"trial {trial.number}: fitness is {excerpt(str(trial.value))}")


def worker_of(trial: Any) -> str:
    """Return the process of a trial; "" if it has none yet."""
    return str(trial.user_attrs.get("worker", ""))


def index_of(trial: Any) -> int:
    """Return the index of a trial; -1 if it has none yet."""
    return int(trial.user_attrs.get("index", -1))
