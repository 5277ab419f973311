"""What torch says of a size, as a tree of the batch size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, ToFloat

from potluck.errors import ModelError
from potluck.model.symbols import Symbols
from potluck.program.program import evaluate_size

B, OTHER = sympy.Symbol("s0", integer=True, positive=True), sympy.Symbol("u3", integer=True, positive=True)


def size(expression: Any) -> Any:
    """As much of a torch.SymInt as is looked at."""
    return SimpleNamespace(node=SimpleNamespace(expr=expression))


@pytest.fixture
def symbols() -> Symbols:
    symbols = Symbols()
    assert symbols.add_batch(size(B))
    return symbols


@pytest.mark.parametrize(
    ("expression", "at_seven"),
    [
        (sympy.Integer(5), 5),
        (B, 7),
        (B + 1, 8),
        (2 * B * B, 98),
        (FloorDiv(B, 2), 3),
        (Mod(B, 4), 3),
        (sympy.Max(B, 9), 9),
        (sympy.Min(B, 9), 7),
        (sympy.Float(0.5), 0.5),
        (sympy.Rational(1, 4), 0.25),
        (ToFloat(B), 7.0),
    ],
)
def test_a_tree_gives_the_number_that_torch_would(symbols: Symbols, expression: Any, at_seven: float) -> None:
    found = evaluate_size(symbols.tree(size(expression), "here"), 7)
    assert found == at_seven
    assert type(found) is type(at_seven)


def test_plain_numbers_stay_and_every_inputs_batch_is_the_same(symbols: Symbols) -> None:
    assert symbols.tree(3, "here") == 3
    assert symbols.tree(0.5, "here") == 0.5
    assert symbols.add_batch(size(OTHER))
    assert symbols.tree(size(OTHER), "here") == "b"


@pytest.mark.parametrize("fixed", [4, size(sympy.Integer(4)), size(2 * B)])
def test_a_batch_that_is_not_free_is_none(fixed: Any) -> None:
    assert not Symbols().add_batch(fixed)


def test_what_depends_on_the_data_or_cannot_be_said_is_refused_with_its_line(symbols: Symbols) -> None:
    with pytest.raises(ModelError, match=r"^model\.py:3: .*depends on the values of the data"):
        symbols.tree(size(OTHER + 1), "model.py:3")
    with pytest.raises(ModelError, match=r"^model\.py:3: .*depends on the batch size through log"):
        symbols.tree(size(sympy.log(B)), "model.py:3")
