"""A push policy may be somebody else's code: what it answers is looked at, and one line names it where it fails."""

from collections.abc import Callable
from typing import TypeVar

from potluck.advice import described, one_line
from potluck.errors import InputError
from potluck.paramserver.events import Answer
from potluck.paramserver.policy import Policy
from potluck.types import Pace

Made = TypeVar("Made")

_ANSWERS: dict[str, tuple[type, ...]] = {
    "pace": (Pace,),
    "may_go": (bool,),
    "scale": (float, int),
    "checked": (Answer,),
}


def asked(name: str, make: Callable[[float], Policy], slowest_s: float) -> Policy:
    """A policy of that name, whose every answer is looked at."""
    policy = _looked_at(f"push policy {name!r}: making it", make, (Policy,))(slowest_s)
    for method, kinds in _ANSWERS.items():
        setattr(policy, method, _looked_at(f"push policy {name!r}: {method}", getattr(policy, method), kinds))
    return policy


def _looked_at(what: str, ask: Callable[..., Made], kinds: tuple[type, ...]) -> Callable[..., Made]:
    def answer(*args: object, **named: object) -> Made:
        try:
            found = ask(*args, **named)
        except Exception as error:
            raise InputError(f"{what} failed ({one_line(error)}); repair it") from error
        if not isinstance(found, kinds):
            raise InputError(f"{what} gave {described(found)}; it must give a {kinds[0].__name__}")
        return found

    return answer
