"""Devices vanish while they train: the run goes on, and ends with the numbers it would have had anyway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from potluck.control.audit import audit
from potluck.control.fault_script import Fault
from potluck.coordinator.fleet.fleet_profile import MeasuringTime, profile_fleet
from potluck.coordinator.fleet.live_fleet import LiveFleet
from potluck.coordinator.options import Options
from potluck.coordinator.run_folder.ledger_file import LEDGER, Ledger
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.coordinator.training import TrainResult, run_on
from potluck.errors import DeviceError, PotluckError
from potluck.metrics.records import RECORDS, IncidentRecord, PlanAdopted, read
from potluck.plan.search.plan_search import find_plan
from potluck.tensors.checkpoint import load, newest
from potluck.types import DeviceSpec, Fleet, Plan, RoundRecord
from tests.models.zoo import core_cases
from tests.models.zoo_jobs import case_job, cut, devices, grouped

PATIENT = 60.0
ROUNDS = 8
torch.set_num_threads(1)


class At:
    """Does something once, right after a round is committed."""

    def __init__(self, round: int, deed: Callable[[LiveFleet], None]) -> None:
        self.round, self.deed, self.live, self.done = round, deed, None, False

    def record(self, record: object) -> None:
        if isinstance(record, RoundRecord) and record.round >= self.round and not self.done:
            self.done = True
            assert self.live is not None
            self.deed(self.live)


def job(name: str = "mlp", **how: Any) -> PreparedJob:
    case = next(c for c in core_cases() if c.name == name)
    return prepare_job(case_job(case, ROUNDS, **how))


def kill(*names: str, how: int = signal.SIGKILL) -> Callable[[LiveFleet], None]:
    def deed(live: LiveFleet) -> None:
        for name in names:
            os.kill(live.agents.processes[name].pid, how)

    return deed


def survived(run_dir: Path, plan: Plan, prepared: PreparedJob, *deeds: At, first_copy_s: float = 0.0) -> TrainResult:
    with LiveFleet(Fleet(devices=devices(len(plan.devices))), Options(timeout_s=PATIENT)) as live:
        for deed in deeds:
            deed.live = live  # type: ignore[assignment]
        options = Options(run_dir=run_dir, timeout_s=PATIENT, watchers=deeds, first_copy_s=first_copy_s)
        return run_on(live, prepared, plan, options)


def state(run_dir: Path) -> dict[str, torch.Tensor]:
    found = newest(run_dir)
    assert found is not None
    _, weights, optimizer = load(found.path)
    return {**weights, **optimizer}


def assert_nothing_lost(run_dir: Path, result: TrainResult) -> None:
    assert (result.reason, result.rounds) == ("finished", ROUNDS)
    assert (result.samples_lost, result.samples_doubled) == (0, 0)
    assert audit(run_dir).finished


def incidents(run_dir: Path) -> list[IncidentRecord]:
    return [r for r in read(run_dir / RECORDS) if isinstance(r, IncidentRecord)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The hard job (AdamW, clipping, dropout, a schedule) with nobody lost."""
    prepared = job(hard=True)
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    survived(folder, cut(prepared.facts, 3), prepared)
    return state(folder)


@pytest.mark.parametrize(
    "lost", [pytest.param("d0", marks=pytest.mark.full), "d1", pytest.param("d2", marks=pytest.mark.full)]
)
def test_the_only_device_of_a_stage_vanishes_and_the_bits_are_the_same(
    lost: str, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    prepared = job(hard=True)
    result = survived(tmp_path / "run", cut(prepared.facts, 3), prepared, At(3, kill(lost)))
    assert_nothing_lost(tmp_path / "run", result)
    found = state(tmp_path / "run")
    assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []
    [incident] = incidents(tmp_path / "run")
    assert (incident.kind, incident.device) == ("lost", lost)
    assert incident.replayed_rounds <= 4
    plans = [r.plan for r in read(tmp_path / "run" / RECORDS) if isinstance(r, PlanAdopted)]
    assert [lost in plan.devices for plan in plans] == [True, False]


@pytest.mark.full
def test_without_copies_everybody_goes_back_to_the_coordinators(
    undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    prepared = job(hard=True)
    plan = cut(prepared.facts, 3)
    result = survived(tmp_path / "run", plan, prepared, At(3, kill("d1")), first_copy_s=1e9)
    assert_nothing_lost(tmp_path / "run", result)
    found = state(tmp_path / "run")
    assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []
    [incident] = incidents(tmp_path / "run")
    assert incident.replayed_rounds >= 4  # from the very beginning


@pytest.mark.full
def test_two_neighbours_vanish_at_once(undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    prepared = job(hard=True)
    result = survived(tmp_path / "run", cut(prepared.facts, 3), prepared, At(4, kill("d1", "d2")))
    assert_nothing_lost(tmp_path / "run", result)
    found = state(tmp_path / "run")
    assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []


@pytest.mark.full
def test_one_after_the_other_until_one_is_left(undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    prepared = job(hard=True)
    result = survived(tmp_path / "run", cut(prepared.facts, 3), prepared, At(2, kill("d0")), At(5, kill("d2")))
    assert_nothing_lost(tmp_path / "run", result)
    found = state(tmp_path / "run")
    assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []


def test_a_model_with_tied_weights_goes_on_by_another_cut_and_says_that_bits_differ(tmp_path: Path) -> None:
    """Nothing is copied yet, so all rounds are trained again, and the tied gradients are added in another order."""
    prepared, run_dir = job("decoder"), tmp_path / "run"
    plan = cut(prepared.facts, 2)
    result = survived(run_dir, plan, prepared, At(3, kill("d1")), first_copy_s=1e9)
    assert_nothing_lost(run_dir, result)
    lost, other = incidents(run_dir)
    assert (lost.kind, lost.device) == ("lost", "d1")
    assert lost.replayed_rounds >= 4
    assert (other.kind, other.device) == ("inexact", None)
    assert "is tied across a cut" in other.what
    trained = {r.round: r for r in read(run_dir / RECORDS) if isinstance(r, RoundRecord)}  # the last time each was
    written = [(entry.loss, entry.term) for entry in Ledger(run_dir / LEDGER).entries()]
    assert [loss for loss, _ in written] == [trained[round].loss.hex() for round in range(ROUNDS)]
    assert {term for _, term in written[other.round :]} == {trained[other.round].term}


def test_a_member_of_a_group_vanishes_and_nothing_is_trained_again(tmp_path: Path) -> None:
    prepared = job()
    plan = grouped(prepared.facts, "samples", (2, 2), first=True)
    result = survived(tmp_path / "run", plan, prepared, At(3, kill("d0")))
    assert_nothing_lost(tmp_path / "run", result)
    [incident] = incidents(tmp_path / "run")
    assert incident.replayed_rounds == 0
    survived(tmp_path / "whole", plan, job())
    whole, found = state(tmp_path / "whole"), state(tmp_path / "run")
    for name, tensor in whole.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-6), name


@pytest.mark.full
def test_a_device_that_freezes_is_done_without(undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    prepared = job(hard=True)
    result = survived(tmp_path / "run", cut(prepared.facts, 3), prepared, At(3, kill("d1", how=signal.SIGSTOP)))
    assert_nothing_lost(tmp_path / "run", result)
    found = state(tmp_path / "run")
    assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []


def test_the_last_device_of_all_ends_the_run_with_one_line(tmp_path: Path) -> None:
    prepared = job()
    with pytest.raises(DeviceError, match="d0"):
        survived(tmp_path / "run", cut(prepared.facts, 1), prepared, At(3, kill("d0")))


@pytest.mark.parametrize("evaluated", [False, pytest.param(True, marks=pytest.mark.full)])
def test_one_vanishes_when_the_last_round_is_done(
    evaluated: bool, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    prepared = job(hard=True)
    if evaluated:
        prepared = prepare_job(replace(prepared.job, eval_data=prepared.job.data))
    result = survived(tmp_path / "run", cut(prepared.facts, 3), prepared, At(ROUNDS - 1, kill("d1")))
    assert_nothing_lost(tmp_path / "run", result)
    found = state(tmp_path / "run")
    assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []
    assert (result.loss is not None) == evaluated


def test_a_round_that_kills_twice_is_named(tmp_path: Path) -> None:
    prepared = job()

    class Poison(At):
        """Kills whoever is first in the plan, as soon as round 3 is the next one, again and again."""

        def record(self, record: object) -> None:
            if isinstance(record, PlanAdopted) and record.term > 1:
                self.done = record.round > 3
            super().record(record)

    def deed(live: LiveFleet) -> None:
        first = sorted(live.roster.specs)[0]
        os.kill(live.agents.processes[first].pid, signal.SIGKILL)

    poison = Poison(2, deed)
    with pytest.raises(PotluckError, match=r"round 3 was the last of d0 and of d1: .*look at samples"):
        survived(tmp_path / "run", cut(prepared.facts, 3), prepared, poison)


def test_one_that_is_asked_to_leave_hands_over_first_and_nothing_is_trained_again(
    undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    prepared = job(hard=True)
    leaver: list[Any] = []

    def ask(live: LiveFleet) -> None:
        leaver.append(live.agents.processes["d1"])
        leaver[0].send_signal(signal.SIGINT)

    result = survived(tmp_path / "run", cut(prepared.facts, 3), prepared, At(2, ask))
    assert_nothing_lost(tmp_path / "run", result)
    found = state(tmp_path / "run")
    assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []
    [incident] = incidents(tmp_path / "run")
    assert (incident.kind, incident.device, incident.replayed_rounds) == ("left", "d1", 0)
    assert incident.moved_bytes > 0
    assert leaver[0].poll() == 0


def test_a_newcomer_is_measured_and_put_to_use_between_two_rounds(tmp_path: Path) -> None:
    case = next(c for c in core_cases() if c.name == "mlp")
    prepared = prepare_job(replace(case_job(case, 400), checkpoint_every=None))
    slow = Fleet(devices=(DeviceSpec(name="d0", speed=0.03), DeviceSpec(name="d1", speed=0.03)))
    newcomers: list[subprocess.Popen[bytes]] = []

    def arrive(live: LiveFleet) -> None:
        command = [sys.executable, "-m", "potluck", "join", live.server.address, "--name", "fast", "--threads", "1"]
        newcomers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    deed = At(1, arrive)
    settings = MeasuringTime(seconds=1.0, network_seconds=0.3)
    try:
        with LiveFleet(slow, Options(timeout_s=PATIENT)) as live:
            deed.live = live  # type: ignore[assignment]
            profile = profile_fleet(live, prepared, settings)
            stop = Stopper("fast")
            options = Options(
                run_dir=tmp_path / "run", timeout_s=PATIENT, watchers=(deed, stop), profile_s=1.0, plan_s=0.5,
                should_stop=stop.wanted,
            )  # fmt: skip
            result = run_on(live, prepared, cut(prepared.facts, 2), options, profile=profile)
            assert newcomers[0].poll() is None
    finally:
        for process in newcomers:
            process.wait(20.0)
    assert stop.adopted, "the newcomer was never used"
    assert (result.samples_lost, result.samples_doubled) == (0, 0)
    assert audit(tmp_path / "run").exact
    happened = incidents(tmp_path / "run")
    assert all(i.replayed_rounds == 0 for i in happened)
    assert {i.kind for i in happened} <= {"joined", "slow", "plan"}
    assert [i.kind for i in happened if i.device == "fast"] == ["joined"]


class Stopper:
    """Stops a run a few rounds after its second plan, or after the first that has some device.

    A busy machine looks like a slow device: there may be other plans before that.
    """

    def __init__(self, device: str | None = None) -> None:
        self.adopted: list[PlanAdopted] = []
        self._device = device
        self.rounds = 0

    def record(self, record: object) -> None:
        if isinstance(record, PlanAdopted) and record.round > 0 and self._device in (None, *record.plan.devices):
            self.adopted.append(record)
        self.rounds += isinstance(record, RoundRecord) and bool(self.adopted)

    def wanted(self) -> bool:
        return self.rounds >= 3


class Hindered:
    """A process that gets only a part of its time, as on a machine that somebody else began to use."""

    def __init__(self, process: subprocess.Popen[bytes], part: float, turn_s: float = 0.04) -> None:
        self._process, self._part, self._turn_s = process, part, turn_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hinder, daemon=True)
        self._thread.start()

    def _hinder(self) -> None:
        while not self._over.wait(self._turn_s * self._part) and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            self._over.wait(self._turn_s * (1 - self._part))
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.full
def test_a_device_that_becomes_slow_gets_less_to_do(tmp_path: Path) -> None:
    case = next(c for c in core_cases() if c.name == "residual_cnn")
    prepared = prepare_job(replace(case_job(case, 2000), checkpoint_every=None))
    fleet = Fleet(devices=(DeviceSpec(name="d0", speed=0.4), DeviceSpec(name="d1", speed=0.4)))
    hindered: dict[str, Hindered] = {}
    then: list[Plan] = []  # the plan when it happened

    def hinder(live: LiveFleet) -> None:
        """Whoever does the most: one that does little may be slow without any plan being better."""
        then.append(([plan] + [a.plan for a in stop.adopted])[-1])
        busiest = max(then[0].devices, key=lambda device: work_of(device, then[0]))
        hindered[busiest] = Hindered(live.agents.processes[busiest], 0.2)

    deed = At(25, hinder)
    stop = Stopper()

    def relieved() -> bool:
        return any(
            work_of(device, adopted.plan) < work_of(device, then[0])
            for device in hindered
            for adopted in stop.adopted
            if adopted.round > deed.round
        )

    try:
        with LiveFleet(fleet, Options(timeout_s=PATIENT)) as live:
            deed.live = live  # type: ignore[assignment]
            profile = profile_fleet(live, prepared, MeasuringTime(seconds=2.0, network_seconds=0.3))
            plan = find_plan(prepared.facts, profile, [(4, 4)], seconds=0.5).plan
            options = Options(
                run_dir=tmp_path / "run", timeout_s=PATIENT, watchers=(deed, stop), plan_s=0.5, should_stop=relieved
            )
            result = run_on(live, prepared, plan, options, profile=profile)
    finally:
        for each in hindered.values():
            each.end()
    assert relieved()
    found = incidents(tmp_path / "run")
    assert any(i.kind == "slow" for i in found)
    assert all(i.replayed_rounds == 0 for i in found)
    assert (result.samples_lost, result.samples_doubled) == (0, 0)


def work_of(device: str, plan: Plan) -> float:
    """Blocks times micro-batches that a device does in a round."""
    shares = [(s.blocks[1] - s.blocks[0], m) for s in plan.stages for m in s.group if m.device == device]
    return sum(blocks * member.share for blocks, member in shares)


@pytest.mark.full
def test_a_rehearsal_happens_and_is_reported(undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    prepared = job(hard=True)
    plan = cut(prepared.facts, 3)
    faults = (Fault(device="d0", do="slow", after_round=1), Fault(device="d2", do="kill", after_round=3))
    with LiveFleet(Fleet(devices=devices(3)), Options(timeout_s=PATIENT)) as live:
        options = Options(run_dir=tmp_path / "run", timeout_s=PATIENT, first_copy_s=0.0, chaos=faults)
        result = run_on(live, prepared, plan, options)
    assert_nothing_lost(tmp_path / "run", result)
    found = state(tmp_path / "run")
    assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []
    text = (tmp_path / "run" / "chaos.md").read_text()
    assert "| kill d2 | 3 | 0." in text
    assert "goes on without d2" in text
