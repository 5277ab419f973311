"""Policies by the names that users give them, like `adsp`, `local:16` or `ours:30s`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from potluck.advice import described, one_line
from potluck.errors import InputError
from potluck.paramserver.asked_policy import asked
from potluck.paramserver.policies import adacomm, adsp, asp, bsp, local, ours, ssp
from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_values import Factory, Make

_FACTORIES: dict[str, Factory] = {
    "bsp": bsp.FACTORY,
    "ssp": ssp.FACTORY,
    "asp": asp.FACTORY,
    "local": local.FACTORY,
    "adacomm": adacomm.FACTORY,
    "adsp": adsp.FACTORY,
    "ours": ours.FACTORY,
}
_WRAP = "wrap it: counted(...), timed(...) or plain(...), of potluck.paramserver.policy_values"


@dataclass(frozen=True)
class Choice:
    """What a user wants; what is not said is chosen when the workers are known."""

    name: str
    make: Make

    def policy(self, slowest_s: float, left: Callable[[], int] | None = None) -> Policy:
        """The policy, given how long a step takes the slowest worker, and how many batches are left in all."""
        return asked(self.name, self.make, slowest_s, left)


def register(name: str, factory: Factory) -> None:
    """Adds a policy that users may name; `policy_values` has factories for the usual kinds of value."""
    if name in _FACTORIES or ":" in name:
        raise InputError(f"push policy {name!r}: there is one of this name, or it has a colon; give it another")
    if isinstance(factory, type | Policy) or not callable(factory):
        raise InputError(f"push policy {name!r}: {described(factory)} is given; {_WRAP}")
    _FACTORIES[name] = factory


def policy_names() -> tuple[str, ...]:
    return tuple(_FACTORIES)


def choose(text: str) -> Choice:
    """What `NAME` or `NAME:VALUE` asks for."""
    name, colon, value = text.partition(":")
    if name not in _FACTORIES:
        fix = "name the file that adds it in POTLUCK_EXTENSIONS"
        raise InputError(f"--sync {text!r}: no such policy; give one of {', '.join(policy_names())}, or {fix}")
    try:
        make = _FACTORIES[name](value if colon else None)
    except InputError as error:
        raise InputError(f"--sync {text!r}: {error}") from None
    except Exception as error:
        raise InputError(f"--sync {text!r}: its factory failed ({one_line(error)}); {_WRAP}") from error
    if isinstance(make, Policy) or not callable(make):
        raise InputError(f"--sync {text!r}: its factory gave {described(make)}; {_WRAP}")
    return Choice(name, make)
