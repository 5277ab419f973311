"""What is said about mistakes that many make."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import potluck
from potluck.advice import described, did_you_mean, mending
from potluck.errors import InputError

GIVEN: Any = potluck  # what is wrong here, mypy would say too


def test_the_nearest_name_is_meant_and_all_are_said_where_none_is_near():
    assert did_you_mean("bandwith", ["bandwidth", "memory"]) == "did you mean bandwidth?"
    assert did_you_mean("P_X", ["P_LOCAL", "P_MEMORY"], prefix="P_") == "give one of P_LOCAL, P_MEMORY"


def test_values_are_described_for_people():
    values: list[Any] = [None, 3, [], int]
    assert [described(v) for v in values] == ["None", "an int", "a list", "the class int"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GIVEN.SGD(lr=0.1, momentun=0.9), "potluck.SGD: there is no 'momentun'; did you mean momentum?"),
        (lambda: GIVEN.SGD(), "potluck.SGD: lr not given; add lr=..."),
        (lambda: GIVEN.SGD([], lr=0.1), "potluck.SGD: a list is given without a name"),
        (lambda: GIVEN.Adam(betas=0.9), "betas 0.9; give two numbers"),
        (lambda: GIVEN.Adam(groups=({"match": "*"},)), "groups[0] is a dict; give potluck.ParamGroup("),
        (lambda: GIVEN.ParamGroup(match="*"), "potluck.ParamGroup: overrides not given"),
        (lambda: GIVEN.Cosine(10), "potluck.Cosine: an int is given without a name"),
        (lambda: GIVEN.Cosine(total="10"), "total '10'; give a whole number of rounds, at least 1"),
        (lambda: GIVEN.Cosine(total=10, warm_up=2), "there is no 'warm_up'; did you mean warmup?"),
        (lambda: GIVEN.Step(every=2, gamma="x"), "gamma 'x'; give a finite number"),
        (lambda: GIVEN.Pad(length="8"), "pad: length '8'"),
    ],
)
def test_what_a_job_is_made_of_names_its_wrong_fields(make: Any, words: str):
    with pytest.raises(InputError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


LINEAR, LABELS = nn.Linear(3, 2), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (lambda: torch.zeros(1).to("cuda:99"), "leave the device out"),
        (lambda: F.cross_entropy(torch.zeros(4, 2), torch.zeros(4)), "labels.long()"),
        (lambda: LINEAR(torch.zeros(4, 3, dtype=torch.float64)), "inputs.float()"),
        (lambda: nn.Conv2d(3, 1, 1)(torch.zeros(1, 3, 2, 2, dtype=torch.uint8)), "inputs.float()"),
        (lambda: F.cross_entropy(torch.zeros(4, 2), LABELS[:, None]), "labels.squeeze(1)"),
        (lambda: F.cross_entropy(torch.zeros(4, 2), LABELS + 2), "labels from 0"),
        (lambda: LINEAR(torch.zeros(4, 5)), "as wide as a sample"),
        (lambda: nn.Conv2d(3, 1, 1)(torch.zeros(1, 1, 2, 2)), "as wide as a sample"),
        (lambda: nn.Bilinear(1, 1, 1)(torch.zeros(1)), "an input for each of the model's"),
        (lambda: int("x"), "otherwise"),
    ],
)
def test_the_words_of_this_torch_are_known_and_have_a_remedy(fails: Any, words: str):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fails()
    assert words in mending(str(caught.value), "otherwise")
