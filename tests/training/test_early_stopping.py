"""Early stopping."""

import pytest

from training.early_stopping import EarlyStopping


def stopped_after(fitness: list[float], patience: int) -> int | None:
    stopping = EarlyStopping(patience)
    for epoch, value in enumerate(fitness):
        stopping.update(epoch, value)
        if stopping.should_stop():
            return epoch
    return None


@pytest.mark.parametrize(
    ("fitness", "patience", "stop"),
    [
        ([0.1, 0.2, 0.2, 0.2], 2, 3),  # best at epoch 1: an equal fitness is not better, 3 - 1 = 2
        ([0.1, 0.2, 0.1, 0.3, 0.1], 2, None),
        ([0.3, 0.2, 0.1], 1, 1),
        ([0.3] * 50, 0, None),  # 0: never
        ([0.0] * 50, 1, None),  # fitness 0: nothing is detected yet
        ([0.0, 0.0, 0.1, 0.0], 1, 3),
        ([], 1, None),
    ],
)
def test_stops_after_patience_without_improvement(fitness, patience, stop):
    assert stopped_after(fitness, patience) == stop


def test_best_epoch_is_tracked():
    stopping = EarlyStopping(5)
    assert stopping.best_epoch is None
    assert not stopping.should_stop()  # nothing was validated
    best = []
    for epoch, fitness in enumerate([0.0, 0.0, 0.2, 0.2, 0.3, 0.0]):
        stopping.update(epoch, fitness)
        best.append(stopping.best_epoch)
    assert best == [0, 1, 2, 2, 4, 4]


def test_early_stopping_state_survives_resume():
    first = EarlyStopping(2)
    first.update(0, 0.5)
    first.update(1, 0.4)
    second = EarlyStopping(2)
    second.load_state_dict(first.state_dict())
    second.update(2, 0.5)
    assert second.best_epoch == 0
    assert second.should_stop()


def test_unvalidated_epochs_count_but_do_not_stop():
    stopping, stopped = EarlyStopping(3), []
    for epoch in range(12):
        if epoch % 4 == 3:  # best at 3; 4 to 6 are not validated; at 7, 4 epochs later, it stops
            stopping.update(epoch, 0.5)
        stopped.append(stopping.should_stop())
    assert stopped == [False] * 7 + [True] * 5
