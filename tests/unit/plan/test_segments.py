"""What devices do where rounds overlap: several rounds walked by a small executor, in random interleavings."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from potluck.plan.schedule.action_list import WHOLE_ROUND, Action, actions, late_weights
from potluck.plan.schedule.holders import own_micro_batches, stage_of
from potluck.plan.schedule.segments import UnderWay, segment
from potluck.plan.schedule.steady import Steady
from potluck.plan.schedule.under_way import backlog
from potluck.types import Plan
from tests.unit.builders import chain
from tests.unit.plan.test_schedule import plans


class Done(NamedTuple):
    """An action with the round that it is of, and the one in whose segment it stands."""

    kind: str
    round: int
    micro_batch: int
    segment: int


def listed(plan: Plan, device: str, counts: list[int], pauses: set[int]) -> list[Done]:
    """All that a device does in rounds of so many micro-batches, with a pause after some of them."""
    found, under_way = [], UnderWay()
    for round, count in enumerate(counts):
        follows = round not in pauses and round + 1 < len(counts)
        some, under_way = segment(plan, device, count, under_way, follows=follows)
        found += [Done(a.kind, round - a.ago, a.micro_batch, round) for a in some]
    return found


class Walk:
    """Every device walks its list; messages have as much room as the schedule asks for."""

    def __init__(self, plan: Plan, counts: list[int], pauses: set[int]) -> None:
        self.plan, self.counts = plan, counts
        self.lists = {d: listed(plan, d, counts, pauses) for d in plan.devices}
        self.at = dict.fromkeys(plan.devices, 0)
        self.ready: dict[int, set[str]] = {round: set() for round in range(len(counts))}
        self.sent: set[tuple[str, int, int, int]] = set()  # kind, from which stage, round, micro-batch
        self.waiting: Counter[tuple[str, int]] = Counter()  # kind, from which stage

    def run(self, random: Random) -> None:
        while able := [d for d in self.plan.devices if self.at[d] < len(self.lists[d]) and self.can(d)]:
            device = random.choice(able)
            self.do(device)
            self.at[device] += 1

    @property
    def finished(self) -> bool:
        return all(self.at[d] == len(self.lists[d]) for d in self.plan.devices)

    def committed(self, round: int) -> bool:
        return round < 0 or len(self.ready[round]) == len(self.plan.devices)

    def _key(self, device: str, done: Done) -> tuple[str, int, int, int] | None:
        """The message that an action sends or receives, if there is another stage at the other end."""
        stage, kind = stage_of(self.plan, device), done.kind
        if kind == "receive_inputs":
            return ("out", stage - 1, done.round, done.micro_batch) if stage else None
        way = {"send_outputs": ("out", 0), "receive_gradients": ("back", 1), "send_gradients": ("back", 0)}.get(kind)
        return (way[0], stage + way[1], done.round, done.micro_batch) if way else None

    def can(self, device: str) -> bool:
        done = self.lists[device][self.at[device]]
        if not self.committed(done.segment - 2):  # only then is the segment's round begun
            return False
        key = self._key(device, done)
        if done.kind.startswith("receive") and key is not None:
            return key in self.sent
        if done.kind.startswith("send") and key is not None:
            ends = sorted((key[1], key[1] + (1 if key[0] == "out" else -1)))
            return self.waiting[key[0], key[1]] < backlog(self.plan, *ends)
        return done.kind != "verdict" or self.committed(done.round)

    def do(self, device: str) -> None:
        done = self.lists[device][self.at[device]]
        key = self._key(device, done)
        if key is not None and done.kind.startswith("send"):
            self.sent.add(key)
            self.waiting[key[:2]] += 1
        elif key is not None:
            self.waiting[key[:2]] -= 1
        if done.kind == "ready":
            self.ready[done.round].add(device)


def one_device_each(plan: Plan) -> Plan:
    stages = (replace(s, group=(replace(s.group[0], share=plan.micro_batches),), sharing="turns") for s in plan.stages)
    return replace(plan, stages=tuple(stages))


@st.composite
def overlapping(draw: st.DrawFn) -> tuple[Plan, list[int], set[int]]:
    plan = one_device_each(replace(draw(plans()), schedule=Steady.name))
    counts = draw(st.lists(st.integers(1, plan.micro_batches), min_size=1, max_size=6))
    return plan, counts, draw(st.sets(st.integers(0, 5)))


@given(overlapping(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_no_stage_waits_for_ever(given_: tuple[Plan, list[int], set[int]], random: Random) -> None:
    walk = Walk(*given_)
    walk.run(random)
    assert walk.finished


@given(overlapping())
@settings(max_examples=150, deadline=None)
def test_a_round_uses_weights_with_every_step_but_the_last_one(given_: tuple[Plan, list[int], set[int]]) -> None:
    plan, counts, pauses = given_
    for device in plan.devices:
        all_done = listed(plan, device, counts, pauses)
        place = {(d.kind, d.round, d.micro_batch): i for i, d in enumerate(all_done)}
        for round, count in enumerate(counts):
            verdict = place["verdict", round, WHOLE_ROUND]
            first = place["forward", round, 0]
            for other in range(len(counts)):
                settled = place["verdict", other, WHOLE_ROUND] < first
                assert settled == (other < round - 1 or (other == round - 1 and other in pauses))
            backwards = [place["backward", round, j] for j in range(count)]
            assert backwards == sorted(backwards)
            if late_weights(plan, stage_of(plan, device)):
                owed = [place["weights", round, j] for j in range(count)]
                assert all(b < w < place["reduce", round, WHOLE_ROUND] for b, w in zip(backwards, owed, strict=True))
            assert backwards[-1] < place["reduce", round, WHOLE_ROUND] < place["ready", round, WHOLE_ROUND] < verdict


@given(overlapping())
@settings(max_examples=150, deadline=None)
def test_never_more_is_under_way_than_the_depth_says(given_: tuple[Plan, list[int], set[int]]) -> None:
    plan, counts, pauses = given_
    for stage, device in enumerate(plan.devices):
        open_, most = 0, 0
        for done in listed(plan, device, counts, pauses):
            open_ += {"forward": 1, "backward": -1}.get(done.kind, 0)
            most = max(most, open_)
        assert open_ == 0
        assert most <= plan.depth(stage)


@given(plans(), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_in_lock_step_a_segment_is_the_list_of_a_round(plan: Plan, count: int) -> None:
    count = min(count, plan.micro_batches)
    for device in plan.devices:
        assert segment(plan, device, count, UnderWay(), follows=False) == (actions(plan, device, count), UnderWay())


@given(plans(), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_members_by_turns_do_their_own_part_of_the_stages_work(plan: Plan, count: int) -> None:
    plan, count = replace(plan, schedule=Steady.name), min(count, plan.micro_batches)
    for stage in plan.stages:
        for member in stage.group:
            some, _ = segment(plan, member.device, count, UnderWay(), follows=False)
            mine = {a.micro_batch for a in some if a.kind == "forward"}
            assert mine == set(own_micro_batches(stage, member.device, count))
            assert [a.kind for a in some[-3:]] == ["reduce", "ready", "verdict"]


def test_the_next_rounds_forwards_fill_the_end_of_a_round() -> None:
    plan = replace(chain(2, micro_batches=3), schedule=Steady.name)
    first, under_way = segment(plan, plan.devices[0], 3, UnderWay(), follows=True)
    second, _ = segment(plan, plan.devices[0], 3, under_way, follows=True)
    work = [(a.kind, a.ago, a.micro_batch) for a in (*first, *second) if a.kind in ("forward", "backward", "ready")]
    assert work == [
        ("forward", 0, 0), ("forward", 0, 1), ("backward", 0, 0), ("forward", 0, 2), ("backward", 0, 1),
        ("forward", 0, 0), ("backward", 1, 2), ("ready", 1, WHOLE_ROUND), ("forward", 0, 1),
        ("backward", 0, 0), ("forward", 0, 2), ("backward", 0, 1),
    ]  # fmt: skip
    assert Action("verdict", WHOLE_ROUND, 2) not in second


def test_nothing_waits_for_the_next_round_but_what_needs_it() -> None:
    """A last stage has room for one micro-batch only: it ends its round before it looks for another."""
    plan = replace(chain(2, micro_batches=3), schedule=Steady.name)
    some, under_way = segment(plan, plan.devices[-1], 3, UnderWay(), follows=True)
    assert [a.kind for a in some[-2:]] == ["reduce", "ready"]
    assert under_way.flying == ()
