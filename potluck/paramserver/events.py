"""What workers and the parameter server tell a policy, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from potluck.types import Pace


@dataclass(frozen=True)
class Report:
    """What a worker says with a push."""

    worker: str
    steps: int  # since the push before
    samples: int  # in these steps
    loss: float  # mean over these steps
    staleness: int  # pushes of anybody applied since the weights that it started from
    overhead_s: float  # its last push and pull, from beginning to end


@dataclass(frozen=True)
class Answer:
    """What follows from an event."""

    go: tuple[str, ...] = ()  # who has pushed and may train on with the newest weights
    paces: Mapping[str, Pace] = field(default_factory=dict)  # whose pace is new
    scale: float = 0.0  # of a push: by how much its difference counts
    reason: str = ""
