"""training/checkpoints/manager.py: which checkpoint is written when, and only by rank 0."""

import json
import signal
import sys
import threading
from functools import partial

import pytest
import torch

from tests.support.launching import wait_until
from tests.support.small_run import (
    complete_epoch,
    end_epoch,
    files_of,
    run_folder,
    set_averaged_weight,
    small_manager,
    small_state,
)
from tests.support.thread_ranks import run_ranks, thread_worlds
from training.checkpoints import manager as manager_module
from training.checkpoints import preemption
from training.checkpoints.contents import read_checkpoint
from training.checkpoints.preemption import InterruptedRunError, PreemptedExit
from utils.files import checkpoint_file
from utils.terminal import FaultError

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGUSR1")
ALWAYS = 1e-9  # minutes: a save is due after each step
LAST, BEST = "weights/last.pt", "weights/best.pt"


def open_manager(folder, world=None, **flags):
    """The checkpoint manager of a new run in `folder` with these flags of train.py."""
    return small_manager(run_folder(folder), small_state(world), **flags)


def train_epoch(manager, fitness, *, done=False):
    """Train an epoch, record it with this fitness, and save."""
    end_epoch(manager.state)
    complete_epoch(manager.state, fitness)
    manager.after_epoch(done=done)


def weight_of(folder, name=BEST):
    """The number that fills the averaged weights in a checkpoint: the epoch that they are from."""
    saved = checkpoint_file.load(folder / name)
    values = saved["ema" if "ema" in saved else "model"]["weight"]
    assert (values == values[0, 0]).all()
    return values[0, 0].item()


# ---------------------------------------------------------------------- after an epoch


@pytest.mark.parametrize(
    ("flags", "written"),
    [
        ({}, [{LAST, BEST}, set(), set()]),
        (
            {"save_period": 1},
            [{LAST, BEST, "weights/epoch1.pt"}, {"weights/epoch2.pt"}, {"weights/epoch3.pt"}],
        ),
        ({"save_period": 2}, [{LAST, BEST}, {"weights/epoch2.pt"}, set()]),
        ({"nosave": True}, [set(), set(), {LAST, BEST}]),
        ({"nosave": True, "save_period": 2}, [set(), set(), {LAST, BEST}]),
        ({"nosave": True, "save_period": 3}, [set(), set(), {LAST, BEST, "weights/epoch3.pt"}]),
    ],
)
def test_files_that_each_epoch_adds(tmp_path, flags, written):
    """Three epochs, the last one ends the run."""
    manager, before = open_manager(tmp_path / "exp", **flags), set()
    for number, expected in enumerate(written):
        train_epoch(manager, 0.5, done=number == 2)
        assert files_of(tmp_path / "exp") - before == expected
        before |= expected


def test_last_checkpoint_is_of_the_last_epoch_and_best_of_the_best(tmp_path):
    manager, found = open_manager(tmp_path / "exp", save_period=1), []
    for fitness in (0.2, 0.5, 0.4, 0.5, 0.6):
        train_epoch(manager, fitness)
        last, best = (checkpoint_file.load(tmp_path / "exp" / name) for name in (LAST, BEST))
        assert last["epoch"] == weight_of(tmp_path / "exp", LAST)
        assert best["epoch"] == weight_of(tmp_path / "exp", BEST)
        found.append(
            (last["epoch"], best["epoch"], best["metrics"]["fitness"], len(best["results"]))
        )
    assert found == [(1, 1, 0.2, 1), (2, 2, 0.5, 2), (3, 2, 0.5, 2), (4, 2, 0.5, 2), (5, 5, 0.6, 5)]
    assert [weight_of(tmp_path / "exp", f"weights/epoch{number}.pt") for number in range(1, 6)] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_last_checkpoint_can_be_resumed_and_best_has_no_training_state(tmp_path):
    manager = open_manager(tmp_path / "exp")
    train_epoch(manager, 0.5)
    saved = read_checkpoint(str(manager.last))
    assert (saved.epoch, saved.description) == (1, manager.description)
    best = checkpoint_file.load(manager.best)
    assert best.keys() == {*vars(manager.description), "epoch", "metrics", "results", "model"}


def test_nosave_run_saves_the_last_epoch_as_the_best(tmp_path):
    manager = open_manager(tmp_path / "exp", nosave=True)
    for number, fitness in enumerate((0.5, 0.9, 0.1)):
        train_epoch(manager, fitness, done=number == 2)
    assert weight_of(tmp_path / "exp") == 3


def test_epochs_without_validation_make_the_latest_the_best_until_one_is_validated(tmp_path):
    manager, found = open_manager(tmp_path / "exp"), []
    for fitness in (None, None, 0.1, None):
        train_epoch(manager, fitness)
        found.append(weight_of(tmp_path / "exp"))
    assert found == [1, 2, 3, 3]


def test_last_is_written_before_best(tmp_path, monkeypatch):
    """If the run is killed between the two, last.pt has all that best.pt needs."""
    written, real = [], checkpoint_file.save
    monkeypatch.setattr(
        checkpoint_file, "save", lambda path, state: (written.append(path.name), real(path, state))
    )
    train_epoch(open_manager(tmp_path / "exp", save_period=1), 0.5)
    assert written == ["epoch1.pt", "last.pt", "best.pt"]


# ---------------------------------------------------------------------- after a step


@pytest.mark.parametrize(
    ("flags", "saved"),
    [
        ({}, [False, True, False, True]),
        ({"save_minutes": 0}, [False] * 4),
        ({"nosave": True}, [False] * 4),
    ],
)
def test_steps_after_which_a_run_is_saved(tmp_path, monkeypatch, flags, saved):
    """A step takes 5 minutes, and the default of --save-minutes is 10."""
    now = {"now": 0.0}
    monkeypatch.setattr(preemption.time, "monotonic", lambda: now["now"])
    manager, found = open_manager(tmp_path / "exp", **flags), []
    for batch in range(1, 5):
        now["now"] += 300
        manager.after_step(batch)
        found.append(manager.last.exists())
        if manager.last.exists():
            assert read_checkpoint(str(manager.last)).batch == batch
            manager.last.unlink()
    assert found == saved
    assert files_of(tmp_path / "exp") == set()


def test_what_must_be_done_before_a_save_is_done_before_it(tmp_path, monkeypatch):
    """Losses that are still on their way are logged, then the checkpoint notes what is logged."""
    manager = open_manager(tmp_path, save_minutes=ALWAYS)
    calls = []
    real = manager.loggers.recorded
    monkeypatch.setattr(manager.loggers, "recorded", lambda *_: calls.append("noted") or real(*_))
    manager.after_step(1, before_save=lambda: calls.append("logged"))
    assert calls == ["logged", "noted"]
    assert read_checkpoint(str(manager.last)).batch == 1

    rarely = open_manager(tmp_path / "rarely", save_minutes=0)
    rarely.after_step(1, before_save=lambda: calls.append("logged"))
    assert calls == ["logged", "noted"]


def test_save_after_a_step_counts_the_trained_batches(tmp_path):
    manager = open_manager(tmp_path / "exp", save_minutes=ALWAYS)
    train_epoch(manager, 0.5)
    manager.after_step(7)
    saved = read_checkpoint(str(manager.last))
    assert (saved.epoch, saved.batch) == (1, 7)
    assert files_of(tmp_path / "exp") == {LAST, BEST}


# ---------------------------------------------------------------------- pending validation


def start_evaluation(manager, fitness):
    """End an epoch and start its evaluation, which ends when the returned event is set."""
    release = threading.Event()

    def record(_):
        complete_epoch(manager.state, fitness)
        manager.write_pending()

    end_epoch(manager.state)
    manager.background.start(lambda: release.wait(20), record)
    manager.after_epoch(done=False)
    return release


@pytest.mark.parametrize(("fitness", "best"), [(0.4, 1), (0.6, 2)])
def test_best_of_a_pending_epoch_has_the_weights_of_its_end(tmp_path, fitness, best):
    """The next epoch has changed the weights when the result is known."""
    manager = open_manager(tmp_path / "exp")
    train_epoch(manager, 0.5)
    release = start_evaluation(manager, fitness)
    assert weight_of(tmp_path / "exp") == 1
    saved = read_checkpoint(str(manager.last))
    assert (saved.epoch, saved.pending_epoch()) == (2, manager.progress.pending)
    set_averaged_weight(manager.state, 99)
    release.set()
    manager.background.wait()
    assert weight_of(tmp_path / "exp") == best


def test_step_records_a_finished_evaluation_and_waits_for_none(tmp_path):
    manager = open_manager(tmp_path / "exp")
    release = start_evaluation(manager, 0.5)
    manager.after_step(1)
    assert manager.background.busy
    assert manager.progress.pending
    release.set()
    wait_until(lambda: not manager.background.busy, 10, "the end of the evaluation")
    assert manager.progress.pending
    manager.after_step(2)
    assert manager.progress.pending is None
    assert weight_of(tmp_path / "exp") == 1


def test_save_within_an_epoch_waits_for_the_evaluation(tmp_path):
    """A checkpoint within an epoch has no entry for the pending one."""
    manager = open_manager(tmp_path / "exp", save_minutes=ALWAYS)
    release = start_evaluation(manager, 0.5)
    threading.Timer(0.1, release.set).start()
    manager.after_step(3)
    saved = read_checkpoint(str(manager.last))
    assert (saved.epoch, saved.batch, saved.pending, len(saved.results)) == (1, 3, {}, 1)
    assert weight_of(tmp_path / "exp") == 1


def test_weights_of_a_recorded_epoch_are_not_written_again(tmp_path):
    manager = open_manager(tmp_path / "exp")
    release = start_evaluation(manager, 0.5)
    release.set()
    manager.background.wait()
    manager.best.unlink()
    manager.progress.batch = 3
    manager.write_pending()
    assert not manager.best.exists()


# ---------------------------------------------------------------------- signals


@posix
@pytest.mark.parametrize(
    ("name", "code"),
    [("SIGTERM", 143), ("SIGUSR1", 138), ("SIGHUP", 129)],  # 128 + 15, 128 + 10, 128 + 1 on Linux
)
def test_signal_saves_after_the_step_and_ends_the_run(tmp_path, capsys, name, code):
    manager = open_manager(tmp_path / "exp", nosave=True)  # --nosave too
    with manager, manager.trigger:
        manager.after_step(1)
        signal.raise_signal(getattr(signal, name))
        with pytest.raises(PreemptedExit) as ended:
            manager.after_step(2)
    assert ended.value.code == (code if sys.platform == "linux" else 128 + getattr(signal, name))
    assert read_checkpoint(str(manager.last)).batch == 2
    assert files_of(tmp_path / "exp") == {LAST, "preempted.json"}
    about = json.loads((tmp_path / "exp" / "preempted.json").read_text())
    assert about.pop("time") > 0
    assert about == {"signal": name, "epoch": 1, "batch": 2, "checkpoint": str(manager.last)}
    said = f"{name}: saved in epoch 1 after batch 2; continue with --resume {manager.last}\n"
    assert capsys.readouterr().out == said


@posix
def test_handlers_are_restored_when_the_manager_is_left(tmp_path):
    own = signal.getsignal(signal.SIGTERM)
    with open_manager(tmp_path / "exp").trigger:
        assert signal.getsignal(signal.SIGTERM) != own
    assert signal.getsignal(signal.SIGTERM) == own


@posix
@pytest.mark.parametrize("nosave", [False, True])
def test_signal_at_the_end_of_an_epoch_saves_it_and_ends_the_run(tmp_path, nosave):
    manager = open_manager(tmp_path / "exp", nosave=nosave)
    with manager, manager.trigger:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(PreemptedExit):
            train_epoch(manager, 0.5)
    saved = read_checkpoint(str(manager.last))
    assert (saved.epoch, saved.batch) == (1, 0)
    assert files_of(tmp_path / "exp") == {LAST, "preempted.json"} | (set() if nosave else {BEST})


@posix
def test_signal_at_the_end_of_the_run_does_not_interrupt_it(tmp_path):
    manager = open_manager(tmp_path / "exp")
    with manager, manager.trigger:
        signal.raise_signal(signal.SIGTERM)
        train_epoch(manager, 0.5, done=True)
    assert files_of(tmp_path / "exp") == {LAST, BEST}


@posix
@pytest.mark.parametrize("saved", [False, True])
def test_interrupted_validation_saves_the_run_unless_it_is_saved(tmp_path, saved):
    manager = open_manager(tmp_path / "exp")
    with manager, manager.trigger:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(PreemptedExit), manager.interruptible(saved=saved):
            raise InterruptedRunError
    assert files_of(tmp_path / "exp") == {"preempted.json"} | (set() if saved else {LAST})


def test_interruptible_block_passes_other_errors_on(tmp_path):
    manager = open_manager(tmp_path / "exp")
    with manager.interruptible():
        pass
    with pytest.raises(KeyError), manager.interruptible():
        raise KeyError
    assert files_of(tmp_path / "exp") == set()


# ---------------------------------------------------------------------- several processes


def step(manager, batch):
    """What a rank does after its backward pass."""
    manager.trigger.all_reduce_sum(torch.zeros(1))  # with the loss
    manager.after_step(batch)


def save_everything(manager):
    """Call each method that writes."""
    train_epoch(manager, 0.5)
    manager.best.unlink(missing_ok=True)
    manager.restore_best(lambda _: None, done=False)
    step(manager, 1)
    end_epoch(manager.state)
    manager.after_epoch(done=False)
    complete_epoch(manager.state, 0.9)
    manager.write_pending()
    with pytest.raises(InterruptedRunError), manager.interruptible():
        raise InterruptedRunError


def preempted_code(manager):
    """The exit code of a step after which a signal ends the run."""
    with pytest.raises(PreemptedExit) as ended:
        step(manager, 2)
    return ended.value.code


@posix
def test_only_rank_0_writes_files(tmp_path, capsys):
    """Each rank has a folder of its own, so that its files can be told apart; the signal reaches
    only rank 1.
    """
    worlds = thread_worlds(2)
    managers = [
        open_manager(tmp_path / str(world.rank), world, save_period=1, save_minutes=ALWAYS)
        for world in worlds
    ]
    run_ranks([partial(save_everything, manager) for manager in managers], worlds)
    with managers[1].trigger:
        signal.raise_signal(signal.SIGTERM)
    assert run_ranks([partial(preempted_code, manager) for manager in managers], worlds) == [
        143,
        143,
    ]
    assert files_of(tmp_path / "1") == set()
    epochs = {"weights/epoch1.pt", "weights/epoch2.pt"}
    assert files_of(tmp_path / "0") == {LAST, BEST, "preempted.json"} | epochs
    assert weight_of(tmp_path / "0") == 2
    assert capsys.readouterr().out.count("SIGTERM: saved") == 1


# ---------------------------------------------------------------------- best.pt of a resumed run


def resumed_manager(manager, **flags):
    """The manager of the run that resumes from the last.pt of another manager, in the same
    folder.
    """
    state = small_state()
    state.load(read_checkpoint(str(manager.last)))
    return small_manager(manager.folder, state, **flags)


def restored(manager, *, done=False):
    """The lines that `restore_best` logs."""
    said = []
    manager.restore_best(said.append, done=done)
    return said


def test_missing_best_is_written_again_if_the_last_epoch_is_the_best(tmp_path):
    manager = open_manager(tmp_path / "exp")
    train_epoch(manager, 0.5)
    manager.best.unlink()
    assert restored(resumed_manager(manager)) == []
    assert weight_of(tmp_path / "exp") == 1


def test_best_of_an_earlier_epoch_is_kept(tmp_path):
    manager = open_manager(tmp_path / "exp")
    train_epoch(manager, 0.5)
    train_epoch(manager, 0.4)
    resumed = resumed_manager(manager)
    assert restored(resumed) == []
    assert resumed.progress.early_stopping.best_epoch == 0
    assert weight_of(tmp_path / "exp") == 1


@pytest.mark.parametrize("lost", ["missing", "damaged", "of another epoch"])
def test_unusable_best_is_replaced_by_the_last_epoch(tmp_path, lost):
    manager = open_manager(tmp_path / "exp")
    train_epoch(manager, 0.5)
    train_epoch(manager, 0.4)
    if lost == "missing":
        manager.best.unlink()
    elif lost == "damaged":
        manager.best.write_bytes(b"x")
    else:
        checkpoint_file.save(manager.best, checkpoint_file.load(manager.best) | {"epoch": 9})
    resumed = resumed_manager(manager)
    sentence = "is not from epoch 1, the best so far: the search for the best epoch starts again"
    assert restored(resumed) == [f"{manager.best} {sentence}"]
    assert resumed.progress.early_stopping.best_epoch is None
    assert weight_of(tmp_path / "exp") == 2


def test_best_of_a_resumed_nosave_run_is_written_only_if_no_epoch_follows(tmp_path):
    manager = open_manager(tmp_path / "exp", nosave=True)
    train_epoch(manager, 0.5, done=True)
    manager.best.unlink()
    assert restored(resumed_manager(manager, nosave=True)) == []
    assert not manager.best.exists()
    assert restored(resumed_manager(manager, nosave=True), done=True) == []
    assert weight_of(tmp_path / "exp") == 1


# ---------------------------------------------------------------------- Ctrl-C


def interrupt(manager):
    with pytest.raises(KeyboardInterrupt), manager:
        raise KeyboardInterrupt


@pytest.mark.parametrize("flags", [{}, {"nosave": True}])
def test_ctrl_c_names_a_checkpoint_that_this_run_has_written(tmp_path, capsys, flags):
    """An older run's last.pt, in a folder that --exist-ok uses again, is not named."""
    train_epoch(open_manager(tmp_path / "exp"), 0.5)
    manager = small_manager(tmp_path / "exp", **flags)
    interrupt(manager)
    nothing = "nothing is saved yet: start the run again, without --resume\n"
    assert capsys.readouterr().out == nothing
    train_epoch(manager, 0.5)
    interrupt(manager)
    line = f"continue with --resume {tmp_path}/exp/{LAST}\n"
    assert capsys.readouterr().out == (nothing if flags else line)


def test_ctrl_c_just_after_last_was_replaced_says_how_to_continue(tmp_path, capsys, monkeypatch):
    manager = open_manager(tmp_path / "exp")

    def flush_folder(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_file, "_flush_folder", flush_folder)
    with pytest.raises(KeyboardInterrupt), manager:
        train_epoch(manager, 0.5)
    assert capsys.readouterr().out == f"continue with --resume {tmp_path}/exp/{LAST}\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_fault_says_how_to_continue_once_something_is_saved(tmp_path, rank):
    """Whichever rank has the fault: its sentence is the one that is printed."""
    worlds = thread_worlds(2)
    managers = [open_manager(tmp_path / str(world.rank), world) for world in worlds]
    for manager in managers:
        manager.last = managers[0].last  # ranks share a run folder, and rank 0 writes

    def fail():
        with managers[rank]:
            raise FaultError("a.png cannot be read")

    with pytest.raises(FaultError, match=r"^a\.png cannot be read$"):
        fail()
    run_ranks([partial(train_epoch, manager, 0.5) for manager in managers], worlds)
    with pytest.raises(FaultError) as ended:
        fail()
    last = tmp_path / "0" / LAST
    assert str(ended.value) == f"a.png cannot be read; continue with --resume {last}"


def test_fault_with_advice_of_its_own_is_passed_on(tmp_path):
    class OwnAdviceError(FaultError):
        says_how_to_continue = True

    manager = open_manager(tmp_path / "exp")
    train_epoch(manager, 0.5)
    with pytest.raises(OwnAdviceError, match=r"^lower the rate$"), manager:
        raise OwnAdviceError("lower the rate")


def test_only_rank_0_speaks_at_ctrl_c(tmp_path, capsys):
    """Only it has written a checkpoint, and knows of one."""
    manager = small_manager(tmp_path)
    manager.world = thread_worlds(2)[1]
    interrupt(manager)
    assert capsys.readouterr().out == ""


def test_ctrl_c_of_a_resumed_run_names_its_checkpoint(tmp_path, capsys):
    state = small_state()
    state.progress.batch = 3
    interrupt(small_manager(run_folder(tmp_path / "exp"), state))
    assert capsys.readouterr().out.endswith(f"--resume {tmp_path}/exp/{LAST}\n")


def test_ctrl_c_that_has_also_ended_the_reader_of_the_output_is_no_fault(tmp_path, monkeypatch):
    def closed(text):
        raise BrokenPipeError

    manager = open_manager(tmp_path / "exp")
    train_epoch(manager, 0.5)
    monkeypatch.setattr(manager_module, "print_lines", closed)
    interrupt(manager)
