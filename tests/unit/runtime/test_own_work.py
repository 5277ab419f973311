"""What a device says of its data before it trains: enough to begin, or what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from torch.nn import functional

from potluck.datasets.local import LocalData
from potluck.model.build import build
from potluck.model.program import encode
from potluck.optimizers import SGD
from potluck.runtime.own_work import OwnWork
from potluck.runtime.throttle import Throttle
from potluck.wire.messages import Feed, Load, Loaded

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
    work = OwnWork("a", CPU, data, "127.0.0.1", Throttle(1.0), lambda digest, timeout_s: blobs[digest])
    order = Load(
        run="r", program="program", state="state", optimizer=SGD(lr=0.1), batch_size=8, seed=0, clip_norm=None,
        feeds={"input": Feed((LENGTH,), "int64"), "label": Feed((), "int64")}, data="own", share="",
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
