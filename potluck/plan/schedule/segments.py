"""What a device does from one round's beginning to the next one's, where rounds need not end before the next begins.

A pure function of the plan, of what is under way and of whether another round follows at once. In lock-step a segment
is the action list of a round. With a staleness of 1, forwards of a round stand between the last backwards of the one
before, and the verdict on a round is only looked for two rounds later, whose forwards are the first to need it.
"""

from __future__ import annotations

import msgspec

from potluck.plan.schedule.action_list import WHOLE_ROUND, Action, actions, late_weights, step
from potluck.plan.schedule.holders import own_micro_batches, stage_of
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.types import Plan


class _Flying(msgspec.Struct, frozen=True):
    """A micro-batch that the stage has run forward and not yet backward."""

    ago: int
    micro_batch: int
    last: bool  # of its round
    mine: bool  # not another member's of a group by turns


class UnderWay(msgspec.Struct, frozen=True):
    """What a stage has begun before a segment and not ended."""

    flying: tuple[_Flying, ...] = ()
    owing: tuple[Action, ...] = ()  # weight gradients that wait
    unsettled: int = 0  # rounds before the one at hand whose verdict has not been looked for


def segment(
    plan: Plan, device: str, micro_batches: int, before: UnderWay, *, follows: bool
) -> tuple[tuple[Action, ...], UnderWay]:
    """What the device does for a round of so many micro-batches until the next one begins, and what is then under way.

    `follows`: whether another round begins without waiting for this one's end. Where a stage cannot have all the
    micro-batches under way that its depth says before it needs a verdict, it ends the older round first.
    """
    if schedule_named(plan.schedule).flushes:
        return actions(plan, device, micro_batches), UnderWay()
    walk = _Segment(plan, device, before)
    mine = own_micro_batches(plan.stages[walk.stage], device, micro_batches)
    if before.unsettled == 2:
        walk.listed.append(Action("verdict", WHOLE_ROUND, 2))
    for j in range(micro_batches):
        walk.forward(_Flying(0, j, j == micro_batches - 1, j in mine))
    walk.end_rounds(1 if follows else 0)
    if not follows:
        walk.listed += [Action("verdict", WHOLE_ROUND, ago) for ago in reversed(range(min(before.unsettled, 1) + 1))]
        return tuple(walk.listed), UnderWay()
    walk.make_room()  # which the next forward needs anyway: nobody waits for the next round's beginning before that
    flying = tuple(msgspec.structs.replace(one, ago=one.ago + 1) for one in walk.flying)
    owing = tuple(msgspec.structs.replace(one, ago=one.ago + 1) for one in walk.owing)
    return tuple(walk.listed), UnderWay(flying, owing, min(before.unsettled, 1) + 1)


class _Segment:
    def __init__(self, plan: Plan, device: str, before: UnderWay) -> None:
        self.stage = stage_of(plan, device)
        self.listed: list[Action] = []
        self.flying = list(before.flying)
        self._first, self._last = self.stage == 0, self.stage == len(plan.stages) - 1
        self._depth, self._late = plan.depth(self.stage), late_weights(plan, self.stage)
        self.owing = list(before.owing)

    def forward(self, one: _Flying) -> None:
        """Runs one more forward, after as many backwards as make room for it."""
        self.make_room()
        if one.mine:
            self.listed += step("forward", one.micro_batch, first=self._first, last=self._last)
        self.flying.append(one)

    def make_room(self) -> None:
        """Runs as much backward as a forward needs."""
        while len(self.flying) >= self._depth:
            self._backward()

    def end_rounds(self, ago: int) -> None:
        """Runs everything backward that is of a round so long ago, or longer."""
        while self.flying and self.flying[0].ago >= ago:
            self._backward()

    def _backward(self) -> None:
        one = self.flying.pop(0)
        if one.mine:
            steps = step("backward", one.micro_batch, first=self._first, last=self._last, ago=one.ago)
            if self._late:
                if len(self.owing) == self._late:
                    steps.insert(-2, self.owing.pop(0))  # right before the backward
                self.owing.append(Action("weights", one.micro_batch, one.ago))
            self.listed += steps
        if one.last:
            self.listed += self.owing
            self.owing.clear()
            self.listed += [Action("reduce", WHOLE_ROUND, one.ago), Action("ready", WHOLE_ROUND, one.ago)]
