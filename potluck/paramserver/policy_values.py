"""What may follow a policy's name, as in `local:16` or `ours:30s`, and what it means where nothing does. Pure.

A factory reads the value when the user gives it, and makes the policy when it is known how long a step takes the
slowest worker.
"""

from __future__ import annotations

from collections.abc import Callable

from potluck import units
from potluck.errors import InputError
from potluck.paramserver.policy import Policy

Make = Callable[[float], Policy]  # given the seconds of the slowest worker's step
Factory = Callable[[str | None], Make]  # given what follows the colon; an InputError if that makes no sense

STEPS_A_PERIOD = 40  # of the slowest worker, between two checks: a loss over fewer is mostly chance
_LEAST_PERIOD_S = 1.0  # of a check: more often is work for nothing, however short a step is
_PERIODS_AN_EPOCH = 20  # after which the rate is searched anew: what was best at the beginning may not be later


def plain(make: Callable[[], Policy]) -> Factory:
    """For a policy that takes no value."""

    def read(value: str | None) -> Make:
        if value is not None:
            raise InputError("it takes no value; leave out what follows it")
        return lambda slowest_s: make()

    return read


def counted(
    make: Callable[[int, float], Policy], what: str, usual: int = STEPS_A_PERIOD, least: int = 1
) -> Factory:  # fmt: skip
    """For a policy that takes a number of `what`, and the seconds between two looks at the loss."""

    def read(value: str | None) -> Make:
        if value is not None and (not value.isdecimal() or int(value) < least):
            raise InputError(f"give a number of {what}, at least {least}")
        count = usual if value is None else int(value)
        return lambda slowest_s: make(count, _period_s(slowest_s))

    return read


def timed(make: Callable[[float, float], Policy]) -> Factory:
    """For a policy that takes the seconds of a check period, and those of an epoch of it."""

    def read(value: str | None) -> Make:
        given_s = None if value is None else units.duration_s(value)

        def at(slowest_s: float) -> Policy:
            period_s = _period_s(slowest_s) if given_s is None else given_s
            return make(period_s, _PERIODS_AN_EPOCH * period_s)

        return at

    return read


def _period_s(slowest_s: float) -> float:
    return max(_LEAST_PERIOD_S, STEPS_A_PERIOD * slowest_s)
