"""Whoever is refused is named, also where the beginning of a word looks like a name."""

from __future__ import annotations

import pytest

from potluck.coordinator.serving.serving_run import _named


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("data mine: d/a.npz has no label", "d: data mine: d/a.npz has no label"),
        ("d has no data set 'mine'", "d has no data set 'mine'"),
        ("d: it is gone", "d: it is gone"),
        ("", "d: "),
    ],
)
def test_a_problem_says_whose_it_is(problem: str, words: str) -> None:
    assert _named("d", problem) == words
