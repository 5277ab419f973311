"""The memory half of the cost model: most bytes each device of a plan needs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from potluck.plan.cost.summing import parts_of
from potluck.plan.cost.tables import DeviceTables, Tables
from potluck.plan.schedule.action_list import late_weights
from potluck.plan.schedule.known_schedules import schedule_named
from potluck.plan.schedule.under_way import backlog, in_flight
from potluck.types import Block, ModelFacts, Plan, Stage, Value
from potluck.wire.link import DEFAULT_WINDOW_BYTES


class MemoryUse(Value, frozen=True):
    """Most bytes a device needs at once, term by term."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    communication: int
    working: int = 0
    sending: int = 0
    slack: int = 0
    code: int = 0
    snapshots: int = 0

    @property
    def total(self) -> int:
        return sum(self.terms().values())

    def terms(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


@dataclass(frozen=True)
class SpanBytes:
    """What a run of blocks weighs, whoever holds it.

    A tied weight used here and owned elsewhere counts too. The size of a single tied parameter is not among the facts,
    so its owner block's weights stand for it.
    """

    blocks: tuple[int, int]
    weights: int
    trainable: int
    tied: int  # of the trainable ones, shared with other stages
    buffers: int
    crossing: int  # per row: what enters and leaves, forward and backward, and feeds
    stash: int  # per row: all that the blocks make, of those that have a backward pass
    optimizer_slots: int

    @classmethod
    def of(cls, facts: ModelFacts, blocks: tuple[int, int]) -> SpanBytes:
        held = facts.blocks[slice(*blocks)]
        borrowed, lent = _tied(facts, blocks)
        return cls(
            blocks=blocks,
            weights=sum(b.weight_bytes for b in (*held, *borrowed)),
            trainable=sum(b.trainable_bytes for b in (*held, *borrowed)),
            tied=sum(b.trainable_bytes for b in (*borrowed, *lent)),
            buffers=sum(b.buffer_bytes for b in held),
            crossing=_crossing_bytes(facts, blocks),
            stash=_stash_bytes(facts, blocks),
            optimizer_slots=facts.optimizer_slots,
        )


def peak_bytes(
    plan: Plan, facts: ModelFacts, *, snapshot: bool = False, tables: Tables | None = None
) -> dict[str, MemoryUse]:
    """Most memory each device of the plan needs, by device name. Terms as in `stage_bytes`, and:

    - snapshots, if wanted: the device's own (weights, buffers and optimizer state of the blocks of its stage), and
      the copy that it keeps for another device, taken to be of the largest other stage.
    """
    schedule = schedule_named(plan.schedule)
    states = [state_bytes(facts, stage.blocks, schedule.staleness) for stage in plan.stages]
    uses = {}
    for index, stage in enumerate(plan.stages):
        kept = states[index] + max((s for i, s in enumerate(states) if i != index), default=0)
        span = SpanBytes.of(facts, stage.blocks)
        for member in stage.group:
            use = stage_bytes(
                span,
                rows=_most_rows(plan, stage, member.share),
                in_flight=in_flight(plan, member.device),
                late=late_weights(plan, index),
                versions=schedule.versions(plan.depth(index)),
                members=len(stage.group),
                adds=parts_of(stage.group)[member.device],
                waiting=most_waiting(plan, facts, index),
                recompute=stage.recompute,
                device=None if tables is None else tables.devices[member.device],
            )
            uses[member.device] = msgspec.structs.replace(use, snapshots=kept if snapshot else 0)
    return uses


def fits(plan: Plan, facts: ModelFacts, tables: Tables, *, snapshot: bool = False) -> bool:
    """Whether no device of the plan needs more than it has; with copies of states, if they are wanted."""
    uses = peak_bytes(plan, facts, snapshot=snapshot, tables=tables)
    limits = {name: tables.devices[name].memory_bytes for name in uses}
    return all(not limits[name] or use.total <= limits[name] for name, use in uses.items())


def stage_bytes(
    span: SpanBytes,
    *,
    rows: int,
    in_flight: int,
    members: int = 1,
    adds: float | None = None,
    waiting: int = 2,
    recompute: bool = False,
    late: int = 0,
    versions: int = 1,
    device: DeviceTables | None = None,
) -> MemoryUse:
    """Memory of a device that holds a run of blocks, for micro-batches of `rows` rows, term by term:

    - weights: of the blocks, and tied ones; of those that train, every version.
    - gradients: as large as the trainable weights, for every version of them; while they are summed in *reduce*, what
      arrives lies beside them: in a group what the others give it to add up (`adds` is its part), then their sums; else
      only tied weights.
    - optimizer: `optimizer_slots` tensors for each trainable weight. Whoever uses a tied weight applies the same
      update to its copy, so it has the slots too.
    - activations: what the backward pass needs, for each row of each micro-batch in flight: as measured on the device
      if it was, else everything the blocks make; and what is kept of each whose weight gradients wait. Recomputing,
      only what was received is kept, and what the backward pass needs once.
    - working: the worst moment of one block, where it was measured.
    - buffers: twice, as a round writes to a copy that is adopted at commit.
    - sending: a checkpoint on its way to the coordinator is a copy of the state, of which the link takes so much at
      once. It happens between rounds, so only what activations and gradients do not leave free counts.
    - slack and code: what the process takes beyond that, for holes between tensors and for the code and scratch space
      of kernels, as a rehearsal on the device showed.
    - communication: tensors that cross into and out of the stage, their gradients, and feeds; of each as many
      micro-batches as may wait between the stages, which is two unless depths differ by more than one.
    """
    start, stop = span.blocks
    if device is None:
        kept, working = span.stash * rows, 0
        owed = kept
    else:
        kept = int(device.kept(rows)[stop] - device.kept(rows)[start])
        working = device.working_bytes(span.blocks, rows)
        owed = int(device.late_kept(rows)[stop] - device.late_kept(rows)[start])
    crossing = rows * span.crossing
    # Each version is that of an open round, whose gradients add up beside those of the others.
    gradients = versions * span.trainable + summed_bytes(span.trainable, span.tied, members, adds)
    activations = late * owed + (crossing * in_flight + kept if recompute else kept * in_flight)
    resident = 1.0 if device is None else device.resident(span.blocks)
    copied = min(span.weights + span.optimizer_slots * span.trainable, DEFAULT_WINDOW_BYTES)
    needed = MemoryUse(
        weights=span.weights + (versions - 1) * span.trainable,
        gradients=gradients,
        optimizer=span.optimizer_slots * span.trainable,
        activations=activations,
        working=working,
        buffers=2 * span.buffers,
        communication=waiting * crossing,
        sending=max(0, copied - gradients - activations - working),
    )
    code = 0 if device is None else device.profile.code_bytes
    return msgspec.structs.replace(needed, slack=int(needed.total * (resident - 1.0)), code=code)


def summed_bytes(trainable: int, tied: int, members: int, adds: float | None = None) -> int:
    """Bytes of gradients that arrive from others while they are summed; `adds` is the part added up here."""
    part = 1 / members if adds is None else adds
    return int(trainable * max((members - 1) * part, 1 - part)) if members > 1 else tied


def state_bytes(facts: ModelFacts, blocks: tuple[int, int], staleness: int = 0) -> int:
    """Size of a snapshot of these blocks: what they own, with its optimizer state, and with weights from before the
    last step where gradients are late."""
    held, slots = facts.blocks[slice(*blocks)], facts.optimizer_slots + staleness
    return sum(b.weight_bytes + b.buffer_bytes + slots * b.trainable_bytes for b in held)


def _most_rows(plan: Plan, stage: Stage, share: int) -> int:
    whole = len(stage.group) == 1 or stage.sharing == "turns"
    return plan.micro_batch_size if whole else share


def most_waiting(plan: Plan, facts: ModelFacts, index: int) -> int:
    """Most micro-batches that wait between this stage and any it exchanges tensors with."""
    stage_of_block = [i for i, stage in enumerate(plan.stages) for _ in range(*stage.blocks)]
    pairs = {
        (stage_of_block[crossing.producer], stage_of_block[consumer])
        for crossing in facts.crossings
        for consumer in crossing.consumers
    }
    return max((backlog(plan, a, b) for a, b in pairs if a != b and index in (a, b)), default=2)


def _tied(facts: ModelFacts, blocks: tuple[int, int]) -> tuple[list[Block], list[Block]]:
    """Owner blocks of tied weights: elsewhere but used in these blocks, and among these but used elsewhere."""
    start, stop = blocks
    borrowed, lent = set(), set()
    for _, users in facts.tied:
        owner, inside = users[0], [start <= user < stop for user in users]
        if any(inside) and not inside[0]:
            borrowed.add(owner)
        elif inside[0] and not all(inside):
            lent.add(owner)
    return [facts.blocks[i] for i in sorted(borrowed)], [facts.blocks[i] for i in sorted(lent)]


def _stash_bytes(facts: ModelFacts, blocks: tuple[int, int]) -> int:
    """Bytes per row that these blocks make for a backward pass; before the first that trains, there is none."""
    back = {block for c in facts.crossings if c.gradient for block in (c.producer, *c.consumers)}
    return sum(b.stash_bytes for b in facts.blocks[slice(*blocks)] if b.trainable_bytes or b.index in back)


def _crossing_bytes(facts: ModelFacts, blocks: tuple[int, int]) -> int:
    """Bytes per row that enter and leave these blocks, forward and backward.

    As tensors, whatever codec they travel in: before they are sent and once they are received, they lie here so.
    """
    start, stop = blocks
    total = 0
    for crossing in facts.crossings:
        enters = crossing.producer < start and any(start <= c < stop for c in crossing.consumers)
        leaves = start <= crossing.producer < stop and any(c >= stop for c in crossing.consumers)
        if enters or leaves:
            total += crossing.sample_bytes * (2 if crossing.gradient else 1)
    return total + sum(f.sample_bytes for f in facts.feeds if any(start <= c < stop for c in f.consumers))
