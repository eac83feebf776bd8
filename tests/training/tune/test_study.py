"""training/tune/study.py: trials of one and of several processes, killed ones, and pruning."""

import csv
import os
import random
import re
import sqlite3
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.launching import wait_until
from tests.support.own_process import start_program
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp
from training.tune.results import best_command, typed, write_results
from training.tune.space import Parameter
from training.tune.storage import Storage
from training.tune.study import Study, StudySettings
from utils.log import say_nothing
from utils.terminal import FaultError

pytestmark = pytest.mark.skipif(not find_spec("optuna"), reason="an optional package")

SPACE = (
    Parameter("lr0", low=1e-5, high=0.1, log=True),
    Parameter("imgsz", low=64, high=128, step=32),
    Parameter("optimizer", choices=("SGD", "AdamW")),
)
SETTINGS = StudySettings(
    name="exp", space=SPACE, trials=4, pruner="median", seed=0, epochs=10, compared={"--imgsz": 64}
)
NOTES = {"optimizer": "SGD", "batch_size": 4, "hyp": Hyp().as_dict()}


def open_study(folder, storage="", say=say_nothing, **changes):
    return Study(replace(SETTINGS, **changes), Storage(storage, folder), folder, say)


def log_in(folder):
    """The storage of tests whose subject is not the storage: a tenth of the time of a database."""
    return str(folder / "study.log")


def fitness_of(values):
    """The fitness of a pretended training."""
    return 1 - abs(values["lr0"] - 0.01)


def train_all(folder, *, most=99, **changes):
    """Pretend to train the trials that are left; return the values of each, by index."""
    trained = {}
    with open_study(folder, **changes) as study:
        for _ in range(most):
            claim = study.claim()
            if claim is None:
                break
            trained[claim.index] = dict(claim.values)
            study.complete(claim, fitness_of(claim.values), NOTES)
        write_results(study)
    return trained


def rows(folder):
    with open(folder / "trials.csv") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The values of 14 trials of one process: the sampler has a model for the last ones."""
    folder = tmp_path_factory.mktemp("straight")
    return train_all(folder, storage=log_in(folder), trials=14)


@pytest.mark.slow
def test_trials_of_a_study_are_those_of_its_seed(straight, tmp_path):
    assert list(straight) == list(range(14))
    assert len({values["lr0"] for values in straight.values()}) == 14
    assert train_all(tmp_path / "again", trials=14) == straight
    assert train_all(tmp_path / "other", trials=3, seed=1)[0] != straight[0]


@pytest.mark.slow
def test_study_continues_where_it_ended(straight, tmp_path):
    train = partial(train_all, tmp_path, storage=log_in(tmp_path))
    first = train(trials=14, most=9)
    second = train(trials=14)
    assert list(second) == [9, 10, 11, 12, 13]
    assert first | second == straight
    assert train(trials=14) == {}  # all are done
    assert list(train(trials=15)) == [14]  # one more
    written = rows(tmp_path)
    assert [row["index"] for row in written] == [str(index) for index in range(15)]
    assert {row["state"] for row in written} == {"complete"}


@pytest.mark.parametrize("worker", ["{outside}", "../../outside", "..", ".", "", "link"])
def test_worker_of_a_strange_storage_removes_no_folder(tmp_path, worker):
    outside = tmp_path / "outside"
    outside.mkdir()
    with open_study(tmp_path / "exp") as study:
        (study.folder / "workers" / "link").symlink_to(outside)
        trial = study.study.ask()
        trial.set_user_attr("worker", worker.format(outside=outside))
        trial.set_user_attr("index", 3)
        assert study.claim().index == 0
        assert list(outside.iterdir()) == []
        assert (study.folder / "workers" / study.worker).is_dir()


def test_study_that_is_refused_leaves_no_worker(tmp_path):
    train_all(tmp_path, most=1)
    with pytest.raises(ValueError, match="was begun with"), open_study(tmp_path, compared={}):
        pass
    assert list((tmp_path / "workers").iterdir()) == []


@pytest.mark.slow
def test_trial_of_a_process_that_ended_is_trained_again(straight, tmp_path):
    """It was not completed, for example because the process was killed; and one given back."""
    storage = log_in(tmp_path)
    with open_study(tmp_path, storage, trials=14) as study:
        for _ in range(11):
            claim = study.claim()
            study.complete(claim, fitness_of(claim.values), NOTES)
        assert study.claim().index == 11
    said = []
    with open_study(tmp_path, storage, trials=14, say=said.append) as study:
        claim = study.claim()
        assert said == ["trial 11 was killed: it is trained again"]
        assert (claim.number, claim.index, claim.values) == (12, 11, straight[11])
        study.fail(claim)
        assert study.claim().index == 11
    left = train_all(tmp_path, storage=storage, trials=14)
    assert left == {index: straight[index] for index in (11, 12, 13)}
    states = [row["state"] for row in rows(tmp_path)]
    assert states == ["complete"] * 11 + ["fail"] * 3 + ["complete"] * 3


def work(folder: str, storage: str, trials: str, hangs: str) -> None:
    """Pretend to train trials in a process of its own, which hangs in the first one if wanted."""
    numbers = random.Random(os.getpid())
    with open_study(Path(folder), storage, trials=int(trials)) as study:
        while (claim := study.claim()) is not None:
            if hangs == "hangs":
                Path("claimed").touch()
                time.sleep(600)
            time.sleep(numbers.random() / 20)
            study.complete(claim, fitness_of(claim.values), NOTES)
        write_results(study)


PROGRAM = "import sys; from tests.training.tune.test_study import work; work(*sys.argv[1:])"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kills processes")
@pytest.mark.parametrize("storage", ["", "study.log"])
def test_processes_share_a_study_and_one_is_killed(tmp_path, storage):
    """Each index is completed once, that of the killed process by another one."""
    storage = storage and str(tmp_path / storage)
    study = tmp_path / "study"
    processes = []
    try:
        for name, task in (("a", "hangs"), ("b", "trains"), ("c", "trains")):
            folder = tmp_path / name
            folder.mkdir()
            processes.append(start_program(PROGRAM, study, storage, 6, task, folder=folder))
            if task == "hangs":
                wait_until((folder / "claimed").exists, 60, "the first trial")
        for process in processes[1:]:
            process.join(60)
        errors = [(tmp_path / name / "stderr").read_text() for name in "abc"]
        assert [process.exitcode for process in processes] == [None, 0, 0], errors
        states = [row["state"] for row in rows(study)]
        assert sorted(states) == ["complete"] * 5 + ["running"]  # it lives
    finally:
        for process in processes:
            process.kill()
            process.join()

    assert list(train_all(study, storage=storage, trials=6)) == [0]
    written = rows(study)
    done = [int(row["index"]) for row in written if row["state"] == "complete"]
    assert sorted(done) == list(range(6))
    assert [row["state"] for row in written].count("fail") == 1
    assert len({row["lr0"] for row in written if row["state"] == "complete"}) == 6
    assert list((study / "workers").iterdir()) == []


def test_other_settings_need_another_study(tmp_path):
    train_all(tmp_path, trials=1)
    sentence = r"^the study exp in sqlite:.*study.db was begun with --imgsz 64, now it is 128: ch"
    changed = open_study(tmp_path, compared={"--imgsz": 128})
    with pytest.raises(ValueError, match=sentence), changed:
        pass
    other = train_all(tmp_path, name="other", trials=1, compared={"--imgsz": 128})
    assert list(other) == [0]


def test_settings_of_a_study_without_results_are_replaced(tmp_path):
    """A first command with a wrong --data, for example."""
    with open_study(tmp_path, compared={"--data": "typo"}) as study:
        study.fail(study.claim())
    assert list(train_all(tmp_path, compared={"--data": "right"}, trials=1)) == [0]


def test_trial_of_another_machine_is_left_alone(tmp_path):
    """Two folders and one storage, as on two machines; none steals the other's trial."""
    storage = str(tmp_path / "study.log")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        open_study(tmp_path / "a", storage, trials=2) as first,
        open_study(tmp_path / "b", storage, trials=2) as second,
    ):
        assert (first.claim().index, second.claim().index) == (0, 1)
        assert first.claim() is second.claim() is None
    with open_study(tmp_path / "a", storage, trials=2) as first:
        assert first.claim().index == 0  # its own one, which has ended
        assert first.claim() is None


def test_index_that_another_machine_takes_at_the_same_moment_is_not_taken_twice(tmp_path):
    """The other one has asked first, and writes its index a moment later."""
    storage = str(tmp_path / "study.log")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        open_study(tmp_path / "a", storage) as first,
        open_study(tmp_path / "b", storage) as second,
    ):
        trial = first.study.ask()
        late = threading.Timer(0.3, trial.set_user_attr, ("index", 0))
        late.start()
        assert second.claim().index == 1
        late.join()


def test_trial_that_somebody_has_ended_is_dropped(tmp_path):
    said = []
    with open_study(tmp_path, say=said.append) as study:
        claim = study.claim()
        study.study.tell(claim.number, state=study.states.FAIL)  # as in optuna-dashboard
        assert study.report(claim, 1, 0.5)  # it need not be trained any longer
        study.complete(claim, 0.5, NOTES)
        assert said == ["trial 0 was ended by somebody else: its result is dropped"]
        assert study.claim().index == 0


ATTRIBUTES = "update trial_user_attributes set value_json"
DAMAGED_ENTRIES = {
    "update study_user_attributes set value_json = '5'": "'int' object is not iterable",
    "update study_user_attributes set value_json = 'x{'": "Expecting value",
    "update trials set state = 'LOST'": "'LOST' is not among the defined enum values",
    "update trial_values set value = 'high'": "trial 0: fitness is high",
    f"{ATTRIBUTES} = '{{}}' where key = 'index'": "trial 0: index is {}",
    f"{ATTRIBUTES} = '7' where key = 'hyp'": "trial 0: hyp is 7",
    "update trial_params set distribution_json = '{}'": "'type'",
}


def change_database(file: Path, change: str) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.executescript(change)
        database.commit()


@pytest.mark.parametrize("change", DAMAGED_ENTRIES)
def test_entry_that_was_changed_by_hand_is_reported(tmp_path, change):
    train_all(tmp_path, trials=1)
    file = tmp_path / "study.db"
    change_database(file, change)
    sentence = f"--storage sqlite:///{file}: an entry is damaged ({DAMAGED_ENTRIES[change]}"
    with pytest.raises(FaultError, match=f"^{re.escape(sentence)}"):
        train_all(tmp_path, trials=1)


def test_damaged_entry_of_another_study_is_not_read(tmp_path):
    train_all(tmp_path, trials=1)
    change_database(tmp_path / "study.db", "update studies set study_name = 'x'")
    change_database(tmp_path / "study.db", "update study_user_attributes set value_json = '5'")
    assert list(train_all(tmp_path, trials=1)) == [0]


def test_trial_that_was_completed_by_hand_is_not_the_best(tmp_path):
    with open_study(tmp_path) as study:
        first, second = study.claim(), study.claim()
        study.complete(first, 0.9, {})  # as a dashboard does
        assert study.best() is None
        study.complete(second, 0.1, NOTES)
        write_results(study)
        assert study.best().number == second.number
    assert [row["fitness"] for row in rows(tmp_path)] == ["0.9", "0.1"]


@pytest.mark.slow
def test_bad_trials_end_early(tmp_path):
    """MedianPruner: after five trials, a trial below their median at the same epoch."""
    with open_study(tmp_path, log_in(tmp_path), trials=8) as study:
        for number in range(5):
            claim = study.claim()
            assert not any(study.report(claim, epoch, number / 10) for epoch in range(1, 11))
            study.complete(claim, number / 10, NOTES)
        bad, good = study.claim(), study.claim()
        # no pruning in the first fifth of 10 epochs
        assert [study.report(bad, epoch, 0.1) for epoch in (1, 2, 3)] == [False, False, True]
        assert [study.report(good, epoch, 0.3) for epoch in (1, 2, 3)] == [False, False, False]
        study.prune(bad)
        study.prune(good, "not finite")
        assert study.best().number == 4
        assert study.describe() == "5 complete, 2 ended early of 8 trials"
        write_results(study)
    written = rows(tmp_path)
    assert [(row["state"], row["fitness"], row["epochs"]) for row in written[4:]] == [
        ("complete", "0.4", "10"),
        ("pruned", "0.1", "3"),
        ("pruned", "0.3", "3"),
    ]
    assert [row["failure"] for row in written[5:]] == ["", "not finite"]


@pytest.mark.slow
@pytest.mark.parametrize(("pruner", "ends"), [("hyperband", True), ("none", False)])
def test_other_pruners(tmp_path, pruner, ends):
    with open_study(tmp_path, log_in(tmp_path), trials=12, pruner=pruner, epochs=9) as study:
        ended = 0
        for number in range(12):
            claim = study.claim()
            ended += any(study.report(claim, epoch, -number) for epoch in (1, 3, 9))
            study.complete(claim, -number, NOTES)
    assert (ended > 0) == ends


def test_results_of_a_study_without_trials(tmp_path):
    with open_study(tmp_path) as study:
        write_results(study)
        assert study.best() is None
        assert study.describe() == "none of 4 trials"
    assert rows(tmp_path) == []
    assert not (tmp_path / "hyp_tune.yaml").exists()


def test_weights_are_kept_of_the_best_trial_only(tmp_path):
    for number in range(4):
        weights = tmp_path / "trials" / str(number) / "weights"
        weights.mkdir(parents=True)
        for name in ("last.pt", "best.pt"):
            (weights / name).touch()
    with open_study(tmp_path) as study:
        for fitness in (0.5, 0.75, 0.25):
            study.complete(study.claim(), fitness, NOTES)
        study.claim()  # still running
        write_results(study)
    kept = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.pt")}
    assert kept == {
        "trials/1/weights/best.pt",
        "trials/3/weights/best.pt",
        "trials/3/weights/last.pt",
    }


def test_command_of_the_best_trial_repeats_the_flags():
    params = {"lr0": 0.02, "imgsz": 96, "optimizer": "AdamW", "rect": True}
    best = SimpleNamespace(params=params, user_attrs={"batch_size": 8})
    flags = TrainConfig(
        data=("my data.yaml",),
        epochs=3,
        imgsz=640,
        fitness="AP[two words]",
        given=frozenset({"data", "epochs", "imgsz", "project", "fitness"}),
    )
    assert best_command(flags, Path("runs/tune/exp/hyp_tune.yaml"), best) == (
        "python train.py --data 'my data.yaml' --epochs 3 --imgsz 96 --rect "
        "--fitness 'AP[two words]' --hyp runs/tune/exp/hyp_tune.yaml --batch-size 8"
    )
    assert typed("names", ["a", "b"]) == ["--names", "a", "b"]
