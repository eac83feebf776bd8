"""Work aside: its result is taken in where it is settled, once, in the thread that settles it."""

import threading

import pytest

from utils.aside import Aside


def test_a_result_is_taken_in_once_and_here():
    aside, taken, go_on = Aside(), [], threading.Event()
    assert not aside.busy
    aside.settle()  # there is nothing

    def work() -> threading.Thread:
        assert go_on.wait(20)
        return threading.current_thread()

    aside.start(work, lambda thread: taken.append((thread, threading.current_thread())))
    assert aside.busy
    assert taken == []
    go_on.set()
    aside.settle()
    assert not aside.busy
    ((worked, took),) = taken
    assert worked is not took is threading.current_thread()
    aside.settle()
    assert len(taken) == 1


def test_new_work_begins_when_the_old_is_settled():
    aside, taken = Aside(), []
    for number in range(3):
        aside.start(lambda number=number: number, taken.append)
        assert taken == list(range(number))
    aside.settle()
    assert taken == [0, 1, 2]


def test_errors_come_where_it_is_settled():
    aside = Aside()
    aside.start(lambda: 1 // 0, lambda _: None)
    with pytest.raises(ZeroDivisionError):
        aside.settle()
    assert not aside.busy
    aside.settle()
