"""How much a quick run of the recovery benchmark measures, and what it leaves out on slow machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery import bench as module
from benchmarks.recovery.__main__ import lost, planned
from benchmarks.recovery.bench import Bench
from benchmarks.recovery.comparing import Comparison
from benchmarks.recovery.extent import BEST_S, COLD_S, FULL, HEAVY_S, QUICK, loss_s, run_s
from benchmarks.recovery.scenarios import CNN, GPT
from benchmarks.recovery.session import Outcome, Setup
from benchmarks.recovery.tally import Tally
from benchmarks.time_limit import MARGIN, QUICK_S, TimeLimit
from potluck.types import Member, Plan, Stage

NO_BED: Any = None
ALONE = Stage(blocks=(0, 1), group=(Member(device="a", share=1),))
QUIET = Setup(GPT, Plan(micro_batch_size=1, micro_batches=1, stages=(ALONE,)), 1, Path("nowhere"))


def a_bench(limit: TimeLimit) -> Bench:
    return Bench(NO_BED, Path("nowhere"), limit)


def test_a_quick_run_has_the_few_scenarios_that_decide_unless_it_has_nothing_else() -> None:
    few = [scenario for scenario, _ in planned(True, 20, (), few=True)]
    every = [scenario for scenario, _ in planned(True, 20, (), few=False)]
    assert [s.name for s in few] == [
        "kill one that has its stage alone", "kill two neighbours at once",
        "kill one more during the recovery", "freeze", "kill and restart the coordinator",
        "the coordinator dies between ledger and commit",
    ]  # fmt: skip
    assert {s.model for s in few} == {GPT}
    assert every[:6] == few
    assert (every[6].name, every[6].model) == ("kill another", CNN)
    assert (len(every), len({s.name for s in every})) == (15, 15)
    assert len(list(planned(False, 20, (), few=False))) == 30 * 20


def test_what_a_quick_run_usually_takes_fits_its_limit() -> None:
    compared = sum(HEAVY_S[model] for model in QUICK.heavy) + BEST_S + COLD_S
    compared += sum(loss_s(GPT, after + QUICK.afterwards[1] + 2) for after in QUICK.moments)
    protected = sum(run_s(model, rounds) for model, rounds in QUICK.protected.items())
    survived = run_s(GPT) + 6 * loss_s(GPT)
    assert MARGIN * (compared + protected + survived) < QUICK_S


def test_losses_are_about_the_middle_between_two_checkpoints_in_both_forms() -> None:
    for extent in (QUICK, FULL):
        assert sum(extent.moments) / len(extent.moments) == 30


def test_without_time_everything_is_left_out_by_name_and_figures_say_that_nothing_is_known() -> None:
    limit = TimeLimit(0.0)
    bench, tally = a_bench(limit), Tally()
    found, picture = Comparison(bench, QUICK).run()
    assert bench.protections(QUICK, ()) == {}
    bench.survive(tally, planned(True, 20, (), few=True))
    assert (tally.ran, picture) == (0, "")
    assert found["heavy_ratio"] == {}
    assert found["restart_ratio"] is found["restart_ratio_warm"] is found["after_over_best"] is None
    assert lost(tally)["detect_s"] == {"median": None, "p95": None}
    assert limit.left_out == [
        "resnet50: heavy rescheduling", "small_gpt: lost after 30 rounds", "small_gpt: the best plan",
        "small_gpt: cold restart", "small_gpt: what copies cost",
        *(f"{s.model}: {s.name}" for s, _ in planned(True, 20, (), few=True)),
    ]  # fmt: skip


def test_the_first_scenario_of_a_model_takes_a_run_without_losses_beside_it() -> None:
    limit, tally = TimeLimit(MARGIN * loss_s(GPT) + 1.0), Tally()
    a_bench(limit).survive(tally, list(planned(True, 1, (), few=True))[:1])
    assert (tally.ran, limit.left_out) == (0, ["small_gpt: kill one that has its stage alone"])


@pytest.mark.parametrize(("slower", "ran"), [(1.0, 6), (1.5, 5), (2.5, 2)])
def test_on_a_slow_machine_the_last_scenarios_are_left_out(
    monkeypatch: pytest.MonkeyPatch, slower: float, ran: int
) -> None:
    now_s, models = [0.0], list[str]()
    limit = TimeLimit(MARGIN * 1.3 * (run_s(GPT) + 6 * loss_s(GPT)), lambda: now_s[0])

    def whole(self: Bench, model: str) -> tuple[Outcome, dict[str, Any]]:
        models.append(model)
        now_s[0] += slower * run_s(model)
        return Outcome(), {}

    def runs(*_: object) -> Outcome:
        now_s[0] += slower * loss_s(GPT)
        return Outcome(problem="nobody ran")

    monkeypatch.setattr(Bench, "whole", whole)
    monkeypatch.setattr(Bench, "setup", lambda self, model: QUIET)
    monkeypatch.setattr(module, "run", runs)
    tally, every = Tally(), [(scenario, seed) for scenario, seed in planned(True, 1, (), few=True)]
    a_bench(limit).survive(tally, every)
    assert (tally.ran, models) == (ran, [GPT])
    assert limit.left_out == [f"{s.model}: {s.name}" for s, _ in every[ran:]]
    assert now_s[0] <= (limit.seconds or 0.0)
