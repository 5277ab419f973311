"""What a device says of its data before it trains: enough to begin, or what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn
from torch.nn import functional

from potluck.datasets.own_data import LocalData
from potluck.device.host.throttle import Throttle
from potluck.device.pushing.extremes import extreme_samples, ranges
from potluck.device.pushing.own_work import OwnWork
from potluck.job.optimizers import SGD
from potluck.model.build import build
from potluck.program.program import encode
from potluck.settings.address import HERE
from potluck.wire.messages import FeedSpec, Load, Loaded
from potluck.wire.trust import ON_THIS_MACHINE

CPU = torch.device("cpu")
CLASSES, TOKENS, LENGTH = 3, 16, 4


class Reader(nn.Module):
    """Tokens in, one label out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.norm, self.last = nn.Embedding(TOKENS, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(self.tokens(x).mean(1)))
        return found


def arrays(count: int = 200) -> dict[str, Any]:
    chance = np.random.default_rng(0)
    return {"input": chance.integers(0, TOKENS, (count, LENGTH)), "label": chance.integers(0, CLASSES, count)}


def loaded(*sets: LocalData) -> Loaded:
    """What a device with these data sets says of a job."""
    first = {name: torch.from_numpy(array) for name, array in arrays(4).items()}
    built = build(Reader(), functional.cross_entropy, first, torch.ones(4), judged=True)
    blobs = {"program": encode(built.programs), "state": save({n: t.clone() for n, t in built.state.items()})}
    data = {one.name: one for one in sets}
    work = OwnWork(
        "a",
        CPU,
        data,
        HERE,
        ON_THIS_MACHINE,
        Throttle(1.0),
        lambda digest, timeout_s: blobs[digest],
    )
    order = Load(
        run="r", program="program", state="state", optimizer=SGD(lr=0.1), batch_size=8, seed=0, clip_norm=None,
        feeds={"input": FeedSpec((LENGTH,), "int64"), "label": FeedSpec((), "int64")}, data="own", share="",
    )  # fmt: skip
    said = work.load(order, 10.0)
    assert work.refused == bool(said.problem)
    return said


def test_what_its_labels_stand_for_is_said_with_how_many_samples_there_are() -> None:
    said = loaded(LocalData("own", Path(), arrays(), classes=("cat", "dog", "emu")))
    assert (said.problem, said.samples, said.classes) == ("", 200, ("cat", "dog", "emu"))


def test_what_it_judges_by_has_the_labels_that_it_trains_on() -> None:
    own = LocalData("own", Path(), arrays(), classes=("cat", "dog"))
    said = loaded(own, LocalData("own:eval", Path(), arrays(), classes=("dog", "emu")))
    assert said.problem.startswith("a: own:eval has folders dog, emu, and own has cat, dog, so that one number")
    assert loaded(own, LocalData("own:eval", Path(), arrays())).problem == ""


@pytest.mark.parametrize(("feed", "value", "highest"), [("label", 3, 3), ("input", 16, 16), ("label", -1, 2)])
@pytest.mark.parametrize("row", [0, 199])
def test_a_number_that_the_model_has_no_place_for_is_found_wherever_it_is(
    feed: str, value: int, highest: int, row: int
) -> None:
    wrong = arrays()
    wrong[feed][row] = value
    problem = loaded(LocalData("own", Path(), wrong)).problem
    assert problem.startswith("a: data own cannot be trained on: ")
    assert f"{feed} is from {min(0, value)} to {highest}" in problem
    assert problem.endswith("correct its samples, or the sizes of the model")
    assert "\n" not in problem
    judged = loaded(LocalData("own", Path(), arrays()), LocalData("own:eval", Path(), wrong)).problem
    assert judged.startswith("a: own:eval cannot be judged by: ")


def test_labels_that_are_to_be_ignored_are_fine() -> None:
    some = arrays()
    some["label"][::2] = -100
    assert loaded(LocalData("own", Path(), some)).problem == ""


def test_the_strangest_samples_are_those_with_the_outermost_numbers() -> None:
    data = {"input": torch.full((9, 2), 5), "label": torch.tensor([1, 1, 1, 4, 1, -1, 1, -100, 0]), "x": torch.ones(9)}
    data["input"][6, 1] = 7
    assert extreme_samples(data)["label"].tolist() == [1, 1, 4, -1, 1, -100, 0]
    assert ranges(data) == "input is from 5 to 7, label is from -100 to 4"


def test_one_sample_is_enough() -> None:
    assert {name: len(t) for name, t in extreme_samples({"input": torch.zeros(1, 2)}).items()} == {"input": 1}
