"""What the recovery benchmark expects of its scenarios."""

from __future__ import annotations

from benchmarks.recovery.scenarios import scenarios


def test_a_device_is_lost_in_every_scenario_but_three() -> None:
    quick = {s.name: s.needs_loss for s in scenarios(quick=True)}
    assert len(quick) == 13
    assert [name for name, lost in quick.items() if not lost] == [
        "kill and restart the coordinator", "the coordinator dies between ledger and commit", "leave in order",
    ]  # fmt: skip
    assert quick["one way only, to the coordinator"]
    assert len(list(scenarios(quick=False))) == 26
