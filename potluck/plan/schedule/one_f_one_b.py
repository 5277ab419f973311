"""What every device does in a round: action lists as a pure function of the plan.

Executor and simulator walk the same lists, so another schedule is only another list. This one is 1F1B with depth:
a stage of depth K runs K forwards, then one backward and one forward in turn, then the backwards that are left. Where
weight gradients may wait, they stand in the list at the latest moment; who has to wait for a message does them before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from potluck.errors import PlanError
from potluck.types import Plan, Stage

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


def stage_of(plan: Plan, device: str) -> int:
    """Index of the stage that the device holds."""
    for index, stage in enumerate(plan.stages):
        if any(member.device == device for member in stage.group):
            return index
    raise PlanError(f"plan: device {device!r} holds no stage; use one of {', '.join(plan.devices)}")


def turns(stage: Stage, micro_batches: int) -> tuple[str, ...]:
    """The device that has each of the first `micro_batches` micro-batches of a round.

    Smooth weighted round-robin over the shares: everybody gains its share at each step, and the richest (the first of
    equals) pays the total to have the micro-batch. A shorter round is a prefix of the full one.
    """
    if len(stage.group) == 1:
        return (stage.group[0].device,) * micro_batches
    total = sum(member.share for member in stage.group)
    if stage.sharing != "turns" or micro_batches > total:
        raise ValueError(f"{micro_batches} turns of a group sharing {total} by {stage.sharing}")
    credit = [0] * len(stage.group)
    order = []
    for _ in range(micro_batches):
        credit = [have + member.share for have, member in zip(credit, stage.group, strict=True)]
        richest = credit.index(max(credit))
        credit[richest] -= total
        order.append(stage.group[richest].device)
    return tuple(order)


def actions(plan: Plan, device: str, micro_batches: int) -> tuple[Action, ...]:
    """What the device does in a round of that many micro-batches, in order.

    In a group by samples every member walks every micro-batch; by turns, a member walks the stage's list without the
    micro-batches of the others. Leaving actions out of a list cannot make the walk wait for more than the whole list
    would, so what holds for the stage (no deadlock, backwards in order) holds for its members.
    """
    if not 0 <= micro_batches <= plan.micro_batches:
        raise ValueError(f"a round of {micro_batches} micro-batches; the plan has {plan.micro_batches}")
    stage = stage_of(plan, device)
    mine = _own(plan.stages[stage], device, micro_batches)
    listed: list[Action] = []
    late, owing = late_weights(plan, stage), list[int]()
    for work, micro_batch in _one_forward_one_backward(micro_batches, plan.depth(stage)):
        if micro_batch in mine:
            step = _step(work, micro_batch, first=stage == 0, last=stage == len(plan.stages) - 1)
            if late and work == "backward":
                if len(owing) == late:
                    step.insert(-2, Action("weights", owing.pop(0)))  # right before the backward
                owing.append(micro_batch)
            listed += step
    listed += [Action("weights", micro_batch) for micro_batch in owing]
    listed += [Action("reduce", WHOLE_ROUND), Action("ready", WHOLE_ROUND), Action("verdict", WHOLE_ROUND)]
    return tuple(listed)


def late_weights(plan: Plan, stage: int) -> int:
    """How many micro-batches' weight gradients may wait in a stage. Nobody waits for a first stage's gradients."""
    return plan.stages[stage].late_weights if stage else 0


def in_flight(plan: Plan, device: str) -> int:
    """Most micro-batches that the device has run forward and not yet backward, in a full round."""
    index = stage_of(plan, device)
    return most_in_flight(plan.stages[index], device, plan.depth(index), plan.micro_batches)


def most_in_flight(stage: Stage, device: str, depth: int, micro_batches: int) -> int:
    """The same for a stage by itself.

    Between a forward and the backward before it lie K micro-batches of the stage: the answer is the most of any K
    neighbours that are the device's own.
    """
    if len(stage.group) == 1 or stage.sharing == "samples":
        return min(depth, micro_batches)
    most = held = 0
    order = turns(stage, micro_batches)
    for j, holder in enumerate(order):
        held += (holder == device) - (j >= depth and order[j - depth] == device)
        most = max(most, held)
    return most


def backlog(plan: Plan, earlier: int, later: int) -> int:
    """Micro-batches that may wait between two stages that exchange tensors, in each direction. A link needs this room.

    The earlier stage runs its K forwards before it takes the first gradient, and the later one meanwhile sends
    gradients: with room for less than half the difference of their depths, both could end in a send that waits for
    the other. Room for the difference and one more is never exhausted by gradients. At least 2, so that sending and
    receiving overlap compute; exactly 2 between neighbours of default depth.
    """
    return max(2, plan.depth(earlier) - plan.depth(later) + 1)


def _own(stage: Stage, device: str, micro_batches: int) -> frozenset[int]:
    if len(stage.group) == 1 or stage.sharing == "samples":
        return frozenset(range(micro_batches))
    return frozenset(j for j, holder in enumerate(turns(stage, micro_batches)) if holder == device)


def _one_forward_one_backward(micro_batches: int, depth: int) -> Iterator[tuple[Literal["forward", "backward"], int]]:
    """A stage's forwards and backwards in order, each with its micro-batch."""
    for j in range(micro_batches + depth):
        if j >= depth and j - depth < micro_batches:
            yield "backward", j - depth
        if j < micro_batches:
            yield "forward", j


def _step(work: Literal["forward", "backward"], micro_batch: int, *, first: bool, last: bool) -> list[Action]:
    """A forward or a backward with what has to arrive before it and to leave after it."""
    kinds: list[ActionKind]
    if work == "forward":  # the first stage receives too: its feeds come from the coordinator
        kinds = ["receive_inputs", "forward"] if last else ["receive_inputs", "forward", "send_outputs"]
    else:
        kinds = ["backward"] if last else ["receive_gradients", "backward"]
        kinds += [] if first else ["send_gradients"]
    return [Action(kind, micro_batch) for kind in kinds]
