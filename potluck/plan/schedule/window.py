"""How many rounds may be open at once: begun, and not committed yet."""

from __future__ import annotations

from potluck.plan.schedule.known_schedules import schedule_named
from potluck.types import Plan

_LOCK_STEP = 1  # the next round is begun when this one is committed
_AHEAD_ALONE = 2  # orders that a lone device has already: it commits by itself and never waits for a verdict


def window(plan: Plan) -> int:
    """Most rounds that may be open at once while this plan is in force."""
    overlapping = _AHEAD_ALONE if len(plan.devices) == 1 else schedule_named(plan.schedule).staleness
    return _LOCK_STEP + overlapping
