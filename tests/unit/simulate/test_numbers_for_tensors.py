"""Numbers that stand for tensors show whatever is left out, done twice, or done on other weights."""

from __future__ import annotations

from potluck.simulate.numbers_for_tensors import start_number, trained
from potluck.simulate.simulated_run import SimulatedRun
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


def test_the_simulated_world_has_all_that_a_device_asks_of_it() -> None:
    run = SimulatedRun(0, faults=0)
    asked = {name for name in vars(Surroundings) if not name.startswith("_")}
    assert len(asked) > 5
    assert {name for name in asked if not hasattr(run, name)} == set()
