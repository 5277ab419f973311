"""What `profile`, `verify`, `plan` and `simulate` say, and what they refuse, without measuring anything."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from potluck.cli.verbs import verify
from potluck.cli.verbs.measured import MeasuredJob, measured
from potluck.cli.verbs.plan import explainer, summary, verdict
from potluck.cli.verbs.planners import ask, known_names, plan_text, run_summary
from potluck.cli.verbs.profile import profile_lines
from potluck.cli.verbs.simulate import simulate
from potluck.control.audit import Audit
from potluck.errors import InputError
from potluck.plan.named_planners import OWN
from potluck.plan.validate import read_plan
from potluck.settings.verb_settings import PlanSettings, ProfileSettings
from potluck.simulate.outlook import run
from tests.unit.coordinator.small_job import small_job
from tests.unit.plan.instances import a_model, a_profile

FACTS = a_model(0, 6)
PROFILE = a_profile(0, FACTS, [1.0, 1.0])
JOB = dataclasses.replace(small_job(), batch_size=12, micro_batch_size=4)
IT = MeasuredJob(JOB, FACTS, PROFILE, ((4, 3), (2, 6)), "here")
NOTHING = {"add": (), "remove": (), "slow": (), "link": (), "batch_size": None}


def test_every_block_and_device_and_link_has_its_line_and_a_star_marks_what_was_not_measured() -> None:
    first = PROFILE.devices[0]
    cells = tuple(replace(cell, measured=cell.rows != 4) for cell in first.blocks[2].timings)
    blocks = (*first.blocks[:2], replace(first.blocks[2], timings=cells), *first.blocks[3:])
    guessed = replace(PROFILE, devices=(replace(first, blocks=blocks), PROFILE.devices[1]))
    lines = profile_lines(guessed, FACTS, 4)
    assert [line for line in lines[2:8] if "*" in line] == [line for line in lines if "layers.2" in line]
    assert sum(" → " in line for line in lines) == len(PROFILE.links)
    assert any("cells measured, 1 filled in" in line for line in lines)


def test_rows_that_nobody_measured_give_way_to_the_most_that_were() -> None:
    assert profile_lines(PROFILE, FACTS, 4)[0].startswith("micro-batch of 4;")
    assert profile_lines(PROFILE, FACTS, 5)[0].startswith("micro-batch of 16;")


def test_of_many_blocks_those_in_the_middle_are_left_out_and_counted() -> None:
    many = a_model(0, 100)
    lines = profile_lines(a_profile(0, many, [1.0]), many, 4)
    assert sum("layers." in line for line in lines) == 60
    assert any("… 40 more" in line for line in lines)


def test_flags_of_devices_beside_a_saved_profile_are_refused(tmp_path: Path) -> None:
    settings = ProfileSettings(load=tmp_path / "none.json", threads=2, no_local=True, devices=1)
    with pytest.raises(InputError, match="leave out --threads and --devices and --no-local"):
        measured("job.py", settings)


def test_a_planner_is_asked_for_the_jobs_micro_batch_and_our_own_for_all() -> None:
    other = ask("1f1b", IT, 0.1)
    assert (other.plan.micro_batch_size, other.plan.micro_batches, other.found) == (4, 3, None)
    smaller = ask("1f1b", dataclasses.replace(IT, sizes=((2, 6),)), 0.1)
    assert (smaller.plan.micro_batch_size, smaller.plan.micro_batches) == (2, 6)
    own = ask(OWN, IT, 0.1)
    assert own.found is not None
    assert own.plan == own.found.plan


def test_a_plan_says_who_is_left_out_and_how_good_it_is() -> None:
    answer = ask(OWN, IT, 0.1)
    result = run(answer.plan, FACTS, PROFILE)
    words = "\n".join(verdict(answer, result))
    assert "bound       " in words
    assert "DOES NOT FIT" not in words
    assert all(f"left out    {device}: " in words for device in result.idle)
    whole = summary(answer, result, IT)
    assert whole["round_s"] == result.round_s
    assert whole["bottleneck"] == explainer(result, IT).bottleneck()


def test_a_plan_that_does_not_fit_says_so() -> None:
    answer = ask("1f1b", IT, 0.1)
    tight = run(answer.plan, FACTS, a_profile(0, FACTS, [1.0, 1.0], memory=[1, 1]))
    assert verdict(answer, tight)[-1].startswith("DOES NOT FIT  1f1b ignores memory")
    assert not run_summary(tight)["fits"]
    assert all(device["missing_bytes"] > 0 for device in run_summary(tight)["devices"])


def test_a_plan_as_text_is_read_back_as_it_was(tmp_path: Path) -> None:
    plan = ask("1f1b", IT, 0.1).plan
    (tmp_path / "plan.json").write_text(plan_text(plan))
    assert read_plan(tmp_path / "plan.json") == plan


def test_names_are_known_beforehand_unless_devices_are_to_join(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text('[[device]]\nname = "desk"\n[[device]]\nname = "pi"\n')
    assert known_names(PlanSettings(fleet=fleet)) == ["desk", "pi"]
    assert known_names(PlanSettings(local=(("a", 1.0), ("b", 0.5)))) == ["a", "b"]
    assert known_names(PlanSettings(local=(("a", 1.0),), devices=1)) is None


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"compare": True, "plan_file": Path("plan.json")}, "--compare asks every planner and --plan gives a plan"),
        ({"gantt": Path("round.png")}, r"--gantt: round\.png is no \.svg file"),
    ],
)
def test_a_simulation_refuses_what_makes_no_sense_before_it_reads_the_job(choices: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"compare": False, "plan_file": None, "gantt": None, **choices}
    with pytest.raises(InputError, match=words):
        simulate("no such job.py", PlanSettings(), NOTHING, **given)


def audit_of(**more: Any) -> Audit:
    found = {field.name: 0 for field in dataclasses.fields(Audit)} | {"problems": (), "lost": (), "doubled": ()}
    return cast(Audit, type("Found", (), {**found, "exact": True, "finished": True, "stopped_early": False, **more}))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "0 samples"),
        ({"finished": False}, "so far; the run has not finished"),
        ({"stopped_early": True}, "; it stopped early, as evaluations no longer got better"),
    ],
)
def test_an_exact_run_is_said_to_be_and_how_far_it_is(found: dict[str, Any], words: str) -> None:
    first, last = verify.audit_lines(Path("runs/a"), audit_of(**found))
    assert first.startswith("runs/a: every sample of every epoch was used exactly once")
    assert last.endswith(words)


def test_of_a_run_that_is_not_exact_every_problem_is_named() -> None:
    lines = verify.audit_lines(Path("runs/a"), audit_of(exact=False, problems=("sample 3 was lost",)))
    assert lines == ["runs/a: NOT every sample was used exactly once", "  sample 3 was lost"]
