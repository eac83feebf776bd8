"""training/validation.py: when an epoch is validated, and how its result is recorded and
decides.
"""

import math
import signal
import sys
import threading
from functools import partial

import pytest

from tests.support.launching import wait_until
from tests.support.small_run import (
    NAMES,
    end_epoch,
    files_of,
    run_folder,
    set_averaged_weight,
    small_manager,
    small_state,
    train_steps,
)
from tests.support.thread_ranks import run_ranks, thread_worlds
from training import validation as validation_module
from training.checkpoints.contents import read_checkpoint
from training.checkpoints.preemption import InterruptedRunError, PreemptedExit
from training.results import COLUMN_OF
from training.settings.config import TrainConfig
from training.validation import EpochValidation
from utils.files import checkpoint_file
from utils.log import EpochEnded, RunLog
from utils.metrics.evaluation import DEFAULT_FITNESS

CRITERION = object()  # passed on to predict_split
COLUMNS = {"precision": 0.1, "recall": 0.2, "AP50": 0.3, "AP": 0.4}


class Events(list):
    """A sink that keeps the events of a run, and the threads that sent them."""

    def handle(self, event):
        self.append((event, threading.current_thread()))


class FakeLoader:
    """Counts the passes that are begun."""

    begun = 0

    def begin(self):
        self.begun += 1


class FakeEvaluation:
    """The metrics of a validation with this fitness."""

    columns, losses = COLUMNS, {"box": 0.6}

    def __init__(self, fitness):
        self.fitness = fitness

    def as_dict(self, names, fitness):
        return {"fitness": self.fitness, "names": list(names)}


class FakePredictions:
    """Detections whose evaluation gives this fitness; it waits for `release`."""

    def __init__(self, fitness):
        self.fitness, self.release, self.thread = fitness, threading.Event(), None

    def evaluate(self):
        self.thread = threading.current_thread()
        assert self.release.wait(20)
        return FakeEvaluation(self.fitness)


def predictions_of(fitness):
    """Detections that are evaluated at once."""
    predictions = FakePredictions(fitness)
    predictions.release.set()
    return predictions


def open_validation(folder, world=None, *, state=None, **flags):
    """The validation of a new run with these flags, and the events that it sends."""
    cfg = TrainConfig(**flags)
    state = state or small_state(world, patience=cfg.stopping_patience)
    checkpoints = small_manager(run_folder(folder), state, **flags)
    events = Events()
    log = RunLog(active=state.world.is_main, sinks=[events])
    validation = EpochValidation(
        state,
        FakeLoader(),
        CRITERION,
        checkpoints,
        checkpoints.background,
        log,
        NAMES,
        fitness=DEFAULT_FITNESS,
        epochs=cfg.epochs,
        every=cfg.validate_every,
    )
    return validation, events


def train_epochs(validation, results):
    """Train an epoch per result, as train.py does: a fitness, or None without validation. Stops
    early if decided.
    """
    progress = validation.progress
    for fitness in results:
        train_steps(validation.state)
        validation.is_due = lambda epoch, fitness=fitness: fitness is not None
        validation._detect = partial(predictions_of, fitness)
        validation.after_epoch("9 images/s", 0.01)
        validation.checkpoints.after_epoch(done=progress.finished(validation.epochs))
        if progress.early_stopping.should_stop():
            break
    validation.background.wait()
    return progress


# ---------------------------------------------------------------------- when


@pytest.mark.parametrize(
    ("flags", "validated"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"val_period": 3}, [2, 5, 6]),
        ({"val_period": 7}, [6]),
        ({"val_period": 99}, [6]),
        ({"noval": True}, [6]),
        ({"noval": True, "val_period": 2}, [6]),
    ],
)
def test_epochs_that_are_validated(tmp_path, flags, validated):
    """Epochs counted from 0: the last of 7 always is."""
    validation, _ = open_validation(tmp_path / "exp", epochs=7, **flags)
    assert [epoch for epoch in range(7) if validation.is_due(epoch)] == validated


@pytest.mark.parametrize(
    ("flags", "deciding"),
    [
        (
            {"patience": 2},
            [3, 4, 5, 6],
        ),  # the best epoch is 1: from 3 on the run stops unless it is better
        ({"patience": 4}, [5, 6]),
        ({"patience": 0}, [6]),
        ({"patience": 2, "noval": True}, [6]),
    ],
)
def test_epochs_whose_result_decides_if_the_run_continues(tmp_path, flags, deciding):
    validation, _ = open_validation(tmp_path / "exp", epochs=7, **flags)
    assert [epoch for epoch in range(7) if validation.decides(epoch)] == [
        6
    ]  # nothing is validated yet
    validation.progress.early_stopping.update(1, 0.5)
    assert [epoch for epoch in range(2, 7) if validation.decides(epoch)] == deciding


# ---------------------------------------------------------------------- in the background


def test_detections_are_evaluated_in_the_background_and_recorded_by_wait(tmp_path):
    validation, events = open_validation(tmp_path / "exp", epochs=3)
    progress, predictions = validation.progress, FakePredictions(0.5)
    end_epoch(validation.state)
    validation._evaluate(predictions)
    assert validation.background.busy
    assert (progress.results, progress.metrics, events) == ([], {}, [])
    predictions.release.set()
    wait_until(lambda: not validation.background.busy, 10, "the end of the evaluation")
    assert (progress.results, progress.metrics, events) == ([], {}, [])
    validation.background.wait()
    assert predictions.thread is not threading.current_thread()
    assert [thread for _, thread in events] == [threading.current_thread()]
    assert progress.pending is None
    assert progress.metrics == {"fitness": 0.5, "names": NAMES}
    validation.background.wait()  # a result is recorded once
    assert len(progress.results) == len(events) == 1


def test_failed_evaluation_ends_the_run_when_it_is_recorded(tmp_path):
    validation, events = open_validation(tmp_path / "exp", epochs=3)
    predictions = predictions_of(0.5)
    predictions.evaluate = lambda: {}["AP"]
    end_epoch(validation.state)
    validation._evaluate(predictions)
    with pytest.raises(KeyError):
        validation.background.wait()
    assert events == []


# ---------------------------------------------------------------------- what is recorded


def test_row_and_line_of_a_validated_epoch(tmp_path):
    validation, events = open_validation(tmp_path / "exp", epochs=30)
    validation._started -= 60  # the epoch has taken a minute, and 29 are left
    progress = train_epochs(validation, [0.5])
    ((event, _),) = events
    assert isinstance(event, EpochEnded)
    assert event.folder == tmp_path / "exp"
    row = dict(event.row)
    assert row.pop("time") >= 0
    assert row == {
        "epoch": 1,
        "train/box_loss": 0.5,
        **{COLUMN_OF[name]: value for name, value in COLUMNS.items()},
        "val/box_loss": 0.6,
        "lr": 0.01,
    }
    assert event.rows == progress.results == [event.row]
    line = " 1/30  box 0.5000  P 0.1000 R 0.2000 mAP50 0.3000 mAP50-95 0.4000  9 images/s, 0:29:0"
    assert event.text.startswith(line)
    assert event.text.endswith(" left")


def test_epoch_without_validation_has_a_row_and_changes_no_metrics(tmp_path):
    validation, events = open_validation(tmp_path / "exp", epochs=3)
    progress = train_epochs(validation, [0.5, None])
    assert progress.metrics == {"fitness": 0.5, "names": NAMES}
    assert progress.early_stopping.state_dict() == {"fitness": 0.5, "epoch": 0, "latest": 0}
    first, second = progress.results
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert {name for name in second if math.isnan(second[name])} == {
        "val/box_loss",
        *COLUMN_OF.values(),
    }
    assert "not validated" in events[1][0].text


def test_time_left_is_unknown_until_this_process_has_trained_an_epoch(tmp_path):
    """A resumed run may begin with the pending validation of an epoch that an earlier process has
    trained.
    """
    state = small_state()
    end_epoch(state)
    validation, events = open_validation(tmp_path / "exp", state=state, epochs=3)
    validation._evaluate(predictions_of(0.5))
    validation.background.wait()
    train_epochs(validation, [0.6])
    texts = [event.text for event, _ in events]
    assert texts[0].endswith("  9 images/s")
    assert texts[1].endswith(" left")


# ---------------------------------------------------------------------- what is decided


@pytest.mark.parametrize(
    ("flags", "fitness", "best", "trained"),
    [
        ({"patience": 2}, [0.5, 0.4, 0.3, 0.9], 0, 3),
        ({"patience": 2}, [0.2, 0.5, 0.5, 0.4, 0.9], 1, 4),
        ({"patience": 2}, [0.5, 0.4, 0.6, 0.5, 0.7, 0.6], 4, 6),
        ({"patience": 2, "val_period": 2}, [None, 0.5, None, 0.4, None, 0.9], 1, 4),
        ({"patience": 0}, [0.5, 0.4, 0.3, 0.2, 0.1], 0, 5),
    ],
)
def test_metrics_decide_the_best_epoch_and_when_the_run_stops(
    tmp_path, flags, fitness, best, trained
):
    """trained: number of epochs. best.pt is from the best epoch, whose number fills its weights."""
    validation, _ = open_validation(tmp_path / "exp", epochs=len(fitness), **flags)
    progress = train_epochs(validation, fitness)
    assert (progress.early_stopping.best_epoch, progress.epoch, len(progress.results)) == (
        best,
        trained,
        trained,
    )
    saved = checkpoint_file.load(tmp_path / "exp" / "weights" / "best.pt")
    assert saved["epoch"] == best + 1
    assert saved["metrics"]["fitness"] == fitness[best]
    assert saved["model"]["weight"].eq(best + 1).all()
    last = read_checkpoint(str(tmp_path / "exp" / "weights" / "last.pt"))
    assert last.epoch == trained
    assert last.pending == {}


def test_best_is_written_when_the_result_is_known_with_the_weights_that_were_validated(tmp_path):
    validation, _ = open_validation(tmp_path / "exp", epochs=3)
    predictions, checkpoints = FakePredictions(0.5), validation.checkpoints
    end_epoch(checkpoints.state)
    validation._evaluate(predictions)
    checkpoints.after_epoch(done=False)
    assert files_of(tmp_path / "exp") == {"weights/last.pt"}
    set_averaged_weight(checkpoints.state, 99)  # the next epoch trains
    predictions.release.set()
    validation.background.wait()
    assert checkpoint_file.load(checkpoints.best)["model"]["weight"].eq(1).all()


def test_all_ranks_hold_the_metrics_of_rank_0_and_stop_together(tmp_path):
    """Fitness differs in the last bits between machines: on rank 1 the second epoch would be the
    best.
    """
    worlds, fitness = thread_worlds(2), ([0.5, 0.5, 0.9], [0.5, 0.5000001, 0.9])
    opened = [
        open_validation(tmp_path / str(world.rank), world, epochs=3, patience=1) for world in worlds
    ]
    works = [
        partial(train_epochs, one, values) for (one, _), values in zip(opened, fitness, strict=True)
    ]
    found = run_ranks(works, worlds)
    for progress in found:
        assert (progress.epoch, progress.metrics["fitness"]) == (2, 0.5)
        assert progress.early_stopping.state_dict() == {"fitness": 0.5, "epoch": 0, "latest": 1}
        assert progress.results[0].keys() == found[0].results[0].keys()
    assert [len(events) for _, events in opened] == [2, 0]
    assert files_of(tmp_path / "0") == {"weights/last.pt", "weights/best.pt"}
    assert files_of(tmp_path / "1") == set()


# ---------------------------------------------------------------------- detection


def test_averaged_weights_are_validated(tmp_path, monkeypatch):
    seen = []

    def predict(*arguments, interrupted, **options):
        seen.append((arguments, options, interrupted()))
        return "detections"

    monkeypatch.setattr(validation_module, "predict_split", predict)
    validation, _ = open_validation(tmp_path / "exp", epochs=3)
    state = validation.state
    assert validation._detect() == "detections"
    options = {"criterion": CRITERION, "unlabeled": 0, "active": True}
    assert seen == [((state.ema.model, validation.loader, state.world), options, False)]
    assert validation.loader.begun == 1  # the next pass, after this one


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGUSR1")
def test_signal_during_detection_saves_the_run(tmp_path, monkeypatch):
    def predict(*_, interrupted, **__):
        signal.raise_signal(signal.SIGUSR1)
        if interrupted():
            raise InterruptedRunError

    monkeypatch.setattr(validation_module, "predict_split", predict)
    validation, _ = open_validation(tmp_path / "exp", epochs=3)
    checkpoints = validation.checkpoints
    validation.progress.batch = 5
    with pytest.raises(PreemptedExit), checkpoints.trigger:
        validation.after_epoch("9 images/s", 0.01)
    assert read_checkpoint(str(checkpoints.last)).batch == 5
    assert files_of(tmp_path / "exp") == {"weights/last.pt", "preempted.json"}


def test_pending_epoch_of_a_resumed_run_is_validated_first(tmp_path):
    state = small_state()
    validation, events = open_validation(tmp_path / "exp", state=state, epochs=3)
    validation._detect = partial(predictions_of, 0.5)
    validation.finish_pending()  # there is none
    assert events == []
    end_epoch(state)
    validation.finish_pending()
    assert (len(events), state.progress.pending) == (1, None)
    assert state.progress.metrics["fitness"] == 0.5
