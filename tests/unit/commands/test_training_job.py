"""What is refused, and which plan is taken, before any device is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.commands.training_job import _check_memory, choose_plan, interrupted, terms_before, train
from potluck.coordinator.options import Options
from potluck.coordinator.run_folder.term_log import TERMS, Term, TermLog
from potluck.errors import InputError, PlanError
from potluck.job.job import BEING_READ
from potluck.job.optimizers import SGD
from potluck.plan.validate import validate
from tests.unit.builders import chain, facts, fleet


def prepared(batch_size: int = 32, micro_batch: int = 4) -> Any:
    job = SimpleNamespace(batch_size=batch_size, micro_batch=micro_batch, batchnorm="refuse", staleness=0)
    return SimpleNamespace(job=job, facts=facts(4))


def test_without_a_plan_every_device_gets_a_stage() -> None:
    here = fleet("d0", "d1")
    plan = choose_plan(prepared(), None, here)
    assert (plan.devices, plan.batch_size, plan.micro_batch_size) == (("d0", "d1"), 32, 4)
    validate(plan, facts(4), here, "refuse")


def test_a_plan_is_read_from_its_file(tmp_path: Path) -> None:
    import msgspec

    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(chain(4)))
    names = [f"d{i}" for i in range(4)]
    assert choose_plan(prepared(), path, fleet(*names)) == chain(4)


def test_a_plan_of_another_batch_or_for_other_devices_is_refused() -> None:
    names = [f"d{i}" for i in range(4)]
    with pytest.raises(InputError, match=r"8 micro-batches of 4 make 32; the job's batch_size is 16"):
        choose_plan(prepared(16), chain(4), fleet(*names))
    with pytest.raises(PlanError, match="d3"):
        choose_plan(prepared(), chain(4), fleet(*names[:3]))


def test_more_devices_than_samples_are_refused() -> None:
    with pytest.raises(InputError, match="batch_size 2 is smaller than the 3 devices"):
        choose_plan(prepared(2, 2), None, fleet("a", "b", "c"))


def test_a_device_without_room_for_any_block_is_refused_by_name() -> None:
    _check_memory(prepared(), fleet("a", b=10**9))
    with pytest.raises(InputError, match=r"device b: 100 bytes of memory, and the smallest block needs \d+"):
        _check_memory(prepared(), fleet("a", b=100))


def test_plans_from_before_count_only_where_a_run_goes_on(tmp_path: Path) -> None:
    log = TermLog(tmp_path / TERMS)
    for number in (1, 2):
        log.append(Term(term=number, round=number, plan=chain(number)))
    log.close()
    assert terms_before(Options(run_dir=tmp_path, resume=True)) == {1: chain(1), 2: chain(2)}
    assert terms_before(Options(run_dir=tmp_path)) == {}
    assert interrupted(Options(run_dir=tmp_path, resume=True), {}) is None


def test_the_devices_of_the_last_plan_are_waited_for(tmp_path: Path) -> None:
    found = interrupted(Options(run_dir=tmp_path, resume=True), {1: chain(3), 4: chain(2)})
    assert found is not None
    assert found[1] == ("d0", "d1")


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises(InputError, match=r"potluck\.train: the job is .*; give a potluck\.Job"):
        train(cast(Any, SGD(lr=0.1)))


def test_training_while_a_job_file_is_read_is_refused() -> None:
    from tests.unit.coordinator.small_job import small_job

    token = BEING_READ.set(cast(Any, True))
    try:
        with pytest.raises(InputError, match="below `if __name__"):
            train(small_job())
    finally:
        BEING_READ.reset(token)
