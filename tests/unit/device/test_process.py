"""The process on a device: the name that it goes by, and Ctrl-C."""

from __future__ import annotations

import queue
import signal
import threading
from typing import Any, cast

import pytest
import torch

from potluck.device.entering import CoordinatorClient, first_words
from potluck.device.host.warm_up import warm_up
from potluck.device.process import _leaves_when_asked, _named
from potluck.types import DeviceSpec
from potluck.wire.channel import Received
from potluck.wire.messages import Welcome


class Coordinator:
    """Lets everybody in by one name."""

    def __init__(self, name: str) -> None:
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.inbox.put(Received(0, Welcome(name=name, carrier="zmq")))

    def send(self, message: object) -> None:
        pass


@pytest.mark.parametrize(
    ("given", "said"), [("pi", []), ("pi-2", ["the name pi is taken: this device is called pi-2"])]
)
def test_a_device_goes_by_the_name_that_it_was_let_in_by(given: str, said: list[str]) -> None:
    lines: list[str] = []
    hello = first_words(DeviceSpec(name="pi", speed=0.5), chaos=False, insists=False)
    found = _named(cast(CoordinatorClient, Coordinator(given)), hello, lines.append)
    assert found.device == DeviceSpec(name=given, speed=0.5)
    assert [line.partition(";")[0] for line in lines] == said


class Leaver:
    """An agent that hands over."""

    left = 0

    def leave(self) -> str:
        self.left += 1
        return "the others take over first"


def test_the_first_ctrl_c_hands_over_and_gives_the_second_back_to_whoever_had_it() -> None:
    agent, lines = Leaver(), list[str]()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with _leaves_when_asked(cast(Any, agent), lines.append):
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
        signal.raise_signal(signal.SIGINT)
        assert (agent.left, lines) == (1, ["leaving: the others take over first; once more leaves at once"])
        assert {number: signal.getsignal(number) for number in before} == before
    with _leaves_when_asked(cast(Any, agent), lines.append):
        pass
    assert {number: signal.getsignal(number) for number in before} == before


def test_in_another_thread_signals_are_left_alone() -> None:
    seen: list[object] = []

    def run() -> None:
        with _leaves_when_asked(cast(Any, Leaver()), lambda text: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20.0)
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_warming_up_draws_no_random_numbers_and_leaves_gradients_on() -> None:
    before = torch.get_rng_state()
    warm_up(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()
