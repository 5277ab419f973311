"""What is told of a run: written first, then shown; a callback that fails ends the run in one line."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from potluck.coordinator.contexts import RunContext, TermContext
from potluck.coordinator.rounds.announcer import Announcer
from potluck.errors import InputError
from potluck.metrics.records import IncidentRecord, PlanAdopted, Record, RunEnded, RunStarted
from potluck.types import Member, Plan, Stage


def told(*callbacks: object) -> tuple[Announcer, list[str]]:
    """An announcer, and who heard of what in which order."""
    heard: list[str] = []

    def listener(who: str) -> SimpleNamespace:
        def hear(record: Record) -> None:
            heard.append(f"{who}: {type(record).__name__}")

        return SimpleNamespace(append=hear, record=hear)

    run = SimpleNamespace(
        folder=SimpleNamespace(records=listener("file")), watchers=(listener("terminal"),),
        job=SimpleNamespace(callbacks=callbacks, sample_count=8, seed=0), started_s=time.monotonic() - 5.0,
        order=SimpleNamespace(rounds=3), digest="",
    )  # fmt: skip
    return Announcer(cast(RunContext, run)), heard


def test_a_record_is_written_before_it_is_shown() -> None:
    seen: list[Record] = []
    announcer, heard = told(seen.append)
    announcer.incident("left", 3, "a is gone", "it was not in use", "a")
    assert heard == ["file: IncidentRecord", "terminal: IncidentRecord"]
    [record] = seen
    assert isinstance(record, IncidentRecord)
    assert (record.round, record.device, record.action) == (3, "a", "it was not in use")
    assert 5.0 <= record.at_s < 60.0


def test_a_callback_that_fails_is_named_in_one_line() -> None:
    def broken(record: Record) -> None:
        raise ValueError("no\nsuch thing")

    announcer, heard = told(lambda record: None, broken)
    with pytest.raises(InputError, match=r"^job: callbacks\[1\] failed on a RunEnded: ValueError: no such thing$"):
        announcer.ended(4, "finished")
    assert heard == [f"file: {RunEnded.__name__}", f"terminal: {RunEnded.__name__}"]


def test_what_is_trained_is_told_by_the_first_plan_in_force_whichever_term_that_is() -> None:
    said: list[Record] = []
    announcer, _ = told(said.append)
    stage = Stage(blocks=(0, 1), group=(Member(device="a", share=1),))
    plan = Plan(micro_batch_size=1, micro_batches=1, stages=(stage,))
    second, third = (  # nobody adopted the first: a device refused it
        cast(TermContext, SimpleNamespace(plan=plan, term=term, first_round=0, plan_reason="")) for term in (2, 3)
    )
    assert [announcer.adopted(second), announcer.adopted(third)] == [True, False]
    assert [type(record) for record in said] == [RunStarted, PlanAdopted, PlanAdopted]
