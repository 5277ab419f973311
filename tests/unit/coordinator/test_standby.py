"""Who is told that the plan does without it, and when it is recorded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from potluck.coordinator.rounds.standby import Standby
from potluck.metrics.records import IdleDevices
from potluck.types import IdleReason
from potluck.wire.messages import StandBy


class Term:
    """A term in which devices are idle as a test says."""

    def __init__(self) -> None:
        self.links = {"pi": "pi:1", "old": "old:1"}
        self.reasons: dict[str, IdleReason] = {}
        self.sent: list[tuple[str, str]] = []
        self.records: list[IdleDevices] = []
        roster = SimpleNamespace(links=self.links, send=self._send)
        run = SimpleNamespace(roster=roster, idle=lambda: self.reasons, started_s=0.0)
        self._standby = Standby(cast(Any, SimpleNamespace(run=run, term=1)), self.records.append)

    def _send(self, device: str, message: StandBy) -> None:
        self.sent.append((device, message.reason.why))

    def look(self, **whys: str) -> tuple[list[tuple[str, str]], list[dict[str, str]]]:
        """Whom it tells what, and what it records, as devices are idle for these reasons now."""
        self.sent.clear()
        self.records.clear()
        self.reasons = {device: IdleReason(why=why, until="later") for device, why in whys.items()}
        self._standby.look(3)
        return list(self.sent), [{d: r.why for d, r in record.idle.items()} for record in self.records]


def test_each_is_told_once_and_all_are_recorded_whenever_anything_changes() -> None:
    term = Term()
    assert term.look() == ([], [])
    assert term.look(pi="slow") == ([("pi", "slow")], [{"pi": "slow"}])
    assert term.look(pi="slow") == ([], [])
    assert term.look(pi="slow", old="slow") == ([("old", "slow")], [{"pi": "slow", "old": "slow"}])
    assert term.look(pi="far away", old="slow") == ([("pi", "far away")], [{"pi": "far away", "old": "slow"}])
    assert term.look(old="slow") == ([], [{"old": "slow"}])
    assert term.look() == ([], [{}])


def test_another_figure_is_no_news() -> None:
    term = Term()
    term.look(pi="it takes 80.0% longer")
    assert term.look(pi="it takes 74% longer") == ([], [])


def test_another_process_of_the_same_name_is_told_too() -> None:
    term = Term()
    term.look(pi="slow")
    term.links["pi"] = "pi:2"
    assert term.look(pi="slow")[0] == [("pi", "slow")]
