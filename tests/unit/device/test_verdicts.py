"""The two ways to a verdict: the coordinator's, or the same rule applied by a device that is alone."""

from __future__ import annotations

import math
import queue

import pytest

from potluck.control.commit import judge
from potluck.device.stage.verdicts import AskCoordinator, DecideAlone
from potluck.errors import Cancelled, DeviceError, LinkTimeout
from potluck.wire.messages import Begin, Committed, LossPart, Ready, Verdict

BEGIN = Begin(round=5, sizes=(4,), total_weight=4.0, lr_scale=0.5)
READY = Ready(round=5, losses=(LossPart(0, 0, 2.0, 0.5),), squared_norms={"w": 9.0, "v": 16.0})
BROKEN = Ready(round=5, losses=(LossPart(0, 0, math.nan, 0.5),), squared_norms={"w": 9.0}, finite=False)


def decided(committer: AskCoordinator | DecideAlone, ready: Ready, attempt: int = 0) -> Verdict:
    committer.report(ready, BEGIN, attempt)
    return committer.verdict(BEGIN)


def asked(*verdicts: Verdict | None) -> tuple[AskCoordinator, list[Ready]]:
    said: list[Ready] = []
    waiting: queue.Queue[Verdict | None] = queue.Queue()
    for verdict in verdicts:
        waiting.put(verdict)
    return AskCoordinator(said.append, waiting, 0.01), said


def test_the_coordinators_verdict_is_taken_once_it_was_told() -> None:
    verdict = Verdict(round=5, kind="retry")
    committer, said = asked(verdict)
    assert decided(committer, READY) is verdict
    assert said == [READY]


@pytest.mark.parametrize(
    ("verdicts", "kind", "words"),
    [
        ([], LinkTimeout, "no verdict on round 5"),
        ([None], Cancelled, "stopped while waiting"),
        ([Verdict(round=4, kind="commit")], DeviceError, "verdict on round 4 while in round 5"),
    ],
)
def test_no_verdict_none_any_more_and_a_wrong_one(
    verdicts: list[Verdict | None], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        decided(asked(*verdicts)[0], READY)


def alone(*, goes_on: bool = True, clip_norm: float | None = 2.5) -> tuple[DecideAlone, list[Ready | Committed]]:
    said: list[Ready | Committed] = []
    return DecideAlone("a", said.append, ("w", "v"), clip_norm, lambda: goes_on), said


def test_alone_it_decides_by_the_coordinators_rule_and_says_so_afterwards() -> None:
    committer, said = alone()
    by_rule = judge({"a": READY}, ("w", "v"), 2.5, 0)
    verdict = decided(committer, READY)
    assert verdict == Verdict(round=5, kind="commit", lr_scale=0.5, clip=by_rule.clip)
    assert verdict.clip == pytest.approx(0.5)
    assert said == [Committed(ready=READY, loss=1.0, gradient_norm=5.0)]


def test_alone_a_broken_round_is_run_again_silently_and_then_reported() -> None:
    committer, said = alone()
    assert decided(committer, BROKEN).kind == "retry"
    assert said == []
    assert decided(committer, BROKEN, 1).kind == "stop"
    assert said == [BROKEN]


def test_alone_nothing_is_committed_that_nobody_would_hear_of() -> None:
    committer, said = alone(goes_on=False)
    with pytest.raises(Cancelled):
        decided(committer, READY)
    assert said == []


def test_verdicts_that_came_before_everything_was_given_up_are_still_heard() -> None:
    first, second = Verdict(round=5, kind="commit"), Verdict(round=6, kind="commit")
    assert asked(first, second, None)[0].heard() == [first, second]
    assert asked(None, first)[0].heard() == []
    assert asked()[0].heard() == []


def test_alone_there_is_no_verdict_on_what_is_not_ready() -> None:
    with pytest.raises(DeviceError, match="not ready"):
        alone()[0].verdict(BEGIN)
