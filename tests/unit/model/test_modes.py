"""Which modules train: as the user left them."""

from __future__ import annotations

import pytest
from torch import nn

from potluck.errors import ModelError
from potluck.model.modes import modes_kept, switch_to_training


def a_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(1)))


def training(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if module.training]


def test_modes_come_back_one_by_one_also_after_an_error() -> None:
    model = a_model()
    model[1].eval()
    before = training(model)

    def attempt() -> None:
        with modes_kept(model):
            model.train()
            model[0].eval()
            raise ValueError("tried")

    with pytest.raises(ValueError, match="tried"):
        attempt()
    assert training(model) == before == ["", "0"]


def test_what_a_module_of_the_users_own_does_when_it_is_switched_is_done() -> None:
    class Own(nn.Linear):
        def train(self, mode: bool = True) -> Own:
            self.requires_grad_(mode)
            return super().train(mode)

    model = Own(1, 1)
    with modes_kept(model):
        model.eval()
        assert not model.weight.requires_grad
    assert model.weight.requires_grad


def test_a_model_that_is_switched_off_is_switched_on() -> None:
    model = a_model().eval()
    switch_to_training(model)
    assert len(training(model)) == 5


def test_what_came_frozen_in_a_model_that_trains_stays_frozen() -> None:
    model = a_model()
    model.get_submodule("1.1").eval()
    switch_to_training(model)
    assert training(model) == ["", "0", "1", "1.0"]


def test_a_model_that_is_off_but_for_a_part_is_refused_with_both_ways_out() -> None:
    model = a_model().eval()
    model.get_submodule("1.0").train()
    with pytest.raises(
        ModelError, match=r"'1\.0' in it is in training mode; call model\.train\(\).*model\.training = "
    ):
        switch_to_training(model)
    assert training(model) == ["1.0"]
