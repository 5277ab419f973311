"""Policies by the names that users give them, like `adsp`, `local:16` or `ours:30s`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from potluck import units
from potluck.errors import InputError
from potluck.paramserver.adacomm import AdaComm
from potluck.paramserver.adsp import Adsp, Ours
from potluck.paramserver.policy import Bsp, Lockstep, Policy, Ssp

POLICIES: Mapping[str, Callable[[], Policy]] = {
    cls.name: cls for cls in (Bsp, Ssp, Policy, Lockstep, AdaComm, Adsp, Ours)
}
_COUNTED = {Ssp.name: "pushes ahead of the last", Lockstep.name: "steps", AdaComm.name: "steps to begin with"}
_TIMED = (Adsp.name, Ours.name)
_STEPS_A_PERIOD = 40  # of the slowest worker, between two checks
_LEAST_PERIOD_S = 1.0  # of a check: more often is work for nothing, however short a step is
_PERIODS_AN_EPOCH = 20  # after which the rate is searched anew


@dataclass(frozen=True)
class Choice:
    """What a user wants; what is not said is chosen when the workers are known."""

    name: str
    count: int | None = None
    period_s: float | None = None

    def policy(self, slowest_s: float) -> Policy:
        """The policy, given how long a step takes the slowest worker."""
        usual_s = max(_LEAST_PERIOD_S, _STEPS_A_PERIOD * slowest_s)
        period_s = self.period_s if self.period_s is not None else usual_s
        match self.name:
            case "adsp" | "ours":
                timed = Adsp if self.name == Adsp.name else Ours
                return timed(period_s, _PERIODS_AN_EPOCH * period_s)
            case "adacomm":
                return AdaComm(self.count or _STEPS_A_PERIOD, period_s)
            case "local":
                return Lockstep(self.count or _STEPS_A_PERIOD)
            case "ssp":
                return Ssp(_STEPS_A_PERIOD if self.count is None else self.count)
            case _:
                return POLICIES[self.name]()


def choose(text: str) -> Choice:
    """What `NAME` or `NAME:VALUE` asks for."""
    name, colon, value = text.partition(":")
    if name not in POLICIES:
        raise InputError(f"--sync {text!r}: no such policy; give one of {', '.join(POLICIES)}")
    if not colon:
        return Choice(name)
    if name in _TIMED:
        try:
            return Choice(name, period_s=units.duration_s(value))
        except InputError as error:
            raise InputError(f"--sync {text!r}: {error}") from None
    if name not in _COUNTED:
        raise InputError(f"--sync {text!r}: {name} takes no value; leave out what follows it")
    least = 0 if name == Ssp.name else 1
    if not value.isdecimal() or int(value) < least:
        raise InputError(f"--sync {text!r}: give a number of {_COUNTED[name]}, at least {least}")
    return Choice(name, count=int(value))
