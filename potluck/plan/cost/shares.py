"""How a group shares its stage: in proportion to speed under memory limits, then off the slowest while that helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_SecondsOfShare = Callable[[int, int], float]  # (place in the group, share) → seconds


def allocate(seconds: _SecondsOfShare, total: int, caps: Sequence[int], least: int) -> tuple[int, ...] | None:
    """Shares that add up to `total`, each at least `least` and at most its cap, or None if there are none.

    The first part is Asteroid's balancing: in proportion to capacity, whoever reaches its cap drops out, and the rest
    is shared by the others. The second part moves single units from the slowest to whoever would then be fastest,
    while the slowest gets faster: time is not linear in the share, so the proportion is only a start.
    """
    count = len(caps)
    if total < least * count or sum(caps) < total or min(caps) < least:
        return None
    capacity = [1.0 / max(seconds(d, total), 1e-12) for d in range(count)]
    shares = _proportional(capacity, total, caps, least)
    return _off_load(seconds, shares, caps, least)


def _proportional(capacity: Sequence[float], total: int, caps: Sequence[int], least: int) -> list[int]:
    shares = [least] * len(caps)
    left = total - sum(shares)
    while left:
        room = [d for d in range(len(caps)) if shares[d] < caps[d]]
        whole = sum(capacity[d] for d in room)
        ideal = {d: total * capacity[d] / whole - shares[d] for d in room}
        given = 0
        for d in room:
            more = max(0, min(int(ideal[d]), caps[d] - shares[d], left - given))
            shares[d] += more
            given += more
        if not given:  # less than one unit each: to whoever misses most
            neediest = max(room, key=lambda d: ideal[d])
            shares[neediest] += 1
            given = 1
        left -= given
    return shares


def _off_load(seconds: _SecondsOfShare, shares: list[int], caps: Sequence[int], least: int) -> tuple[int, ...]:
    places = range(len(shares))
    times = [seconds(d, shares[d]) for d in places]
    for _ in range(sum(shares) * len(shares)):  # each step lowers the worst pair, so this is never reached
        slowest = max(places, key=lambda d: times[d])
        if shares[slowest] <= least:
            break
        takers = [(seconds(d, shares[d] + 1), d) for d in places if d != slowest and shares[d] < caps[d]]
        if not takers:
            break
        after, taker = min(takers)
        if after >= times[slowest]:
            break
        shares[slowest] -= 1
        shares[taker] += 1
        times[slowest], times[taker] = seconds(slowest, shares[slowest]), after
    return tuple(shares)
