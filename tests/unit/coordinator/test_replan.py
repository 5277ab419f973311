"""Who comes, goes or slows down while a run trains, and whether the plan changes for it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from potluck.coordinator.options import Options
from potluck.coordinator.rounds.replan import Replanner
from potluck.coordinator.rounds.search_elsewhere import find_here
from potluck.plan.baselines import PLANNERS
from potluck.plan.cost.memory import fits, peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.events.event_simulation import simulate
from potluck.types import IdleReason, Profile, RoundRecord
from potluck.wire.messages import Leaving, Linked
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(2, 8)
SIZE = (8, 6)


class Roster:
    """Who is here, as far as `Replanner` looks."""

    def __init__(self, *names: str) -> None:
        self.specs: dict[str, object] = dict.fromkeys(names)
        self.links = dict.fromkeys(names, "somewhere")
        self.released: list[str] = []

    def release(self, device: str) -> None:
        self.released.append(device)
        del self.specs[device], self.links[device]


def changes(profile: Profile | None, *names: str, **choices: float) -> tuple[Replanner, Roster, list[str]]:
    roster, said = Roster(*names), cast(list[str], [])
    prepared = SimpleNamespace(facts=FACTS, job=SimpleNamespace(batchnorm="refuse"))
    options = Options(progress=said.append, plan_s=0.3, **cast(Any, choices))
    live = SimpleNamespace(roster=roster)
    return Replanner(cast(Any, live), cast(Any, prepared), profile, options, find_here), roster, said


def searched(it: Replanner) -> None:
    assert it._search is not None
    it._search.result(30.0)


def record(busy: dict[str, float]) -> RoundRecord:
    spent = {device: {"forward": seconds, "reduce": 9.0} for device, seconds in busy.items()}
    return RoundRecord(
        round=0, epoch=0, term=1, samples=48, loss=1.0, learning_rate=0.1, seconds=1.0, gradient_norm=1.0, spent_s=spent
    )


def test_who_came_while_others_were_measured_is_measured_too_but_not_where_the_plan_was_given() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5])
    for known, asked in ((profile, ["new"]), (None, [])):
        it, _, _ = changes(known, "d0", "d1", "new")
        measured: list[str] = []
        it._welcome = measured.append  # type: ignore[method-assign, assignment]
        it.measure_unknown()
        assert measured == asked


def test_one_of_the_plan_that_leaves_ends_it_and_another_just_goes() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5, 0.25])
    it, roster, _ = changes(profile, "d0", "d1", "idle")
    it.adopted(PLANNERS["1f1b"](FACTS, a_profile(1, FACTS, [1.0, 0.5]), *SIZE))
    assert it.due(100) is None
    it.heard("idle", Leaving())
    assert it.due(100) is None
    assert roster.released == ["idle"]
    it.heard("d1", Leaving())
    it.heard("d1", Leaving())  # an impatient one
    change = it.due(100)
    assert change is not None
    assert (change.kind, change.devices, change.plan) == ("left", ("d1",), None)


def test_a_newcomer_stays_idle_where_nothing_was_measured() -> None:
    it, _, _ = changes(None, "d0", "new")
    it.adopted(PLANNERS["single"](FACTS, a_profile(1, FACTS, [1.0]), *SIZE))
    it.heard("new", Linked(address="somewhere"))
    it.look_for_better()
    assert it.due(100) is None
    assert it.idle() == {
        "new": IdleReason(
            why="no device was measured, so none with it is looked for", until="a device of the plan is lost or leaves"
        )
    }


def test_what_the_planner_says_of_the_plan_in_force_is_why_a_device_is_idle_and_of_another_plan_it_is_not() -> None:
    profile = a_profile(1, FACTS, [1.0, 1.0, 1.0])
    one, two = (PLANNERS["1f1b"](FACTS, a_profile(1, FACTS, [1.0] * count), *SIZE) for count in (1, 2))
    it, _, _ = changes(profile, "d0", "d1", "d2")
    assert it.idle() == {}
    it.judged(two, {"d2": "it would gain less than 1%"})
    it.adopted(two)
    assert {device: reason.why for device, reason in it.idle().items()} == {"d2": "it would gain less than 1%"}
    it.adopted(one)
    assert {device: reason.why for device, reason in it.idle().items()} == dict.fromkeys(
        ["d1", "d2"], "no better plan with it is known"
    )
    it.look_for_better()
    assert {reason.why for reason in it.idle().values()} == {"no better plan with it is known"}  # until it is found
    it.measuring.add("d1")  # it came back
    assert it.idle()["d1"].why == "a plan with it is still looked for"
    it.heard("d2", Leaving())
    assert list(it.idle()) == ["d1"]


def test_a_device_whose_plan_is_not_worth_the_change_is_told_so() -> None:
    it, _, _ = changes(a_profile(1, FACTS, [1.0, 1.0, 1.0]), "d0", "d1", "d2")
    it.adopted(PLANNERS["single"](FACTS, a_profile(1, FACTS, [1.0]), *SIZE))
    it.look_for_better()
    searched(it)
    assert it.due(1) is None  # one round is left
    whys = {reason.why for reason in it.idle().values()}
    assert len(whys) == 1
    assert re.fullmatch(r"the best plan with it would save \d+\.\d% of a round, too little for a change", whys.pop())


def test_a_better_plan_comes_into_force_only_if_it_pays() -> None:
    profile = a_profile(1, FACTS, [1.0, 1.0, 1.0])
    poor = PLANNERS["single"](FACTS, profile, *SIZE)
    it, _, _ = changes(profile, "d0", "d1", "d2")
    it.adopted(poor)
    it.look_for_better()
    searched(it)
    assert it.due(1) is None  # one round is left
    it.look_for_better()
    searched(it)
    change = it.due(100_000)
    assert change is not None
    assert change.plan is not None
    assert change.kind == "joined"
    assert simulate(change.plan, FACTS, profile).round_s < simulate(poor, FACTS, profile).round_s
    it.adopted(change.plan)
    it.look_for_better()
    searched(it)
    assert it.due(100_000) is None  # it is in force already


def test_a_better_plan_that_saves_less_than_the_user_asks_for_does_not_come_into_force() -> None:
    profile = a_profile(1, FACTS, [1.0, 1.0, 1.0])
    it, _, _ = changes(profile, "d0", "d1", "d2", replan_gain=1.0)
    it.adopted(PLANNERS["single"](FACTS, profile, *SIZE))
    it.look_for_better()
    searched(it)
    assert it.due(100_000) is None


def test_a_device_that_becomes_slow_is_given_less() -> None:
    profile = a_profile(1, FACTS, [1.0, 1.0])
    it, _, said = changes(profile, "d0", "d1")
    plan = PLANNERS["1f1b"](FACTS, profile, *SIZE)
    it.adopted(plan)
    for _ in range(40):
        it.observed(record({"d0": 0.2, "d1": 0.2}))
    assert it.due(100_000) is None
    for _ in range(8):
        it.observed(record({"d0": 0.2, "d1": 1.6}))
    assert said == ["d1 takes 8.0 times as long as before; looking for a better plan"]
    searched(it)
    change = it.due(100_000)
    assert change is not None
    assert (change.kind, change.devices) == ("slow", ("d1",))
    assert change.plan is not None
    assert _blocks("d1", change.plan) < _blocks("d1", plan)


def test_a_plan_with_somebody_who_has_gone_is_not_adopted() -> None:
    profile = a_profile(1, FACTS, [1.0, 1.0, 1.0])
    it, roster, _ = changes(profile, "d0", "d1", "d2")
    it.adopted(PLANNERS["single"](FACTS, profile, *SIZE))
    it.look_for_better()
    searched(it)
    for name in ("d0", "d1", "d2"):
        roster.links.pop(name)
    assert it.due(100_000) is None


def _blocks(device: str, plan: Any) -> int:
    held = [s.blocks for s in plan.stages if device in [m.device for m in s.group]]
    return sum(end - first for first, end in held)


def test_one_that_ran_out_of_memory_is_given_less_when_it_comes_back() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5])
    plan = PLANNERS["1f1b"](FACTS, profile, *SIZE)
    it, _, said = changes(profile, "d0", "d1")
    it.adopted(plan)
    it.lost("d1", "device d1 is gone (the connection closed)")
    assert it.profile is profile  # it may have had any reason
    it.lost("d1", "device d1: out of memory on d1 (…); give it less")
    tables = Tables(profile)
    needed = peak_bytes(plan, FACTS, tables=tables)["d1"].total
    assert it.profile is not None
    assert not fits(plan, FACTS, Tables(it.profile))
    [less] = [d.device.memory_bytes for d in it.profile.devices if d.device.name == "d1"]
    assert 0 < less < needed + profile.devices[1].idle_bytes
    assert "d1 ran out of memory" in said[-1]


def test_one_that_just_ends_where_memory_was_tight_is_given_less_too() -> None:
    profile = a_profile(1, FACTS, [1.0, 0.5])
    plan = PLANNERS["1f1b"](FACTS, profile, *SIZE)
    need = peak_bytes(plan, FACTS, tables=Tables(profile))["d1"].total + profile.devices[1].idle_bytes
    for room, tight in ((1.1, True), (2.0, False)):
        spec = replace(profile.devices[1].device, memory_bytes=int(need * room))
        small = replace(profile, devices=(profile.devices[0], replace(profile.devices[1], device=spec)))
        it, _, _ = changes(small, "d0", "d1")
        it.adopted(plan)
        it.lost("d1", "device d1 is gone (nothing was heard from it for 2.8 s)")
        assert it.profile is small  # silence has other reasons
        it.lost("d1", "device d1 is gone (the connection closed)")
        assert (it.profile is not small) == tight
