"""A device in a run: what it is told becomes events, what its machine orders is done, and how it ends."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from potluck.control.agent_machine import AgentState
from potluck.device.agent import Agent
from potluck.device.entering import first_words
from potluck.device.measure.surveyor import Surveyor
from potluck.device.stage_holder import StageHolder
from potluck.errors import DeviceError
from potluck.settings.address import HERE
from potluck.types import DeviceSpec
from potluck.wire.channel import Disconnected, Received
from potluck.wire.messages import FINISHED, Begin, Echo, Evaluate, Failed, Leaving, Meet, Stop, Welcome
from potluck.wire.trust import ON_THIS_MACHINE
from tests.unit.memory_link import memory_links

SPEC = DeviceSpec(name="pi")
CPU = torch.device("cpu")


class Client:
    """A coordinator that has said what it will say, and keeps what it is told."""

    address = "127.0.0.1:7117"

    def __init__(self, *said: object) -> None:
        self.inbox: queue.Queue[object] = queue.Queue()
        self.heard: list[object] = []
        self.closed = False
        for message in said:
            self.inbox.put(message if isinstance(message, Disconnected) else Received(1, message))

    def send(self, message: object) -> None:
        self.heard.append(message)

    def close(self) -> None:
        self.closed = True


def agent(client: Client, said: list[str], hold_s: float = 0.0) -> Agent:
    hello = first_words(SPEC, chaos=False, insists=True)
    return Agent(cast(Any, client), hello, CPU, HERE, ON_THIS_MACHINE, said.append, hold_s)


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (Stop(reason=FINISHED), 0),
        (Stop(reason="the run failed"), 1),
        (Stop(reason="its name is taken", refused=True), 2),
        (Disconnected(1, "the connection closed"), 1),
    ],
)
def test_it_serves_until_it_is_told_to_stop_and_says_why(last: object, code: int) -> None:
    said: list[str] = []
    client = Client(last)
    it = agent(client, said)
    assert it.serve() == code
    assert [getattr(last, "reason", getattr(last, "why", "")) in text for text in said] == [True]
    it.close()
    assert client.closed


def test_an_order_that_cannot_be_obeyed_is_told_to_the_coordinator_and_ends_it() -> None:
    said: list[str] = []
    client = Client(Echo(number=1))  # before any welcome
    assert agent(client, said).serve() == DeviceError.exit_code
    [failed] = [message for message in client.heard if isinstance(message, Failed)]
    assert "before the welcome; join again" in failed.text
    assert said == [failed.text]


def test_who_wants_to_leave_asks_the_coordinator() -> None:
    client = Client()
    assert agent(client, []).leave() == "the others take over first"
    assert client.heard == [Leaving()]


def surveyor(client: Client) -> Surveyor:
    return Surveyor(cast(Any, client), SPEC, CPU, ON_THIS_MACHINE)


def test_a_surveyor_answers_an_echo_and_meets_whom_it_is_told_to() -> None:
    client, [link] = Client(), memory_links(["pi"])
    it = surveyor(client)
    it.welcomed(link, cast(Welcome, SimpleNamespace(timeout_s=1.0, carrier="zmq")))
    it.obey(Echo(number=7))
    assert client.heard == [Echo(number=7)]
    it.obey(Meet(term=5, peers={"b": "memory:b"}))
    assert (link.term, link.peers) == (5, {"b": "memory:b"})


def test_after_a_new_connection_it_answers_there() -> None:
    old, new, [link] = Client(), Client(), memory_links(["pi"])
    it = surveyor(old)
    it.welcomed(link, cast(Welcome, SimpleNamespace(timeout_s=1.0, carrier="zmq")))
    it.reconnected(cast(Any, new))
    it.obey(Echo(number=1))
    assert (old.heard, new.heard) == ([], [Echo(number=1)])


def test_a_device_without_a_stage_refuses_the_orders_of_one() -> None:
    machine = SimpleNamespace(state=AgentState(me="pi"), tell=lambda event: None)
    holder = StageHolder(cast(Any, machine), SPEC, CPU, cast(Any, None), lambda text: None, lambda *words: None, 1.0)
    try:
        with pytest.raises(DeviceError, match="before a plan; join again"):
            holder.train(Begin(round=0, sizes=(2,), total_weight=2.0, lr_scale=1.0))
        with pytest.raises(DeviceError, match="before a plan; join again"):
            holder.evaluate(Evaluate(number=0, sizes=(2,)))
    finally:
        holder.close()
