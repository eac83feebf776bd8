"""Interrupts during a step: raised at its end, or at once the second time."""

import os
import signal
import threading

import pytest

from utils.outputs.interrupts import delay_interrupt


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("presses", "steps"),
    [(1, ["after press 1", "the rest of the block"]), (2, ["after press 1"])],  # a second one is raised at once
)
def test_interrupt_is_raised_after_the_block_or_the_second_time(presses, steps):
    done = []

    def run():
        with delay_interrupt():
            for press in range(1, presses + 1):
                press_ctrl_c()
                done.append(f"after press {press}")
            done.append("the rest of the block")
        done.append("after the block")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == steps
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
