"""Buffers that a forward changes: counted where that is all that happens to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.errors import ModelError
from potluck.model.updates import find_updates
from potluck.program.program import Node, Ref, Source, Tensor, Update

BUFFER, LOSS = 0, 9


class Newest:
    """What became of the buffer."""

    def __init__(self, last: int) -> None:
        self.last = last

    def current(self, value: int) -> int:
        return self.last if value == BUFFER else value


def plus(value: int, amount: Any, out: int) -> Node:
    return Node(op="aten.add.Tensor", args=(Ref(value), amount), outputs=(out,), source="model.py:7")


def written(
    *nodes: Node, last: int, dtype: str = "int64", statistics: bool = False, persistent: bool = True
) -> tuple[list[Update], int]:
    """The updates that are found, and how many nodes are left."""
    writer = SimpleNamespace(
        updates=[Update(buffer="steps", kind="mean", value=5)] if statistics else [],
        nodes=list(nodes),
        sources=[Source(kind="buffer", name="steps", id=BUFFER)] if persistent else [],
        buffers={BUFFER: "steps"},
        aliases=Newest(last),
        values={BUFFER: Tensor(shape=(), dtype=dtype)},
    )
    find_updates(cast(Any, writer), (LOSS,))
    return writer.updates, len(writer.nodes)


def test_a_buffer_that_is_only_counted_up_is_a_count_and_costs_no_node() -> None:
    assert written(plus(BUFFER, 1, 1), plus(1, 2, 2), last=2) == ([Update(buffer="steps", kind="count", amount=3)], 0)
    assert written(plus(BUFFER, 0.5, 1), last=1, dtype="float32")[0][0].amount == 0.5


def test_a_buffer_that_is_not_changed_is_no_update() -> None:
    assert written(plus(BUFFER, 1, LOSS), last=BUFFER) == ([], 1)


@pytest.mark.parametrize(
    ("nodes", "last", "dtype"),
    [
        ((plus(BUFFER, 0.5, 1), plus(1, 0.5, 2)), 2, "float32"),  # would round differently
        ((plus(BUFFER, Ref(4), 1),), 1, "int64"),  # no number
        ((plus(BUFFER, True, 1),), 1, "int64"),
        ((Node(op="aten.mul.Tensor", args=(Ref(BUFFER), 2), outputs=(1,)),), 1, "int64"),
        ((plus(BUFFER, 1, 1), plus(BUFFER, 1, LOSS)), 1, "int64"),  # the old value is read as well
        ((plus(BUFFER, 1, 1), plus(1, 1, LOSS)), 1, "int64"),  # the new one is
    ],
)
def test_any_other_change_is_a_new_value(nodes: tuple[Node, ...], last: int, dtype: str) -> None:
    assert written(*nodes, last=last, dtype=dtype) == (
        [Update(buffer="steps", kind="value", value=last)], len(nodes)
    )  # fmt: skip


def test_changes_that_would_be_lost_or_mixed_up_are_refused_with_their_line() -> None:
    with pytest.raises(ModelError, match=r"^model\.py:7: .*steps, which is not saved with the model"):
        written(plus(BUFFER, 1, 1), last=1, persistent=False)
    with pytest.raises(ModelError, match=r"^model\.py:7: the running statistics steps are changed outside BatchNorm"):
        written(plus(BUFFER, 1, 1), last=1, statistics=True)
    with pytest.raises(ModelError, match="not saved with the model"):
        written(last=BUFFER, persistent=False, statistics=True)
