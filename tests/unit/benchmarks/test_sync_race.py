"""What a race comes to, how samples are shared out, and its picture."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import benchmarks.sync.__main__ as command
from benchmarks.sync import text
from benchmarks.sync.chart import chart
from benchmarks.sync.race import (
    FAR_BEHIND,
    NOBODY_WAITS,
    POLICIES,
    SERVER_S,
    START_S,
    Asked,
    Race,
    began_to_learn,
    best,
    enough_s,
    in_turn,
    over,
    overs,
    rates_over_lone,
)
from benchmarks.sync.runs import EVERY, Course, Setting
from benchmarks.sync.workload import WORKLOADS, shards
from benchmarks.time_limit import QUICK_S, TimeLimit


def test_how_much_sooner_is_the_median_and_at_least_the_time_there_was():
    assert over([20.0, 60.0, None], [10.0, 20.0, 40.0], 100.0, 100.0) == 2.5
    assert over([None, None, None], [10.0, None, None], 80.0, 100.0) == 8.0
    assert over([], [1.0], 80.0, 100.0) is None  # it took no part


def test_a_target_that_the_fast_one_missed_counts_against_it():
    assert over([20.0, 60.0], [10.0, None], 100.0, 120.0) == (2.0 + 0.5) / 2
    assert over([1.0], [None], 80.0, 100.0) == 0.01
    assert over([None], [None], 80.0, 100.0) is None  # it says nothing of either


def test_everybody_is_compared_with_each_policy_in_which_nobody_waits():
    seconds: dict[str, list[float | None]] = {"bsp": [None], "ours": [10.0], "flower": [30.0], "adsp": [None]}
    found = overs(seconds, {"bsp": 50.0, "ours": 40.0, "flower": 40.0, "adsp": 60.0})
    assert found == {"ours": {"bsp": 5.0, "flower": 3.0}, "adsp": {"bsp": None, "flower": 0.5}}
    assert overs({"bsp": [1.0]}, {"bsp": 1.0}) == {}


def test_who_could_not_begin_is_not_slow_but_missing():
    slow, absent = Course(curve=[(1.0, 2.3)]), Course(problem="not all clients were ready in 120 s")
    assert began_to_learn([slow, slow])
    assert not began_to_learn([slow, absent])


def test_those_who_do_not_wait_are_held_against_lone_workers():
    assert rates_over_lone({"adsp": 90.0, "ours": 95.0, "bsp": 5.0}, 100.0) == {"adsp": 0.9, "ours": 0.95}
    assert rates_over_lone({"ours": 97.0}, 0.0) == {}


def test_every_policy_is_looked_at_and_who_is_slower_after_fewer_batches():
    assert set(EVERY) == set(POLICIES)
    assert EVERY["bsp"] < EVERY["local"] < EVERY["ours"]
    words = Setting("fashion", 0.1, 0).environment(Path("test.npz"), "bsp")
    assert words["SYNC_EVERY"] == str(EVERY["bsp"])


def test_others_get_as_long_as_shows_how_much_slower_they_are():
    assert enough_s("local", [10.0, 20.0, 30.0], most_s=300.0) == 60.0
    assert enough_s("bsp", [10.0, 20.0, 30.0], most_s=300.0) == pytest.approx(88.0)
    assert enough_s("bsp", [10.0, 100.0, 200.0], most_s=300.0) == 300.0
    assert enough_s("bsp", [10.0, None, None], most_s=300.0) == 300.0  # nobody knows what is enough
    assert enough_s("bsp", [], most_s=300.0) == 300.0


def test_where_time_may_be_short_those_far_behind_have_their_turn_last():
    mine, others = in_turn(POLICIES, ["flower"], hurried=True)
    assert (mine, others) == (["adsp", "ours"], ["local", "adacomm", "flower", "bsp", "ssp"])
    assert in_turn(POLICIES, ["flower"], hurried=False)[1] == ["bsp", "ssp", "local", "adacomm", "flower"]
    assert in_turn(("bsp", "ours"), [], hurried=True) == (["ours"], ["bsp"])


class _Lone:
    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> None:
        self.looks += 1


def _race(monkeypatch, quick: bool, seconds: float | None) -> tuple[list[str], list[str], int, float]:
    """Who had a turn, who was left out, how often devices were looked at, and how long all this took."""
    now_s, lone = [0.0], _Lone()
    limit, it = TimeLimit(seconds, lambda: now_s[0]), Race.__new__(Race)
    asked = Asked(quick, "fashion", "three-100", POLICIES, 1, None, False, 300.0, {"flower": Path("python")})
    it.__dict__.update(_asked=asked, _limit=limit, _rates=(0.1,), lone=lone, rates={}, _just_looked=False)

    def runs(self: Race, policy: str, seed: int, rate: float, most_s: float) -> Course:
        now_s[0] += START_S + (60.0 if policy in NOBODY_WAITS else most_s)
        return Course(reached_s=[10.0, 30.0, 60.0] if policy in NOBODY_WAITS else [None] * 3)

    monkeypatch.setattr(Race, "_with_rate", runs)
    return [policy for policy, _ in it.courses()], limit.left_out, lone.looks, now_s[0]


@pytest.mark.parametrize(
    ("seconds", "left_out"),
    [(QUICK_S, []), (700.0, ["ssp"]), (630.0, ["bsp"]), (500.0, ["flower", *FAR_BEHIND])],
)
def test_policies_for_which_there_is_no_time_are_left_out(monkeypatch, seconds: float, left_out: list[str]):
    ran, missing, _, took_s = _race(monkeypatch, quick=True, seconds=seconds)
    assert missing == left_out
    assert sorted([*ran, *missing]) == sorted([*POLICIES, "flower"])
    assert took_s + SERVER_S <= seconds


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        (["--quick"], QUICK_S),
        (["--quick", "--seeds", "3"], None),
        (["--quick", "--search"], None),
        ([], None),
    ],
)
def test_a_quick_run_has_a_time_limit_unless_more_is_asked_for(monkeypatch, options, seconds):
    limits: list[TimeLimit] = []

    def raced(asked: Asked, limit: TimeLimit) -> dict[str, float]:
        limits.append(limit)
        limit.left_out.append("ssp")
        return {}

    monkeypatch.setattr(command, "race", raced)
    for name in ("check_machine", "ended_by_signals"):
        monkeypatch.setattr(command, name, lambda: None)
    outcome = CliRunner().invoke(command.main, [*options, "--peer", "none"])
    assert (outcome.exit_code, limits[0].seconds) == (0, seconds)
    assert ("left out, as 15 minutes are not enough: ssp" in outcome.output) == (seconds is not None)


def test_one_look_between_two_runs_is_enough_where_it_is_to_be_quick(monkeypatch):
    assert _race(monkeypatch, quick=True, seconds=None)[2] == 3
    assert _race(monkeypatch, quick=False, seconds=None)[2] == 4


def test_the_best_of_several_is_taken_target_by_target():
    seconds: dict[str, list[float | None]] = {"local": [10.0, None], "adacomm": [12.0, 30.0], "bsp": [1.0, 1.0]}
    assert best(seconds, ("local", "adacomm")) == [10.0, 30.0]
    assert best(seconds, ("ours",)) == []


@pytest.mark.parametrize("dirichlet", [None, 0.3])
def test_every_sample_has_one_owner(dirichlet):
    labels = np.arange(1000) % 10
    found = shards(labels, 3, dirichlet, seed=0)
    assert sorted(np.concatenate(found)) == list(range(1000))
    sizes = [len(part) for part in found]
    assert (max(sizes) - min(sizes) > 50) == (dirichlet is not None)


def test_samples_with_many_labels_are_not_shared_by_label():
    with pytest.raises(ValueError, match="one label for each sample"):
        shards(np.zeros((10, 4)), 2, 0.3, seed=0)


def test_text_to_judge_by_is_not_trained_on():
    inputs, labels = text.pieces(20)
    judged, expected = text.held_out()
    assert inputs.shape == labels.shape == (20, text.LENGTH)
    assert (inputs.reshape(-1)[1:] == labels.reshape(-1)[:-1]).all()
    assert judged.reshape(-1)[-1] == expected.reshape(-1)[-2]
    assert expected.reshape(-1)[-1] == inputs[0, 0]  # one follows the other


@pytest.mark.parametrize("name", ["text"])
def test_a_model_fits_its_samples(name):
    work = WORKLOADS[name]
    inputs, labels = (torch.from_numpy(a) for a in work.samples(4))
    model = work.make_model(0)
    loss = work.loss(model(inputs), labels)
    assert float(loss) == pytest.approx(math.log(text.BYTES), rel=0.05)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), work.make_model(0).parameters(), strict=True))


def test_the_picture_has_a_line_for_everybody_who_said_something():
    curves = {"ours": [(0.0, 2.0), (5.0, 0.5), (6.0, 0.7)], "bsp": [(0.0, 2.0), (6.0, math.nan)], "flower": []}
    drawn = chart(curves, [0.6, 0.5])
    lines = re.findall('polyline points="([^"]*)"', drawn)
    assert len(lines) == 2
    heights = [float(point.split(",")[1]) for point in lines[0].split()]
    assert heights[1] == heights[2] > heights[0]  # the best so far
    assert "nan" not in drawn
    assert chart({}, [0.5])
    assert chart({"bsp": [(1.0, math.nan)]}, [0.5])
