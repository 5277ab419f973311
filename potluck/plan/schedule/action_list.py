"""What every device does in a round: action lists as a pure function of the plan and the schedule that it names.

Executor and simulator walk the same lists, so another schedule is only another list. Where weight gradients may wait,
they stand in the list at the latest moment; who has to wait for a message does them before.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from potluck.plan.schedule.holders import own_micro_batches, stage_of
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.plan.schedule.schedules import Way, order_of
from potluck.types import Plan

ActionKind = Literal[
    "receive_inputs",  # activations of earlier stages, and feeds
    "forward",
    "send_outputs",
    "receive_gradients",
    "backward",
    "send_gradients",
    "weights",  # the weight gradients that a backward has left owed
    "reduce",  # sum gradients inside the group, and those of tied weights
    "ready",  # report loss, norms and batch statistics
    "verdict",  # wait for commit or abort
]

WHOLE_ROUND = -1  # the micro-batch of the three actions that end a round
ROUNDS_AHEAD = 2  # rounds whose samples may be on their way beyond the one that trains


class Action(msgspec.Struct, frozen=True):
    """One thing a device does."""

    kind: ActionKind
    micro_batch: int
    ago: int = 0  # of the round so many before the one at hand


def actions(plan: Plan, device: str, micro_batches: int) -> tuple[Action, ...]:
    """What the device does in a round of that many micro-batches, in order.

    In a group by samples every member walks every micro-batch; by turns, a member walks the stage's list without the
    micro-batches of the others. Leaving actions out of a list cannot make the walk wait for more than the whole list
    would, so what holds for the stage (no deadlock, backwards in order) holds for its members.
    """
    if not 0 <= micro_batches <= plan.micro_batches:
        raise ValueError(f"a round of {micro_batches} micro-batches; the plan has {plan.micro_batches}")
    stage = stage_of(plan, device)
    mine = own_micro_batches(plan.stages[stage], device, micro_batches)
    listed: list[Action] = []
    late, owing = late_weights(plan, stage), list[int]()
    for work, micro_batch in order_of(schedule_named(plan.schedule), plan.depth(stage), micro_batches):
        if micro_batch in mine:
            steps = step(work, micro_batch, first=stage == 0, last=stage == len(plan.stages) - 1)
            if late and work == "backward":
                if len(owing) == late:
                    steps.insert(-2, Action("weights", owing.pop(0)))  # right before the backward
                owing.append(micro_batch)
            listed += steps
    listed += [Action("weights", micro_batch) for micro_batch in owing]
    listed += [Action("reduce", WHOLE_ROUND), Action("ready", WHOLE_ROUND), Action("verdict", WHOLE_ROUND)]
    return tuple(listed)


def late_weights(plan: Plan, stage: int) -> int:
    """How many micro-batches' weight gradients may wait in a stage. Nobody waits for a first stage's gradients."""
    return plan.stages[stage].late_weights if stage else 0


def step(work: Way, micro_batch: int, *, first: bool, last: bool, ago: int = 0) -> list[Action]:
    """A forward or a backward with what has to arrive before it and to leave after it."""
    kinds: list[ActionKind]
    if work == "forward":  # the first stage receives too: its feeds come from the coordinator
        kinds = ["receive_inputs", "forward"] if last else ["receive_inputs", "forward", "send_outputs"]
    else:
        kinds = ["backward"] if last else ["receive_gradients", "backward"]
        kinds += [] if first else ["send_gradients"]
    return [Action(kind, micro_batch, ago) for kind in kinds]
