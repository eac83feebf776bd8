"""Interrupts during a step: raised at its end, or at once the second time; SIGTERM and SIGHUP like
Ctrl-C.
"""

import os
import signal
import threading

import pytest

from utils.outputs.interrupts import END_SIGNALS, delay_interrupt, end_on_signals
from utils.terminal import EndedBySignalError, exit_code


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("presses", "steps"),
    [
        (1, ["after press 1", "the rest of the block"]),
        (2, ["after press 1"]),
    ],  # a second one is raised at once
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


# ---------------------------------------------------------------------- SIGTERM and SIGHUP


@pytest.mark.parametrize("number", END_SIGNALS, ids=lambda number: number.name)
def test_signal_ends_the_block_after_the_step_that_it_interrupts(number):
    done = []
    before = signal.getsignal(number)

    def run():
        with end_on_signals():
            with delay_interrupt():
                for repeat in range(2):  # a second one changes nothing, unlike a second Ctrl-C
                    os.kill(os.getpid(), number)
                    done.append(repeat)
            done.append("after the step")

    with pytest.raises(EndedBySignalError) as ended:
        run()
    assert done == [0, 1]
    assert exit_code(ended.value) == 128 + number
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", END_SIGNALS, ids=lambda number: number.name)
def test_signal_ends_the_block_if_ctrl_c_is_ignored(number):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell script
    with pytest.raises(EndedBySignalError), end_on_signals():
        os.kill(os.getpid(), number)


def test_ctrl_c_is_still_ctrl_c():
    with pytest.raises(KeyboardInterrupt) as ended, end_on_signals():
        press_ctrl_c()
    assert exit_code(ended.value) == 130


@pytest.mark.parametrize("number", END_SIGNALS, ids=lambda number: number.name)
def test_ignored_signal_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with end_on_signals():
            os.kill(os.getpid(), number)
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_other_threads_handle_no_signals():
    seen = []
    before = [signal.getsignal(number) for number in END_SIGNALS]

    def block():
        with end_on_signals():
            seen.extend(signal.getsignal(number) for number in END_SIGNALS)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == before
