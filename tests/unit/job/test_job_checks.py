"""What is wrong with a job is found in the order of its fields, and named with what to give instead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

from potluck.errors import InputError
from potluck.job.job import Job
from potluck.job.job_checks import check
from potluck.job.optimizers import SGD

GOOD = Job(
    model=nn.Linear(2, 2), loss=functional.cross_entropy, optimizer=SGD(lr=0.1),
    data=(torch.zeros(4, 2), torch.zeros(4).long()), batch_size=2, epochs=1,
)  # fmt: skip


def changed(**fields: Any) -> Job:
    """The job as it would be if nobody had checked it."""
    return cast(Job, SimpleNamespace(**{**vars(GOOD), **fields}))


def test_a_job_that_fits_passes() -> None:
    check(GOOD)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": nn.Linear, "loss": nn.CrossEntropyLoss}, "job: model"),
        ({"loss": nn.CrossEntropyLoss, "optimizer": torch.optim.SGD}, r"job: loss .*nn\.CrossEntropyLoss\("),
        ({"optimizer": torch.optim.SGD, "data": None}, r"job: optimizer .*potluck\.SGD"),
        ({"data": None, "batch_size": 0}, "job: data"),
        ({"batch_size": 0, "epochs": -1}, "job: batch_size 0"),
    ],
)
def test_the_first_thing_that_is_wrong_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        check(changed(**fields))
    assert "\n" not in str(caught.value)
