"""A push policy of somebody else that fails is named in one line."""

from __future__ import annotations

from typing import cast

import pytest

from potluck.errors import InputError
from potluck.paramserver.asked_policy import asked
from potluck.paramserver.policy import Policy
from potluck.types import Pace


class Failing(Policy):
    def pace(self, worker: str, now_s: float) -> Pace:
        raise ValueError("no\nidea")


class Silent(Policy):
    def pace(self, worker: str, now_s: float) -> Pace:
        return cast(Pace, None)


class Stubborn(Policy):
    def may_go(self, worker: str) -> bool:
        return cast(bool, "yes")


def _nothing(slowest_s: float) -> Policy:
    return cast(Policy, None)


def test_it_answers_as_without_being_looked_at() -> None:
    assert asked("theirs", lambda slowest_s: Policy(), 0.1).joined("a", 1, 0.0).paces["a"].steps == 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda slowest_s: Failing(), r"pace failed \(ValueError: no idea\); repair it"),
        (lambda slowest_s: Silent(), "pace gave None; it must give a Pace"),
        (lambda slowest_s: 1 / 0, r"making it failed \(ZeroDivisionError: .*\); repair it"),
        (_nothing, "making it gave None; it must give a Policy"),
    ],
)
def test_what_it_does_wrong_is_said_with_its_name(make: object, why: str) -> None:
    with pytest.raises(InputError, match=f"^push policy 'theirs': {why}$"):
        asked("theirs", make, 0.1).joined("a", 1, 0.0)  # type: ignore[arg-type]


def test_a_wrong_word_is_no_yes() -> None:
    policy = asked("theirs", lambda slowest_s: Stubborn(), 0.1)
    with pytest.raises(InputError, match=r"^push policy 'theirs': may_go gave a str; it must give a bool$"):
        policy.may_go("a")
