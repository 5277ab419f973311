"""What a run's records say of its pushes: whether each counted once, and how busy devices were."""

from __future__ import annotations

import pytest

from benchmarks.sync.ledger import audited
from potluck.metrics.records import PushRecord
from potluck.paramserver.applied_pushes import Entry, Push


def kept(*pushes: tuple[int, str, int]) -> list[Entry]:
    """A ledger of versions, who pushed, and the worker's number."""
    return [
        Entry(
            version=version, scale=1.0,
            push=Push(worker=worker, incarnation=1, sequence=number, base=0, steps=4, samples=128, loss=1.0),
        )
        for version, worker, number in pushes
    ]  # fmt: skip


def told(*pushes: tuple[int, str], samples: int = 128, cpu_s: float = 1.0) -> list[PushRecord]:
    """Records of versions and who pushed, each a second after the one before."""
    return [
        PushRecord(
            version=version, device=device, round=0, epoch=0, steps=4, samples=samples, loss=1.0, skipped="", reason="",
            cpu_s=cpu_s, at_s=float(number),
        )
        for number, (version, device) in enumerate(pushes, start=1)
    ]  # fmt: skip


LEDGER = kept((1, "a", 1), (2, "b", 1), (3, "a", 2))
RECORDS = told((1, "a"), (2, "b"), (3, "a"))


def test_a_ledger_that_agrees_with_the_records_is_whole():
    assert audited(LEDGER, RECORDS) == (0, 0)
    assert audited([], []) == (0, 0)


@pytest.mark.parametrize(
    ("ledger", "records", "lost"),
    [
        (LEDGER[:2], RECORDS, 1),  # applied, says the run, and the ledger does not have it
        (LEDGER, RECORDS[:2], 1),  # the other way round
        (LEDGER[1:], RECORDS[1:], 1),  # a version that neither explains
        (kept((1, "a", 1), (2, "b", 1), (3, "a", 3)), RECORDS, 1),  # a worker's second push is nowhere
        (LEDGER, told((1, "a"), (2, "a"), (3, "a")), 2),  # one that each has and the other does not
        (LEDGER, told((1, "a"), (2, "b"), (3, "a"), samples=64), 6),
    ],
)
def test_a_push_that_is_missing_somewhere_is_lost(ledger, records, lost):
    assert audited(ledger, records) == (lost, 0)


@pytest.mark.parametrize(
    ("ledger", "records"),
    [
        (LEDGER, [*RECORDS, RECORDS[0]]),
        ([*LEDGER, LEDGER[0]], RECORDS),
        (kept((1, "a", 1), (2, "b", 1), (3, "a", 1)), RECORDS),  # applied twice, as two versions
    ],
)
def test_a_push_that_is_there_twice_is_doubled(ledger, records):
    found = audited(ledger, records)
    assert found.doubled == 1
