"""What planning is told of a program is what its stages give each other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from potluck.coordinator.samples.prepared_job import prepare_job
from potluck.plan.cost.edges import Edges
from potluck.program.blocks import sample_bytes, value_bytes
from potluck.program.layout import PlanLayout
from tests.extending.half_precision import Half
from tests.models.zoo import core_cases
from tests.models.zoo_jobs import case_job, cut

CASES = {case.name: case for case in core_cases()}


@pytest.mark.parametrize("name", ["unet", "residual_cnn"])
def test_the_facts_weigh_what_the_stages_send(name: str) -> None:
    prepared = prepare_job(case_job(CASES[name], 1))
    programs, plan = prepared.built.programs, cut(prepared.facts, 4)
    layout = PlanLayout(programs, plan)
    values = programs.train.values
    sent, back = (
        {pair: sum(sample_bytes(values[v]) for v in crossed) for pair, crossed in ways.items()}
        for ways in (layout.edges["train"], layout.gradients)
    )
    assert Edges(prepared.facts).between([s.blocks for s in plan.stages]) == (sent, back)


def test_half_the_bytes_need_half_the_window() -> None:
    prepared = prepare_job(case_job(CASES["unet"], 1))
    plan = cut(prepared.facts, 4)
    half = replace(plan, stages=tuple(replace(s, codec=Half.name) for s in plan.stages))
    raw_window, window = (PlanLayout(prepared.built.programs, p).window_bytes() for p in (plan, half))
    assert window * 2 == raw_window
    values = prepared.built.programs.train.values
    largest = max(value_bytes(values[c.value], plan.micro_batch_size) for c in prepared.facts.crossings)
    assert raw_window >= largest
