"""How much of recovery is measured, and what each piece of it usually takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.recovery.baselines import MOMENTS
from benchmarks.recovery.scenarios import CNN, GPT, ROUNDS

LARGE = "resnet50"
COPIED_AFTER = {LARGE: 20, CNN: 5}  # rounds: copies are whole by then
HEAVY_S = {LARGE: 140.0, CNN: 105.0}  # a loss dealt with in both ways
BEST_S, COLD_S, HEAVY_LOSS_S = 45.0, 90.0, 95.0
ROUND_S, START_S = {GPT: 1.05, CNN: 3.4}, {GPT: 20.0, CNN: 25.0}  # the end is in what a start takes
LOSS_S = {GPT: 6.0, CNN: 4.0}  # noticed, mended, and rounds trained again


@dataclass(frozen=True)
class Extent:
    """What is compared, how often, and for how many rounds."""

    heavy: tuple[str, ...]  # models with which heavy rescheduling is timed
    moments: tuple[int, ...]  # rounds before a loss, evenly about the middle between two checkpoints
    afterwards: tuple[int, int]  # rounds after the last of these over which the rate counts
    in_picture: bool  # whether heavy rescheduling is run for it, too
    protected: Mapping[str, int]  # rounds: enough for some copies, and some without
    unprotected_s: Mapping[str, float]  # of these without


FULL = Extent(
    heavy=(LARGE, CNN), moments=MOMENTS, afterwards=(20, 70), in_picture=True, protected={GPT: 140, CNN: 45},
    unprotected_s={GPT: 25.0, CNN: 100.0},
)  # fmt: skip
QUICK = Extent(
    heavy=(LARGE,), moments=(MOMENTS[1],), afterwards=(20, 40), in_picture=False, protected={GPT: 80},
    unprotected_s={GPT: 15.0},
)  # fmt: skip


def run_s(model: str, rounds: int | None = None) -> float:
    """What a run takes in which nobody is lost."""
    return START_S[model] + ROUND_S[model] * (rounds or ROUNDS[model])


def loss_s(model: str, rounds: int | None = None) -> float:
    """What a run with a loss takes."""
    return run_s(model, rounds) + LOSS_S[model]
