"""A schedule that somebody else has written trains for real, and is planned, simulated and weighed like ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from potluck.commands.verifying import TOLERANCE, compare, prepare_in_float64
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.coordinator.training import run_on
from potluck.errors import DeviceError
from potluck.plan.cost.memory import peak_bytes
from potluck.plan.events.event_simulation import Simulated, simulate
from potluck.plan.exactness import why_not_uncut
from potluck.plan.schedule import known_schedules
from potluck.plan.schedule.under_way import in_flight
from potluck.plan.search.plan_search import find_plan
from potluck.plan.validate import validate
from potluck.settings.extensions import VARIABLE, load_extensions
from potluck.types import Fleet, Plan, Sharing
from tests.models.planner_instances import instance
from tests.models.zoo import core_cases
from tests.models.zoo_jobs import case_job, cut, devices, grouped
from tests.process.agents import final_state

FILES = [Path(__file__).with_name(f"{name}.py") for name in ("fill_drain", "last_in_first_out")]
PATIENT = 60.0
FLEET = Fleet(devices=devices(3))
CASES = {case.name: case for case in core_cases()}


@pytest.fixture(scope="module", autouse=True)
def named() -> Iterator[None]:
    """As a user has it: files are named in the environment, which devices started here inherit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, ",".join(map(str, FILES)))
        patch.setattr(
            known_schedules, "_KNOWN", {"1f1b": known_schedules.schedule_named("1f1b")}
        )  # as it was, afterwards
        load_extensions()
        yield


@pytest.fixture(scope="module")
def prepared() -> PreparedJob:
    return prepare_job(case_job(CASES["residual_cnn"], 3, hard=True))


def plans(prepared: PreparedJob) -> tuple[Plan, Plan]:
    """Fill-drain, and the same by 1F1B."""
    plan = cut(prepared.facts, 3)
    return replace(plan, schedule="fill-drain"), plan


def test_it_trains_on_three_devices_and_has_the_bits_of_one_and_of_1f1b(prepared: PreparedJob, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    filled, usual = plans(prepared)
    validate(filled, prepared.facts, FLEET)
    assert not why_not_uncut(filled, prepared.facts)
    with LiveFleet(FLEET, Options(timeout_s=PATIENT)) as live:
        assert compare(live, prepared, filled, Options(timeout_s=PATIENT)).none
        for plan in (filled, usual):
            run_on(live, prepared, plan, Options(run_dir=tmp_path / plan.schedule, timeout_s=PATIENT))
    ours, theirs = final_state(tmp_path / "1f1b"), final_state(tmp_path / "fill-drain")
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize(("sharing", "shares"), [("turns", (3, 1)), ("samples", (2, 2))])
def test_a_group_sums_after_its_last_backward_whichever_micro_batch_that_is(
    sharing: Sharing, shares: tuple[int, int]
) -> None:
    torch.set_num_threads(1)
    prepared = prepare_in_float64(case_job(CASES["mlp"], 3), FLEET, "another order")
    plan = replace(grouped(prepared.facts, sharing, shares, first=True), schedule="last-in-first-out")
    assert why_not_uncut(plan, prepared.facts)
    with LiveFleet(FLEET, Options(timeout_s=PATIENT)) as live:
        assert compare(live, prepared, plan, Options(timeout_s=PATIENT), lanes=False).relative < TOLERANCE


def test_a_device_whose_owner_has_not_loaded_it_refuses(
    prepared: PreparedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    why = r"^device d\d: plan: schedule: 'fill-drain' is not known here; .* POTLUCK_EXTENSIONS on this machine"
    with LiveFleet(FLEET, Options(timeout_s=PATIENT)) as live, pytest.raises(DeviceError, match=why):
        run_on(live, prepared, plans(prepared)[0], Options(run_dir=tmp_path / "run", timeout_s=PATIENT))


def test_more_micro_batches_are_in_flight_and_memory_says_so(prepared: PreparedJob) -> None:
    filled, usual = plans(prepared)
    assert [in_flight(filled, d) for d in filled.devices] == [filled.micro_batches] * 3
    assert [in_flight(usual, d) for d in usual.devices] == [3, 2, 1]
    by_schedule = [peak_bytes(plan, prepared.facts) for plan in (filled, usual)]
    for device, times in (("d1", 2), ("d2", 4)):
        more, fewer = (uses[device].activations for uses in by_schedule)
        assert more == times * fewer > 0


def test_it_is_planned_and_simulated() -> None:
    facts, profile = instance(5, 3, 6, memory=False)
    found = find_plan(facts, profile, [(8, 6)], seconds=0.5, schedule="fill-drain")
    assert found.plan.schedule == "fill-drain"
    assert found.bound_s <= found.round_s
    pipeline = replace(cut(facts, 3), schedule="fill-drain")
    assert forwards_come_first(simulate(pipeline, facts, profile))
    assert not forwards_come_first(simulate(replace(pipeline, schedule="1f1b"), facts, profile))


def forwards_come_first(simulated: Simulated) -> bool:
    """Whether each device has run all its forwards of a round before its first backward."""
    spans = [s for s in simulated.spans if s.round == 0]
    last = {s.device: s.start_s for s in spans if s.kind == "forward"}
    first = {s.device: s.start_s for s in reversed(spans) if s.kind == "backward"}
    return all(last[device] < first[device] for device in last)
