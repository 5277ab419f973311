"""What each device of a run around a parameter server came to. Pure: records in, numbers out."""

from __future__ import annotations

from collections.abc import Iterable

from potluck.metrics.records import IncidentRecord, PushRecord, Record, SyncAdopted
from potluck.types import Value


class DevicePart(Value, frozen=True, kw_only=True):
    """One device's part in a run."""

    samples: int | None  # of its own; None where that was not said
    trained: int  # samples in its pushes that count, each as often as it was trained on
    pushes: int
    left_out: int  # of these
    loss: float | None  # of its newest push that has one
    held_out_loss: float | None  # the newest by samples that it keeps to judge by


def device_parts(records: Iterable[Record]) -> dict[str, DevicePart]:
    """By device, in the order of their names."""
    kept = list(records)
    own: dict[str, int] = {}
    for record in kept:
        if isinstance(record, SyncAdopted):
            own |= record.samples
        elif isinstance(record, IncidentRecord) and record.device is not None and record.samples:
            own[record.device] = record.samples
    pushes = counted_pushes(kept)
    return {
        device: _part(own.get(device), [push for push in pushes if push.device == device])
        for device in sorted({*own, *(push.device for push in pushes)})
    }


def counted_pushes(records: Iterable[Record]) -> list[PushRecord]:
    """Each push once: what was pushed again after a restart replaces what the restart had lost."""
    sessions: list[dict[int, PushRecord]] = [{}]
    for record in records:
        if isinstance(record, SyncAdopted):
            sessions.append({})
        elif isinstance(record, PushRecord):
            sessions[-1][record.version] = record
    counted: dict[int, PushRecord] = {}
    for session in sessions:
        first = min(session, default=None)
        if first is not None:
            counted = {version: push for version, push in counted.items() if version < first} | session
    return [push for _, push in sorted(counted.items())]


def _part(samples: int | None, pushes: list[PushRecord]) -> DevicePart:
    return DevicePart(
        samples=samples,
        trained=sum(push.samples for push in pushes if not push.skipped),
        pushes=len(pushes),
        left_out=sum(bool(push.skipped) for push in pushes),
        loss=next((push.loss for push in reversed(pushes) if push.loss is not None), None),
        held_out_loss=next((p.held_out_loss for p in reversed(pushes) if p.held_out_loss is not None), None),
    )
