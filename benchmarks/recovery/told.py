"""The state machine in force, and a word when its run's clock starts: records count from there."""

from __future__ import annotations

import json
from collections.abc import Mapping

from potluck.coordinator.coordinator import Coordinator
from potluck.types import Plan


class Told(Coordinator):
    """Says on standard output when the run began, on the machine's monotonic clock."""

    def open(self, before: Mapping[int, Plan]) -> None:
        print(json.dumps({"ready_s": self._run.started_s}), flush=True)
        super().open(before)
