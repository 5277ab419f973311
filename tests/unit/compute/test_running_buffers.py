"""Folding batch statistics: which kinds of buffers may be folded over all micro-batches at once."""

from __future__ import annotations

from potluck.compute.running_buffers import _chains


def test_kinds_that_share_a_buffer_take_turns() -> None:
    assert _chains([{"a", "b"}, {"c"}, {"a"}, {"d"}]) == [[1], [0, 2], [3]]
    assert _chains([{"a"}, {"b"}, {"a", "b"}]) == [[0, 1, 2]]
    assert _chains([]) == []
