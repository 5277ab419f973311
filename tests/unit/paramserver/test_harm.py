"""Updates that must not be applied."""

from __future__ import annotations

import math

from potluck.paramserver.harm import Norms


def test_what_is_not_finite_or_out_of_proportion_is_named() -> None:
    norms = Norms()
    for _ in range(4):
        assert norms.harm("a", 2.0, 2) == norms.harm("b", 1.0, 1) == norms.harm("c", 1.0, 1) == ""
    assert "not finite" in norms.harm("a", math.nan, 1)
    assert "2000 times" in norms.harm("a", 2000.0, 1)
    assert norms.harm("a", 2000.0, 100) == ""  # it made more steps


def test_of_two_that_differ_nobody_knows_which_is_wrong() -> None:
    norms = Norms()
    assert (
        norms.harm("a", 1.0, 1) == norms.harm("a", 1e9, 1) == norms.harm("b", 1e-9, 1) == norms.harm("a", 1.0, 1) == ""
    )


def test_what_was_refused_is_not_what_others_are_measured_by() -> None:
    norms = Norms()
    for worker in "abc":
        norms.harm(worker, 1.0, 1)
    for _ in range(20):
        assert norms.harm("b", 1e9, 1)
    norms.left("b")
    assert norms.harm("a", 1e9, 1) == ""  # now it is alone
