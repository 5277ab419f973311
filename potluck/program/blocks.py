"""Where a program can be cut: a pure function of the program, never of the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from potluck.program.carve import Carver, Piece
from potluck.program.operators import VIEWS, base_name
from potluck.program.program import Program, ProgramPair, Tensor, inputs_of, shape_of
from potluck.types import ITEM_BYTES, Block, Crossing, Feed, ModelFacts

Use = tuple[str, int]  # a parameter or buffer, and which use of it


def value_bytes(tensor: Tensor, rows: int) -> int:
    """Bytes of a value when the batch has that many rows."""
    count = 1
    for size in shape_of(tensor, rows):
        count *= size
    return count * ITEM_BYTES.get(tensor.dtype, 8)


def sample_bytes(tensor: Tensor) -> int:
    return value_bytes(tensor, 3) - value_bytes(tensor, 2)


def with_boundaries(train: Program, evaluation: Program, hand_cut: bool) -> tuple[Program, Program]:
    """Both programs with their blocks: cut at the same places, each block with parameters of its own."""
    train_cut, eval_cut = _Cutter(train), _Cutter(evaluation)
    pairs: list[tuple[int, int]] = []
    if hand_cut:
        twins = eval_cut.between_modules()
        pairs = [(p, twins[m]) for m, p in train_cut.between_modules().items() if m in twins]
    else:
        train_uses, eval_uses = _matching_uses(train_cut.uses, eval_cut.uses)
        for position in train_cut.choose():
            sides = _sides(train_uses, position)
            twin = eval_cut.twin(eval_uses, *sides, after=pairs[-1][1] if pairs else 0)
            if twin is not None:
                pairs.append((position, twin))
    return (
        msgspec.structs.replace(train, boundaries=tuple(a for a, _ in pairs)),
        msgspec.structs.replace(evaluation, boundaries=tuple(b for _, b in pairs)),
    )


class _Cutter:
    """What it would mean to cut one program at each node position."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.carver = Carver(program)
        self.length = len(program.nodes)
        own = {s.id: s.name for s in program.sources if s.kind in ("parameter", "buffer")}
        self.uses = [{own[v] for v in inputs_of(n) if v in own} for n in program.nodes]
        for update, home in zip(program.updates, self.carver.homes, strict=True):
            self.uses[home].add(update.buffer)
        self.counts = [0] * (self.length + 1)
        self.weights = [0] * (self.length + 1)
        self.valid = [True] * (self.length + 1)
        for value, (maker, last) in self.carver.spans.items():
            tensor = program.values[value]
            for position in range(maker + 1, last + 1):
                self.counts[position] += 1
                self.weights[position] += sample_bytes(tensor)
                self.valid[position] &= tensor.batch_axis is not None
        for name in {s.name for s in program.sources if s.updated} | {u.buffer for u in program.updates}:
            users = [i for i, names in enumerate(self.uses) if name in names]
            for position in range(min(users, default=0) + 1, max(users, default=0) + 1):
                self.valid[position] = False  # a buffer that changes has one holder

    def choose(self) -> list[int]:
        """Block beginnings: between any two uses of parameters the cheapest cut, fewest tensors first."""
        users = [i for i, names in enumerate(self.uses) if names]
        candidates = self._thin(users[0], users[-1] + 1, max(8, self.length // 16), whole=True) if users else set()
        chosen = []
        for left, right in pairwise(users):
            between = [p for p in range(left + 1, right + 1) if p in candidates]
            if between:
                chosen.append(min(between, key=self._cost))
        return chosen

    def _cost(self, position: int) -> tuple[int, int, int]:
        return self.counts[position], self.weights[position], -position

    def _thin(self, low: int, high: int, enough: int, whole: bool = False) -> set[int]:
        """Cuts with the fewest crossing tensors; stretches that offer none so thin are searched on their own."""
        inside = [p for p in range(low + 1, high) if self.valid[p]]
        if not inside or (high - low <= enough and not whole):
            return set()
        fewest = min(self.counts[p] for p in inside)
        found = {p for p in inside if self.counts[p] == fewest}
        for left, right in pairwise([low, *sorted(found), high]):
            if right - left < high - low:
                found |= self._thin(left, right, enough)
        return found

    def between_modules(self) -> dict[str, int]:
        """Block beginnings of a hand-cut model, by the module that begins there: only between those given."""
        tops = [n.module.split(".")[0] for n in self.program.nodes]
        begins: dict[str, int] = {}
        for i in range(1, self.length):
            if tops[i] != tops[i - 1] and tops[i].isdigit() and tops[i] not in tops[:i] and self.valid[i]:
                begins[tops[i]] = i
        return begins

    def twin(self, uses: Sequence[set[Use]], before: set[Use], later: set[Use], after: int) -> int | None:
        """The position that parts the same uses in this program, or None."""
        low = max((i for i, used in enumerate(uses) if used & before), default=-1)
        high = min((i for i, used in enumerate(uses) if used & later), default=self.length - 1)
        between = [p for p in range(max(low, after, 0) + 1, high + 1) if self.valid[p]]
        return min(between, key=self._cost) if between else None


def _matching_uses(*programs: Sequence[set[str]]) -> list[list[set[Use]]]:
    """Per node the names it uses, each with which use of the name it is; −1 where programs use it unequally often."""
    totals = [Counter(name for used in uses for name in used) for uses in programs]
    equal = {name for name in totals[0] if all(t[name] == totals[0][name] for t in totals)}
    matched = []
    for uses in programs:
        seen: Counter[str] = Counter()
        numbered = []
        for used in uses:
            numbered.append({(name, seen[name] if name in equal else -1) for name in used})
            seen.update(used)
        matched.append(numbered)
    return matched


def _sides(uses: Sequence[set[Use]], position: int) -> tuple[set[Use], set[Use]]:
    """Uses found only before a position, and those found only from it on."""
    before = set().union(*uses[:position])
    after = set().union(*uses[position:])
    return before - after, after - before


def facts(pair: ProgramPair, optimizer_slots: int) -> ModelFacts:
    """What planning needs to know of the programs."""
    pieces, evals = _pieces(pair.train), _pieces(pair.eval)
    users: dict[str, list[int]] = {}  # owner first; a parameter only evaluation uses has an owner too
    for held in (pieces, evals):
        for i, piece in enumerate(held):
            for name in piece.parameters:
                if i not in users.setdefault(name, []):
                    users[name].append(i)
    owners = {name: blocks[0] for name, blocks in users.items()}
    sources = {
        s.name: (s.trainable, value_bytes(p.values[s.id], 1)) for p in (pair.eval, pair.train) for s in p.sources
    }
    blocks = []
    for i in range(pair.train.block_count):
        own = [name for name, owner in owners.items() if owner == i]
        blocks.append(_block(pair.train, pieces[i], i, {n: sources[n] for n in own}))
    return ModelFacts(
        digest=pair.digest(),
        blocks=tuple(blocks),
        crossings=crossings(pair.train, pieces),
        feeds=_feeds(pair.train, pieces),
        tied=tuple((n, tuple(b)) for n, b in users.items() if len(b) > 1),
        optimizer_slots=optimizer_slots,
    )


def _pieces(program: Program) -> list[Piece]:
    carver = Carver(program)
    return [carver.piece(*program.block_range(i, i + 1)) for i in range(program.block_count)]


def _block(program: Program, piece: Piece, index: int, own: Mapping[str, tuple[bool, int]]) -> Block:
    buffers = [s for s in program.sources if s.kind == "buffer" and s.name in piece.buffers]
    nodes = [program.nodes[i] for i in piece.nodes]
    made = [o for n in nodes if base_name(n.op) not in VIEWS for o in n.outputs if o >= 0]
    start, stop = program.block_range(index, index + 1)
    last = stop == len(program.nodes)
    return Block(
        index=index,
        label=_span_label([n.module for n in program.nodes[start:stop] if n.module]),
        parameters=tuple(own),
        weight_bytes=sum(size for _, size in own.values()),
        trainable_bytes=sum(size for trainable, size in own.values() if trainable),
        buffer_bytes=sum(value_bytes(program.values[s.id], 1) for s in buffers),
        stash_bytes=sum(sample_bytes(program.values[o]) for o in made),
        coupled=bool(set(piece.nodes) & set(program.coupled)) or (last and not program.separable_loss),
        exclusive=any(program.updates[u].kind == "value" for u in piece.updates),
    )


def _span_label(labels: Sequence[str]) -> str:
    if not labels:
        return "model"
    return labels[0] if labels[0] == labels[-1] else f"{labels[0]} … {labels[-1]}"


def crossings(program: Program, pieces: Sequence[Piece]) -> tuple[Crossing, ...]:
    """What goes from piece to piece, be they blocks or the stages of a plan."""
    producers = {v: i for i, p in enumerate(pieces) for v in p.sends}
    return tuple(
        Crossing(
            value=value,
            producer=producer,
            consumers=tuple(i for i, p in enumerate(pieces) if value in p.receives),
            sample_bytes=sample_bytes(program.values[value]),
            gradient=program.values[value].requires_grad,
            dtype=program.values[value].dtype,
            shape=_growing(program.values[value]),
        )
        for value, producer in sorted(producers.items())
    )


def _growing(tensor: Tensor) -> tuple[tuple[int, int], ...]:
    """Of each axis, places that are always there and places per sample."""
    few, more = shape_of(tensor, 2), shape_of(tensor, 3)
    return tuple((a - 2 * (b - a), b - a) for a, b in zip(few, more, strict=True))


def _feeds(program: Program, pieces: Sequence[Piece]) -> tuple[Feed, ...]:
    return tuple(
        Feed(
            name=source.name,
            consumers=tuple(i for i, p in enumerate(pieces) if source.id in p.feeds),
            sample_bytes=sample_bytes(program.values[source.id]),
        )
        for source in program.sources
        if source.kind == "input"
    )
