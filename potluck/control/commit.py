"""What becomes of a round, decided from what the devices report: one rule for the coordinator and a lone device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from potluck.wire.messages import Ready


class Judgement(NamedTuple):
    """The verdict on a round, and why."""

    kind: Literal["commit", "retry", "stop"]
    clip: float
    loss: float
    gradient_norm: float
    reason: str


def judge(ready: Mapping[str, Ready], parameters: Sequence[str], clip_norm: float | None, attempt: int) -> Judgement:
    """Commit a round whose numbers are all finite; give any other one a second chance, then stop.

    Losses are added by micro-batch and row, norms in program order: neither depends on how the model was cut.
    """
    parts = sorted((p for r in ready.values() for p in r.losses), key=lambda p: (p.micro_batch, p.row))
    loss = math.fsum(p.loss * p.weight for p in parts)
    squares = {name: value for r in ready.values() for name, value in r.squared_norms.items()}
    total = 0.0
    for name in parameters:
        total += squares.get(name, 0.0)
    norm = math.sqrt(total) if math.isfinite(total) and total >= 0 else math.nan
    if all(r.finite for r in ready.values()) and math.isfinite(loss) and math.isfinite(norm):
        clip = 1.0 if clip_norm is None else min(1.0, clip_norm / (norm + 1e-6))
        return Judgement("commit", clip, loss, norm, "all finite")
    if attempt == 0:
        return Judgement("retry", 1.0, loss, norm, "non-finite numbers; the round is run once more")
    return Judgement("stop", 1.0, loss, norm, _blame(ready))


def _blame(ready: Mapping[str, Ready]) -> str:
    """The first device, in pipeline order, that saw a non-finite value."""
    for device, report in ready.items():
        if report.trouble:
            return f"{report.trouble} on device {device}"
    for device, report in ready.items():
        if not report.finite:
            return f"non-finite gradients on device {device}"
    return "the loss is not finite"
