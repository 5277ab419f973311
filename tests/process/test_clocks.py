"""Clocks that jump by minutes, on devices and on the coordinator, change nothing: only monotonic ones are read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from potluck.control.audit import audit
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.coordinator.training import run_on
from potluck.metrics.records import RECORDS, IncidentRecord, read
from tests.models.zoo import core_cases
from tests.models.zoo_jobs import case_job, cut
from tests.process.agents import final_state, fleet_of
from tests.process.jumping_clock_agent import jumping

torch.set_num_threads(1)
ROUNDS = 5


def trained(folder: Path, agents: list[list[str]]) -> dict[str, torch.Tensor]:
    case = next(c for c in core_cases() if c.name == "mlp")
    job = prepare_job(case_job(case, ROUNDS, hard=True))
    with fleet_of(agents) as (live, _):
        options = Options(run_dir=folder, timeout_s=60.0, first_copy_s=0.0)
        result = run_on(live, job, cut(job.facts, len(agents)), options)
    assert (result.reason, result.samples_lost, result.samples_doubled) == ("finished", 0, 0)
    assert audit(folder).finished
    return final_state(folder)


@pytest.mark.full
def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = trained(tmp_path / "steady", [["tests.process.failing_agent", "never", "1", "no marker"]] * 2)
    monkeypatch.setattr(time, "time", jumping)
    markers = [tmp_path / f"marker{i}" for i in range(2)]
    found = trained(tmp_path / "run", [["tests.process.jumping_clock_agent", str(m)] for m in markers])
    assert [marker.read_text() for marker in markers] == ["jumps", "jumps"]
    assert [n for n in steady if not torch.equal(found[n], steady[n])] == []
    assert [r for r in read(tmp_path / "run" / RECORDS) if isinstance(r, IncidentRecord)] == []
