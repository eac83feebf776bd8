"""When a run has stopped getting better."""

import pytest

from utils.plateau import Plateau


def stopped_after(fitness: list[float], patience: int) -> int | None:
    plateau = Plateau(patience)
    for epoch, value in enumerate(fitness):
        plateau.update(epoch, value)
        if plateau.over():
            return epoch
    return None


@pytest.mark.parametrize(
    ("fitness", "patience", "stop"),
    [
        ([0.1, 0.2, 0.2, 0.2], 2, 3),  # best at epoch 1: an equal one is no better, 3 - 1 = 2
        ([0.1, 0.2, 0.1, 0.3, 0.1], 2, None),
        ([0.3, 0.2, 0.1], 1, 1),
        ([0.3] * 50, 0, None),  # 0: never
        ([0.0] * 50, 1, None),  # nothing is found yet: it has only begun
        ([0.0, 0.0, 0.1, 0.0], 1, 3),
        ([], 1, None),
    ],
)
def test_stops(fitness, patience, stop):
    assert stopped_after(fitness, patience) == stop


def test_the_best_epoch():
    plateau = Plateau(5)
    assert plateau.best_epoch is None
    assert not plateau.over()  # nothing was validated
    best = []
    for epoch, fitness in enumerate([0.0, 0.0, 0.2, 0.2, 0.3, 0.0]):
        plateau.update(epoch, fitness)
        best.append(plateau.best_epoch)
    assert best == [0, 1, 2, 2, 4, 4]


def test_resumed_it_stops_where_it_would_have():
    first = Plateau(2)
    first.update(0, 0.5)
    first.update(1, 0.4)
    second = Plateau(2)
    second.load_state_dict(first.state_dict())
    second.update(2, 0.5)
    assert second.best_epoch == 0
    assert second.over()


def test_epochs_that_are_not_validated_count_but_do_not_stop():
    plateau, stopped = Plateau(3), []
    for epoch in range(12):
        if epoch % 4 == 3:  # best at 3; 4 to 6 are not validated; at 7, 4 epochs later, it stops
            plateau.update(epoch, 0.5)
        stopped.append(plateau.over())
    assert stopped == [False] * 7 + [True] * 5
