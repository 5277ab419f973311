"""Rounds that are committed: into the ledger before anybody hears of it, into the records afterwards."""

from __future__ import annotations

import time
from collections.abc import Mapping

from potluck.control.commit import Judgement
from potluck.control.ledger import LedgerEntry, entry, loss_digest
from potluck.coordinator.contexts import TermContext
from potluck.coordinator.rounds.announcer import Announcer
from potluck.coordinator.rounds.feeder import FedRound
from potluck.coordinator.run_folder.ledger_file import Ledger
from potluck.types import RoundRecord
from potluck.wire.messages import Begin, Ready

_GOES_ON = "goes on from what was trained again: the numbers are not the same bits any more"


def write_down(ledger: Ledger, written: LedgerEntry, other_bits: str) -> str:
    """Adds a round to the ledger. Returns in words what came out otherwise, if it was trained again and something did:
    no sample is lost by that, so it ends no run."""
    if written.round >= ledger.rounds:
        ledger.append(written)
        return ""
    what = ledger.replay(written)
    why = other_bits or "every bit should be the same: potluck or a device is at fault, compare with potluck verify"
    return f"trained again, it has another {what} than before ({why})" if what else ""


class RoundBook:
    """What one term writes down of its rounds."""

    def __init__(self, term: TermContext, announcer: Announcer) -> None:
        self._term, self._announcer = term, announcer
        self._seconds = 0.0  # that the last round took
        self.start_clock()

    def start_clock(self) -> None:
        """The next round does not answer for the time until now."""
        self._last_s = time.monotonic()

    def write(self, fed: FedRound, ready: Mapping[str, Ready], judgement: Judgement) -> None:
        """Adds a round to the ledger, on disk; one that is trained again and comes out other than before is told."""
        before_s = self._last_s
        self.start_clock()
        self._seconds = self._last_s - before_s
        losses = sorted((p for r in ready.values() for p in r.losses), key=lambda p: (p.micro_batch, p.row))
        written = entry(
            round=fed.round, epoch=fed.epoch, term=self._term.term, ids=fed.ids, loss=judgement.loss,
            digest=loss_digest(p.loss for p in losses),
        )  # fmt: skip
        if what := write_down(self._term.run.folder.ledger, written, self._term.other_bits):
            self._announcer.incident("inexact", fed.round, what, _GOES_ON)

    def tell(self, fed: FedRound, begin: Begin, ready: Mapping[str, Ready], judgement: Judgement) -> None:
        """Says what came of a committed round."""
        record = RoundRecord(
            round=fed.round, epoch=fed.epoch, term=self._term.term, samples=len(fed.ids), loss=judgement.loss,
            learning_rate=self._term.run.optimizer.lr * begin.lr_scale, seconds=self._seconds,
            gradient_norm=judgement.gradient_norm,
            spent_s={d: {k: round(v, 6) for k, v in r.spent_s.items()} for d, r in ready.items()},
        )  # fmt: skip
        self._announcer.say(record)
        self._term.run.observed(record)
