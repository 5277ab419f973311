"""Ctrl-C: in order while training, at once before it, and never twice."""

import signal

import pytest

from potluck.cli.failures import StoppedByUser
from potluck.cli.session import terminal
from potluck.cli.stopping import Stopping


def test_while_training_the_first_asks_and_the_second_stops_and_the_third_is_ignored():
    noticed: list[bool] = []
    with Stopping(lambda: noticed.append(True)) as stopping:
        stopping.training = True
        signal.raise_signal(signal.SIGINT)
        assert stopping.requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert noticed == [True]


def test_before_training_the_first_stops_and_the_second_is_ignored():
    with Stopping(lambda: None) as stopping:
        assert not stopping.requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_what_fails_on_the_way_out_of_an_interrupt_is_still_the_interrupt():
    def interrupted() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            raise AssertionError("something was left half done")

    with pytest.raises(StoppedByUser, match="interrupted"), terminal("", "", as_json=False):
        interrupted()
