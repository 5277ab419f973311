"""What each device came to, from the records of a run."""

from __future__ import annotations

from potluck.cli.display.device_lines import device_lines
from potluck.metrics.device_folds import DevicePart, counted_pushes, device_parts
from potluck.metrics.records import IncidentRecord, PushRecord, Record, SyncAdopted


def begun(**samples: int) -> SyncAdopted:
    return SyncAdopted(round=0, policy="ours", samples=samples, reason="", at_s=0.0)


def push(version: int, device: str, samples: int = 10, loss: float | None = 1.0, **more: str | float) -> PushRecord:
    rest = {"skipped": "", "reason": "r", "held_out_loss": None, **more}
    return PushRecord(
        version=version, device=device, round=0, epoch=0, steps=1, samples=samples, loss=loss, cpu_s=0.0, at_s=0.0,
        **rest,  # type: ignore[arg-type]
    )  # fmt: skip


RECORDS: list[Record] = [
    begun(a=100, b=50),
    push(1, "a", loss=2.0, held_out_loss=1.5),
    push(2, "b", samples=20, loss=3.0),
    IncidentRecord(kind="joined", round=0, device="c", what="", action="", at_s=0.0, samples=7),
    push(3, "a", loss=1.0),
    push(4, "b", samples=20, loss=None, skipped="not finite"),
]


def test_every_device_has_its_own_samples_what_it_trained_and_its_last_losses() -> None:
    assert device_parts(RECORDS) == {
        "a": DevicePart(samples=100, trained=20, pushes=2, left_out=0, loss=1.0, held_out_loss=1.5),
        "b": DevicePart(samples=50, trained=20, pushes=2, left_out=1, loss=3.0, held_out_loss=None),
        "c": DevicePart(samples=7, trained=0, pushes=0, left_out=0, loss=None, held_out_loss=None),
    }
    assert device_parts([]) == {}


def test_what_a_restart_lost_counts_only_as_it_was_pushed_again() -> None:
    again: list[Record] = [begun(a=100), push(4, "a", samples=1, loss=0.5), push(3, "a", samples=1)]
    assert [(p.version, p.samples) for p in counted_pushes([*RECORDS, *again])] == [(1, 10), (2, 20), (3, 1), (4, 1)]
    shorter: list[Record] = [begun(a=100), push(3, "a", samples=1)]
    assert [p.version for p in counted_pushes([*RECORDS, *shorter])] == [1, 2, 3]
    assert len(counted_pushes([*RECORDS, begun(a=100)])) == 4  # nothing pushed yet


def test_the_table_has_only_columns_with_something_in_them() -> None:
    assert device_lines(device_parts(RECORDS), "devices") == [
        "devices  own samples  trained  pushes  left out    loss  held-out loss",
        "  a              100       20       2         -  1.0000         1.5000",
        "  b               50       20       2         1  3.0000              -",
        "  c                7        -       -         -       -              -",
    ]
    plain = device_lines(device_parts([begun(a=1000), push(1, "a")]), "devices")
    assert plain == ["devices  own samples  trained  pushes    loss", "  a            1,000       10       1  1.0000"]
    assert device_lines({}, "devices") == []
