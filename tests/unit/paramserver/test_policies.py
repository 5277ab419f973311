"""What users may say after --sync."""

from __future__ import annotations

import pytest

from potluck.errors import InputError
from potluck.paramserver.adacomm import AdaComm
from potluck.paramserver.adsp import Adsp, Ours
from potluck.paramserver.policies import POLICIES, choose
from potluck.paramserver.policy import Lockstep, Ssp


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_its_name(name: str) -> None:
    assert choose(name).policy(0.1).name == name


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nope", "no such policy; give one of bsp"),
        ("bsp:3", "bsp takes no value"),
        ("local:0", "give a number of steps, at least 1"),
        ("ssp:-1", "at least 0"),
        ("adsp:fast", "--sync .adsp:fast.: "),
    ],
)
def test_what_makes_no_sense_is_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        choose(text)
