"""How many rounds of a peer, and of a plan of ours, are measured."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from benchmarks.peers import ddp
from benchmarks.peers.program import Rounds, Run, Watchdog
from benchmarks.throughput.ours import rounds_to_measure


def _run(**more: float) -> Run:
    return Run("mobilenet_v2", 24, 8, 1, (8,), None, None, torch.float32, 60.0, **more)  # type: ignore[arg-type]


def test_where_rounds_take_long_fewer_are_measured():
    assert _run().rounds_within(1000.0) == 8
    assert [_run(most_s=12.0).rounds_within(s) for s in (0.1, 3.0, 7.0, 15.0, 60.0)] == [8, 4, 2, 2, 1]


def test_of_our_plans_the_warm_up_counts_too():
    assert [rounds_to_measure(8.0, s) for s in (0.1, 1.0, 4.0, 7.0, 9.0)] == [16, 10, 4, 3, 2]


def test_all_ranks_train_as_many_as_the_first_says():
    asked: list[int] = []

    def says_three(count: int) -> int:
        asked.append(count)
        return 3

    watchdog = Watchdog(1e6)  # it ends this process, and nothing stops it: not before all tests are over
    rounds = Rounds(_run(most_s=1e9), watchdog)
    assert list(rounds.numbers(says_three)) == [0, 1, 2, 3]
    assert asked == [8]
    assert len(rounds.outcome("ddp", 8).round_s) == 3


@pytest.mark.parametrize("words", ["a,b", "8,", "0", ""])
def test_sizes_that_are_none_are_refused(words):
    done = CliRunner().invoke(ddp.main, ["--micro-batches", words])
    assert done.exit_code == 2
    assert f"--micro-batches {words}: give sizes with commas between them, like 8,24" in done.output
