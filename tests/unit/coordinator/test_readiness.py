"""Devices that begin a run may go while others still load, and others may come. No sockets: a fake server, as for
the roster."""

from __future__ import annotations

from potluck.coordinator.fleet.readiness import FirstDevices
from potluck.coordinator.fleet.roster import Roster
from potluck.datasets.class_names import ClassNames
from potluck.job.optimizers import SGD
from potluck.wire.channel import Disconnected, Received
from potluck.wire.messages import Leaving, Load, Loaded
from tests.unit.coordinator.fake_server import FakeServer, roster_of

LOADED = Loaded(samples=10, step_s=0.1)


def order(device: str) -> Load:
    return Load(
        run=device, program="p", state="s", optimizer=SGD(lr=0.1), batch_size=8, seed=0, clip_norm=None, feeds={},
        data="own",
    )  # fmt: skip


def of_two() -> tuple[Roster, FakeServer, FirstDevices]:
    """Devices a and b are here, as peers 1 and 2."""
    roster, server = roster_of()
    server.arrives(1, "a")
    server.arrives(2, "b")
    roster.gather(2, 5.0, lambda words: None)
    return roster, server, FirstDevices(roster, order, 5.0, lambda: False)


def test_one_that_goes_after_it_answered_is_not_among_those_who_begin() -> None:
    for goes in (Disconnected(1, "the other side closed"), Received(1, Leaving())):
        roster, server, first = of_two()
        for event in (Received(1, LOADED), goes, Received(2, LOADED)):
            server.events.put(event)
        first.load(("a", "b"), ClassNames())
        assert list(first.found) == ["b"]
        assert list(first.refused) == ["a"]
        assert server.events.empty()
        roster.watch(first.found)  # everybody who begins is here


def test_one_that_comes_meanwhile_is_told_to_load_too() -> None:
    _, server, first = of_two()
    server.events.put(Received(1, LOADED))
    server.events.put(Disconnected(1, "the other side closed"))
    server.arrives(3, "c")
    server.events.put(Received(2, LOADED))
    server.events.put(Received(3, LOADED))
    first.load(("a", "b"), ClassNames())
    assert set(first.found) == {"b", "c"}
    assert (3, order("c")) in server.sent


def test_one_that_comes_back_meanwhile_begins_with_the_others() -> None:
    _, server, first = of_two()
    server.events.put(Disconnected(1, "the other side closed"))
    server.arrives(3, "a")
    server.events.put(Received(2, LOADED))
    server.events.put(Received(3, LOADED))
    first.load(("a", "b"), ClassNames())
    assert (set(first.found), first.refused) == ({"a", "b"}, {})


def test_one_that_does_not_answer_is_dropped_and_one_that_cannot_is_named() -> None:
    roster, server, first = of_two()
    first = FirstDevices(roster, order, 0.3, lambda: False)
    server.events.put(Received(1, Loaded(problem="a has no data set 'own'")))
    first.load(("a", "b"), ClassNames())
    assert first.found == {}
    assert first.refused["a"] == "a has no data set 'own'"
    assert "b did not make the model ready in 0 s" in first.refused["b"]


def test_one_with_other_labels_than_the_first_is_refused() -> None:
    _, server, first = of_two()
    for number, classes in ((2, ("cat", "dog")), (1, ("dog", "emu"))):
        server.events.put(Received(number, Loaded(samples=10, step_s=0.1, classes=classes)))
    first.load(("a", "b"), ClassNames())
    assert list(first.found) == ["b"]
    assert first.refused["a"].startswith("a has folders dog, emu, and b has cat, dog,")
