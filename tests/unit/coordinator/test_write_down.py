"""A round that is trained again and comes out otherwise is told, and ends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.control.ledger import LedgerEntry, entry, loss_digest
from potluck.coordinator.rounds.round_book import write_down
from potluck.coordinator.run_folder.ledger_file import LEDGER, Ledger

TIED = "embed.weight is tied across a cut"


def trained(round: int, loss: float, term: int = 1) -> LedgerEntry:
    return entry(round=round, epoch=0, term=term, ids=range(4), loss=loss, digest=loss_digest([loss]))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / LEDGER)
    assert [write_down(ledger, trained(round, 1.0), "") for round in range(3)] == [""] * 3
    yield ledger
    ledger.close()


@pytest.mark.parametrize(("other_bits", "said"), [(TIED, TIED), ("", "potluck or a device is at fault")])
def test_other_bits_are_told_once_and_the_ledger_goes_on_with_them(ledger: Ledger, other_bits: str, said: str) -> None:
    assert write_down(ledger, trained(0, 1.0, term=2), other_bits) == ""
    words = write_down(ledger, trained(1, 1.5, term=2), other_bits)
    assert "it has another loss than before" in words
    assert said in words
    assert write_down(ledger, trained(2, 1.6, term=2), other_bits) == ""
    assert list(ledger.entries()) == [trained(0, 1.0), trained(1, 1.5, term=2), trained(2, 1.6, term=2)]
