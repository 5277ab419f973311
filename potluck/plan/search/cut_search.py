"""Where to cut, for a given sequence of groups: a dynamic programme over all cuts at once that guides the search.

It minimises what a round nearly takes: the passage of one micro-batch through all stages, plus (M − 1) times the
slowest stage or link. That is so for every schedule that flushes: one micro-batch has to pass through everything, and
the others through the slowest. How well a schedule hides the rest, the cost model knows.

For a fixed limit on the slowest the rest is additive, so the programme is run for a ladder of limits, all in the same
arrays. Shares are taken as divisible here; the cost model settles them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potluck.plan.cost.round_time import CostModel
from potluck.plan.cost.summing import Summing, summing_s
from potluck.plan.cost.tables import Array, DeviceTables
from potluck.wire.link import DEFAULT_WINDOW_BYTES

LIMITS = 14  # rungs of the ladder
_NEAR = np.array([0.85, 0.93, 1.0, 1.1])
_NEVER = np.inf
_LEAST_ROWS = 2  # of a member that has some rows of every micro-batch


@dataclass(frozen=True)
class Spans:
    """A group on every run of blocks [i, j): arrays of shape (blocks + 1, blocks + 1), infinite where it cannot be."""

    forward_s: Array  # latency of a micro-batch
    step_s: Array  # forward and backward
    busy_s: Array  # of the whole group, for a micro-batch
    reduce_s: Array
    fixed_bytes: Array  # of its tightest member, less its memory
    kept_bytes: Array


@dataclass(frozen=True)
class Guess:
    """Cuts, and about what a round takes with them."""

    seconds: float
    slowest_s: float  # the limit they were found under
    cuts: tuple[int, ...]  # where each stage ends


class Guide:
    """Cuts for group sequences of one cost model; groups are remembered."""

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self.blocks = len(cost.facts.blocks)
        self._known: dict[frozenset[str], Spans] = {}
        self._size = _differences(_prefix([b.trainable_bytes for b in cost.facts.blocks]))
        held = [b.weight_bytes + (1 + cost.facts.optimizer_slots) * b.trainable_bytes + 2 * b.buffer_bytes
                for b in cost.facts.blocks]  # fmt: skip
        self._held = _differences(_prefix(held))
        self._out = np.array([float(c[0]) for c in cost.stations.cuts]) * cost.rows
        self._back = np.array([float(c[1]) for c in cost.stations.cuts]) * cost.rows
        edge = self._out + self._back
        self._at_edges = edge[:, None] + edge[None, :]
        self._buffers = _differences(_prefix([2.0 * b.buffer_bytes for b in cost.facts.blocks]))
        self._fed = np.array(
            [
                [float(cost.rows * cost.stations.edges.fed((i, j))) for j in range(self.blocks + 1)]
                for i in range(self.blocks + 1)
            ]
        )
        exclusive = _prefix([float(b.exclusive) for b in cost.facts.blocks])
        self._shareable = _differences(exclusive) == 0
        whole = _prefix([float(b.coupled) for b in cost.facts.blocks])
        self._cuttable = self._shareable & (_differences(whole) == 0)
        self._possible = np.tri(self.blocks + 1, k=-1, dtype=bool).T

    def guesses(
        self,
        groups: Sequence[tuple[str, ...]],
        near_s: float | None = None,
        *,
        recompute: bool = False,
        margin: float = 0.0,
    ) -> list[Guess]:
        """The best cuts for each limit (all of them, or a few near one), best first, without repetition.

        Members of a group are taken to share what is in flight, which is kind to them (the cost model is strict), and
        with `recompute` a stage keeps one micro-batch. `margin` asks for more room than the depths need.
        """
        m, spans = self.cost.micro_batches, [self.spans(g) for g in groups]
        wires = [self._wires(a, b) for a, b in itertools.pairwise(groups)]
        limits = self._ladder(spans, wires) if near_s is None else near_s * _NEAR
        passage = np.full((len(limits), self.blocks + 1), _NEVER)
        passage[:, self.blocks] = 0.0
        total, chosen = passage.copy(), []
        for p in reversed(range(len(groups))):
            held = 1.0 if recompute else self.cost.schedule.in_flight(len(groups) - p, m) / len(groups[p])
            passage, total, choice = self._stage(p, margin + held, spans[p], wires, limits, passage, total)
            chosen.append(choice)
        chosen.reverse()
        found: dict[tuple[int, ...], Guess] = {}
        for rung in range(len(limits)):
            if np.isfinite(total[rung, 0]):
                cuts = self._follow(chosen, rung)
                slowest = self._slowest(cuts, spans, wires)
                guess = Guess(float(total[rung, 0] + (m - 1) * slowest), slowest, cuts)
                if cuts not in found or found[cuts].seconds > guess.seconds:
                    found[cuts] = guess
        return sorted(found.values(), key=lambda g: g.seconds)

    def _follow(self, chosen: Sequence[Array], rung: int) -> tuple[int, ...]:
        """Where each stage ends, from the first to the last."""
        cuts, start = [], 0
        for choice in chosen:
            start = int(choice[rung, start])
            cuts.append(start)
        return tuple(cuts)

    def _slowest(
        self, cuts: Sequence[int], spans: Sequence[Spans], wires: Sequence[tuple[Array, Array, Array]]
    ) -> float:
        """Seconds of the slowest stage or link for a micro-batch."""
        stages = [float(s.busy_s[start, stop]) for s, start, stop in zip(spans, (0, *cuts), cuts, strict=False)]
        return max([*stages, *(float(load[cut]) for (_, _, load), cut in zip(wires, cuts, strict=False))])

    def _stage(
        self, p: int, flying: float, spans: Spans, wires: list[tuple[Array, Array, Array]],
        limits: Array, passage: Array, total: Array,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """One stage more in front: for each limit and first block, passage, total with sums, and where it ends."""
        fits = spans.fixed_bytes + flying * spans.kept_bytes <= 0
        step = np.where(fits & self._possible, spans.step_s, _NEVER)
        ahead = spans.forward_s
        busy = spans.busy_s
        if p < len(wires):
            out_s, back_s, load = wires[p]
            step = step + (out_s + back_s)[None, :]
            ahead = ahead + out_s[None, :]
            busy = np.maximum(busy, load[None, :])
        step = np.where(busy[None] <= limits[:, None, None], step[None], _NEVER)
        through = step + passage[:, None, :]
        ends = np.maximum(through + spans.reduce_s[None], ahead[None] + total[:, None, :])
        choice = ends.argmin(axis=2)
        places = np.ogrid[: len(limits), : self.blocks + 1]
        return through[places[0], places[1], choice], ends[places[0], places[1], choice], choice

    def _ladder(self, spans: Sequence[Spans], wires: Sequence[tuple[Array, Array, Array]]) -> Array:
        """Limits from what nobody can beat (all groups busy all the time) to a slow, sure one."""
        alone = [float(s.busy_s.diagonal(1).sum()) for s in spans]
        rate = sum(1.0 / max(seconds, 1e-12) for seconds in alone if np.isfinite(seconds))
        least = max([1.0 / rate if rate else 1e-12, 1e-12, *(float(load.min()) for _, _, load in wires)])
        ladder = least * np.geomspace(1.0, max(3.0, 1.5 * len(spans)), LIMITS - 1)
        return np.append(ladder, least * 1e6)

    def _wires(self, a: tuple[str, ...], b: tuple[str, ...]) -> tuple[Array, Array, Array]:
        """For a cut before each block: seconds forward, seconds back, and how long a line is busy for a micro-batch."""
        tables = self.cost.tables
        pairs = [(x, y) for x in a for y in b]
        out_s = self._out * (sum(tables.transfer_s(x, y, 1.0) for x, y in pairs) / len(pairs))
        back_s = self._back * (sum(tables.transfer_s(y, x, 1.0) for x, y in pairs) / len(pairs))
        late = max(tables.latency_s(x, y) for x, y in pairs)
        both = self.cost.profile.medium == "full"
        there, back = self._lines(pairs), self._lines([(y, x) for x, y in pairs])
        load = np.maximum(out_s / there, back_s / back) if both else out_s + back_s
        return out_s + late, back_s + late, load

    def _lines(self, ways: Sequence[tuple[str, str]]) -> int:
        """How many lines carry what goes these ways at the same time: each sender's own, or those that they share."""
        tables, senders = self.cost.tables, {source for source, _ in ways}
        if not tables.has_trunks:
            return len(senders)
        return min(len(senders), len({tables.trunk(*way) or way[0] for way in ways}))

    def spans(self, group: tuple[str, ...]) -> Spans:
        """The group on every run of blocks."""
        key = frozenset(group)
        if key not in self._known:
            self._known[key] = self._spans(group)
        return self._known[key]

    def _spans(self, group: tuple[str, ...]) -> Spans:
        members = [self.cost.tables.devices[d] for d in group]
        if len(members) == 1:
            return self._alone(members[0])
        if len(members) > self.most_members():
            return _impossible(self.blocks)
        alone = [self.spans((d,)) for d in group]
        by_samples = self._by_samples(members, alone)
        if len(members) > self.cost.micro_batches:
            return by_samples
        return self._sooner(self._by_turns(members, alone), by_samples)

    def _sooner(self, turns: Spans, samples: Spans) -> Spans:
        """Whichever lets a round end sooner, for each run of blocks."""
        rest = self.cost.micro_batches - 1
        better = samples.step_s + rest * samples.busy_s < turns.step_s + rest * turns.busy_s
        return Spans(
            *(
                np.where(better, getattr(samples, field.name), getattr(turns, field.name))
                for field in dataclasses.fields(Spans)
            )
        )

    def _by_turns(self, members: Sequence[DeviceTables], alone: Sequence[Spans]) -> Spans:
        """Each has some of the micro-batches."""
        steps = np.array([s.step_s for s in alone])
        with np.errstate(divide="ignore", invalid="ignore"):
            busy = 1.0 / (1.0 / np.maximum(steps, 1e-12)).sum(axis=0)
            weight = (1.0 / np.maximum(steps, 1e-12)) * busy
            whole = np.maximum(np.round(weight * self.cost.micro_batches), 1.0)
            busy = np.maximum(
                busy, (whole * steps).max(axis=0) / np.maximum(whole.sum(axis=0), self.cost.micro_batches)
            )
        forward = np.array([s.forward_s for s in alone])
        tight = np.array([s.fixed_bytes for s in alone])
        return Spans(
            forward_s=(weight * forward).sum(axis=0),
            step_s=np.where(self._shareable, (weight * steps).sum(axis=0), _NEVER),
            busy_s=np.where(self._shareable, busy, _NEVER),
            reduce_s=self._reduce(members),
            fixed_bytes=tight.max(axis=0) + self._size,
            kept_bytes=np.array([s.kept_bytes for s in alone]).max(axis=0),
        )

    def most_members(self) -> int:
        """How many may share a stage, by turns or by samples: one turn or two rows each."""
        return max(self.cost.micro_batches, self.cost.rows // _LEAST_ROWS if self._cuttable.diagonal(1).any() else 0)

    def _by_samples(self, members: Sequence[DeviceTables], alone: Sequence[Spans]) -> Spans:
        """Each has some rows of every micro-batch, so many that all take equally long."""
        if self.cost.rows < _LEAST_ROWS * len(members):
            return _impossible(self.blocks)
        forward, step = self._level([self._line(m, s) for m, s in zip(members, self._rough(members), strict=True)])
        together = np.where(self._cuttable, step, _NEVER)
        return Spans(
            forward_s=forward,
            step_s=together,
            busy_s=together,
            reduce_s=self._reduce(members),
            fixed_bytes=np.array([s.fixed_bytes for s in alone]).max(axis=0) + self._size,
            kept_bytes=np.array([s.kept_bytes for s in alone]).max(axis=0),
        )

    def _rough(self, members: Sequence[DeviceTables]) -> list[float]:
        """About how many rows each would have of the whole model."""
        rates = [1.0 / max(m.step_s((0, self.blocks), self.cost.rows), 1e-12) for m in members]
        return [self.cost.rows * rate / sum(rates) for rate in rates]

    def _line(self, member: DeviceTables, rows: float) -> tuple[Array, Array, Array, Array]:
        """Seconds of a member on every run of blocks as a line over its rows, near so many: fixed and for each row, of
        a step; and of the forward pass alone."""
        low = max(_LEAST_ROWS, int(rows / 2))
        high = max(low + 1, min(self.cost.rows, int(rows * 1.5)))
        lines = []
        for of in (member.forward, lambda r: member.forward(r) + member.backward(r)):
            first, second = of(low), of(high)
            slope = np.maximum(second - first, 1e-12) / (high - low)
            lines += [_differences(first - slope * low), np.maximum(_differences(slope), 1e-15)]
        profile = member.profile
        copied = self._at_edges / self.cost.rows / profile.copy_bytes_s if profile.copy_bytes_s else 0.0
        return lines[2] + 2 * profile.message_s, lines[3] + copied, lines[0] + profile.message_s, lines[1]

    def _level(self, lines: Sequence[tuple[Array, Array, Array, Array]]) -> tuple[Array, Array]:
        """Seconds of forward pass and step where all members end together, or as the slowest with the least rows."""
        fixed, each = np.array([x[0] for x in lines]), np.array([x[1] for x in lines])
        step = (self.cost.rows + (fixed / each).sum(axis=0)) / (1.0 / each).sum(axis=0)
        step = np.maximum(step, (fixed + _LEAST_ROWS * each).max(axis=0))
        rows = np.clip((step - fixed) / each, _LEAST_ROWS, self.cost.rows)
        forward = np.array([x[2] for x in lines]) + rows * np.array([x[3] for x in lines])
        return forward.max(axis=0), step

    def _alone(self, member: DeviceTables) -> Spans:
        rows, profile = self.cost.rows, member.profile
        copied = rows * self._at_edges / rows / profile.copy_bytes_s if profile.copy_bytes_s else 0.0
        forward = _differences(member.forward(rows)) + profile.message_s
        step = forward + _differences(member.backward(rows)) + profile.message_s + copied
        kept = _differences(member.kept(rows))
        if member.memory_bytes:
            working = _highest(np.array([float(member.working_bytes((i, i + 1), rows)) for i in range(self.blocks)]))
            places = np.arange(self.blocks + 1)
            counts = np.maximum(1, places[None, :] - places[:, None])
            each = _prefix([block.resident for block in profile.blocks])
            takes = np.where(self._possible, _differences(each) / counts, 1.0)
            held = self._held + working + 2 * (self._at_edges + self._fed)
            copied = np.minimum(self._held - self._buffers - self._size, DEFAULT_WINDOW_BYTES)
            between_rounds = held + np.maximum(0.0, copied - self._size - working)
            room = member.memory_bytes - profile.code_bytes
            fixed = np.where(takes * between_rounds > room, np.inf, takes * held - room)
            kept = takes * kept
        else:
            fixed = np.full_like(step, -np.inf)
        return Spans(forward, step, step, np.zeros_like(step), fixed, kept)

    def _reduce(self, members: Sequence[DeviceTables]) -> Array:
        """As the cost model: parts go to whoever adds them up, sums come back."""
        group = self.cost.stations.crew([m.name for m in members])
        found = []
        for hidden in (0.5, 0.0):  # in the first stage, about half of what lines carry is hidden by the backward pass
            nothing, one = (_both_s(summing_s(self.cost.tables, group, size), hidden) for size in (0.0, 1e6))
            found.append(nothing + self._size * (one - nothing) / 1e6)
        return np.concatenate([found[0][:1], found[1][1:]])


def _both_s(members: Sequence[Summing], hidden: float) -> float:
    """Seconds of the slowest member, with a part of what its lines carry hidden."""
    return max(2 * m.handling_s + (1 - hidden) * m.lines_s + 2 * m.latency_s for m in members)


def _impossible(blocks: int) -> Spans:
    never = np.full((blocks + 1, blocks + 1), _NEVER)
    return Spans(never, never, never, never, never, never)


def _highest(values: Array) -> Array:
    """[i, j] → the highest of [i, j), 0 of nothing."""
    found = np.zeros((len(values) + 1, len(values) + 1))
    for i in range(len(values)):
        found[i, i + 1 :] = np.maximum.accumulate(values[i:])
    return found


def _prefix(values: Sequence[float]) -> Array:
    return np.concatenate([[0.0], np.cumsum(values)])


def _differences(sums: Array) -> Array:
    """[i, j] → the sum over [i, j)."""
    return sums[None, :] - sums[:, None]
