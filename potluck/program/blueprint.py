"""Which tensors the stages of a plan have, and how big they are: what the state machine needs to know of a model."""

from __future__ import annotations

from functools import lru_cache

from potluck.program.blocks import value_bytes
from potluck.program.layout import PlanLayout
from potluck.program.program import ProgramPair
from potluck.types import Plan

_PLANS = 64  # remembered: those for the loss of each device, in fleets of usual size


class ModelBlueprint:
    """The tensors of a model, by plan and stage."""

    def __init__(self, programs: ProgramPair) -> None:
        self.sizes = tensor_sizes(programs)
        self.layout = lru_cache(_PLANS)(lambda plan: PlanLayout(programs, plan))

    def names(self, plan: Plan, stage: int) -> frozenset[str]:
        layout: PlanLayout = self.layout(plan)
        parameters, buffers = layout.state_names(stage)
        return frozenset((*parameters, *buffers))


def tensor_sizes(programs: ProgramPair) -> dict[str, int]:
    """Bytes of every parameter and buffer."""
    return {
        source.name: value_bytes(program.values[source.id], 1)
        for program in (programs.train, programs.eval)
        for source in program.sources
        if source.kind in ("parameter", "buffer")
    }
