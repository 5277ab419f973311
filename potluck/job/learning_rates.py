"""Learning-rate schedules: pure functions of the round number that give a multiplier of the base learning rate.

Every schedule may begin with a warm-up: over the first `warmup` rounds the multiplier climbs linearly to where the
schedule starts. What comes after is counted from the end of the warm-up; `total` includes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from potluck.advice import NamedFields, one_line
from potluck.errors import InputError
from potluck.types import Value


class _Schedule(Value, frozen=True, kw_only=True, metaclass=NamedFields):
    """What all schedules share: the warm-up."""

    warmup: int = 0  # rounds

    def __post_init__(self) -> None:
        _check_rounds(self, "warmup", 0)

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
        _check_rounds(self, "every", 1)
        _check_fraction(self, "gamma")

    def _after(self, round: int) -> float:
        return float(self.gamma ** (round // self.every))


class Cosine(_Schedule, frozen=True, kw_only=True):
    """From 1 down to `floor` along half a cosine, reached at round `total`."""

    total: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_total(self, self.total)
        _check_fraction(self, "floor")

    def _after(self, round: int) -> float:
        progress = min(1.0, round / (self.total - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


class Linear(_Schedule, frozen=True, kw_only=True):
    """From 1 to `end` in a straight line, reached at round `total`."""

    total: int
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_total(self, self.total)
        _check_fraction(self, "end")

    def _after(self, round: int) -> float:
        progress = min(1.0, round / (self.total - self.warmup))
        return 1 + (self.end - 1) * progress


LearningRate = Constant | Step | Cosine | Linear


def multiplier(schedule: LearningRate | Callable[[int], float] | None, round: int) -> float:
    """The multiplier of the base learning rate in a round; None means 1. A user's function is checked."""
    if schedule is None:
        return 1.0
    try:
        value = schedule(round)
    except Exception as error:  # the user's function may fail in any way
        raise InputError(
            f"schedule: fails for round {round}: {one_line(error)}; give a function of the round"
        ) from error
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InputError(f"schedule: gave {value!r} for round {round}; return a finite number, 0 or more")
    return float(value)


def _check_rounds(schedule: _Schedule, field: str, least: int) -> None:
    value = getattr(schedule, field)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(
            f"schedule {type(schedule).__name__}: {field} {value!r}; give a whole number of rounds, at least {least}"
        )


def _check_total(schedule: _Schedule, total: int) -> None:
    _check_rounds(schedule, "total", 1)
    if total <= schedule.warmup:
        raise InputError(
            f"schedule {type(schedule).__name__}: total {total} with warmup {schedule.warmup}; "
            "give a total above the warm-up"
        )


def _check_fraction(schedule: _Schedule, field: str) -> None:
    value = getattr(schedule, field)
    if not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise InputError(f"schedule {type(schedule).__name__}: {field} {value!r}; give a finite number, 0 or more")
