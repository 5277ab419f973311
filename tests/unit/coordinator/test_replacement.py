"""Plans for a loss, found ahead, and when they are good for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.control.cluster_events import ComputePlan
from potluck.coordinator.rounds import replacement
from potluck.coordinator.rounds.replacement import Replacement
from potluck.coordinator.rounds.search_elsewhere import Finder, Question, find_here
from potluck.errors import PlanError
from potluck.plan.baselines import PLANNERS
from potluck.plan.events.event_simulation import simulate
from potluck.plan.search.plan_search import Found
from potluck.recover.repartition import candidates
from potluck.types import Fleet
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(2, 8)
PROFILE = a_profile(1, FACTS, [1.0, 0.5, 0.25])
PLAN = PLANNERS["1f1b"](FACTS, PROFILE, 8, 6)
NEAR = next(iter(candidates(PLAN, ("d2",))))
BLOCKS = {m.device: set(range(*s.blocks)) for s in PLAN.stages for m in s.group}


def searched_ahead(find: Finder = find_here) -> Replacement:
    devices = tuple(d.device for d in PROFILE.devices)
    names = {d.name: d for d in devices}
    live = SimpleNamespace(fleet=Fleet(devices=devices), roster=SimpleNamespace(links=names, specs=names))
    prepared = SimpleNamespace(facts=FACTS, job=SimpleNamespace(batchnorm="refuse"))
    changes = SimpleNamespace(profile=PROFILE, measuring=set(), find=find)
    it = Replacement(cast(Any, live), cast(Any, prepared), cast(Any, changes))
    it.look_ahead(PLAN)
    for found in it._ahead.values():
        found.result(30.0)
    it.cancel()  # as every loss does
    return it


def loss_of(device: str, held: dict[str, set[int]]) -> ComputePlan:
    blocks = {d: tuple(sorted(b)) for d, b in held.items() if d != device}
    return ComputePlan(number=1, force=PLAN, without=(device,), held=blocks)


def with_copies() -> dict[str, set[int]]:
    """Each device has its own blocks, and the first of the next stage those of the one before."""
    stages = [s.group[0].device for s in PLAN.stages]
    return {d: BLOCKS[d] | BLOCKS[stages[(i - 1) % len(stages)]] for i, d in enumerate(stages)}


@pytest.mark.parametrize("lost", sorted(BLOCKS))
def test_a_plan_found_ahead_is_used_at_once(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = searched_ahead()

    def too_late(*_: object) -> None:
        raise AssertionError("it was looked for once more")

    monkeypatch.setattr(replacement, "nearest", too_late)
    plan = it.find(loss_of(lost, with_copies()))
    assert plan is not None
    assert lost not in plan.devices


def test_it_is_not_used_where_copies_it_counted_on_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    it = searched_ahead()
    monkeypatch.setattr(replacement, "nearest", lambda *_: PLAN)
    assert it.find(loss_of("d1", BLOCKS)) is PLAN


def test_a_plan_found_ahead_is_the_best_one_where_that_pays_at_once() -> None:
    """An even chain on uneven devices is slow, and so are the plans near it; here, moving blocks costs little."""
    ahead = searched_ahead().find(loss_of("d2", with_copies()))
    near = searched_ahead(none_found).find(loss_of("d2", with_copies()))
    assert ahead is not None
    assert near is not None
    assert simulate(ahead, FACTS, PROFILE).round_s < 0.9 * simulate(near, FACTS, PROFILE).round_s


def test_a_plan_found_ahead_is_a_near_one_where_moving_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replacement, "_moving_s", lambda _, plan, __: 0.0 if plan == NEAR else 1e6)
    monkeypatch.setattr(replacement, "nearest", lambda *_: NEAR)
    assert searched_ahead().find(loss_of("d2", with_copies())) == NEAR


def none_found(_: Question) -> Found:
    raise PlanError("none")
