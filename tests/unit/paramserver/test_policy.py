"""Who pushes when, and who waits: any policy under any course of events."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.paramserver.applied_pushes import Push
from potluck.paramserver.client import Client, Next
from potluck.paramserver.events import Answer, Report
from potluck.paramserver.policies.adacomm import AdaComm
from potluck.paramserver.policies.adsp import Adsp
from potluck.paramserver.policies.bsp import Bsp
from potluck.paramserver.policies.local import Lockstep
from potluck.paramserver.policies.ours import Ours
from potluck.paramserver.policies.ssp import Ssp
from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_choice import choose, policy_names

PERIOD_S = 10.0
speeds = st.lists(st.floats(0.02, 1.0), min_size=1, max_size=6)


class World:
    """Workers with so many seconds a step, driven through a policy step by step; a push and its answer take so long,
    half of it each way."""

    def __init__(self, policy: Policy, step_s: list[float], overhead_s: float = 0.0) -> None:
        self.policy, self.overhead_s = policy, overhead_s
        self.under_way: dict[int, tuple[str, Push | Answer]] = {}
        self.step_s = {f"w{i}": s for i, s in enumerate(step_s)}
        self.clients: dict[str, Client] = {}
        self.pushes: Counter[str] = Counter()
        self.waited_s: dict[str, float] = dict.fromkeys(self.step_s, 0.0)
        self.since: dict[str, float] = {}
        self.most_apart, self.version = 0, 0
        self.events: list[tuple[float, int, str]] = []
        self.arrivals: dict[str, list[float]] = {}
        self.reasons: list[str] = []
        self._count, self._stepping = 0, ""

    def run(self, until_s: float) -> None:
        for name in self.step_s:
            answer = self.policy.joined(name, 100, 0.0)
            self.reasons.append(answer.reason)
            self.clients[name] = Client(name, 1, answer.paces[name], waits=self.policy.waits, version=0, now_s=0.0)
            self._at(self.step_s[name], name)
        check_s = self.policy.check_s
        if check_s is not None:
            for number in range(int(until_s / check_s) + 1):
                self._at(number * check_s, "")
        while self.events and self.events[0][0] <= until_s:
            now_s, _, name = heapq.heappop(self.events)
            if not name:
                self._take(self.policy.checked(2 / (1 + 0.05 * now_s) + 0.1, now_s), now_s)
            elif name.isdecimal():
                self._arrived(*self.under_way.pop(int(name)), now_s)
            else:
                self._stepped(name, now_s)

    def _at(self, now_s: float, what: str) -> None:
        self._count += 1
        heapq.heappush(self.events, (now_s, self._count, what))

    def _stepped(self, name: str, now_s: float) -> None:
        client, self._stepping = self.clients[name], name
        if client.step_done(32, 1.0, now_s) is Next.PUSH:
            push = client.push(now_s)
            self.pushes[name] += 1
            self.since[name] = now_s
            self._send(name, push, now_s)
        self._stepping = ""
        if not client.stands_still:
            self._at(now_s + self.step_s[name], name)

    def _send(self, name: str, what: Push | Answer, now_s: float) -> None:
        """Over a line that takes half of the overhead."""
        if not self.overhead_s:
            self._arrived(name, what, now_s)
            return
        self._at(now_s + self.overhead_s / 2, str(self._count + 1))
        self.under_way[self._count] = name, what

    def _arrived(self, name: str, what: Push | Answer, now_s: float) -> None:
        if isinstance(what, Push):
            self._pushed(name, what, now_s)
        else:
            self._let_go(name, what, now_s)

    def _pushed(self, name: str, push: Push, now_s: float) -> None:
        overhead_s, stale = self.clients[name].overhead_s, self.version - push.base
        report = Report(name, push.steps, push.samples, push.loss or 0.0, stale, overhead_s)
        answer = self.policy.pushed(report, now_s)
        self.arrivals.setdefault(name, []).append(now_s)
        assert 0 < answer.scale <= 1
        self.version += 1
        counts = [w.pushes for w in self.policy.workers.values()]
        assert self.policy.fewest == min(counts)
        self.most_apart = max(self.most_apart, max(counts) - min(counts))
        self._take(answer, now_s)

    def _let_go(self, name: str, answer: Answer, now_s: float) -> None:
        self.waited_s[name] += (now_s - self.since.pop(name)) * self.clients[name].stands_still
        stood_still = self.clients[name].stands_still
        self.clients[name].answered(self.pushes[name], self.version, 10**9, answer.paces[name], now_s)
        if stood_still and name != self._stepping:
            self._at(now_s + self.step_s[name], name)

    def _take(self, answer: Answer, now_s: float) -> None:
        self.reasons.append(answer.reason)
        for name in answer.go:
            self._send(name, answer, now_s)
        for name, pace in answer.paces.items():
            if name not in answer.go and name in self.clients:
                self.clients[name].repace(pace)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.02, PERIOD_S / 40), min_size=1, max_size=6))
def test_under_adsp_nobody_waits_and_push_counts_stay_within_one(step_s: list[float]) -> None:
    for kind in (Adsp, Ours):
        world = World(kind(PERIOD_S, 200.0), step_s)
        world.run(20 * PERIOD_S + 0.5)
        assert not any(world.waited_s.values())
        assert min(world.pushes.values()) >= 15
        assert world.most_apart <= 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.02, PERIOD_S / 80), min_size=2, max_size=6), st.floats(0.1, PERIOD_S / 20))
def test_push_counts_stay_within_one_where_pushing_takes_time(step_s: list[float], overhead_s: float) -> None:
    for kind in (Adsp, Ours):
        world = World(kind(PERIOD_S, 200.0), step_s, overhead_s)
        world.run(20 * PERIOD_S + 0.5)
        assert min(world.pushes.values()) >= 15
        assert world.most_apart <= 1


def test_pushes_come_evenly_where_pushing_takes_time() -> None:
    policy = Adsp(PERIOD_S, 1e6)
    world = World(policy, [0.05, 0.1], overhead_s=0.8)
    policy._search.rate, policy._search.over = 4, True
    policy._known = True
    world.run(10 * PERIOD_S)
    for arrivals in world.arrivals.values():
        apart = [later - earlier for earlier, later in itertools.pairwise(arrivals[4:])]
        assert max(apart) < 1.15 * PERIOD_S / 4
        assert min(apart) > 0.85 * PERIOD_S / 4


@settings(max_examples=20, deadline=None)
@given(speeds)
def test_workers_so_slow_that_they_cannot_keep_up_hold_nobody_up(step_s: list[float]) -> None:
    world = World(Adsp(PERIOD_S / 10, 200.0), step_s)  # of ten steps or less than one
    world.run(100.0)
    assert not any(world.waited_s.values())
    assert all(world.pushes[name] >= min(48, 48 / s) for name, s in world.step_s.items())


@pytest.mark.parametrize("rate", [1, 2, 3, 7])
def test_workers_push_as_often_as_the_rate_says(rate: int) -> None:
    class Fixed(Adsp):
        def _next_rate(self, now_s: float) -> str:
            self._search.rate = rate
            return f"{rate}, always"

    counts = []
    for periods in (3, 23):
        world = World(Fixed(PERIOD_S, 1e6), [0.02, 0.11, 0.25])
        world.run(periods * PERIOD_S)
        counts.append(world.pushes)
    assert all(counts[1][name] - counts[0][name] == pytest.approx(20 * rate, abs=1) for name in counts[0])


def test_a_worker_ten_times_slower_costs_the_others_nothing_under_adsp() -> None:
    pushes = []
    for step_s in ([0.1, 0.1], [0.1, 0.1, 1.0]):
        world = World(Adsp(PERIOD_S, 200.0), step_s)
        world.run(200.0)
        pushes.append((world.pushes["w0"], world.waited_s["w0"]))
    assert pushes[0] == pushes[1]
    waiting = World(Bsp(), [0.1, 0.1, 1.0])
    waiting.run(200.0)
    assert waiting.waited_s["w0"] > 150.0


@settings(max_examples=40, deadline=None)
@given(speeds, st.integers(1, 7))
def test_in_lockstep_all_have_pushed_equally_often_before_anybody_goes_on(step_s: list[float], steps: int) -> None:
    world = World(Lockstep(steps), step_s)
    world.run(30.0)
    assert max(world.pushes.values(), default=0) - min(world.pushes.values(), default=0) <= 1
    slowest = max(step_s)
    assert min(world.pushes.values(), default=0) >= math.floor(30.0 / (steps * slowest)) - 1


@settings(max_examples=40, deadline=None)
@given(speeds, st.integers(0, 6))
def test_stale_synchronous_keeps_its_bound(step_s: list[float], ahead: int) -> None:
    policy = Ssp(ahead)
    world = World(policy, step_s)
    pushed = policy.pushed

    def look(report: Report, now_s: float) -> Answer:
        answer = pushed(report, now_s)
        counts = [w.pushes for w in policy.workers.values()]
        assert max(counts) - min(counts) <= ahead + 1  # the one ahead has pushed and waits
        return answer

    policy.pushed = look  # type: ignore[method-assign]
    world.run(10.0)
    assert sum(world.pushes.values()) > 0


@pytest.mark.parametrize("name", sorted(policy_names()))
def test_who_leaves_sets_the_others_free_and_who_comes_holds_nobody_up(name: str) -> None:
    policy = choose(name).policy(1.5)
    for worker in "abc":
        policy.joined(worker, 10, 0.0)
    for worker in "ab":
        policy.pushed(Report(worker, 1, 32, 1.0, 0, 0.1), 1.0)
    answer = policy.left("c", 2.0)
    assert not policy.waiting
    if policy.waits and name != "ssp":
        assert set(answer.go) == {"a", "b"}
    came = policy.joined("d", 10, 3.0)
    assert set(came.paces) == {"d"}
    assert policy.workers["d"].pushes == policy.workers["a"].pushes


@pytest.mark.parametrize("name", sorted(policy_names()))
def test_every_decision_has_a_reason(name: str) -> None:
    world = World(choose(name).policy(1.5), [0.3, 0.5])
    world.run(130.0)
    assert all(world.reasons)
    assert all(client.pace.reason for client in world.clients.values())


def test_adacomm_takes_fewer_steps_as_the_loss_falls() -> None:
    policy = AdaComm(steps=40, check_s=1.0)
    policy.joined("w", 10, 0.0)
    found = []
    for loss in (4.0, 1.0, 1.0, math.nan, 1.0):
        for _ in range(5):
            policy.pushed(Report("w", 40, 1280, loss, 0, 0.0), 0.0)
        policy.checked(loss, 0.0)
        policy.checked(loss, 0.0)  # nobody has pushed since: that says nothing
        found.append(policy.steps)
    assert found == [40, 20, 10, 10, 5]


def test_adsp_stays_with_the_rate_at_which_the_loss_falls_fastest() -> None:
    for kind in (Adsp, Ours):
        policy = kind(PERIOD_S, 1e6)
        policy.joined("w", 10, 0.0)
        loss, now_s, checks = 4.0, 0.0, policy.losses_a_period
        best = 3
        for _ in range(12 * checks):
            policy.checked(loss, now_s)
            now_s += PERIOD_S / checks
            falls = 0.02 * max(0.1, 1 - 0.3 * abs(policy.rate - best))
            loss = 1 / (1 / (loss - 0.2) + falls * PERIOD_S / checks) + 0.2
        assert policy.rate in ((best,) if kind is Adsp else (2, 4)), kind  # which doubles and halves


def test_adsp_searches_anew_when_the_loss_jumps() -> None:
    policy = Adsp(PERIOD_S, 1e6)
    policy.joined("w", 10, 0.0)
    for number, loss in enumerate((4.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0)):
        policy.checked(loss, number * PERIOD_S / 2)
    answer = policy.checked(3.0, 40.0)
    assert "rose from 2 to 3" in answer.reason
    assert policy.rate == 1


def test_our_pushes_count_by_data_and_old_ones_less() -> None:
    policy = Ours()
    policy.joined("small", 100, 0.0)
    policy.joined("large", 300, 0.0)
    fresh = [policy.scale(Report(w, 5, 160, 1.0, 1, 0.0)) for w in ("small", "large")]
    assert fresh == [0.25, 0.75]
    assert policy.scale(Report("small", 5, 160, 1.0, 7, 0.0)) == pytest.approx(0.125)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(policy_names())), st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40)
)
def test_whoever_comes_and_goes_somebody_always_goes_on(name: str, events: list[tuple[str, bool]]) -> None:
    policy = choose(name).policy(1.5)
    for worker, pushes in events:
        if worker not in policy.workers:
            policy.joined(worker, 10, 1.0)
        elif pushes and worker not in policy.waiting:
            policy.pushed(Report(worker, 1, 32, 1.0, 0, 0.1), 1.0)
        else:
            policy.left(worker, 1.0)
        assert len(policy.waiting) < max(1, len(policy.workers))
        if policy.workers:
            assert policy.fewest == min(w.pushes for w in policy.workers.values())
            assert policy.samples == 10 * len(policy.workers)
