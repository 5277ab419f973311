"""Action lists: walked by a small executor, for random valid plans, in random interleavings."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import PlanError
from potluck.plan.routes import Part, Route, routes, rows
from potluck.plan.schedule.action_list import Action, actions, late_weights
from potluck.plan.schedule.holders import stage_of, turns
from potluck.plan.schedule.under_way import backlog, in_flight
from potluck.plan.validate import validate
from potluck.types import Member, Plan, Sharing, Stage
from tests.unit.builders import chain, facts, fleet


class Walk:
    """Walks every device's list at once; a message is on its way from its send until its receive.

    Every stage sends to the next one, or with `skips` to every later one. A send waits while there is no room.
    """

    def __init__(self, plan: Plan, sizes: list[int], *, skips: bool = False, room: int | None = None) -> None:
        self.plan, self.sizes, self.skips, self.room = plan, sizes, skips, room
        self.lists = {d: actions(plan, d, len(sizes)) for d in plan.devices}
        self.at = dict.fromkeys(plan.devices, 0)
        self.under_way: Counter[tuple[str, str, str]] = Counter()  # kind, source, target
        self.arrived: set[tuple[str, Route, int]] = set()
        self.forward: list[tuple[int, int, Part]] = []
        self.backward: list[tuple[int, int, Part]] = []
        self.stash: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def run(self, random: Random) -> None:
        """Steps devices that can step, picked at random, until none can."""
        while able := [d for d in self.plan.devices if self.at[d] < len(self.lists[d]) and self.can(d)]:
            device = random.choice(able)
            self.do(device)
            self.at[device] += 1

    @property
    def finished(self) -> bool:
        return all(self.at[d] == len(self.lists[d]) for d in self.plan.devices)

    def parts(self, stage: int, j: int) -> tuple[Part, ...]:
        return rows(self.plan.stages[stage], j, self.sizes[j], self.plan)

    def messages(self, device: str, action: Action) -> list[Route]:
        """What the device sends or receives in this action."""
        stage, j, sends = stage_of(self.plan, device), action.micro_batch, action.kind.startswith("send")
        others = range(0)
        if action.kind in ("receive_inputs", "send_gradients"):
            others = range(0 if self.skips else max(stage - 1, 0), stage)
        elif action.kind in ("receive_gradients", "send_outputs"):
            others = range(stage + 1, len(self.plan.stages) if self.skips else stage + 2)
        pairs = [(stage, other) if sends else (other, stage) for other in others]
        found = [r for a, b in pairs for r in routes(self.parts(a, j), self.parts(b, j))]
        return [r for r in found if device == (r.source if sends else r.target)]

    def has_room(self, what: str, route: Route) -> bool:
        earlier, later = sorted((stage_of(self.plan, route.source), stage_of(self.plan, route.target)))
        room = backlog(self.plan, earlier, later) if self.room is None else self.room
        return self.under_way[what, route.source, route.target] < room

    def can(self, device: str) -> bool:
        action = self.lists[device][self.at[device]]
        what, j = action.kind.removeprefix("send_").removeprefix("receive_"), action.micro_batch
        what = what.replace("outputs", "inputs")
        if action.kind.startswith("receive"):
            return all((what, r, j) in self.arrived for r in self.messages(device, action))
        if action.kind.startswith("send"):
            return all(self.has_room(what, r) for r in self.messages(device, action))
        if action.kind == "reduce":
            group = self.plan.stages[stage_of(self.plan, device)].group
            return all(self.lists[m.device][self.at[m.device]].kind in ("reduce", "ready", "verdict") for m in group)
        if action.kind == "verdict":
            return all(self.at[d] >= len(self.lists[d]) - 1 for d in self.plan.devices)
        return True

    def do(self, device: str) -> None:
        action = self.lists[device][self.at[device]]
        what, j = action.kind.removeprefix("send_").removeprefix("receive_"), action.micro_batch
        what = what.replace("outputs", "inputs")
        for r in self.messages(device, action):
            self.under_way[what, r.source, r.target] += 1 if action.kind.startswith("send") else -1
            (self.arrived.add if action.kind.startswith("send") else self.arrived.remove)((what, r, j))
        if action.kind in ("forward", "backward"):
            stage = stage_of(self.plan, device)
            log = self.forward if action.kind == "forward" else self.backward
            log += [(stage, j, part) for part in self.parts(stage, j) if part.device == device]
            self.stash[device] += 1 if action.kind == "forward" else -1
            assert self.stash[device] >= 0
            self.most[device] = max(self.most[device], self.stash[device])


@st.composite
def compositions(draw: st.DrawFn, total: int, parts: int, least: int) -> list[int]:
    """A total as a sum of parts, none below the least."""
    cuts = sorted(draw(st.lists(st.integers(0, total - parts * least), min_size=parts - 1, max_size=parts - 1)))
    return [b - a + least for a, b in zip([0, *cuts], [*cuts, total - parts * least], strict=True)]


@st.composite
def plans(draw: st.DrawFn, max_stages: int = 5) -> Plan:
    n, size, micro_batches = draw(st.integers(1, max_stages)), draw(st.integers(6, 9)), draw(st.integers(3, 12))
    stages, depth = [], 2 * n
    for p in range(n):
        sharing: Sharing = draw(st.sampled_from(("turns", "samples")))
        total, least = (micro_batches, 1) if sharing == "turns" else (size, 2)
        shares = draw(compositions(total, draw(st.integers(1, 3)), least))
        depth = draw(st.integers(n - p, min(2 * (n - p) - 1, depth)))
        group = tuple(Member(device=f"d{p}.{i}", share=share) for i, share in enumerate(shares))
        late = draw(st.integers(0, micro_batches))
        stages.append(Stage(blocks=(p, p + 1), group=group, sharing=sharing, depth=depth, late_weights=late))
    return Plan(micro_batch_size=size, micro_batches=micro_batches, stages=tuple(stages))


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Plan, list[int]]:
    """A valid plan, and the micro-batch sizes of a full or partial round."""
    plan = draw(plans())
    validate(plan, facts(len(plan.stages)), fleet(*plan.devices))
    count, last = draw(st.integers(1, plan.micro_batches)), draw(st.integers(1, plan.micro_batch_size))
    return plan, [plan.micro_batch_size] * (count - 1) + [last]


@settings(max_examples=100, deadline=None)
@given(rounds(), st.booleans(), st.randoms(use_true_random=False))
def test_valid_plan_never_deadlocks_and_runs_each_row_once(
    case: tuple[Plan, list[int]], skips: bool, random: Random
) -> None:
    plan, sizes = case
    walk = Walk(plan, sizes, skips=skips)
    walk.run(random)
    assert walk.finished, f"deadlock at {walk.at}"
    assert not walk.arrived, "sent, and never received"
    for log in (walk.forward, walk.backward):
        for p in range(len(plan.stages)):
            for j, size in enumerate(sizes):
                done = [r for s, i, part in log if (s, i) == (p, j) for r in range(part.start, part.stop)]
                assert sorted(done) == list(range(size))
    for p in range(len(plan.stages)):
        for member in plan.stages[p].group:
            mine = [j for s, j, part in walk.backward if s == p and part.device == member.device]
            assert mine == sorted(mine)


@settings(max_examples=100, deadline=None)
@given(plans(), st.randoms(use_true_random=False))
def test_no_device_stashes_more_than_the_depth_and_in_flight_says_exactly_how_much(plan: Plan, random: Random) -> None:
    walk = Walk(plan, [plan.micro_batch_size] * plan.micro_batches)
    walk.run(random)
    for p, stage in enumerate(plan.stages):
        for member in stage.group:
            assert walk.most[member.device] == in_flight(plan, member.device) <= plan.depth(p)


@settings(max_examples=40, deadline=None)
@given(rounds())
def test_forwards_and_backwards_follow_what_they_need(case: tuple[Plan, list[int]]) -> None:
    plan, sizes = case
    for device in plan.devices:
        listed, stage = actions(plan, device, len(sizes)), stage_of(plan, device)
        place = {a: i for i, a in enumerate(listed)}
        assert len(place) == len(listed), "an action twice"
        for j in {a.micro_batch for a in listed if a.kind == "forward"}:
            kinds = ["receive_inputs", "forward", "send_outputs", "receive_gradients", "backward", "send_gradients"]
            if late_weights(plan, stage):
                kinds.append("weights")
            if stage == 0:
                kinds.remove("send_gradients")
            if stage == len(plan.stages) - 1:
                kinds = [k for k in kinds if k not in ("send_outputs", "receive_gradients")]
            order = [place[Action(k, j)] for k in kinds]  # type: ignore[arg-type]
            assert order == sorted(order)
            assert sum(a.micro_batch == j for a in listed) == len(kinds), "and nothing else of this micro-batch"
        assert [a.kind for a in listed[-3:]] == ["reduce", "ready", "verdict"]
        backwards = [a.micro_batch for a in listed if a.kind == "backward"]
        assert backwards == sorted(backwards)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rounds())
def test_weight_gradients_wait_in_order_and_no_more_of_them_than_may(case: tuple[Plan, list[int]]) -> None:
    plan, sizes = case
    assert late_weights(plan, 0) == 0, "nobody waits for a first stage"
    for device in plan.devices:
        late, owing, most = late_weights(plan, stage_of(plan, device)), list[int](), 0
        listed = actions(plan, device, len(sizes))
        for action in listed:
            if action.kind == "weights":
                assert owing.pop(0) == action.micro_batch
            elif action.kind == "backward" and late:
                owing.append(action.micro_batch)
            most = max(most, len(owing))
        assert not owing
        assert most == min(late, sum(a.kind == "backward" for a in listed))


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 6), st.data(), st.randoms(use_true_random=False))
def test_depth_above_that_of_the_stage_before_deadlocks_and_is_refused(
    n: int, data: st.DataObject, random: Random
) -> None:
    p = data.draw(st.integers(1, n - 2))
    depths = [n - i for i in range(n)]
    depths[p] = data.draw(st.integers(depths[p - 1] + 1, 2 * n))
    plan = chain(n, micro_batches=2 * n, depths=depths)
    walk = Walk(plan, [4] * plan.micro_batches, room=1000)
    walk.run(random)
    assert not walk.finished
    with pytest.raises(PlanError, match=rf"stages\[{p}\].depth"):
        validate(plan, facts(n), fleet(*plan.devices))


@pytest.mark.parametrize(("room", "finishes"), [(1, False), (2, True)])
def test_too_little_room_on_the_link_deadlocks_when_depths_are_far_apart(room: int, finishes: bool) -> None:
    plan = chain(4, depths=[6, 3, 2, 1])
    assert backlog(plan, 0, 1) == 4
    walk = Walk(plan, [4] * 8, room=room)
    walk.run(Random(0))  # noqa: S311
    assert walk.finished == finishes


def test_one_forward_one_backward_as_written_by_hand() -> None:
    plan = chain(2, micro_batches=3)
    work = {
        d: [(a.kind[0], a.micro_batch) for a in actions(plan, d, 3) if a.kind in ("forward", "backward")]
        for d in ("d0", "d1")
    }
    assert work["d0"] == [("f", 0), ("f", 1), ("b", 0), ("f", 2), ("b", 1), ("b", 2)]
    assert work["d1"] == [("f", 0), ("b", 0), ("f", 1), ("b", 1), ("f", 2), ("b", 2)]
    assert actions(plan, "d1", 0) == tuple(Action(k, -1) for k in ("reduce", "ready", "verdict"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_turns_follow_the_shares_evenly_and_a_shorter_round_is_a_prefix(shares: list[int], data: st.DataObject) -> None:
    group = tuple(Member(device=f"d{i}", share=s) for i, s in enumerate(shares))
    stage, total = Stage(blocks=(0, 1), group=group), sum(shares)
    full = turns(stage, total)
    assert Counter(full) == {m.device: m.share for m in group}
    shorter = data.draw(st.integers(0, total))
    assert turns(stage, shorter) == full[:shorter]
    for m in group:  # nobody is ever a whole turn or more ahead of its share of what is gone, times the group
        assert abs(Counter(full[:shorter])[m.device] - m.share * shorter / total) < len(group)


def test_turns_by_hand() -> None:
    stage = Stage(
        blocks=(0, 1), group=(Member(device="a", share=5), Member(device="b", share=1), Member(device="c", share=1))
    )
    assert "".join(turns(stage, 7)) == "aabacaa"


def test_wrong_questions_are_refused() -> None:
    plan = chain(2, micro_batches=3)
    with pytest.raises(PlanError, match="'nobody' holds no stage; use one of d0, d1"):
        actions(plan, "nobody", 3)
    with pytest.raises(ValueError, match="a round of 4"):
        actions(plan, "d0", 4)
    group = (Member(device="a", share=2), Member(device="b", share=2))
    with pytest.raises(ValueError, match="by samples"):
        turns(Stage(blocks=(0, 1), group=group, sharing="samples"), 2)
    with pytest.raises(ValueError, match="5 turns"):
        turns(Stage(blocks=(0, 1), group=group), 5)
