"""The course of a loss, 1 / (a² t + b) + c, fitted to what was measured, and how soon it would reach a goal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[np.float64]
_FLOORS = np.concatenate(([0.0], 1 - np.geomspace(1.0, 0.02, 40)[1:]))  # c, as parts of the smallest loss
_FINER = 17  # points between the neighbours of the best of a rough search: the optimum is flat there
_ROBUST_TURNS, _HUBER = 4, 1.5


@dataclass(frozen=True)
class Curve:
    """A fitted course."""

    slope: float  # a²
    start: float  # b
    floor: float  # c
    error: float  # root mean square of what the fit misses

    def at(self, t_s: float) -> float:
        return 1 / (self.slope * t_s + self.start) + self.floor

    def reward(self, begin: float, goal: float) -> float:
        """The inverse of the time from one loss to a lower one; 0 where that is never reached."""
        if not self.floor < goal < begin or self.slope <= 0:
            return 0.0
        return self.slope / (1 / (goal - self.floor) - 1 / (begin - self.floor))


@dataclass(frozen=True)
class Reward:
    """How promising a course is, and how sure that is."""

    value: float
    error: float  # standard error, by leaving out each point in turn

    def better_than(self, other: Reward) -> bool:
        """Whether it is larger by more than chance would make it."""
        return self.value - other.value > math.hypot(self.error, other.error)


def fit(times_s: Sequence[float], losses: Sequence[float], *, robust: bool = True) -> Curve | None:
    """The course through some points; None where there are fewer than three, or it does not fall.

    For a given c the rest is a straight line through 1 / (loss - c), weighted so that errors of the loss count; c is
    searched. Robust: points far off count less.
    """
    t, loss = np.asarray(times_s, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    sound = np.isfinite(t) & np.isfinite(loss)
    t, loss = t[sound], loss[sound]
    if len(t) < 3 or t.max() <= t.min() or loss.min() <= 0:
        return None
    if not robust:
        return _best(t, loss, loss, np.ones_like(loss))
    smooth = _medians(loss)
    best = _best(t, loss, smooth, _trust(loss - smooth))
    for _ in range(_ROBUST_TURNS):
        if best is None:
            return None
        course = 1 / (best.slope * t + best.start) + best.floor
        best = _best(t, loss, course, _trust(loss - course))
    return best


def _medians(loss: _Array) -> _Array:
    """Each loss as the middle one of five around it."""
    return np.array([np.median(loss[max(0, i - 2) : i + 3]) for i in range(len(loss))])


def _trust(missed: _Array) -> _Array:
    """How much each point counts, by Huber: one that is far off counts the less the farther."""
    off = np.abs(missed)
    usual = max(1.48 * float(np.median(off)), 1e-6 * float(off.max()), 1e-12)
    weights: _Array = np.minimum(1.0, _HUBER * usual / np.maximum(off, 1e-12))
    return weights


def reward(
    times_s: Sequence[float], losses: Sequence[float], begin: float, goal: float, *, robust: bool = True
) -> Reward | None:
    """What a course promises. Its error is unknown, so infinite, where leaving out a point leaves too few."""
    whole = fit(times_s, losses, robust=robust)
    if whole is None:
        return None
    value, count = whole.reward(begin, goal), len(times_s)
    without = []
    for i in range(count):
        kept = [j for j in range(count) if j != i]
        curve = fit([times_s[j] for j in kept], [losses[j] for j in kept], robust=robust)
        if curve is not None:
            without.append(curve.reward(begin, goal))
    if len(without) < 3 or not np.isfinite([value, *without]).all():
        return Reward(value, math.inf)
    spread = np.asarray(without) - np.mean(without)
    return Reward(value, math.sqrt((len(without) - 1) / len(without) * float(spread @ spread)))


def _best(t: _Array, loss: _Array, course: _Array, weights: _Array) -> Curve | None:
    """The best course of all floors, given about what it is and how much each point counts: first roughly, then
    between the neighbours of the best."""
    rough = _FLOORS * loss.min()
    found = _among(rough, t, loss, course, weights)
    if found is None:
        return None
    at = int(np.searchsorted(rough, found.floor))
    fine = np.linspace(rough[max(0, at - 1)], rough[min(len(rough) - 1, at + 1)], _FINER)
    return _among(fine, t, loss, course, weights) or found


def _among(floors: _Array, t: _Array, loss: _Array, course: _Array, weights: _Array) -> Curve | None:
    """The best course of some floors."""
    y = 1 / (loss[None, :] - floors[:, None])
    # An error of the loss moves 1 / (loss - c) by 1 / (loss - c)² as much.
    w = weights * np.maximum(course[None, :] - floors[:, None], 0.0) ** 4
    total = np.maximum(w.sum(axis=1), 1e-300)
    mean_t, mean_y = (w * t).sum(axis=1) / total, (w * y).sum(axis=1) / total
    off_t = t - mean_t[:, None]
    spread = (w * off_t**2).sum(axis=1)
    slope = (w * off_t * (y - mean_y[:, None])).sum(axis=1) / np.maximum(spread, 1e-300)
    start = mean_y - slope * mean_t
    line = slope[:, None] * t + start[:, None]
    possible = (slope > 0) & (line > 0).all(axis=1)
    if not possible.any():
        return None
    missed = loss - (1 / np.where(line > 0, line, 1.0) + floors[:, None])
    error = np.where(possible, (weights * missed**2).sum(axis=1), np.inf)
    at = int(np.argmin(error))
    return Curve(float(slope[at]), float(start[at]), float(floors[at]), math.sqrt(float(error[at]) / len(loss)))
