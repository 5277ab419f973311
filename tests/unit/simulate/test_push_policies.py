"""Policies under virtual time: the same code as in a real run, with many workers that differ, stumble and vanish."""

from __future__ import annotations

import math

import numpy as np
import pytest

from potluck.paramserver.policies.adsp import Adsp
from potluck.paramserver.policies.bsp import Bsp
from potluck.paramserver.policies.local import Lockstep
from potluck.paramserver.policies.ours import Ours
from potluck.paramserver.policy_choice import choose, policy_names
from potluck.simulate.problem import Problem
from potluck.simulate.push_policies import Crowd, PushOutcome, Simulation

PAPER = Crowd((0.1, 0.083, 0.3))  # speeds of 1 : 1.2 : 0.33
TARGET = 0.18


def a_fleet(workers: int, seed: int = 0, **others: float) -> Crowd:
    return Crowd.mixed(workers, 2.0, np.random.default_rng(seed), **others)


def simulated(name: str, fleet: Crowd, seed: int = 0, until_s: float = 1200.0, target: float = TARGET) -> PushOutcome:
    return Simulation(choose(name).policy(1.5), fleet, Problem.of(), seed).run(until_s, target)


@pytest.mark.parametrize("name", sorted(policy_names()))
def test_every_policy_reaches_the_target_and_says_why_it_does_what_it_does(name: str) -> None:
    found = [simulated(name, PAPER, seed, until_s=3600.0) for seed in range(2)]
    assert all(outcome.reached_s is not None for outcome in found)
    assert all(outcome.reasons for outcome in found)


def test_one_seed_is_one_run() -> None:
    first, second = (simulated("ours", a_fleet(20, hiccup=0.1, vanish_s=200.0), 7) for _ in range(2))
    assert (first.course, first.reasons) == (second.course, second.reasons)


def test_steps_taken_at_once_are_distributed_like_steps_taken_one_by_one() -> None:
    problem, chance = Problem.of(4), np.random.default_rng(5)
    start, minimum = problem.start(), np.ones(4)
    found = []
    for bites in (1, 10):
        runs = []
        for _ in range(3000):
            weights = start
            for _ in range(bites):
                weights = problem.trained(weights, minimum, 10 // bites, chance)
            runs.append(weights)
        found.append((np.mean(runs, axis=0), np.std(runs, axis=0)))
    assert np.allclose(found[0][0], found[1][0], atol=0.03)
    assert np.allclose(found[0][1], found[1][1], rtol=0.08)


def test_workers_compute_nearly_all_the_time_where_nobody_waits_and_a_third_of_it_in_lock_step() -> None:
    long = {"until_s": 300.0, "target": -math.inf}
    names = ("adsp", "ours", "asp", "bsp", "local")
    busy = {name: simulated(name, PAPER, **long).busy for name in names}  # type: ignore[arg-type]
    assert min(busy["adsp"], busy["ours"], busy["asp"]) > 0.95
    assert busy["bsp"] < 0.35
    assert busy["local"] < 0.6


def test_a_worker_ten_times_slower_costs_the_others_nothing() -> None:
    def steps(policy: Adsp | Bsp, step_s: tuple[float, ...]) -> int:
        return Simulation(policy, Crowd(step_s), Problem.of()).run(600.0).steps

    for kind in (Adsp, Ours):
        assert steps(kind(40.0), (0.1, 0.1, 1.0)) > 0.97 * (steps(kind(40.0), (0.1, 0.1)) + 600)
    assert steps(Bsp(), (0.1, 0.1, 1.0)) < 0.5 * steps(Bsp(), (0.1, 0.1))


@pytest.mark.parametrize("name", ["bsp", "local", "adsp", "ours"])
def test_workers_that_stumble_and_vanish_stop_nobody(name: str) -> None:
    fleet = a_fleet(30, hiccup=0.2, vanish_s=60.0, absent_s=20.0)
    outcome = simulated(name, fleet, 3, until_s=2400.0)
    assert outcome.reached_s is not None
    assert any("is gone" in reason for reason in outcome.reasons)


def test_the_more_the_workers_differ_the_more_waiting_costs() -> None:
    ratios = []
    for heterogeneity in (1.45, 3.2):
        times = {}
        for kind, policy in (("ours", Ours(40.0)), ("lock-step", Lockstep(40))):
            fleet = Crowd.mixed(12, heterogeneity, np.random.default_rng(1))
            found = Simulation(policy, fleet, Problem.of(), 1).run(2400.0, TARGET).reached_s
            assert found is not None
            times[kind] = found
        ratios.append(times["lock-step"] / times["ours"])
    assert ratios[0] < ratios[1]


@pytest.mark.parametrize("workers", [1000, pytest.param(10_000, marks=pytest.mark.full)])
def test_thousands_of_workers_and_a_server_that_keeps_up(workers: int) -> None:
    outcome = simulated("ours", a_fleet(workers), until_s=130.0, target=-math.inf)
    assert outcome.pushes >= 1.9 * workers
    assert outcome.busy > 0.9
    assert outcome.served < 1.0
    assert outcome.apart <= 3  # where a worker comes to the end of a period, another is at its beginning
