"""Shares and micro-batches cover the batch; accumulated gradients are those of the whole batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.accumulate import Task, accumulate, fastest, pieces, share


@given(st.integers(2, 300), st.integers(1, 7), st.integers(2, 64))
def test_shares_cut_into_pieces_cover_every_row_once(batch, world_size, largest):
    shares = [share(rank, world_size, batch) for rank in range(world_size)]
    assert max(n for _, n in shares) - min(n for _, n in shares) <= 1
    rows = [r for first, n in shares if n for part in pieces(first, n, largest) for r in range(part.start, part.stop)]
    assert rows == list(range(batch))


@given(st.integers(2, 300), st.integers(3, 64))
def test_no_piece_is_too_large_or_a_single_row(count, largest):
    sizes = [part.stop - part.start for part in pieces(5, count, largest)]
    assert max(sizes) <= largest
    assert min(sizes) >= 2


def _task() -> Task:
    model = torch.nn.Linear(3, 2).double()
    inputs = torch.randn(20, 3, dtype=torch.float64)
    return Task(model, torch.nn.functional.cross_entropy, inputs, torch.arange(20) % 2)


def test_accumulated_gradient_is_that_of_the_batch():
    task = _task()
    loss = accumulate(task, pieces(0, 20, 6), 20)
    got = [p.grad for p in task.model.parameters()]
    task.model.zero_grad()
    assert loss == pytest.approx(task.backward(slice(0, 20), 1.0))
    torch.testing.assert_close(got, [p.grad for p in task.model.parameters()])


def test_fastest_is_one_of_the_sizes_and_leaves_no_gradient():
    task = _task()
    before = {n: p.clone() for n, p in task.model.named_parameters()}
    assert fastest(task, (4, 8, 500), 10, 0.001) in (4, 8, 10)
    assert all(p.grad is None for p in task.model.parameters())
    assert all(torch.equal(p, before[n]) for n, p in task.model.named_parameters())
