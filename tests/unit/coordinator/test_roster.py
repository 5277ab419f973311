"""Who is let in. No sockets: a fake server hands out events and notes what it is told."""

import time

import pytest

from potluck.errors import CodecError, DeviceError, DeviceLost
from potluck.wire.channel import Disconnected, Received
from potluck.wire.messages import PROTOCOL, Failed, Leaving, Linked, Stop, Welcome
from tests.unit.coordinator.fake_server import roster_of


def _nobody(name: str) -> None:
    pass


def test_so_many_devices_of_any_name_are_let_in():
    roster, server = roster_of()
    server.arrives(1, "a")
    server.arrives(2, "b")
    roster.gather(2, 5.0, _nobody)
    assert set(roster.links) == {"a", "b"}
    assert not server.cut_off


def test_one_who_comes_after_the_run_has_begun_is_turned_away_and_disturbs_nobody():
    roster, server = roster_of()
    server.arrives(1, "a")
    roster.gather(1, 5.0, _nobody)
    server.arrives(2, "late")
    with pytest.raises(DeviceError, match="time is up"):
        roster.next(time.monotonic() + 0.5, "waiting")
    assert server.cut_off == [2]
    assert server.sent[-1] == (2, Stop(reason="the run has all its devices; join the next one"))
    assert set(roster.specs) == {"a"}


def test_where_names_are_known_a_stranger_takes_no_place():
    roster, server = roster_of()
    server.arrives(1, "stranger")
    server.arrives(2, "a")
    roster.gather(["a"], 5.0, _nobody)
    assert set(roster.specs) == {"a"}
    assert server.cut_off == [1]


@pytest.mark.parametrize(("name", "protocol", "why"), [("a", PROTOCOL, "name a is taken"), ("b", 0, "protocol 0")])
def test_a_name_twice_or_another_protocol_is_turned_away(name, protocol, why):
    roster, server = roster_of()
    server.arrives(1, "a")
    server.arrives(2, name, protocol)
    server.arrives(3, "c")
    roster.gather(2, 5.0, _nobody)
    assert server.cut_off == [2]
    stop = next(message for number, message in server.sent if number == 2)
    assert isinstance(stop, Stop)
    assert why in stop.reason


def test_two_devices_of_one_host_name_are_both_let_in_and_told_what_they_are_called():
    said: list[str] = []
    roster, server = roster_of(said.append)
    server.arrives(1, "pi", machine="a", insists=False)
    server.arrives(2, "pi", machine="b", insists=False)
    roster.gather(2, 5.0, _nobody)
    assert set(roster.links) == {"pi", "pi-2"}
    told = [(number, sent.name) for number, sent in server.sent if isinstance(sent, Welcome)]
    assert told == [(1, "pi"), (2, "pi-2")]
    assert said == ["the name pi is taken, and another device of that name joins: it is called pi-2"]
    assert {name: spec.name for name, spec in roster.specs.items()} == {"pi": "pi", "pi-2": "pi-2"}
    assert roster.hellos["pi-2"].device == roster.specs["pi-2"]


def test_who_comes_back_has_the_name_that_it_had_whoever_else_joins_meanwhile():
    roster, server = roster_of()
    server.arrives(1, "pi", machine="a", insists=False)
    roster.gather(1, 5.0, _nobody)
    roster.closed = False
    server.events.put(Disconnected(1, "nothing was heard from it"))
    with pytest.raises(DeviceLost):
        roster.next(time.monotonic() + 5.0, "waiting")
    server.arrives(2, "pi", machine="b", insists=False)
    server.arrives(3, "pi", machine="a", insists=False)  # another process
    assert [roster.next(time.monotonic() + 5.0, "waiting")[0] for _ in range(2)] == ["pi-2", "pi"]
    assert server.cut_off == [1]


def test_a_guest_that_is_called_as_a_device_started_here_is_called_something_else():
    roster, server = roster_of()
    roster.proofs = {"local": "right"}
    server.arrives(1, "local", insists=False)
    server.arrives(2, "local", proof="right")
    roster.gather(2, 5.0, _nobody)
    assert set(roster.specs) == {"local", "local-2"}


def test_one_that_leaves_while_others_are_awaited_is_forgotten_and_said():
    roster, server = roster_of()
    said: list[str] = []
    server.arrives(1, "a")
    server.events.put(Disconnected(1, "the other side closed: bye"))
    server.arrives(2, "b")
    server.events.put(Received(2, Failed(text="no network")))
    server.events.put(Disconnected(2, "the other side closed"))
    server.arrives(3, "a")
    server.arrives(4, "c")
    roster.gather(2, 5.0, said.append)
    assert set(roster.specs) == set(roster.links) == {"a", "c"}
    assert [text.partition(", until")[0] for text in said] == [
        "0 of 2 devices; waiting for 2 more",
        "1 of 2 devices: a; waiting for 1 more",
        "a left again (the other side closed: bye); waiting for another device",
        "1 of 2 devices: b; waiting for 1 more",
        "b left again (no network); waiting for another device",
        "1 of 2 devices: a; waiting for 1 more",
        "2 of 2 devices: a, c",
    ]


def test_while_nobody_comes_it_is_said_who_is_missing_and_again_as_time_goes_by(monkeypatch):
    monkeypatch.setattr("potluck.coordinator.fleet.awaiting._STEP_S", 1.0)
    monkeypatch.setattr("potluck.coordinator.fleet.roster._TOLD_S", 0.1)
    roster, server = roster_of()
    said: list[str] = []
    server.arrives(1, "pi")
    with pytest.raises(DeviceError, match="time is up while waiting for desk, nano to join"):
        roster.gather(["pi", "nano", "desk"], 2.0, said.append)
    assert [(text.partition(", until")[0], text.rpartition(" (")[2]) for text in said] == [
        ("0 of 3 devices; waiting for desk, nano, pi", "2 s left)"),
        ("1 of 3 devices: pi; waiting for desk, nano", "2 s left)"),
        ("1 of 3 devices: pi; waiting for desk, nano", "1 s left)"),
    ]


def test_more_than_enough_who_came_back_are_enough():
    roster, server = roster_of()
    server.arrives(1, "a")
    server.arrives(2, "b")
    assert not roster.gather_back(["a", "b"], "a run", 5.0, _nobody)
    roster.gather(1, 5.0, _nobody)
    assert set(roster.links) == {"a", "b"}


def test_after_all_are_here_a_loss_ends_the_run():
    roster, server = roster_of()
    server.arrives(1, "a")
    roster.gather(1, 5.0, _nobody)
    server.events.put(Disconnected(1, "nothing was heard from it"))
    with pytest.raises(DeviceError, match="device a is gone"):
        roster.next(time.monotonic() + 5.0, "waiting")


def test_a_stranger_takes_neither_the_name_nor_the_place_of_a_device_started_here():
    roster, server = roster_of()
    roster.proofs = {"local": "right"}
    server.arrives(1, "local", proof="wrong")
    server.arrives(2, "guest")
    server.arrives(3, "second-guest")
    server.arrives(4, "local", proof="right")
    roster.gather(2, 5.0, _nobody)
    assert set(roster.specs) == {"guest", "local"}
    assert server.cut_off == [1, 3]
    assert server.accepted == [2, 4]


def test_a_device_started_here_that_fails_ends_the_run_while_others_are_awaited():
    roster, server = roster_of()
    roster.proofs = {"local": "right"}
    server.arrives(1, "local", proof="right")
    server.events.put(Received(1, Failed(text="no memory")))
    with pytest.raises(DeviceError, match="device local: no memory"):
        roster.gather(2, 5.0, _nobody)


def test_one_connection_is_one_device():
    roster, server = roster_of()
    server.arrives(1, "a")
    server.arrives(1, "b")
    server.events.put(Disconnected(1, "one is enough"))
    server.arrives(2, "c")
    server.arrives(3, "d")
    roster.gather(2, 5.0, _nobody)
    assert set(roster.specs) == {"c", "d"}


def test_a_device_that_is_lost_or_dies_comes_with_what_to_do_now():
    roster, server = roster_of()
    server.arrives(1, "a")
    roster.gather(1, 5.0, _nobody)
    server.events.put(Disconnected(1, "it left"))
    with pytest.raises(DeviceError, match=r"device a is gone \(it left\); start again without it"):
        roster.next(time.monotonic() + 5.0, "waiting")
    roster.died = lambda: {"b": "device b ended with code 9"}
    roster.what_now = "go on with --resume"
    with pytest.raises(DeviceError, match="b ended with code 9; go on with --resume"):
        roster.next(time.monotonic() + 5.0, "waiting")
    with pytest.raises(DeviceError, match="time is up"):  # it is told once
        roster.next(time.monotonic() + 0.1, "waiting")


def test_one_that_trains_is_missed_sooner_than_one_that_starts():
    roster, server = roster_of()
    server.arrives(1, "a")
    roster.gather(1, 5.0, _nobody)
    assert server.watches[1].gone(5.0) is None
    roster.watch(["a"])
    assert server.watches[1].gone(5.0) is not None


def test_one_that_leaves_while_nothing_is_trained_is_let_go():
    roster, server = roster_of()
    said: list[str] = []
    server.arrives(1, "a")
    server.events.put(Received(1, Leaving()))
    server.arrives(2, "b")
    server.arrives(3, "c")
    roster.gather(2, 5.0, said.append)
    assert set(roster.specs) == {"b", "c"}
    server.events.put(Received(2, Leaving()))
    with pytest.raises(DeviceError, match="device b leaves"):
        roster.next(time.monotonic() + 5.0, "waiting")


def test_a_newcomer_that_cannot_do_it_does_not_end_the_run_of_others():
    roster, server = roster_of()
    server.arrives(1, "a")
    roster.gather(1, 5.0, _nobody)
    roster.closed = False
    server.arrives(2, "new")
    server.events.put(Received(2, Failed(text="an operator that I do not know", exit_code=2)))
    assert roster.next(time.monotonic() + 5.0, "waiting")[0] == "new"
    with pytest.raises(DeviceLost, match="device new: an operator") as lost:
        roster.next(time.monotonic() + 5.0, "waiting")
    assert lost.value.device == "new"
    assert set(roster.specs) == {"a"}


def test_a_codec_that_fails_ends_the_run_as_it_would_on_every_device():
    roster, server = roster_of()
    server.arrives(1, "a")
    roster.gather(1, 5.0, _nobody)
    roster.closed = False
    server.events.put(Received(1, Failed(text="codec 'theirs' made 0 parts", exit_code=CodecError.exit_code)))
    with pytest.raises(CodecError, match=r"^device a: codec 'theirs' made 0 parts$"):
        roster.next(time.monotonic() + 5.0, "waiting")


def test_one_that_left_may_come_again_under_its_name():
    roster, server = roster_of()
    server.arrives(1, "a")
    roster.gather(1, 5.0, _nobody)
    roster.closed = False
    roster.release("a")
    assert roster.specs == {}
    server.arrives(2, "a")
    assert isinstance(roster.next(time.monotonic() + 5.0, "waiting")[1], Linked)
    assert set(roster.links) == {"a"}
