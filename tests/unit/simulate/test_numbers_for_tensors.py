"""Numbers that stand for tensors show whatever is left out, done twice, or done on other weights."""

from __future__ import annotations

from potluck.simulate.numbers_for_tensors import start_number, trained
from potluck.simulate.surroundings import Surroundings


def test_each_round_and_its_order_show() -> None:
    first = start_number("b0")
    assert first != start_number("b1")
    assert trained(trained(first, 0), 1) != trained(trained(first, 1), 0)
    assert trained(first, 0) != trained(trained(first, 0), 0)


def test_weights_from_before_the_last_step_show_only_where_gradients_are_late() -> None:
    weights, optimizer, before = trained(start_number("b0"), 0)
    other = (weights, optimizer, before + 1)
    assert trained((weights, optimizer, before), 1) == trained(other, 1)
    assert trained((weights, optimizer, before), 1, late=True) != trained(other, 1, late=True)
    assert trained((weights, optimizer, before), 1)[2] == weights


def test_a_device_knows_its_world_by_a_protocol() -> None:
    assert {"world", "devices", "expected", "model"} <= set(dir(Surroundings))
