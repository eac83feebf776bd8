"""Interrupts during a step: raised at its end, or at once the second time."""

import os
import signal
import threading

import pytest

from utils.outputs.interrupts import delay_interrupt


@pytest.fixture(autouse=True)
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_is_raised_after_the_block():
    steps = []

    def run():
        with delay_interrupt():
            press_ctrl_c()
            steps.append("the rest of the block")
        steps.append("after the block")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert steps == ["the rest of the block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_interrupt_is_raised_at_once():
    steps = []

    def run():
        with delay_interrupt():
            press_ctrl_c()
            steps.append("between")
            press_ctrl_c()
            steps.append("after the second")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert steps == ["between"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_block_without_interrupt_raises_nothing_and_restores_handler():
    with delay_interrupt():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_error_of_the_block_is_the_one_raised():
    def run():
        with delay_interrupt():
            press_ctrl_c()
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_interrupt_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with delay_interrupt():
        press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_leave_the_handler_alone():
    seen = []

    def block():
        with delay_interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
