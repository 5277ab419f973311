"""Why the plan does without devices that are here, and what would change that, in words. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from potluck.plan.search.ranking import NO_FIT
from potluck.types import IdleReason, Plan

_GOES = "a device of the plan is lost or leaves"
_WORSE = "a device of the plan is lost, leaves or slows down"
_LOOKED_FOR = IdleReason(why="a plan with it is still looked for", until="one is found that is worth the change")
_NOT_FOUND = IdleReason(why="no better plan with it is known", until=_WORSE)
_SAME = 5e-4  # of a round: what gains less is no faster to a person


def idle_reasons(
    plan: Plan, here: Iterable[str], *, given: str, apart: Iterable[tuple[str, str]], left_out: Mapping[str, str],
    looked_for: Collection[str], before: Mapping[str, IdleReason],
) -> dict[str, IdleReason]:  # fmt: skip
    """Device → why a plan does without it, of all that are here.

    `given` says why no better plan is ever looked for, where that is so. `left_out` is what the planner says, and
    `looked_for` are those for which it has not answered yet: what was so `before` holds until then. Pairs `apart` do
    not reach each other.
    """
    found: dict[str, IdleReason] = {}
    for device in here:
        if device in plan.devices:
            continue
        others = [b if a == device else a for a, b in apart if device in (a, b)]
        other = next((o for o in others if o in plan.devices), None)
        if other is not None:
            found[device] = _unreached(other)
        elif given:
            found[device] = IdleReason(why=f"{given}, so none with it is looked for", until=_GOES)
        elif device in looked_for:
            found[device] = before.get(device, _LOOKED_FOR)
        else:
            found[device] = _judged(left_out[device]) if device in left_out else _NOT_FOUND
    return found


def not_worth_it(gain: float) -> str:
    """Why a plan that would have work for a device does not come into force, by the part of a round it would save."""
    if gain < _SAME:
        return "with it the best plan found is no faster"
    return f"the best plan with it would save {gain:.1%} of a round, too little for a change"


def _unreached(other: str) -> IdleReason:
    return IdleReason(why=f"it and {other} do not reach each other", until=f"it joins again, or {other} is gone")


def _judged(why: str) -> IdleReason:
    more = "it joins again with more memory, or " if why == NO_FIT else ""
    return IdleReason(why=why, until=f"{more}{_WORSE}")
