"""A device ends right before an order of its state machine is obeyed, whichever it is: nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from potluck.control.audit import audit
from potluck.coordinator.options import Options
from potluck.coordinator.samples.prepared_job import PreparedJob, prepare_job
from potluck.coordinator.training import run_on
from potluck.metrics.records import RECORDS, IncidentRecord, read
from tests.models.zoo import core_cases
from tests.models.zoo_jobs import case_job, cut
from tests.process.agents import final_state, fleet_of

ROUNDS = 6
torch.set_num_threads(1)

POINTS = {  # failpoint → how often it is passed before: not in the first round
    "Assemble": 1,  # before it puts its state together
    "Tell Prepared": 1,  # its state is whole, and nobody knows
    "Train": 3,
    "Tell Ready": 3,  # its gradients are complete, and nobody knows
    "Decide": 3,  # the round is in the ledger and on the others, and not here
    "MakeCopy": 1,  # the round is committed here
    "Tell Stored": 2,  # a copy is whole, and nobody knows
    "ReportState": 1,  # the last round is committed and not reported
}
IN_SHORT = ("Decide",)


def prepared() -> PreparedJob:
    case = next(c for c in core_cases() if c.name == "mlp")
    return prepare_job(case_job(case, ROUNDS, hard=True))


def trained(folder: Path, point: str, count: int, marker: Path) -> dict[str, torch.Tensor]:
    job = prepared()
    agents = [["tests.process.failing_agent", "never", "1", str(marker)] for _ in range(3)]
    agents[1] = ["tests.process.failing_agent", point, str(count), str(marker)]
    with fleet_of(agents) as (live, _):
        options = Options(run_dir=folder, timeout_s=60.0, first_copy_s=0.0)
        result = run_on(live, job, cut(job.facts, 3), options)
    assert (result.reason, result.samples_lost, result.samples_doubled) == ("finished", 0, 0)
    assert audit(folder).finished
    return final_state(folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return trained(folder / "run", "never", 1, folder / "marker")


@pytest.mark.parametrize("point", [pytest.param(p, marks=() if p in IN_SHORT else pytest.mark.full) for p in POINTS])
def test_a_device_that_ends_before_it_obeys(point: str, undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    found = trained(tmp_path / "run", point, POINTS[point], tmp_path / "marker")
    assert (tmp_path / "marker").read_text() == point  # it was reached
    assert [n for n in undisturbed if not torch.equal(found[n], undisturbed[n])] == []
    lost = [r for r in read(tmp_path / "run" / RECORDS) if isinstance(r, IncidentRecord)]
    assert [(r.kind, r.device) for r in lost] == [("lost", "d1")]
