"""training/checkpoints/preemption.py: all processes save after the same step, whichever of
them asks for it.
"""

import signal
import sys
import threading

import pytest
import torch
import torch.distributed as dist

from tests.support.thread_ranks import run_ranks, thread_worlds
from training.checkpoints import preemption
from training.checkpoints.preemption import SIGNALS, PreemptedExit, SaveTrigger
from utils.distributed.world import World
from utils.threads import BackgroundTask

CPU = torch.device("cpu")
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGUSR1")


def idle() -> BackgroundTask:
    return BackgroundTask("nothing")


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set: clock["now"] are seconds."""
    now = {"now": 1000.0}
    monkeypatch.setattr(preemption.time, "monotonic", lambda: now["now"])
    return now


def step_of(triggers, counts=(0,)):
    """One step of all ranks: what `all_reduce_sum` and `check` return on each."""

    def step(trigger):
        return trigger.all_reduce_sum(torch.tensor(counts)).tolist(), trigger.check()

    return run_ranks(
        [lambda one=one: step(one) for one in triggers], [one.world for one in triggers]
    )


# ---------------------------------------------------------------------- signals


@posix
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_signal_is_recorded_and_does_not_end_the_process(number):
    with SaveTrigger(World(CPU), 0, idle()) as trigger:
        assert not trigger.signal_received()
        assert trigger.check() == (False, True)
        assert trigger.agreed_signal() == ""
        signal.raise_signal(number)
        assert trigger.signal_received()
        assert trigger.check() == (True, True)
        assert trigger.agreed_signal() == number.name


@posix
def test_previous_signal_handlers_are_restored():
    seen = []
    previous = {
        number: signal.signal(number, lambda number, _: seen.append(number)) for number in SIGNALS
    }
    try:
        own = [signal.getsignal(number) for number in SIGNALS]
        trigger = SaveTrigger(World(CPU), 0, idle())
        with trigger:
            assert all(signal.getsignal(number) not in own for number in SIGNALS)
        assert [signal.getsignal(number) for number in SIGNALS] == own
        with pytest.raises(PreemptedExit), trigger:
            raise PreemptedExit(143)
        assert [signal.getsignal(number) for number in SIGNALS] == own
        signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@posix
def test_hangup_that_nohup_has_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SaveTrigger(World(CPU), 0, idle()) as trigger:
            signal.raise_signal(signal.SIGHUP)
            assert not trigger.signal_received()
            signal.raise_signal(signal.SIGTERM)
            assert trigger.agreed_signal() == "SIGTERM"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_trigger_sets_no_handlers_in_other_threads():
    """Python refuses that with a ValueError."""
    before, errors = [signal.getsignal(number) for number in SIGNALS], []

    def enter():
        try:
            with SaveTrigger(World(CPU), 0, idle()):
                assert [signal.getsignal(number) for number in SIGNALS] == before
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert errors == []


@posix
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_signal_of_one_rank_makes_all_ranks_save_after_the_same_step(rank):
    worlds = thread_worlds(3)
    triggers = [SaveTrigger(world, 0, idle()) for world in worlds]
    assert [found for _, found in step_of(triggers)] == [(False, True)] * 3
    with triggers[rank]:
        signal.raise_signal(signal.SIGTERM)
    assert [trigger.signal_received() for trigger in triggers] == [
        other == rank for other in range(3)
    ]
    assert [found for _, found in step_of(triggers)] == [(True, True)] * 3
    assert run_ranks([trigger.agreed_signal for trigger in triggers], worlds) == ["SIGTERM"] * 3


@posix
def test_ranks_agree_on_one_of_two_signals():
    """The number of SIGTERM, 15, is higher than that of SIGUSR1."""
    worlds = thread_worlds(2)
    triggers = [SaveTrigger(world, 0, idle()) for world in worlds]
    for trigger, number in zip(triggers, (signal.SIGUSR1, signal.SIGTERM), strict=True):
        with trigger:
            signal.raise_signal(number)
    assert (
        run_ranks([trigger.agreed_signal for trigger in triggers], worlds)
        == [max(SIGNALS).name] * 2
    )


# ---------------------------------------------------------------------- interval


def test_save_is_due_after_so_many_minutes_and_again_after_a_save(clock):
    trigger = SaveTrigger(World(CPU), 2, idle())
    clock["now"] += 119.9
    assert trigger.check() == (False, True)
    clock["now"] += 0.1  # 120 s = 2 minutes
    assert trigger.check() == (True, True)
    assert trigger.check() == (True, True)  # until it is saved
    trigger.mark_saved()
    assert trigger.check() == (False, True)
    clock["now"] += 120
    assert trigger.check() == (True, True)


def test_without_interval_only_a_signal_saves(clock):
    trigger = SaveTrigger(World(CPU), 0, idle())
    clock["now"] += 1e9
    assert trigger.check() == (False, True)


@pytest.mark.parametrize(("rank", "saves"), [(0, True), (1, False)])
def test_interval_of_rank_0_decides_for_all_ranks(clock, rank, saves):
    """Clocks differ between machines: the interval of another rank does not count."""
    triggers = [
        SaveTrigger(world, 2 if world.rank == rank else 0, idle()) for world in thread_worlds(2)
    ]
    clock["now"] += 121
    assert [found for _, found in step_of(triggers)] == [(saves, True)] * 2


def test_launcher_that_has_exited_does_not_fail_a_save(monkeypatch):
    def wait(_):
        raise dist.DistError("connection reset")

    monkeypatch.setattr(World, "wait_for_main", wait)
    SaveTrigger(World(CPU), 2, idle()).mark_saved()


# ---------------------------------------------------------------------- sums


def test_counts_of_the_loss_are_summed_without_the_requests():
    """Two ranks: 3 + 3 and 5 + 5; a single process returns its own counts."""
    triggers = [SaveTrigger(world, 0, idle()) for world in thread_worlds(2)]
    assert [sums for sums, _ in step_of(triggers, (3, 5))] == [[6, 10]] * 2
    assert SaveTrigger(World(CPU), 0, idle()).all_reduce_sum(torch.tensor([3, 5])).tolist() == [
        3,
        5,
    ]


def test_request_in_any_batch_of_a_step_is_kept_until_its_end(clock):
    """With accumulation a step has several sums; a request must not be lost, nor reported twice."""
    triggers = [SaveTrigger(world, 2, idle()) for world in thread_worlds(2)]

    def step(trigger, due):
        if trigger.world.is_main and due:
            clock["now"] += 121
        trigger.all_reduce_sum(torch.zeros(1, dtype=torch.int64))
        if trigger.world.is_main:
            clock["now"] = 1000.0
        trigger.all_reduce_sum(torch.zeros(1, dtype=torch.int64))
        return trigger.check()

    worlds = [trigger.world for trigger in triggers]
    for due in (False, True, False):
        found = run_ranks([lambda one=one, due=due: step(one, due) for one in triggers], worlds)
        assert found == [(due, True)] * 2


def test_background_task_of_one_rank_makes_no_rank_idle():
    release, tasks = threading.Event(), [idle(), idle()]
    triggers = [
        SaveTrigger(world, 0, task) for world, task in zip(thread_worlds(2), tasks, strict=True)
    ]
    tasks[1].start(lambda: release.wait(20), lambda _: None)
    assert [found for _, found in step_of(triggers)] == [(False, False)] * 2
    release.set()
    tasks[1].wait()
    assert [found for _, found in step_of(triggers)] == [(False, True)] * 2


def test_background_task_of_a_single_process_makes_it_busy():
    release, task = threading.Event(), idle()
    trigger = SaveTrigger(World(CPU), 0, task)
    task.start(lambda: release.wait(20), lambda _: None)
    assert trigger.check() == (False, False)
    release.set()
    task.wait()
    assert trigger.check() == (False, True)


def test_loss_that_sums_no_counts_is_refused():
    """Else a signal of one rank would never reach the others."""
    worlds = thread_worlds(2)
    triggers = [SaveTrigger(world, 0, idle()) for world in worlds]

    def refused(trigger):
        with pytest.raises(
            RuntimeError, match=r"the loss did not call `total`, as Loss\.forward must"
        ):
            trigger.check()
        return True

    assert run_ranks([lambda one=one: refused(one) for one in triggers], worlds) == [True, True]
    step_of(triggers)
    assert run_ranks([lambda one=one: refused(one) for one in triggers], worlds) == [True, True]
