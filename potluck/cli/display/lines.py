"""The display where there is no terminal: a plain line about every two seconds, and one for whatever matters."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import TextIO

from potluck.cli.display.idle_line import idle_text
from potluck.metrics.records import EvaluationRecord, IdleDevices, IncidentRecord, PlanAdopted, Record
from potluck.metrics.run_view import RunView, evaluation_text, progress_text
from potluck.types import RoundRecord

EVERY_S = 2.0  # between two lines about rounds: as fast as they can be read
PAST_MESSAGES = 3  # of what happened before anybody looked: enough to see why, without filling the screen


class LineDisplay:
    """Writes lines to a stream; safe to call from several threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._view = RunView()
        self._lock = threading.Lock()
        self._last_s = 0.0
        self._idle = ""  # as it was said last

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.flush()

    def note(self, text: str) -> None:
        """Says something about the run."""
        with self._lock:
            self._write(text)

    announce = note

    def judged_by(self, metric: str) -> None:
        """Says what decides which evaluation is the best."""
        self._view.best_metric = metric

    def stopping(self) -> None:
        """Called from a signal handler, so it must not touch the stream, which may be in the middle of a write."""
        after = b" after this round; press Ctrl-C once more to stop at once" if self._view.training else b""
        os.write(2, b"stopping" + after + b"\n")

    def catch_up(self, past: Sequence[tuple[Record, float]]) -> None:
        """Takes in what happened before anybody looked, and says what it came to, in a few lines.

        Each record comes with when it was written, on the monotonic clock.
        """
        with self._lock:
            view = self._view
            for record, at_s in past:
                view.see(record, at_s)
            self._write_plan()
            self._write_idle()
            for message in list(view.messages)[-PAST_MESSAGES:]:
                self._write(message)
            if view.evaluation is not None:
                self._write_evaluation(view.evaluation)
            if view.loss is not None:
                self._write(self._progress(past[-1][1]))

    def record(self, record: Record, now_s: float | None = None) -> None:
        """Shows a record, if it is worth a line; `now_s` is when it was written, if not just now."""
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            self._view.see(record, now_s)
            if isinstance(record, PlanAdopted):
                self._write_plan()
            elif isinstance(record, IdleDevices):
                self._write_idle()
            elif isinstance(record, EvaluationRecord):
                self._write_evaluation(record)
            elif isinstance(record, IncidentRecord):
                self._write(self._view.messages[-1])
            elif isinstance(record, RoundRecord) and (now_s - self._last_s > EVERY_S or self._ends_epoch()):
                self._last_s = now_s
                self._write(self._progress(now_s))

    def _write_plan(self) -> None:
        if self._view.plan_reason:
            self._write(f"plan {self._view.plan_reason}")
            for device, lane in self._view.lanes.items():
                self._write(f"  {device}: {lane.where}")

    def _write_idle(self) -> None:
        """Each plan comes with who is idle; what has not changed is no news."""
        text = idle_text(self._view.idle) if self._view.idle else ""
        if text and text != self._idle:
            self._write(f"idle: {text}")
        self._idle = text

    def _write_evaluation(self, record: EvaluationRecord) -> None:
        self._write(f"after round {record.round}: {evaluation_text(record, self._view.best_metric)}")

    def _ends_epoch(self) -> bool:
        view = self._view
        return view.done == view.rounds or view.done % view.rounds_per_epoch == 0

    def _progress(self, now_s: float) -> str:
        view = self._view
        goes_on = view.done < view.rounds and not view.ended
        return f"round {progress_text(view, view.seconds_left(now_s) if goes_on else None)}"

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()
