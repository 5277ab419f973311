"""What a device reports is taken over only if it is what it should report."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from potluck.compute.runner import StageState
from potluck.errors import DeviceError
from potluck.tensors.model_state import ModelState


def model() -> ModelState:
    return ModelState({"w": torch.zeros(2, 3), "b": torch.zeros(3), "count": torch.tensor(0)}, {}, {})


GOOD = StageState(
    {"w": torch.ones(2, 3)}, {"count": torch.tensor(5)}, {"w/momentum": torch.ones(2, 3), "w/step": torch.tensor(1.0)}
)


def test_what_is_expected_is_taken_over() -> None:
    state = model()
    state.check("d0", GOOD, ["w"], ["count"])
    state.take(7, [GOOD])
    assert state.round == 7
    assert int(state.tensors["count"]) == 5
    assert bool(state.tensors["w"].all())
    assert set(state.optimizer) == {"w/momentum", "w/step"}


WRONG: dict[str, dict[str, Any]] = {
    "without 'w'": {"parameters": {}, "optimizer": {}},
    "with 'b'": {"parameters": {"w": torch.ones(2, 3), "b": torch.zeros(3)}},
    "with 'evil'": {"buffers": {"count": torch.tensor(5), "evil": torch.tensor(0)}},
    "'w' is .3, 2. float32 instead": {"parameters": {"w": torch.ones(3, 2)}},
    "'w' is .2, 3. float64 instead": {"parameters": {"w": torch.ones(2, 3, dtype=torch.float64)}},
    "'w/momentum' is .3,. float32": {"optimizer": {"w/momentum": torch.ones(3)}},
    "with the optimizer state 'b/momentum'": {"optimizer": {"b/momentum": torch.ones(3)}},
}


@pytest.mark.parametrize("what", WRONG)
def test_anything_else_is_refused(what: str) -> None:
    state = model()
    with pytest.raises(DeviceError, match=f"device d0 reported a state .*{what}.*--resume"):
        state.check("d0", dataclasses.replace(GOOD, **WRONG[what]), ["w"], ["count"])
