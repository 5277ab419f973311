"""A push policy may be somebody else's code: what it answers is looked at, and one line names it where it fails."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TypeVar

import msgspec

from potluck.advice import described, one_line
from potluck.errors import InputError, PotluckError
from potluck.paramserver.events import Answer
from potluck.paramserver.policy import Policy
from potluck.types import Pace

Made = TypeVar("Made")

_OVERRIDDEN = ("pace", "may_go", "scale", "checked", "waits", "check_s", "outer_momentum")  # by what is a policy


def names_of_policy() -> tuple[str, ...]:
    """What `Policy` uses itself, and no subclass may use for something else."""
    methods = (name for name in vars(Policy) if not name.startswith("__") and name not in _OVERRIDDEN)
    return (*vars(Policy()), *methods)


def asked(
    name: str, make: Callable[[float], Policy], slowest_s: float, left: Callable[[], int] | None = None
) -> Policy:
    """A policy of that name, whose every answer is looked at; `left`: batches that are left to train in all."""
    of = f"push policy {name!r}"
    policy = _answers(f"{of}: making it", make, _kind(Policy))(slowest_s)
    if wrong := _names_taken(policy) or _wrong_settings(policy):
        raise InputError(f"{of}: {wrong}")

    def cap(worker: str, pace: Pace) -> Pace:
        return pace if left is None else _at_most(max(1, left()), pace, policy.workers[worker].step_s or slowest_s)

    pace = _answers(f"{of}: pace", policy.pace, _wrong_pace)
    checked = _answers(f"{of}: checked", policy.checked, _wrong_answer)

    def capped_pace(worker: str, now_s: float) -> Pace:
        return cap(worker, pace(worker, now_s))

    def capped_answer(loss: float, now_s: float) -> Answer:
        found = checked(loss, now_s)
        here = {worker: cap(worker, pace) for worker, pace in found.paces.items() if worker in policy.workers}
        return dataclasses.replace(found, paces=here)

    looked_at = {
        "pace": capped_pace, "checked": capped_answer,
        "may_go": _answers(f"{of}: may_go", policy.may_go, _kind(bool)),
        "scale": _answers(f"{of}: scale", policy.scale, _wrong_scale),
    }  # fmt: skip
    for method, answer in looked_at.items():
        setattr(policy, method, answer)
    return policy


def all_wait(name: str, devices: int) -> InputError:
    """For a policy that lets nobody go, though no push is to come that could change that."""
    who = f"all {devices} devices wait" if devices > 1 else "the only device waits"
    return InputError(f"push policy {name!r}: {who} (may_go) and nobody is left to wait for; correct may_go")


def _answers(what: str, ask: Callable[..., Made], wrong: Callable[[object], str]) -> Callable[..., Made]:
    """The same, with a line of whoever it is for what fails or answers wrongly."""

    def answer(*args: object, **named: object) -> Made:
        try:
            found = ask(*args, **named)
        except PotluckError as error:
            raise InputError(f"{what} failed: {error}") from error
        except Exception as error:
            raise InputError(f"{what} failed ({one_line(error)}); repair it") from error
        if why := wrong(found):
            raise InputError(f"{what} gave {why}")
        return found

    return answer


def _kind(kind: type) -> Callable[[object], str]:
    article = "an" if kind.__name__[0] in "AEIOU" else "a"

    def wrong(found: object) -> str:
        return "" if isinstance(found, kind) else f"{described(found)}; it must give {article} {kind.__name__}"

    return wrong


def _wrong_pace(found: object) -> str:
    if not isinstance(found, Pace):
        return _kind(Pace)(found)
    steps: object = found.steps
    if steps is not None and found.seconds is not None:
        return "both steps and seconds; let it give one of them"
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        return f"steps={ascii(steps)[:80]}; let it give a whole number, at least 1"
    if found.seconds is not None and not _is_number(found.seconds, math.inf):
        return f"seconds={ascii(found.seconds)[:80]}; let it give a number, 0 or more"
    reason: object = found.reason
    return "" if isinstance(reason, str) else f"{described(reason)} as its reason; let it give words"


def _wrong_scale(found: object) -> str:
    if isinstance(found, float | int):
        return "" if _is_number(found, 1) else f"{found}; let it give a number from 0 to 1"
    return f"{described(found)}; it must give a number from 0 to 1"


def _wrong_answer(found: object) -> str:
    if not isinstance(found, Answer):
        return f"{_kind(Answer)(found)}: return super().checked(loss, now_s) where nothing follows"
    return next(filter(None, map(_wrong_pace, found.paces.values())), "")


def _is_number(found: object, most: float) -> bool:
    return isinstance(found, float | int) and 0 <= found <= most and math.isfinite(found)


def _names_taken(policy: Policy) -> str:
    """Which names of `Policy` a policy lacks or uses itself, in words; "": none."""
    usual, own = vars(Policy()), vars(policy)
    if missing := [name for name in usual if name not in own]:
        return f"it has no {missing[0]}; let its __init__ begin with super().__init__()"
    taken = [name for name, value in usual.items() if type(own[name]) is not type(value) or own[name] != value]
    taken += [
        name
        for name in names_of_policy()
        if name not in usual and (name in own or getattr(type(policy), name) is not getattr(Policy, name))
    ]
    return f"Policy uses {', '.join(taken)} itself; give yours another name" if taken else ""


def _wrong_settings(policy: Policy) -> str:
    waits: object = policy.waits
    if not isinstance(waits, bool):
        return f"waits is {ascii(waits)[:80]}; give True or False"
    if policy.check_s is not None and not (_is_number(policy.check_s, math.inf) and policy.check_s > 0):
        return f"check_s is {ascii(policy.check_s)[:80]}; give seconds above 0, or None for never"
    return ""


def _at_most(left: int, pace: Pace, step_s: float) -> Pace:
    """The pace, with a push at the latest when all is trained that is left: nobody would wait for a later one."""
    by_steps = pace.steps is not None and pace.steps > left
    by_time = pace.seconds is not None and pace.seconds > left * step_s > 0
    if not by_steps and not by_time:
        return pace
    reason = f"{pace.reason}; but after {left} now, as no more batches are left"
    return msgspec.structs.replace(pace, steps=left, seconds=None, reason=reason)
