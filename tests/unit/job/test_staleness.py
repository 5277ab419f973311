"""How late gradients may be: the job says it, and a command line may say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.errors import InputError
from potluck.job.job import load_job

SOURCE = """
import torch
import potluck
job = potluck.Job(
    model=torch.nn.Linear(4, 2), loss=torch.nn.functional.cross_entropy, optimizer=potluck.SGD(lr=0.1),
    data=(torch.zeros(8, 4), torch.zeros(8).long()), batch_size=4, epochs=1, staleness=1,
)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(SOURCE)
    return path


def test_the_job_says_how_late_gradients_may_be_unless_the_caller_does(file: Path) -> None:
    assert load_job(file).staleness == 1
    assert load_job(file, 0).staleness == 0


@pytest.mark.parametrize("wrong", [2, -1, True, 0.5])
def test_another_bound_is_refused(file: Path, wrong: int) -> None:
    with pytest.raises(InputError, match=r"job: staleness .*; give 0 .* or 1"):
        load_job(file, wrong)
