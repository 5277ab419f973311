"""Learning-rate schedules: pure functions of the round number that give a multiplier of the base learning rate.

Every schedule may begin with a warm-up: over the first `warmup` rounds the multiplier climbs linearly to where the
schedule starts. What comes after is counted from the end of the warm-up; `total` includes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from potluck.errors import InputError
from potluck.types import Value


class _Schedule(Value, frozen=True, kw_only=True):
    """What all schedules share: the warm-up."""

    warmup: int = 0  # rounds

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise InputError(
                f"schedule {type(self).__name__}: warmup {self.warmup}; give a number of rounds, 0 or more"
            )

    def __call__(self, round: int) -> float:
        """The multiplier for a round, counted from 0."""
        if round < self.warmup:
            return self._after(0) * (round + 1) / self.warmup
        return self._after(round - self.warmup)

    def _after(self, round: int) -> float:
        raise NotImplementedError


class Constant(_Schedule, frozen=True, kw_only=True):
    """Always 1."""

    def _after(self, round: int) -> float:
        return 1.0


class Step(_Schedule, frozen=True, kw_only=True):
    """Multiplied by gamma after every `every` rounds."""

    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise InputError(f"schedule Step: every {self.every}; give at least 1 round")
        _check_fraction("Step", "gamma", self.gamma)

    def _after(self, round: int) -> float:
        return float(self.gamma ** (round // self.every))


class Cosine(_Schedule, frozen=True, kw_only=True):
    """From 1 down to `floor` along half a cosine, reached at round `total`."""

    total: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_total("Cosine", self.total, self.warmup)
        _check_fraction("Cosine", "floor", self.floor)

    def _after(self, round: int) -> float:
        progress = min(1.0, round / (self.total - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


class Linear(_Schedule, frozen=True, kw_only=True):
    """From 1 to `end` in a straight line, reached at round `total`."""

    total: int
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_total("Linear", self.total, self.warmup)
        _check_fraction("Linear", "end", self.end)

    def _after(self, round: int) -> float:
        progress = min(1.0, round / (self.total - self.warmup))
        return 1 + (self.end - 1) * progress


LearningRate = Constant | Step | Cosine | Linear


def multiplier(schedule: LearningRate | Callable[[int], float] | None, round: int) -> float:
    """The multiplier of the base learning rate in a round; None means 1. A user's function is checked."""
    if schedule is None:
        return 1.0
    value = schedule(round)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InputError(f"schedule: gave {value!r} for round {round}; return a finite number, 0 or more")
    return float(value)


def _check_total(name: str, total: int, warmup: int) -> None:
    if total <= warmup:
        raise InputError(f"schedule {name}: total {total} with warmup {warmup}; give a total above the warm-up")


def _check_fraction(name: str, field: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"schedule {name}: {field} {value}; give a finite number, 0 or more")
