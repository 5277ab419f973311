"""When records were written, by the records alone: a round has only its length, most others a time of their own."""

from __future__ import annotations

from potluck.metrics.records import EvaluationRecord, PlanAdopted, Record, RunStarted
from potluck.types import RoundRecord


class RecordClock:
    """Tells the time of each record, in seconds since its run was started or resumed. Shown every record, in order."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._commit_s = 0.0  # from which the next round counts

    def at(self, record: Record) -> float:
        """When this record was written; never before the one before it, unless it begins anew."""
        match record:
            case RunStarted():
                self._now_s = self._commit_s = record.at_s
            case RoundRecord():
                self._commit_s += record.seconds
                self._now_s = max(self._now_s, self._commit_s)
            case _:
                self._now_s = max(self._now_s, record.at_s)
                if isinstance(record, EvaluationRecord | PlanAdopted):  # the next round does not answer for it
                    self._commit_s = self._now_s
        return self._now_s
