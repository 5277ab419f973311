"""What a device makes of the coordinator's answer to its hello."""

from __future__ import annotations

import queue
from typing import Any, cast

import pytest

from potluck.device.entering import CoordinatorClient, first_words, let_in
from potluck.errors import DeviceError, InputError, PotluckError
from potluck.types import DeviceSpec
from potluck.wire.channel import Disconnected, Received
from potluck.wire.messages import PROOF_VARIABLE, PROTOCOL, Abandon, Stop, Welcome

HELLO = first_words(DeviceSpec(name="a"), chaos=True, insists=False)


class Answers:
    """A connection on which these things are said."""

    address = "somewhere:1"

    def __init__(self, *events: object) -> None:
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.said: list[object] = []
        for event in events:
            self.inbox.put(event)

    def send(self, message: object) -> None:
        self.said.append(message)


def enter(answers: Answers) -> Welcome:
    return let_in(cast(CoordinatorClient, answers), HELLO, 0.01)


def test_it_says_who_it_is_and_leaves_the_welcome_for_whoever_reads_on() -> None:
    welcome = Received(0, Welcome(name="b", carrier="zmq"))
    answers = Answers(welcome)
    assert enter(answers) == welcome.message
    assert answers.said == [HELLO]
    assert answers.inbox.get_nowait() == welcome


@pytest.mark.parametrize(
    ("events", "kind", "words"),
    [
        ([], DeviceError, "somewhere:1 lets nobody in after 0 s"),
        ([Disconnected(0, "the other side closed")], PotluckError, r"coordinator is gone \(the other side closed\)"),
        ([Received(0, Stop(reason="another version"))], InputError, "^another version$"),
        ([Received(0, Abandon(run="r", term=1, reason=""))], DeviceError, "gives orders before it lets this device in"),
    ],
)
def test_every_other_answer_is_an_error_that_says_so(events: list[object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        enter(Answers(*events))


def test_the_first_words_bring_the_proof_that_the_device_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROOF_VARIABLE, "word")
    hello = first_words(DeviceSpec(name="a"), chaos=True, insists=False)
    assert (hello.proof, hello.chaos, hello.insists, hello.protocol) == ("word", True, False, PROTOCOL)
    monkeypatch.delenv(PROOF_VARIABLE)
    assert first_words(DeviceSpec(name="a"), chaos=False, insists=True).proof == ""
