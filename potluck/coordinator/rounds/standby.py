"""Devices that the plan in force has no work for: it is recorded who they are, and each is told why."""

from __future__ import annotations

import time
from collections.abc import Callable

from potluck.coordinator.contexts import TermContext
from potluck.metrics.records import IdleDevices
from potluck.wire.messages import StandBy


class Standby:
    """Of one term. What has not changed is said once only."""

    def __init__(self, term: TermContext, say: Callable[[IdleDevices], None]) -> None:
        self._term, self._say = term, say
        self._told: dict[str, tuple[str, str]] = {}  # what kind of reason; an address tells processes of one name apart

    def look(self, round: int) -> None:
        """Says what has changed since the last look."""
        run = self._term.run
        idle = run.idle()
        now = {device: (run.roster.links[device], reason.kind) for device, reason in idle.items()}
        if now == self._told:
            return
        for device, told in now.items():
            if self._told.get(device) != told:
                run.roster.send(device, StandBy(reason=idle[device]))
        self._told = now
        self._say(IdleDevices(term=self._term.term, round=round, idle=idle, at_s=time.monotonic() - run.started_s))
