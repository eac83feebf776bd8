"""utils/threads.py: results in the order of the items, few of them ahead."""

import threading
import time

import pytest

from utils.threads import map_ahead


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(threads):
    def slow_first(number: int) -> int:
        time.sleep(0.02 if number % 3 == 0 else 0)
        return number * number

    assert list(map_ahead(slow_first, range(20), threads)) == [
        number * number for number in range(20)
    ]


@pytest.mark.parametrize(("threads", "ahead"), [(1, 1), (2, 5), (3, 7)])
def test_at_most_two_items_per_thread_are_started_ahead(threads, ahead):
    before, started = threading.active_count(), list[int]()
    results = map_ahead(lambda number: started.append(number) or number, iter(range(100)), threads)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    time.sleep(0.05)
    assert len(started) <= 2 + ahead
    results.close()
    time.sleep(0.05)
    assert len(started) <= 2 + ahead
    assert threading.active_count() <= before


def test_error_is_raised_after_the_results_before_it():
    results = map_ahead(lambda number: 6 // number, [3, 2, 0, 1], 2)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_single_thread_asks_for_an_item_only_when_its_result_is_wanted():
    asked: list[int] = []
    results = map_ahead(abs, (asked.append(number) or number for number in range(9)), 1)
    next(results)
    assert asked == [0]
