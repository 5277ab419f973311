"""A rehearsal: devices are told to misbehave, and a report says how each fault was survived."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from potluck.control.fault_script import Fault, check_devices
from potluck.coordinator.fleet.roster import Roster
from potluck.metrics.records import RECORDS, IncidentRecord, PushRecord, Record, read
from potluck.types import RoundRecord
from potluck.units import size_text
from potluck.wire.messages import Misbehave

REPORT = "chaos.md"
_LATEST_S = 30.0  # after which an incident is not the fault's any more: silence and a recovery take less


class FaultRehearsal:
    """A watcher of a run that lets faults happen after their rounds."""

    def __init__(self, roster: Roster, faults: Sequence[Fault], first_round: int, started_s: float) -> None:
        """What was to happen before the first round has happened, before the run was interrupted."""
        willing = [name for name, hello in roster.hellos.items() if hello.chaos]
        self._left = [fault for fault in faults if fault.after_round >= first_round]
        check_devices(self._left, roster.specs, willing)
        self._roster, self._started_s = roster, started_s
        self._missed: list[Fault] = []  # whose device was not there any more
        self.happened: list[tuple[float, Fault]] = []  # seconds since the run started

    def record(self, record: Record) -> None:
        """Called with every record, one at a time. Around a parameter server, pushes say which round it is."""
        if not isinstance(record, RoundRecord | PushRecord):
            return
        while self._left and record.round >= self._left[0].after_round:
            fault = self._left.pop(0)
            try:
                self._roster.send(fault.device, Misbehave(do=fault.do, seconds=fault.seconds, factor=fault.factor))
            except KeyError:
                self._missed.append(fault)
            else:
                self.happened.append((time.monotonic() - self._started_s, fault))

    def write(self, run_dir: Path) -> Path:
        """Writes the report into the run's folder."""
        incidents = [r for r in read(run_dir / RECORDS) if isinstance(r, IncidentRecord)]
        path = run_dir / REPORT
        path.write_text(report(self.happened, [*self._missed, *self._left], incidents))
        return path


def report(happened: Sequence[tuple[float, Fault]], left: Sequence[Fault], incidents: Sequence[IncidentRecord]) -> str:
    """What befell whom and how it was survived, as a table."""
    lines = [
        "# Rehearsal", "",
        "| fault | after round | noticed after | then ready after | rounds trained again | moved | what was done |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    unused = list(incidents)
    for at_s, fault in happened:
        found = next((i for i in unused if i.device == fault.device and -1 <= i.at_s - at_s <= _LATEST_S), None)
        words = [f"{fault.do} {fault.device}", str(fault.after_round)]
        if found is None:
            words += ["no incident", "", "", "", ""]
        else:
            unused.remove(found)
            ready = "" if found.recovery_s is None else f"{found.recovery_s:.2f} s"
            words += [
                f"{max(0.0, found.at_s - at_s):.2f} s", ready, str(found.replayed_rounds),
                size_text(found.moved_bytes), found.action,
            ]  # fmt: skip
        lines.append(f"| {' | '.join(words)} |")
    lines += [f"| {fault.do} {fault.device} | {fault.after_round} | never happened | | | | |" for fault in left]
    if unused:
        lines += ["", "Beside these:", "", *(f"- {i.what}: {i.action}" for i in unused)]
    return "\n".join([*lines, ""])
