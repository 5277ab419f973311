"""A push policy of somebody else that fails is named in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from potluck.errors import InputError
from potluck.paramserver.asked_policy import all_wait, asked, names_of_policy
from potluck.paramserver.events import Answer, Report
from potluck.paramserver.policies.adsp import Adsp
from potluck.paramserver.policies.local import Lockstep
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


REPORT = Report("a", steps=1, samples=8, loss=1.0, staleness=0, overhead_s=0.0)


def theirs(method: str, answer: object, left: Callable[[], int] | None = None) -> Policy:
    """A policy whose method gives this."""
    made = cast(Policy, type("Theirs", (Policy,), {method: lambda *given: answer})())
    return asked("theirs", lambda slowest_s: made, 0.1, left)


def a_pace(**given: Any) -> Pace:
    return Pace("as they say", **given)


@pytest.mark.parametrize(
    ("pace", "why"),
    [
        (a_pace(steps=2.5), "pace gave steps=2.5; let it give a whole number, at least 1"),
        (a_pace(steps=0), "pace gave steps=0; let it give a whole number, at least 1"),
        (a_pace(steps=-3), "pace gave steps=-3; let it give a whole number, at least 1"),
        (a_pace(steps=float("nan")), "pace gave steps=nan; let it give a whole number, at least 1"),
        (a_pace(seconds=float("nan")), "pace gave seconds=nan; let it give a number, 0 or more"),
        (a_pace(seconds=float("inf")), "pace gave seconds=inf; let it give a number, 0 or more"),
        (a_pace(seconds=-1), "pace gave seconds=-1; let it give a number, 0 or more"),
        (a_pace(steps=2, seconds=1.0), "pace gave both steps and seconds; let it give one of them"),
        (Pace(cast(str, 3), steps=3), "pace gave an int as its reason; let it give words"),
    ],
)
def test_a_pace_that_is_none_is_refused_wherever_it_is_given(pace: Pace, why: str) -> None:
    with pytest.raises(InputError, match=f"^push policy 'theirs': {why}$"):
        theirs("pace", pace).joined("a", 1, 0.0)
    with pytest.raises(InputError, match=f"^push policy 'theirs': {why.replace('pace', 'checked', 1)}$"):
        theirs("checked", Answer(paces={"a": pace})).checked(1.0, 0.0)


def test_a_pace_of_nothing_says_so_without_a_name_of_python() -> None:
    class Neither(Policy):
        def pace(self, worker: str, now_s: float) -> Pace:
            return Pace("never")

    why = "^push policy 'theirs': pace failed: a pace: neither steps nor seconds; give one of them$"
    with pytest.raises(InputError, match=why):
        asked("theirs", lambda slowest_s: Neither(), 0.1).joined("a", 1, 0.0)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -50.0, 1.5])
def test_a_weight_that_is_no_part_is_refused(scale: float) -> None:
    with pytest.raises(
        InputError, match=f"^push policy 'theirs': scale gave {scale}; let it give a number from 0 to 1$"
    ):
        theirs("scale", scale).scale(REPORT)


def test_a_weight_from_nothing_to_all_is_taken() -> None:
    assert [theirs("scale", scale).scale(REPORT) for scale in (0, 0.25, 1)] == [0, 0.25, 1]
    with pytest.raises(InputError, match=r"^push policy 'theirs': scale gave None; it must give a number from 0 to 1$"):
        theirs("scale", None).scale(REPORT)


def test_who_says_nothing_of_the_loss_is_told_what_to_return() -> None:
    fix = r"it must give an Answer: return super\(\).checked\(loss, now_s\) where nothing follows"
    with pytest.raises(InputError, match=f"^push policy 'theirs': checked gave None; {fix}$"):
        theirs("checked", None).checked(1.0, 0.0)


class Bare(Policy):
    def __init__(self) -> None:
        self.steps = 3


class Taking(Policy):
    def __init__(self, **taken: object) -> None:
        super().__init__()
        vars(self).update(taken)


class Leaving(Policy):
    def left(self, worker: str) -> int:  # type: ignore[override]
        return 3


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Bare(), r"it has no workers; let its __init__ begin with super\(\).__init__\(\)"),
        (Taking(workers=0), "Policy uses workers itself; give yours another name"),
        (Taking(samples=5, most={}), "Policy uses samples, most itself; give yours another name"),
        (Taking(left=[1]), "Policy uses left itself; give yours another name"),
        (Leaving(), "Policy uses left itself; give yours another name"),
        (Taking(check_s=0), "check_s is 0; give seconds above 0, or None for never"),
        (Taking(check_s="1s"), "check_s is '1s'; give seconds above 0, or None for never"),
        (Taking(waits=1), "waits is 1; give True or False"),
    ],
)
def test_one_that_is_in_the_way_of_what_all_share_is_refused_when_it_is_made(policy: Policy, why: str) -> None:
    with pytest.raises(InputError, match=f"^push policy 'theirs': {why}$"):
        asked("theirs", lambda slowest_s: policy, 0.1)


def test_names_of_its_own_are_its_business() -> None:
    asked("theirs", lambda slowest_s: Taking(pushes={}, last=None, check_s=0.3, waits=True), 0.1)
    assert {"workers", "samples", "fewest", "most", "joined", "left", "pushed", "waiting"} <= set(names_of_policy())


def test_nobody_is_to_train_longer_than_the_run() -> None:
    left = [100]
    policy = asked("theirs", lambda slowest_s: Lockstep(40), 0.1, lambda: left[0])
    assert policy.joined("a", 10, 0.0).paces["a"] == Lockstep(40).joined("a", 10, 0.0).paces["a"]
    left[0] = 8
    pace = policy.pace("a", 0.0)
    assert pace.steps == 8
    assert (
        pace.reason == "40 steps each, then everybody waits for the last; but after 8 now, as no more batches are left"
    )
    left[0] = 0  # what is under way is counted late
    assert policy.pace("a", 0.0).steps == 1


def test_nor_by_the_clock_as_long_as_its_steps_take() -> None:
    made = Adsp(period_s=30.0)
    policy = asked("theirs", lambda slowest_s: made, 0.5, lambda: 50)
    slow, quick = (policy.joined(worker, 10, 0.0, step_s).paces[worker] for worker, step_s in (("a", None), ("b", 0.1)))
    assert (slow.steps, slow.seconds) == (50, None)  # 30 s are 60 steps, as far as is known
    assert (quick.steps, quick.seconds) == (50, None)
    short = asked("theirs", lambda slowest_s: Adsp(period_s=20.0), 0.5, lambda: 50).joined("a", 10, 0.0).paces["a"]
    assert (short.steps, short.seconds) == (None, 20.0)
    assert {pace.steps for pace in policy.checked(1.0, 1.0).paces.values()} == {50}


def test_a_policy_that_lets_nobody_go_is_named() -> None:
    words = "(may_go) and nobody is left to wait for; correct may_go"
    assert str(all_wait("theirs", 2)) == f"push policy 'theirs': all 2 devices wait {words}"
    assert str(all_wait("theirs", 1)) == f"push policy 'theirs': the only device waits {words}"
