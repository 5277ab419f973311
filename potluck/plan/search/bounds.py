"""What each bound on staleness would give here: rounds an hour, and memory. Which one is worth it, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.plan.cost.memory import peak_bytes
from potluck.plan.cost.tables import Tables
from potluck.plan.schedule.known_schedules import schedule_for
from potluck.plan.search.plan_search import Found, find_plan
from potluck.types import ModelFacts, Profile
from potluck.units import size_text

BOUNDS = (0, 1)
_WORTH = 1.03  # times as many rounds: below, predictions cannot tell, and a gradient that is late gives nothing
_HOUR_S = 3600.0


@dataclass(frozen=True)
class BoundOutlook:
    """The best plan with gradients so many steps late."""

    staleness: int
    found: Found
    most_bytes: int  # of the device that needs most
    device: str

    @property
    def rounds_per_hour(self) -> float:
        return _HOUR_S / self.found.round_s


def bounds(
    facts: ModelFacts, profile: Profile, sizes: Sequence[tuple[int, int]], known: dict[int, Found], seconds: float
) -> tuple[BoundOutlook, ...]:
    """Every bound with its best plan; those that are not `known` are searched for so long."""
    tables, told = Tables(profile), []
    for staleness in BOUNDS:
        found = known.get(staleness) or find_plan(
            facts, profile, sizes, seconds=seconds, schedule=schedule_for(staleness)
        )
        uses = {device: use.total for device, use in peak_bytes(found.plan, facts, tables=tables).items()}
        device = max(uses, key=lambda d: uses[d])
        told.append(BoundOutlook(staleness, found, uses[device], device))
    return tuple(told)


def recommended(outlooks: Sequence[BoundOutlook]) -> int:
    """The bound to use: a later gradient only where it buys rounds."""
    best = outlooks[0]
    for other in outlooks[1:]:
        if other.rounds_per_hour > _WORTH * best.rounds_per_hour:
            best = other
    return best.staleness


def words(outlooks: Sequence[BoundOutlook]) -> str:
    """All of it in one line."""
    base, parts = outlooks[0], []
    for one in outlooks:
        times = "" if one is base else f", {one.rounds_per_hour / base.rounds_per_hour:.2f} times as many"
        memory = f"at most {size_text(one.most_bytes)} on {one.device}"
        parts.append(f"{one.staleness}: {one.rounds_per_hour:,.0f} rounds an hour{times} ({memory})")
    advice = recommended(outlooks)
    why = "" if advice == 0 else "; with an optimizer that bears a late gradient, docs/asynchronous.md"
    return f"{' · '.join(parts)}; recommended: staleness {advice}{why}"
