"""What users may say after --sync."""

from __future__ import annotations

import pkgutil

import pytest

from potluck.errors import InputError
from potluck.paramserver import policies, policy_choice
from potluck.paramserver.policies import asp
from potluck.paramserver.policies.adacomm import AdaComm
from potluck.paramserver.policies.adsp import Adsp
from potluck.paramserver.policies.local import Lockstep
from potluck.paramserver.policies.ours import Ours
from potluck.paramserver.policies.ssp import Ssp
from potluck.paramserver.policy import Policy
from potluck.paramserver.policy_choice import choose, policy_names, register
from potluck.paramserver.policy_values import counted, plain


def test_every_file_of_a_policy_is_one_that_users_may_name() -> None:
    files = {module.name for module in pkgutil.iter_modules(policies.__path__)}
    assert set(policy_names()) == files


def test_a_policy_of_somebody_else_is_named_as_ours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_choice, "_FACTORIES", dict(policy_choice._FACTORIES))
    register("theirs", counted(lambda steps, period_s: Lockstep(2 * steps), "pairs of steps", usual=3))
    made = [choose(text).policy(0.1) for text in ("theirs", "theirs:4")]
    assert [policy.steps for policy in made if isinstance(policy, Lockstep)] == [6, 8]
    with pytest.raises(InputError, match=r"give one of bsp, .*, theirs, or name the file .* in POTLUCK_EXTENSIONS$"):
        choose("thiers")
    with pytest.raises(InputError, match="give a number of pairs of steps, at least 1"):
        choose("theirs:x")
    for taken in ("theirs", "bsp", "a:b"):
        with pytest.raises(InputError, match="give it another"):
            register(taken, plain(Policy))


@pytest.mark.parametrize(
    ("given", "what"),
    [(Lockstep, "the class Lockstep"), (Lockstep(3), "a Lockstep"), (None, "None")],
)
def test_what_reads_no_value_is_refused_when_it_is_registered(given: object, what: str) -> None:
    fix = r"wrap it: counted\(...\), timed\(...\) or plain\(...\), of potluck.paramserver.policy_values"
    with pytest.raises(InputError, match=f"^push policy 'theirs': {what} is given; {fix}$"):
        register("theirs", given)  # type: ignore[arg-type]


def test_a_function_that_makes_a_policy_at_once_is_to_be_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_choice, "_FACTORIES", dict(policy_choice._FACTORIES))
    register("none", lambda: Lockstep(3))  # type: ignore[arg-type, misc]
    register("one", lambda value: Lockstep(3))  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match=r"^--sync 'none': its factory failed \(TypeError: .*\); wrap it: counted\("):
        choose("none")
    with pytest.raises(InputError, match=r"^--sync 'one': its factory gave a Lockstep; wrap it: counted\("):
        choose("one")


def test_values_reach_the_policy_and_the_rest_follows_from_the_slowest_step() -> None:
    local, ssp, adsp = choose("local:16").policy(0.1), choose("ssp:0").policy(0.1), choose("adsp:30s").policy(0.1)
    assert isinstance(local, Lockstep)
    assert local.steps == 16
    assert isinstance(ssp, Ssp)
    assert ssp.ahead == 0
    assert isinstance(adsp, Adsp)
    assert adsp.period_s == 30.0
    ours, adacomm = choose("ours").policy(0.1), choose("adacomm:8").policy(0.1)
    assert isinstance(ours, Ours)
    assert ours.period_s == pytest.approx(4.0)
    assert isinstance(adacomm, AdaComm)
    assert adacomm.steps == 8
    assert adacomm.check_s == pytest.approx(4.0)


def test_asp_lets_everybody_go_after_each_step() -> None:
    policy = asp.FACTORY(None)(0.1)
    assert not policy.waits
    assert policy.joined("a", 100, 0.0).paces["a"].steps == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nope", "no such policy; give one of bsp"),
        ("bsp:3", "takes no value"),
        ("local:0", "give a number of steps, at least 1"),
        ("ssp:-1", "at least 0"),
        ("adsp:fast", "--sync .adsp:fast.: "),
    ],
)
def test_what_makes_no_sense_is_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        choose(text)
