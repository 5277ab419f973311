"""What the displays show of a run around a parameter server."""

from typing import Literal

from potluck.metrics.records import IncidentRecord, PaceRecord, SyncAdopted
from potluck.metrics.run_view import RunView

ADOPTED = SyncAdopted(round=0, policy="ours", samples={"desk": 100, "pi": 20}, reason="a step takes 5 ms", at_s=0.0)


def _incident(kind: Literal["joined", "left", "lost"], device: str, samples: int = 0) -> IncidentRecord:
    return IncidentRecord(
        kind=kind, round=7, device=device, what=f"{device} {kind}", action="go on", at_s=1.0, samples=samples
    )


def _view() -> RunView:
    view = RunView()
    view.see(ADOPTED, 0.0)
    return view


def test_the_policy_is_named_whatever_it_decides():
    view = _view()
    assert view.plan_reason == "ours: a step takes 5 ms"
    view.see(PaceRecord(round=3, loss=1.0, reason="push every 40 steps", at_s=1.0), 1.0)
    assert view.plan_reason == "ours: push every 40 steps"


def test_who_is_gone_is_shown_as_gone_and_who_comes_as_here():
    view = _view()
    view.see(_incident("lost", "pi"), 1.0)
    assert view.lanes["pi"].where == "gone since round 7"
    assert view.lanes["desk"].where == "100 samples of its own"
    view.see(_incident("joined", "pi", samples=20), 2.0)
    assert view.lanes["pi"].where == "20 samples of its own"


def test_who_was_refused_before_it_began_has_no_line():
    view = _view()
    view.see(_incident("left", "stranger"), 1.0)
    assert set(view.lanes) == {"desk", "pi"}
